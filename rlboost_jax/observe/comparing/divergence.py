"""Where two runs diverge, and what differs between them there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlboost_jax.observe.comparing.compared_run import ComparedRun
from rlboost_jax.settings.changes import differences, settings_at
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.setting import settings_of


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """A run compared with the first one.

    Attributes:
        common: steps that both have done, with the digest of the parameters after them.
        parts_at: the first common step whose digests differ; None: all are equal.
        samples_differ: whether the samples of that step differ already.
        reaching: differences in that step (or the last common one) that can change an update:
            settings, engine, release, processor; a line each.
        harmless: settings that differ and cannot change an update.
    """

    common: Sequence[int]
    parts_at: int | None
    samples_differ: bool
    reaching: Sequence[str]
    harmless: Sequence[str]

    @property
    def equal(self) -> bool:
        """Whether there is something to compare, and all of it is equal."""
        return bool(self.common) and self.parts_at is None


def divergence_of(first: ComparedRun, other: ComparedRun) -> Divergence:
    common = [
        step
        for step in first.steps
        if step in other.steps and digest(first, step) and digest(other, step)
    ]
    parts_at = next((s for s in common if _differ(first, other, s)), None)
    at = parts_at if parts_at is not None else (common[-1] if common else 0)
    reaching, harmless = _settings(first, other, at)
    return Divergence(
        common=common,
        parts_at=parts_at,
        samples_differ=parts_at is not None
        and _differ(first, other, parts_at, "trajectories_digest"),
        reaching=[*reaching, *_surroundings(first, other, at)],
        harmless=harmless,
    )


def digest(run: ComparedRun, step: int, key: str = "params_digest") -> str:
    """Digest of a run after a step; "" if there is none."""
    row = run.steps.get(step)
    return (row[key] or "") if row is not None else ""


def sentence(first: ComparedRun, others: Sequence[ComparedRun]) -> str:
    """The comparison in a sentence or two."""
    divergences = [divergence_of(first, other) for other in others]
    if all(each.equal for each in divergences):
        common = set(divergences[0].common).intersection(*(each.common for each in divergences))
        whole = all(len(run.steps) == len(common) for run in (first, *others))
        steps = f"each of the {len(common)} steps" + ("" if whole else " that all have done")
        *lost, last = (str(run.summary.instances_lost) for run in (first, *others))
        servers = f"servers lost: {', '.join(lost)} and {last}."
        return f"Equal weights, bit for bit, after {steps}; {servers}"
    return " ".join(
        _said(first, other, divergence)
        for other, divergence in zip(others, divergences, strict=True)
    )


def _said(first: ComparedRun, other: ComparedRun, divergence: Divergence) -> str:
    if not divergence.common:
        return f"No step of {other.name} can be compared with one of {first.name}."
    if divergence.parts_at is None:
        return f"{other.name} has the weights of {first.name} after each common step."
    if divergence.parts_at == divergence.common[0]:
        where = f"in step {divergence.parts_at}, the first that both have done"
    else:
        where = f"from step {divergence.parts_at} on"
    why = "what was sampled" if divergence.samples_differ else "samples are equal, and the update"
    return f"{other.name} differs from {first.name} {where}: there {why} differs."


def _differ(first: ComparedRun, other: ComparedRun, step: int, key: str = "params_digest") -> bool:
    return digest(first, step, key) != digest(other, step, key)


def _settings(first: ComparedRun, other: ComparedRun, step: int) -> tuple[list[str], list[str]]:
    """Lines about settings that differ in a step: those that can change updates, and all others."""
    records = [settings_at(run.config, run.changes, step) for run in (first, other)]
    effects = {each.name: each.may_change for each in settings_of(RunConfig)}
    reaching: list[str] = []
    harmless: list[str] = []
    for each in differences(*records):
        at_once = effects.get(each.name) == "at once" or each.name == "num_steps"
        (harmless if at_once else reaching).append(str(each))
    return reaching, harmless


def _surroundings(first: ComparedRun, other: ComparedRun, step: int) -> Iterator[str]:
    for what in dict.fromkeys((*first.hosts, *other.hosts)):
        one, two = (run.on(what, step) or "not known" for run in (first, other))
        if one != two:
            yield f"{what}: {one} → {two}"
    for what in dict.fromkeys((*first.contents, *other.contents)):
        one, two = (run.contents.get(what, "none")[:12] for run in (first, other))
        if one != two:
            yield f"{what}: {one} → {two}"

"""A comparison as text: a sentence, a table of facts, digests, and what differs."""

from collections.abc import Iterator, Sequence
from typing import Final

from rlboost_jax.observe.comparing.compared_run import HOSTS, ComparedRun
from rlboost_jax.observe.comparing.divergence import digest, divergence_of, sentence
from rlboost_jax.observe.summary import duration

SHOWN_DIGITS: Final = 12  # of a digest
AROUND: Final = 2  # steps before and after the first difference that are shown
WIDEST: Final = 28  # letters of a cell


def text_lines(runs: Sequence[ComparedRun], *, every_step: bool = False) -> Iterator[str]:
    """Yield the lines of a comparison for a terminal.

    Args:
        every_step: show the digest of each step; else of the first and last steps, and of those
            around a difference.
    """
    first, *others = runs
    yield sentence(first, others)
    yield ""
    yield from _table([("", [run.name for run in runs]), *facts(runs)])
    yield ""
    yield from _table(
        [("weights after", [run.name for run in runs]), *_digests(runs, every_step=every_step)]
    )
    for heading, lines in differing(runs):
        yield ""
        yield f"{heading}:"
        yield from (f"  {line}" for line in lines)
    for run in runs:
        yield from run.remarks


def facts(runs: Sequence[ComparedRun]) -> list[tuple[str, list[str]]]:
    """Rows of the table of facts: a name, and a text for each run."""
    found = [(name, [of(run) for run in runs]) for name, of in _FACTS.items()]
    for *_, what in HOSTS:
        found.append((what, [run.on(what, max(run.steps, default=0)) or "–" for run in runs]))
    return [(name, cells) for name, cells in found if any(cell != "–" for cell in cells)]


def differing(runs: Sequence[ComparedRun]) -> Iterator[tuple[str, Sequence[str]]]:
    """What differs between a run and the first: headings, with lines below each."""
    first, *others = runs
    for other in others:
        found = divergence_of(first, other)
        at = "" if found.parts_at is None else f" in step {found.parts_at}"
        of = f"{first.name} → {other.name}"
        if found.reaching:
            yield f"{of}, what bits may depend on{at}", found.reaching
        elif found.parts_at is not None:
            yield (
                f"{of}{at}",
                ["no setting, engine, release or processor differs that is known: please report"],
            )
        if found.harmless:
            yield f"{of}, settings that reach no update", found.harmless
    for run in runs:
        if run.history:
            yield f"{run.name} on its way", run.history


def marks(runs: Sequence[ComparedRun], step: int) -> list[bool | None]:
    """Whether each run's weights after a step are those of the first run; None: not known."""
    own = digest(runs[0], step)
    found = (digest(run, step) for run in runs)
    return [None if not (own and theirs) else theirs == own for theirs in found]


def all_steps(runs: Sequence[ComparedRun]) -> list[int]:
    """Steps that any of the runs has done, in order."""
    return sorted({step for run in runs for step in run.steps})


def _digests(runs: Sequence[ComparedRun], *, every_step: bool) -> Iterator[tuple[str, list[str]]]:
    steps = all_steps(runs)
    parts = [v.parts_at for v in (divergence_of(runs[0], o) for o in runs[1:])]
    near = {p + by for p in parts if p is not None for by in range(-AROUND, AROUND + 1)}
    kept = {*steps[:AROUND], *steps[-AROUND:], *near}
    skipped: list[int] = []
    for step in steps:
        if not every_step and step not in kept:
            skipped.append(step)
            continue
        yield from _gap(runs, skipped)
        skipped = []
        yield _digests_after(runs, step)
    yield from _gap(runs, skipped)


def _digests_after(runs: Sequence[ComparedRun], step: int) -> tuple[str, list[str]]:
    signs = {None: "", True: "", False: "  differs"}
    return f"step {step}", [
        (digest(run, step)[:SHOWN_DIGITS] or "–") + signs[mark]
        for run, mark in zip(runs, marks(runs, step), strict=True)
    ]


def _gap(runs: Sequence[ComparedRun], steps: Sequence[int]) -> Iterator[tuple[str, list[str]]]:
    """One line in place of steps that are not shown; a single step is shown."""
    if len(steps) < 2:
        yield from (_digests_after(runs, step) for step in steps)
        return
    cells = ["…"]
    for place in range(1, len(runs)):
        found = [marks(runs, step)[place] for step in steps]
        equal, known = found.count(True), len(found) - found.count(None)
        cells.append(f"… {equal} of {known} equal" if known else "…")
    yield f"steps {steps[0]} to {steps[-1]}", cells


def _table(rows: Sequence[tuple[str, list[str]]]) -> Iterator[str]:
    names = max(len(name) for name, _ in rows)
    widths = [
        min(WIDEST, max(len(cells[place]) for _, cells in rows)) for place in range(len(rows[0][1]))
    ]
    for name, cells in rows:
        padded = (f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
        yield "  ".join((f"{name:<{names}}", *padded)).rstrip()


def _steps(run: ComparedRun) -> str:
    if not run.steps:
        return "none yet"
    first, last = min(run.steps), max(run.steps)
    ahead = run.config.num_steps - 1 - last
    more = f", {ahead} to do" if ahead > 0 else ""
    return f"{len(run.steps)} ({first} to {last}{more})"


def _between(first: float | None, last: float | None) -> str:
    return "–" if first is None or last is None else f"{first:.3f} → {last:.3f}"


def _lost(run: ComparedRun) -> str:
    left = run.summary.instances_left
    return f"{run.summary.instances_lost}" + (f" ({left} with notice)" if left else "")


def _loss(run: ComparedRun) -> str:
    losses = [row["loss"] for row in run.steps.values() if row["loss"] is not None]
    return f"{losses[0]:.3g} → {losses[-1]:.3g}" if losses else "–"


def _cost(run: ComparedRun) -> str:
    dollars = run.summary.cost_dollars
    return f"${dollars:.4f}" if dollars else "nothing"


def _tokens(run: ComparedRun) -> str:
    return f"{run.summary.tokens_lost:,} of {run.summary.tokens_generated:,}"


_FACTS: Final = {
    "steps": _steps,
    "final weights": lambda run: run.summary.params_digest[:SHOWN_DIGITS] or "–",
    "held-out accuracy": lambda run: _between(
        run.summary.first_accuracy, run.summary.last_accuracy
    ),
    "reward": lambda run: _between(run.summary.first_reward, run.summary.last_reward),
    "loss": _loss,
    "servers joined": lambda run: str(run.summary.instances_joined),
    "servers lost": _lost,
    "requests migrated": lambda run: f"{run.summary.requests_migrated:,}",
    "tokens lost": _tokens,
    "time of all steps": lambda run: duration(run.summary.seconds),
    "cost": _cost,
}

"""Signs in a run's rows that it learns nothing, or that its checkpoints fall behind.

Each is a line that says where to look. A pure function of the rows: the console shows a line at the
step that completes it, the report those of the whole run.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rlboost_jax.settings.run_config import RunConfig

STEPS: Final = 3  # in a row, before anything is said
ALL: Final = 0.999  # of the responses
COLLAPSED: Final = 0.01  # of the entropy that the run began with: it then always says the same

FELL: Final = 0.1  # of what the first reward function gave at first

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Beginning:
    """Means of a run's first steps; None: not known."""

    entropy: float | None  # nats per token
    first_reward: float | None  # what the first of several reward functions gave


class Diagnostics:
    """Reports each sign once, however long it lasts and however often the run is started.

    Args:
        rows: of the steps before, whose signs were shown then.
    """

    def __init__(self, run: RunConfig, rows: Iterable[Row] = ()) -> None:
        self._run = run
        self._rows: list[Row] = []
        self._said: set[str] = set()
        self._beginning: _Beginning | None = None
        for row in rows:
            self.after(row)

    def after(self, row: Row) -> list[str]:
        """Lines that a finished step completes."""
        self._rows = [*self._rows[-(STEPS - 1) :], row]
        if len(self._rows) < STEPS:
            return []
        beginning = self._beginning = self._beginning or _Beginning(
            entropy=_mean(self._rows, "entropy"),
            first_reward=_mean(self._rows, _first_reward(self._run)),
        )
        lines = []
        for name, sign in _SIGNS.items():
            if name in self._said:
                continue
            if line := sign(self._run, self._rows, beginning):
                self._said.add(name)
                lines.append(f"warning: steps {self._rows[0]['step']} to {row['step']}: {line}")
        return lines


def diagnose(run: RunConfig, rows: Iterable[Row]) -> list[str]:
    """Lines of a whole run, in their order."""
    looked = Diagnostics(run)
    return [line for row in rows for line in looked.after(row)]


def steps_behind(run: RunConfig, row: Row) -> int:
    """Number of steps by which the newest durable checkpoint is later than it should be.

    0 if it is not, or if a row of an earlier release does not say.
    """
    if row.get("durable_step") is None:
        return 0
    since = row["step"] - row["durable_step"]
    return max(0, since - (run.checkpoint.every_steps - 1))


def is_behind(run: RunConfig, row: Row) -> bool:
    """Whether a person should check the disk: half-way to where training waits for it."""
    return steps_behind(run, row) > max(1, run.checkpoint.max_behind // 2)


def _behind(run: RunConfig, rows: Sequence[Row], beginning: _Beginning) -> str:
    if not all(is_behind(run, row) for row in rows):
        return ""
    return (
        f"checkpoint {rows[-1]['durable_step']} is the newest that is durable, "
        f"{steps_behind(run, rows[-1])} steps behind; at {run.checkpoint.max_behind} "
        "(checkpoint.max_behind) training waits for the disk: does it answer, and how long does it "
        "take to write one?"
    )


def _equal_rewards(run: RunConfig, rows: Sequence[Row], beginning: _Beginning) -> str:
    if any(row.get("reward_std") != 0 for row in rows):
        return ""
    means = {row["reward_mean"] for row in rows}
    if len(means) > 1:
        return ""
    look = (
        "look at the prompts and responses in samples.jsonl: is it the model's chat template "
        "(data.chat), and do rewards.functions find the answers in them?"
        if run.task.name == "dataset"
        else "look at the responses in samples.jsonl: does the model speak this task's language?"
    )
    return f"every reward was {means.pop():.3g}, so that nothing is learnt; {look}"


def _cut_off(run: RunConfig, rows: Sequence[Row], beginning: _Beginning) -> str:
    if any((row.get("truncated_fraction") or 0.0) < ALL for row in rows):
        return ""
    return (
        "all responses were cut off at "
        f"{run.sampling.max_response_tokens} tokens; raise sampling.max_response_tokens, or see "
        "whether the tokenizer's end token is the model's (data.tokenizer, data.stop_ids)"
    )


def _collapsed(run: RunConfig, rows: Sequence[Row], beginning: _Beginning) -> str:
    entropy = beginning.entropy or 0.0
    now = [row.get("entropy") for row in rows]
    if any(value is None or value >= COLLAPSED * entropy for value in now):
        return ""
    return (
        f"the entropy fell from {entropy:.3g} to {now[-1]:.3g} nats per token: the policy always "
        "says the same and explores nothing; lower learner.learning_rate, raise "
        "algorithm.clip_high or algorithm.kl_coefficient, and go on from an earlier checkpoint"
    )


def _first_reward_gone(run: RunConfig, rows: Sequence[Row], beginning: _Beginning) -> str:
    """Line if the policy pleases the other reward functions alone; "" else.

    The reward need not fall, nor be equal.
    """
    now = [row.get(_first_reward(run)) for row in rows]
    before = max(beginning.first_reward or 0.0, 0.0)
    fell = all(value is not None and 0 <= value < FELL * before for value in now)
    never = not any(value != 0 for value in now) and any(row["reward_mean"] != 0 for row in rows)
    if not (fell or never):
        return ""
    name = run.rewards.functions[0].shown_as
    what = f"fell from {before:.3g} to {now[-1]:.3g}" if before else "gave every response 0"
    return (
        f"reward/{name}, which accuracy is measured by, {what}, while the others still pay; look "
        "at the responses in samples.jsonl, and let the other rewards.functions weigh less, or "
        "pay nothing where this one gives 0"
    )


_SIGNS: Final[Mapping[str, Callable[[RunConfig, Sequence[Row], _Beginning], str]]] = {
    "first reward gone": _first_reward_gone,
    "equal rewards": _equal_rewards,
    "cut off": _cut_off,
    "collapsed": _collapsed,
    "behind": _behind,
}


def _first_reward(run: RunConfig) -> str:
    """Key of the first reward function in a row, which only runs with several functions have."""
    functions = run.rewards.functions
    if len(functions) < 2 or run.environment.name:  # whose own reward says what is right
        return ""
    return f"reward/{functions[0].shown_as}"


def _mean(rows: Sequence[Row], key: str) -> float | None:
    values = [row.get(key) for row in rows]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

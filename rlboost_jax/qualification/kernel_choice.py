"""Choose a candidate from trials, and describe it.

Decisions only: no devices, files or processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from rlboost_jax.qualification.trial_records import KernelVerdict, Trial

NEARLY: Final = 2.5  # times the least seconds
# How XLA, CUDA and cuDNN say that a device or its memory was taken, and the kernel's last resort.
_CROWDED: Final = ("RESOURCE_EXHAUSTED", "OUT_OF_MEMORY", "ALLOC_FAILED", "UNAVAILABLE", "SIGKILL")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A chosen candidate.

    Attributes:
        candidate: what to run.
        checked: whether it was found right; if not, it is the plain path, for want of another.
        verdict: what it was chosen from.
    """

    candidate: str
    checked: bool
    verdict: KernelVerdict


def choose(verdict: KernelVerdict, *, plain: str, steady: bool = False) -> Choice:
    """Choose the fastest right candidate, the earlier of two as fast; `plain` if none is right.

    Args:
        steady: the first of those that are nearly as fast as the fastest. Times of the same
            candidate differ by half from trial to trial, and another candidate is other bits.
    """
    right = [trial for trial in verdict.trials if trial.outcome == "right"]
    if not right:
        return Choice(candidate=plain, checked=False, verdict=verdict)
    least = min(trial.seconds or 0.0 for trial in right)
    most = least * (NEARLY if steady else 1.0)
    chosen = next(trial for trial in right if (trial.seconds or 0.0) <= most)
    return Choice(candidate=chosen.candidate, checked=True, verdict=verdict)


def objection(verdict: KernelVerdict, candidate: str) -> str:
    """Say why a candidate cannot be used; "" if it was found right."""
    for trial in verdict.trials:
        if trial.candidate == candidate:
            return "" if trial.outcome == "right" else _passed_over(trial)
    return f"{candidate} was not tried"


def worth_keeping(verdict: KernelVerdict) -> bool:
    """Whether the same trials would give the same verdict tomorrow.

    Where nothing was right the device may have been busy or its driver broken, and a candidate
    that ran out of memory had neighbours: the next start tries again.
    """
    trials = verdict.trials
    crowded = any(_failed(each) and _crowded(each.reason) for each in trials)
    return any(trial.outcome == "right" for trial in trials) and not crowded


def worth_another_trial(verdict: KernelVerdict, candidate: str) -> bool:
    """Whether a required candidate failed in a way that a later trial may not."""
    return any(_failed(trial) for trial in verdict.trials if trial.candidate == candidate)


def _failed(trial: Trial) -> bool:
    """Whether a trial did not end, so that its result is unknown."""
    match trial.outcome:
        case "raised" | "crashed" | "hung":
            return True
        case "right" | "wrong" | "dependent" | "unavailable":
            return False
        case other:
            assert_never(other)


def _crowded(reason: str) -> bool:
    return any(word in reason for word in _CROWDED)


def described(choice: Choice, what: str) -> str:
    """Describe a choice in one line: times of all right candidates, and why others are not used.

    Args:
        what: the choice is of, such as "engine.attention".
    """
    verdict = choice.verdict
    times = {t.candidate: t.seconds for t in verdict.trials if t.outcome == "right"}
    start = f"{what} on {verdict.device or 'an unknown device'}: {choice.candidate}"
    if choice.checked:
        start += f", {_time(times.pop(choice.candidate))}"
    else:
        start += ", the plain path, since no candidate passed its check"
    if times:
        start += f" ({', '.join(f'{name} {_time(s)}' for name, s in times.items())})"
    others = [_passed_over(trial) for trial in verdict.trials if trial.outcome != "right"]
    return start + (f"; passed over: {'; '.join(others)}" if others else "")


def _passed_over(trial: Trial) -> str:
    words = {
        "wrong": "is wrong",
        "dependent": "does not repeat its bits",
        "unavailable": "cannot run this",
        "raised": "failed",
        "crashed": "ended its process",
        "hung": "did not finish",
    }
    return f"{trial.candidate} {words.get(trial.outcome, trial.outcome)} ({trial.reason})"


def _time(seconds: float | None) -> str:
    return "untimed" if seconds is None else f"{1e3 * seconds:.3g} ms"


def remaining(candidates: Sequence[str], trials: Sequence[Trial]) -> tuple[str, ...]:
    """List the candidates without a trial, in their order."""
    tried = {trial.candidate for trial in trials}
    return tuple(name for name in candidates if name not in tried)

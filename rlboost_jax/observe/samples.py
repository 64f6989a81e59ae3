"""Samples of the policy's responses as text, `samples.jsonl`, every so many steps."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rlboost_jax.observe.json_lines import read_lines, scalar

FILE: Final = "samples.jsonl"


@dataclass(frozen=True, kw_only=True)
class SampleCall:
    """A tool call of a turn."""

    name: str
    failed: bool = False


@dataclass(frozen=True, kw_only=True)
class SamplePart:
    """Text of one side without interruption: a turn of the policy, or what it was given."""

    sampled: bool
    text: str
    sequence: int = 0  # that it is a part of; a later one begins with what it is given
    turn: int | None = None  # its number in the episode, where it was sampled
    calls: tuple[SampleCall, ...] = ()  # that were read from it
    reward: float | None = None  # of the turn, where turns have rewards
    advantage: float | None = None  # mean over its tokens


@dataclass(frozen=True, kw_only=True)
class SampleRow:
    """One response of a step, as a person reads it. All of a prompt's group are kept together."""

    step: int
    prompt: int  # index of the prompt within the step
    sample: int  # index of the response within the step
    prompt_text: str
    response_text: str  # all after the prompt
    tokens: int  # that were sampled
    cut_off: bool  # it ran into sampling.max_response_tokens
    reward: float
    advantage: float
    rewards: Mapping[str, float] = field(default_factory=dict)  # parts of `reward`, by name
    # What the response is made of, where some of it was given or tools were called.
    turns: tuple[SamplePart, ...] = ()
    trained: bool = True  # False: no loss has it
    left_out: str = ""  # why it counts nowhere; "": it does


def sample_values(row: SampleRow) -> dict[str, Any]:
    """Row as it is written: null for numbers that are not finite."""
    values = asdict(row)
    rewards = {name: scalar(value) for name, value in values.pop("rewards").items()}
    turns = [_part_values(part) for part in values.pop("turns")]
    plain = {key: scalar(value) for key, value in values.items()}
    return {**plain, "rewards": rewards, "turns": turns}


def _part_values(values: dict[str, Any]) -> dict[str, Any]:
    calls = list(values.pop("calls"))
    return {**{key: scalar(value) for key, value in values.items()}, "calls": calls}


def parts_read(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Turns of a row that was read, whichever release wrote it, with all their keys."""
    found = []
    for part in row.get("turns") or ():
        if isinstance(part, Mapping):
            values = {"sampled": bool(part.get("sampled")), "text": str(part.get("text", ""))}
            values |= {key: part.get(key) for key in ("sequence", "turn", "reward", "advantage")}
            calls = [call for call in part.get("calls") or () if isinstance(call, Mapping)]
            found.append({**values, "calls": calls})
        else:  # (who, text), of a release before there were environments
            origin, text = part
            found.append(asdict(SamplePart(sampled=origin == "sampled", text=str(text))))
    return found


def read_samples(workdir: str | Path) -> list[dict[str, Any]]:
    """Read the rows written so far, in order; none if there is no file."""
    return list(read_lines(Path(workdir) / FILE))


def part_names(rows: Sequence[SampleRow]) -> list[str]:
    """Names of the rewards' parts, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row.rewards))


def shortened(text: str, letters: int) -> str:
    """Shorten a text to about `letters`: its beginning and, being what counts, its end."""
    if len(text) <= letters:
        return text
    tail = letters // 2
    head = letters - tail
    return f"{text[:head]}\n… {len(text) - letters:,} letters left out …\n{text[-tail:]}"

"""`samples.jsonl`: what the policy answered, in words, every so many steps."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rlboost_jax.observe.lines import read_lines, scalar

FILE: Final = "samples.jsonl"


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
    # What the response is made of, where some of it was given: ("sampled" or "given", text).
    turns: tuple[tuple[str, str], ...] = ()


def sample_values(row: SampleRow) -> dict[str, Any]:
    """A row as it is written: null for what is no finite number."""
    values = asdict(row)
    rewards = {name: scalar(value) for name, value in values.pop("rewards").items()}
    turns = [list(turn) for turn in values.pop("turns")]
    plain = {key: scalar(value) for key, value in values.items()}
    return {**plain, "rewards": rewards, "turns": turns}


def read_samples(workdir: str | Path) -> list[dict[str, Any]]:
    """The rows written so far, in order; none where there is no file."""
    return list(read_lines(Path(workdir) / FILE))


def part_names(rows: Sequence[SampleRow]) -> list[str]:
    """Of the rewards' parts, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row.rewards))


def shortened(text: str, letters: int) -> str:
    """At most about so many letters of a text: its beginning and, being what counts, its end."""
    if len(text) <= letters:
        return text
    tail = letters // 2
    head = letters - tail
    return f"{text[:head]}\n… {len(text) - letters:,} letters left out …\n{text[-tail:]}"

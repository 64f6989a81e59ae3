"""The fixed sizes of the step programs, checked against each other."""

from dataclasses import dataclass
from typing import Final

from rlboost_jax.sequences.shared_limits import MAX_POSITIONS
from rlboost_jax.settings.engine_config import EngineConfig
from rlboost_jax.settings.memory_estimates import most_pages, pages_per_slot

_FEWEST_ROWS: Final = 8  # of a decode step, and a divisor of all
DRAFT_CONTEXT: Final = 8  # newest tokens of a sequence, with which drafts begin: `drafts.py`
_MOST_TEXT_TOKENS: Final = 2048  # of a sequence's texts
_HEAD_TILE: Final = 64  # rows that a product on tensor cores takes at a time


@dataclass(frozen=True, kw_only=True)
class StepLayout:
    """Sizes that a step program is compiled for."""

    token_rows: int  # T, of a mixed step
    decode_rows: tuple[int, ...]  # R, of decode steps, ascending; the last has room for all slots
    sampled_rows: int  # that sums of head and sampler are made for, in either program
    slots: int  # S, at most T
    pages_per_slot: int  # M
    page_size: int  # tokens
    num_pages: int
    text_tokens: int = 0  # numbers that a sequence's drafts are made from; 0: free rows stay empty

    def rows_for(self, num_sequences: int) -> int:
        """The smallest decode step with a row for each."""
        return next(rows for rows in self.decode_rows if rows >= num_sequences)

    @property
    def verified_rows(self) -> tuple[int, ...]:
        """L, of steps with drafts, ascending: those of decode steps and those of a mixed step."""
        return tuple(sorted({*self.decode_rows, self.token_rows})) if self.text_tokens else ()

    def drafted_for(self, rows: int) -> int:
        """Most sequences, and rows that are sampled, of a step with drafts of so many rows."""
        return min(rows, self.decode_rows[-1])


def make_layout(
    config: EngineConfig,
    slot_tokens: int,
    *,
    any_rows: bool,
    on_cpu: bool = False,
    exact: bool = True,
    drafts: bool = False,
) -> StepLayout:
    """The sizes for slots of `slot_tokens` tokens, with as many pages as all of them need.

    Args:
        any_rows: whether products give a row the same bits for any number of rows. If not, decode
            steps run as many as mixed steps, however few sequences there are.
        on_cpu: where sampling always was over all rows of a step, and its bits are to stay.
        exact: whether a token's bits must be the same by prefill and by decode. If not, decode
            steps on GPUs run over the slots alone, in whole tiles.
        drafts: whether free rows may hold drafts, which are sampled too: then head and sampler run
            over all rows of a decode step.

    Raises:
        ValueError: a setting is out of range, or two do not fit together.
    """
    for name in ("slots", "page_size", "token_rows", "steps_per_dispatch"):
        value = getattr(config, name)
        if value < 1:
            raise ValueError(f"engine.{name} is {value}; it must be at least 1")
    if slot_tokens < 2:
        raise ValueError(
            f"a slot of {slot_tokens} tokens holds no prompt and response; "
            "raise engine.max_prompt_tokens or sampling.max_response_tokens"
        )
    if slot_tokens > MAX_POSITIONS:
        raise ValueError(
            f"a slot of {slot_tokens} tokens is longer than the {MAX_POSITIONS} positions of the "
            "model; lower engine.max_prompt_tokens or sampling.max_response_tokens"
        )
    if config.slots > config.token_rows:
        raise ValueError(
            f"engine.slots is {config.slots} and engine.token_rows {config.token_rows}; "
            "a decode step needs a row per slot: raise token_rows or lower slots"
        )
    slot_pages = pages_per_slot(config, slot_tokens)
    num_pages = most_pages(config, slot_tokens)
    if num_pages < slot_pages:
        raise ValueError(
            f"engine.num_pages is {num_pages}; the longest rollout needs {slot_pages} pages "
            f"of {config.page_size} tokens: raise it, or 0 for as many as all slots need"
        )
    # One number in both programs keeps a row's bits as well as T would, and no logits are made of
    # rows that are never sampled from: at 512 rows of 152k entries they are 0.3 GB.
    few = min(_HEAD_TILE * -(-config.slots // _HEAD_TILE), config.token_rows)
    all_rows = config.token_rows if exact or on_cpu else few
    decode_rows = _decode_rows(config.slots) if any_rows else (all_rows,)
    # Matching costs time on CPU alone.
    text_tokens = min(4 * slot_tokens, _MOST_TEXT_TOKENS) if any_rows else _MOST_TEXT_TOKENS
    return StepLayout(
        token_rows=config.token_rows,
        decode_rows=decode_rows,
        sampled_rows=decode_rows[-1] if any_rows or on_cpu or drafts else few,
        slots=config.slots,
        pages_per_slot=slot_pages,
        page_size=config.page_size,
        num_pages=num_pages,
        text_tokens=DRAFT_CONTEXT + text_tokens if drafts else 0,
    )


def _decode_rows(slots: int) -> tuple[int, ...]:
    """Row counts of decode steps: all slots, a quarter of them, and so on, for the tail of a step.

    Never fewer than `_FEWEST_ROWS`, which cost little more than one.
    """
    sizes = [_FEWEST_ROWS * -(-slots // _FEWEST_ROWS)]
    while sizes[-1] > _FEWEST_ROWS:
        sizes.append(_FEWEST_ROWS * -(-sizes[-1] // (4 * _FEWEST_ROWS)))
    return tuple(reversed(sizes))

"""A rollout as the engine holds it: its tokens, its pages and its record for the step programs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlboost_jax.engine import step_inputs
from rlboost_jax.engine.layouts import StepLayout
from rlboost_jax.engine.requests import transcript_of
from rlboost_jax.engine.step_inputs import Chunk
from rlboost_jax.messages import GenerateRequest, Sampling, pack_tokens, unpack_tokens
from rlboost_jax.sequences.identities import Batch, Purpose, Version, Work
from rlboost_jax.sequences.shared_limits import MAX_STOP_IDS
from rlboost_jax.sequences.transcript import Transcript

PromptKey = tuple[Batch, Purpose, int, bytes]


@dataclass(kw_only=True, slots=True, eq=False)
class EngineRollout:
    """One sequence in the making. The scheduler alone changes it.

    Its known tokens are the prompt, and what was sampled or given since: all of them are run
    alike. The noise of a token is named by its place after the prompt, given tokens included, so
    that it does not matter where, or in how many stays, a sequence of several turns is made.

    Always: `computed <= known`, the pages hold at least the `computed` tokens, and the record's
    page table names the pages in order.
    """

    request_id: int
    arrival: int  # order of submission; the youngest has the largest
    prompt_key: PromptKey  # equal for the members of a group
    transcript: Transcript  # without log-probabilities and routes
    limits: Sampling
    computed: int = 0  # tokens whose keys and values are in the pages
    most_computed: int = 0  # before evictions; what lies below is computed again
    pages: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)  # of its full pages of tokens, as asked for
    remembered: int = 0  # first pages that need not be entered into the index
    record: NDArray[np.int32]

    @property
    def known(self) -> int:
        """Number of known tokens."""
        return self.transcript.length

    @property
    def prompt_length(self) -> int:
        return len(self.transcript.prompt) // 4

    @property
    def ready(self) -> bool:
        """Whether only its newest token is still to be run: then the next step samples."""
        return self.computed == self.known - 1

    @property
    def finished(self) -> bool:
        return self.transcript.turn_over(self.limits)

    @property
    def room(self) -> int:
        """Number of tokens that may still be sampled in its turn."""
        return self.transcript.room(self.limits)

    def tokens(self, start: int, end: int) -> NDArray[np.int32]:
        """Return known tokens from a position to before another."""
        return unpack_tokens(self.transcript.between(start, end))

    def take_pages(self, pages: list[int]) -> None:
        """Append pages to the page table."""
        start = step_inputs.PAGES + len(self.pages)
        self.record[start : start + len(pages)] = pages
        self.pages += pages

    def drop_pages(self) -> list[int]:
        """Forget keys and values, but no token. Returns the freed pages."""
        pages, self.pages = self.pages, []
        self.record[step_inputs.PAGES :] = 0
        self.computed = self.remembered = 0
        return pages

    def move_pages(self, moves: Mapping[int, int]) -> None:
        """Renumber its pages after a resize of the pool; their content is unchanged."""
        pages, self.pages = self.pages, []
        self.take_pages([moves.get(page, page) for page in pages])

    def append(self, tokens: NDArray[np.int32]) -> None:
        """Append its own sampled tokens. All but the last have been run."""
        self.transcript.append(tokens.tobytes())
        self.computed = self.known - 1
        self.most_computed = max(self.most_computed, self.computed)

    def chunk(self, start: int, count: int, budget: int) -> Chunk:
        """Known tokens to run, yielding up to `budget` afterwards."""
        self.record[step_inputs.BUDGET] = budget
        self.record[step_inputs.RESPONSE] = self.transcript.num_tokens
        return Chunk(self.record, self.tokens(start, start + count), start)

    def decode_record(self, budget: int) -> NDArray[np.int32]:
        """The record for decode steps. Requires `ready`."""
        return self._decode_record(self.transcript.newest_token, self.known, budget)

    def following_record(self, start: int, budget: int, row: int) -> NDArray[np.int32]:
        """The record for decode steps from the token at `start` on.

        That token is the one with which sequence `row` of the decode steps in flight ends, if it
        does not stop before.
        """
        return self._decode_record(-1 - row, start + 1, budget)

    def _decode_record(self, token: int, length: int, budget: int) -> NDArray[np.int32]:
        record = self.record
        record[step_inputs.TOKEN] = token
        record[step_inputs.LENGTH] = length
        record[step_inputs.BUDGET] = budget
        record[step_inputs.RESPONSE] = length - self.prompt_length
        return record


def new_rollout(request: GenerateRequest, layout: StepLayout, arrival: int) -> EngineRollout:
    """The rollout of a checked request (`requests.py`)."""
    sampling, work = request.sampling, request.work
    record = np.zeros(step_inputs.record_width(layout), np.int32)
    unsigned, real = record.view(np.uint32), record.view(np.float32)
    unsigned[[step_inputs.SEED, step_inputs.BATCH, step_inputs.SAMPLE]] = (
        work.noise_seed,
        work.batch,
        work.sample,
    )
    real[step_inputs.TEMPERATURE] = sampling.temperature
    real[step_inputs.TOP_P] = sampling.top_p
    record[step_inputs.TOP_K] = sampling.top_k
    stops = sampling.stop_ids
    record[step_inputs.STOP : step_inputs.STOP + MAX_STOP_IDS] = -1
    record[step_inputs.STOP : step_inputs.STOP + len(stops)] = stops
    return EngineRollout(
        request_id=request.request_id,
        arrival=arrival,
        prompt_key=(work.batch, work.purpose, work.prompt, request.prompt_tokens),
        transcript=transcript_of(request),
        limits=sampling,
        record=record,
    )


def rollout_of_tokens(
    tokens: ArrayLike, layout: StepLayout, sampling: Sampling, *, sample: int = 0
) -> EngineRollout:
    """A rollout for checks, without a request; its prompt and group are its own.

    Args:
        sample: names its prompt and its noise.
    """
    request = GenerateRequest(
        request_id=sample,
        work=Work(seed=0, batch=Batch(0), prompt=sample, sample=sample),
        version=Version(0),
        prompt_tokens=pack_tokens(tokens),
        response_tokens=b"",
        sampling=sampling,
    )
    return new_rollout(request, layout, sample)

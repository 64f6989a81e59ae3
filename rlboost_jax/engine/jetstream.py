"""JetStream's verbs over the engine's programs: for servers written against that interface.

    prefix, first = verbs.prefill(request)
    state = verbs.insert(prefix, verbs.init_decode_state(), slot=0)
    state, results = verbs.generate(state)
    state = verbs.free_resource(state, slot=0)

The caller decides which prompt enters which slot and when; there is no queue and no eviction.
Tokens are those that `Engine` gives for the same requests, bit for bit. Differences from
JetStream: a request brings its own sampling settings and noise in place of `rng`, weights are
loaded beforehand (`Engine.load`) rather than passed to each call, a prefix is a page table
rather than a copy of keys and values, and results carry log-probabilities.

Source: the Engine API of google/JetStream (`jetstream/engine/engine_api.py`).
"""

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.engine import step_inputs
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.engine_rollouts import EngineRollout, new_rollout
from rlboost_jax.engine.requests import RequestRejected, check_request
from rlboost_jax.engine.step_programs import LOGPROBS, TOKENS
from rlboost_jax.messages import GenerateRequest


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """A prompt that has been run, with its first token sampled. Enters a slot once."""

    rollout: EngineRollout


@dataclass(frozen=True, kw_only=True)
class DecodeState:
    """State of the slots. Each verb returns the next one; an old one must not be used again."""

    slots: MappingProxyType[int, EngineRollout]


@dataclass(frozen=True, kw_only=True)
class SlotData:
    """The result of one slot."""

    tokens: NDArray[np.int32]  # [1, 1]
    valid: NDArray[np.int32]  # [1, 1]; 0: the slot is empty or its response has ended
    lengths: NDArray[np.int32]  # [1]; tokens of the response so far
    logprobs: NDArray[np.float32]  # [1, 1], nats


@dataclass(frozen=True, kw_only=True)
class ResultTokens:
    """One row per slot with the columns token, valid, length; a prefill has one row."""

    data: NDArray[np.int32]  # [rows, 3]
    logprobs: NDArray[np.float32]  # [rows, 1], nats
    tokens_idx: tuple[int, int] = (0, 1)
    valid_idx: tuple[int, int] = (1, 2)
    length_idx: tuple[int, int] = (2, 3)
    samples_per_slot: int = 1

    def get_result_at_slot(self, slot: int) -> SlotData:
        row = self.data[slot : slot + 1]
        return SlotData(
            tokens=row[:, slice(*self.tokens_idx)],
            valid=row[:, slice(*self.valid_idx)],
            lengths=row[:, self.length_idx[0]],
            logprobs=self.logprobs[slot : slot + 1],
        )


class SlotEngine:
    """The verbs. While it is in use it owns the pages of `engine`, which must hold no rollouts."""

    samples_per_slot = 1

    def __init__(self, engine: Engine) -> None:
        """Raises RequestRejected if no weights are loaded or rollouts are held."""
        if engine.version is None or engine.held():
            raise RequestRejected(
                f"the verbs need an engine with weights and without rollouts; it has version "
                f"{engine.version} and {len(engine.held())} rollouts"
            )
        self._engine, self._layout = engine, engine.layout
        self._pool = engine.lend_pages()
        self._arrivals = 0

    @property
    def max_concurrent_decodes(self) -> int:
        return self._layout.slots

    @property
    def max_prefill_length(self) -> int:
        return self._engine.slot_tokens

    def init_decode_state(self) -> DecodeState:
        """Empty slots."""
        return DecodeState(slots=MappingProxyType({}))

    def prefill(self, request: GenerateRequest) -> tuple[Prefix, ResultTokens]:
        """Run the known tokens and sample the next one.

        Raises:
            RequestRejected: the engine cannot run it.
            OutOfPages: too many prefixes and slots are held.
        """
        rollout = self._rollout(request)
        rollout.take_pages(self._pool.alloc(self._pages_for(rollout.known)))
        while rollout.computed < rollout.known:
            start = rollout.computed
            count = min(self._layout.token_rows, rollout.known - start)
            last = start + count == rollout.known
            packed = step_inputs.pack_mixed(self._layout, [rollout.chunk(start, count, int(last))])
            output = self._run(packed, mixed=True)
            rollout.computed += count
        return Prefix(rollout=rollout), self._results(output, [rollout], [0], num_rows=1)

    def insert(self, prefix: Prefix, decode_state: DecodeState, *, slot: int) -> DecodeState:
        """Put a prefix into an empty slot. Raises ValueError if it is taken or out of range."""
        self._require_empty(decode_state, slot)
        return DecodeState(slots=MappingProxyType({**decode_state.slots, slot: prefix.rollout}))

    def bulk_insert(
        self,
        prefix: Prefix,
        decode_state: DecodeState,
        *,
        slots: list[int],
        siblings: list[GenerateRequest],
    ) -> DecodeState:
        """Put a prefix into the first slot and siblings, with the same prompt, into the others.

        The siblings share its full pages and are not prefilled: their first token comes with
        the next `generate`.

        Raises:
            ValueError: a slot is taken, a sibling has another prompt or already a response, or
                there are not as many siblings as further slots.
            OutOfPages: too many prefixes and slots are held; nothing is taken.
        """
        leader = prefix.rollout
        for sibling in siblings:
            if sibling.prompt_tokens != leader.transcript.prompt or sibling.response_tokens:
                raise ValueError(f"request {sibling.request_id} is no fresh sibling of the prefix")
        if len(slots) != len(siblings) + 1 or len(set(slots)) != len(slots):
            raise ValueError(f"slots {slots} are not one for the prefix and each sibling")
        for slot in slots:
            self._require_empty(decode_state, slot)
        prefixes = [prefix] + [Prefix(rollout=self._rollout(sibling)) for sibling in siblings]
        full = leader.pages[: (leader.prompt_length - 1) // self._layout.page_size]
        copies = []
        for place, page in zip(prefixes[1:], self._pool.alloc(len(siblings)), strict=True):
            self._pool.share(full)
            place.rollout.take_pages([*full, page])
            copies.append((leader.pages[len(full)], page))
        self._engine.device_state.pools = self._engine.programs.copy_pages(
            self._engine.device_state.pools, step_inputs.pack_copies(self._layout, copies)
        )
        for place, slot in zip(prefixes, slots, strict=True):
            decode_state = self.insert(place, decode_state, slot=slot)
        return decode_state

    def generate(self, decode_state: DecodeState) -> tuple[DecodeState, ResultTokens]:
        """Sample one more token for every slot whose response is unfinished.

        Raises:
            OutOfPages: too many prefixes and slots are held.
        """
        live = [s for s, r in sorted(decode_state.slots.items()) if not r.finished]
        rollouts = [decode_state.slots[slot] for slot in live]
        for rollout in rollouts:
            need = self._pages_for(rollout.known) - len(rollout.pages)
            rollout.take_pages(self._pool.alloc(max(0, need)))
        records = [rollout.decode_record(1) for rollout in rollouts]
        output = self._run(step_inputs.pack_decode(self._layout, records, 1), mixed=False)
        return decode_state, self._results(output, rollouts, live, num_rows=self._layout.slots)

    def free_resource(self, decode_state: DecodeState, *, slot: int) -> DecodeState:
        """Empty a slot and free its pages. Raises ValueError if it is empty."""
        slots = dict(decode_state.slots)
        if slot not in slots:
            raise ValueError(f"slot {slot} is empty; taken are {sorted(slots)}")
        self._pool.free(slots.pop(slot).drop_pages())
        return DecodeState(slots=MappingProxyType(slots))

    def discard(self, prefix: Prefix) -> None:
        """Free the pages of a prefix that enters no slot."""
        self._pool.free(prefix.rollout.drop_pages())

    def _run(self, packed: NDArray[np.int32], *, mixed: bool) -> NDArray[np.int32]:
        engine, programs = self._engine, self._engine.programs
        leaves = engine.parameters.leaves
        if mixed:
            engine.device_state.pools, output = programs.mixed(
                leaves, engine.device_state.pools, packed
            )
        else:
            engine.device_state.pools, output, _ = programs.decode(
                leaves, engine.device_state.pools, packed, engine.device_state.ends
            )
        return np.asarray(output.sampled)

    def _results(
        self,
        output: NDArray[np.int32],
        rollouts: list[EngineRollout],
        rows: list[int],
        *,
        num_rows: int,
    ) -> ResultTokens:
        data = np.zeros((num_rows, 3), np.int32)
        logprobs = np.zeros((num_rows, 1), np.float32)
        for index, (rollout, row) in enumerate(zip(rollouts, rows, strict=True)):
            rollout.append(output[TOKENS, :1, index])
            data[row] = output[TOKENS, 0, index], 1, rollout.transcript.num_tokens
            logprobs[row] = output[LOGPROBS, :1, index].view(np.float32)
        return ResultTokens(data=data, logprobs=logprobs)

    def _rollout(self, request: GenerateRequest) -> EngineRollout:
        check_request(request, self._engine.limits, version=self._engine.version)
        self._arrivals += 1
        return new_rollout(request, self._layout, self._arrivals)

    def _require_empty(self, decode_state: DecodeState, slot: int) -> None:
        if slot in decode_state.slots or not 0 <= slot < self._layout.slots:
            raise ValueError(
                f"slot {slot} is taken or not one of 0 to {self._layout.slots - 1}; "
                "free_resource it first"
            )

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self._layout.page_size)

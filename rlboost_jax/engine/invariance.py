"""The start-up check that on this device a row's bits depend on nothing but its own sequence.

Whether a matrix product treats its rows alike is a property of libraries, devices and sizes, so
it is measured with the very programs that will run, rather than looked up: one sequence is run
alone, then in every slot at once, then among random companions, in random places, on random
pages and in random chunks; decoded by mixed steps, by each of the decode programs and, where free
rows may hold drafts, with right drafts and wrong ones in few and in many rows, also
while others prefill. A longer sequence,
over several blocks of attention, is run alone and then in few slots. Tokens, the bits of
log-probabilities, checksums of the logits, and the bits of all keys and values must agree.

Each call costs a pass over all weights, so none is repeated: all ways of decoding go on from the
same prefill, and but for the sequence alone they take few steps, each of which has all rows in it.

Their digest tells engines apart whose programs were made differently (`Engine.fingerprint`).
"""

import copy
import hashlib
from dataclasses import dataclass
from typing import Final, Literal, assert_never

import numpy as np
from jaxtyping import Array, Int
from numpy.typing import NDArray

from rlboost_jax.engine import step_inputs
from rlboost_jax.engine.drafts import DraftTexts
from rlboost_jax.engine.engine_rollouts import EngineRollout, rollout_of_tokens
from rlboost_jax.engine.step_programs import CHECKSUMS, LOGPROBS, TOKENS, Pools, Programs
from rlboost_jax.messages import Sampling
from rlboost_jax.platform.mistakes import Mistake

_STEPS: Final = 3  # of decoding in company: the first after a prefill, one after it, one more
_BLOCK_TOKENS: Final = 64  # of attention, in the implementation with the widest blocks
_FEW: Final = 4  # copies of the longer sequence, so that the check stays short
_Program = Literal["mixed", "decode", "verify", "mixed verify"]
_OUTPUTS: Final = {TOKENS: "token", LOGPROBS: "log-probability", CHECKSUMS: "logits"}


class RowsNotInvariant(Mistake, RuntimeError):
    """Equal rows gave different bits: rollouts would depend on their companions."""


@dataclass(frozen=True, kw_only=True)
class _Trace:
    """Everything the device computed for one sequence."""

    outputs: NDArray[np.int32]  # [3, sampled tokens], as the step programs return them
    kv: NDArray[np.uint8]  # [layers, tokens, bytes]

    @property
    def tokens(self) -> NDArray[np.int32]:
        return self.outputs[TOKENS]


def check(
    programs: Programs, leaves: tuple[Array, ...], pools: Pools, ends: Int[Array, " N"]
) -> tuple[Pools, str]:
    """Raise `RowsNotInvariant` if companions, slots, pages or chunks change a bit.

    Overwrites the pages.

    Returns:
        The pools, which the programs take by donation, and a digest of all bits that agreed.
    """
    bits = hashlib.sha256()
    # More than a page where a slot has two, and odd lengths, so that chunks get cut.
    for known, most in (
        (programs.layout.page_size + 3, programs.layout.slots),
        (2 * _BLOCK_TOKENS + 3, _FEW),
    ):
        probe = _Probe(programs, leaves, pools, ends, known)
        first = probe.prefilled(copies=1, companions=0, shuffle=False)
        (alone,) = probe.decoded(first, probe.steps, by="decode")
        bits.update(alone.outputs.tobytes() + alone.kv.tobytes())
        many = min(most, probe.capacity)
        half = max(1, many // 2)
        sizes = sorted({min(many, rows) for rows in programs.layout.decode_rows})
        for shuffle, copies, taken in ((False, many, sizes), (True, half, [many])):
            crowd = probe.prefilled(copies=copies, companions=many - copies, shuffle=shuffle)
            steps = min(_STEPS, probe.steps)
            ways: list[tuple[int, _Program]] = [(many, "mixed")]
            ways += [(size, "decode") for size in taken]
            if programs.layout.text_tokens:
                few = min(2, many)
                ways += [(size, "verify") for size in sorted({few, *taken})]
                ways += [(size, "mixed verify") for size in sorted({few, many})]
            for count, by in ways:
                traces = probe.decoded(crowd, steps, count=count, by=by, then=alone.tokens)
                for number, trace in enumerate(traces):
                    _compare(programs, alone, trace, number, by)
        pools = probe.pools
    return pools, bits.hexdigest()


def _compare(
    programs: Programs, alone: _Trace, trace: _Trace, number: int, program: _Program
) -> None:
    """Compare all tokens of a copy with those of the sequence run alone."""
    prompt = alone.kv.shape[1] - alone.outputs.shape[1] + 1
    for token in range(trace.kv.shape[1]):
        what = [
            f"keys or values of layer {layer}"
            for layer in range(alone.kv.shape[0])
            if not np.array_equal(alone.kv[layer, token], trace.kv[layer, token])
        ]
        sampled = token - prompt + 1
        if sampled >= 0:
            differ = alone.outputs[:, sampled] != trace.outputs[:, sampled]
            what += [name for output, name in _OUTPUTS.items() if differ[output]]
        if what:
            step = "mixed" if sampled <= 0 else program
            raise RowsNotInvariant(
                f"the {step} step with engine.token_rows = {programs.layout.token_rows} gives "
                f"equal rows different bits: {what[0]} at token {token} of copy {number}; on CPU "
                "take a multiple of 16, at least 64, or build the kernels (python -m "
                "rlboost_kernels.cpu), elsewhere another multiple of 64; or set "
                "deterministic = False"
            )


@dataclass(frozen=True, kw_only=True)
class _Crowd:
    """Prefilled sequences with one token sampled. The copies of the probe come first."""

    rollouts: list[EngineRollout]
    copies: int
    order: list[int]  # of their rows
    outputs: dict[int, list[NDArray[np.int32]]]


class _Probe:
    """Runs copies of one sequence, with and without companions, through the step programs.

    Attributes:
        steps: that a sequence is decoded for at most.
        capacity: sequences that fit.
    """

    def __init__(
        self,
        programs: Programs,
        leaves: tuple[Array, ...],
        pools: Pools,
        ends: Int[Array, " N"],
        known: int,
    ) -> None:
        """Set up a sequence of `known` tokens, or as many as fit a slot."""
        self.programs, self.leaves, self.pools, self._ends = programs, leaves, pools, ends
        layout = programs.layout
        slot_tokens = layout.pages_per_slot * layout.page_size
        self.steps = min(programs.max_steps, slot_tokens - 1)
        self._known = max(1, min(known, slot_tokens - self.steps - 1))
        self._pages = -(-(self._known + self.steps) // layout.page_size)
        self.capacity = min(layout.slots, layout.num_pages // self._pages)
        self._random = np.random.default_rng(0)
        self._subject = self._random.integers(0, programs.model.vocab_size, self._known)

    def prefilled(self, *, copies: int, companions: int, shuffle: bool) -> _Crowd:
        """Prefill by mixed steps, and sample one token of each sequence.

        Args:
            shuffle: take rows, pages and chunks at random.
        """
        crowd = [self._rollout(0, self._subject) for _ in range(copies)]
        for sample in range(1, companions + 1):
            length = self._random.integers(1, self._known + 1)
            tokens = self._random.integers(0, self.programs.model.vocab_size, length)
            crowd.append(self._rollout(sample, tokens))
        order = list(range(len(crowd)))
        if shuffle:
            self._random.shuffle(order)
        outputs: dict[int, list[NDArray[np.int32]]] = {i: [] for i in order}

        num_pages = self.programs.layout.num_pages
        pages = (self._random.permutation(num_pages) if shuffle else np.arange(num_pages)).tolist()
        for i in order:
            crowd[i].take_pages([pages.pop() for _ in range(self._pages)])
        self._prefill(crowd, order, outputs, random_chunks=shuffle)
        return _Crowd(rollouts=crowd, copies=copies, order=order, outputs=outputs)

    def decoded(
        self,
        crowd: _Crowd,
        steps: int,
        *,
        count: int | None = None,
        by: _Program,
        then: NDArray[np.int32] | None = None,
    ) -> list[_Trace]:
        """Decode from the end of the prefill; return the traces of the copies.

        Another call on the same crowd begins there again, and overwrites what this one has written.

        Args:
            count: sequences to decode, the first in order; None: all.
            then: tokens that follow the probe's, to draft.
        """
        rollouts, order = copy.deepcopy(crowd.rollouts), crowd.order[:count]
        outputs = {i: list(crowd.outputs[i]) for i in order}
        match by:
            case "mixed":
                for _ in range(steps):
                    chunks = [rollouts[i].chunk(rollouts[i].computed, 1, 1) for i in order]
                    self._mixed(chunks, rollouts, order, outputs)
            case "decode":
                records = [rollouts[i].decode_record(steps) for i in order]
                packed = step_inputs.pack_decode(self.programs.layout, records, steps)
                self.pools, result, _ = self.programs.decode(
                    self.leaves, self.pools, packed, self._ends
                )
                self._collect(np.asarray(result.sampled)[:, :steps], rollouts, order, outputs)
            case "verify" | "mixed verify":
                assert then is not None
                layout, mixed = self.programs.layout, by == "mixed verify"
                rows = layout.token_rows if mixed else layout.rows_for(len(order))
                chunks = self._rerun(rollouts, order, steps, rows - 2 * len(order) if mixed else 0)
                packed = step_inputs.pack_verify(layout, chunks, steps, rows=rows)
                texts = self._texts(rollouts, order, then, layout.drafted_for(rows))
                self.pools, result = self.programs.verify(self.leaves, self.pools, packed, texts)
                self._collect(np.asarray(result.sampled)[:, :steps], rollouts, order, outputs)
            case _:
                assert_never(by)
        return [
            _Trace(
                outputs=np.concatenate(outputs[i], axis=1),
                kv=self._read(rollouts[i], self._known + steps),
            )
            for i in sorted(order)
            if i < crowd.copies
        ]

    def _rerun(
        self, rollouts: list[EngineRollout], order: list[int], steps: int, rows: int
    ) -> list[step_inputs.Chunk]:
        """Chunks of which the first half runs known tokens again, in up to so many rows besides."""
        half, chunks = max(1, len(order) // 2), []
        for place, i in enumerate(order):
            count = max(1, min(rollouts[i].known, rows // half)) if place < half else 1
            chunks.append(rollouts[i].chunk(rollouts[i].known - count, count, steps))
        return chunks

    def _texts(
        self, rollouts: list[EngineRollout], order: list[int], then: NDArray[np.int32], rows: int
    ) -> NDArray[np.int32]:
        """Texts that lead every second sequence to right drafts and the others to wrong ones."""
        layout = self.programs.layout
        texts = DraftTexts(["prompt"], layout.text_tokens)
        packed = texts.pack([rollouts[i] for i in order], rows)
        for row, i in enumerate(order):
            following = then if row % 2 else self._random.integers(0, layout.page_size, len(then))
            known = rollouts[i].tokens(0, rollouts[i].known - 1)
            text = np.concatenate([known, then[:1], following[1:]])[-(layout.text_tokens // 2) :]
            packed[row, -len(text) - 1 : -1] = text
        return packed

    def _prefill(
        self,
        crowd: list[EngineRollout],
        order: list[int],
        outputs: dict[int, list[NDArray[np.int32]]],
        *,
        random_chunks: bool,
    ) -> None:
        while unfinished := [i for i in order if crowd[i].computed < crowd[i].prompt_length]:
            rows, chosen, chunks = self.programs.layout.token_rows, [], []
            for i in unfinished:
                left = crowd[i].prompt_length - crowd[i].computed
                count = min(
                    rows, int(self._random.integers(1, left + 1)) if random_chunks else left
                )
                if count == 0:
                    break
                chunks.append(crowd[i].chunk(crowd[i].computed, count, int(count == left)))
                chosen.append(i)
                crowd[i].computed += count
                rows -= count
            self._mixed(chunks, crowd, chosen, outputs)

    def _mixed(
        self,
        chunks: list[step_inputs.Chunk],
        crowd: list[EngineRollout],
        order: list[int],
        outputs: dict[int, list[NDArray[np.int32]]],
    ) -> None:
        packed = step_inputs.pack_mixed(self.programs.layout, chunks)
        self.pools, result = self.programs.mixed(self.leaves, self.pools, packed)
        self._collect(np.asarray(result.sampled), crowd, order, outputs)

    def _collect(
        self,
        result: NDArray[np.int32],
        crowd: list[EngineRollout],
        order: list[int],
        outputs: dict[int, list[NDArray[np.int32]]],
    ) -> None:
        for row, i in enumerate(order):
            if result[TOKENS, 0, row] >= 0:
                outputs[i].append(result[:, :, row])
                crowd[i].append(result[TOKENS, :, row])

    def _read(self, rollout: EngineRollout, tokens: int) -> NDArray[np.uint8]:
        """Bytes of the keys and values of a rollout's first `tokens` tokens."""
        pages = np.array(rollout.pages, np.int32)
        layers = [np.asarray(layer) for layer in self.programs.read_pages(self.pools, pages)]
        return np.stack([x.view(np.uint8).reshape(-1, x[0, 0].nbytes)[:tokens] for x in layers])

    def _rollout(self, sample: int, tokens: NDArray[np.int64]) -> EngineRollout:
        sampling = Sampling(
            temperature=1.0,
            top_p=0.9,  # ignored where truncation is not compiled in
            top_k=0,
            max_tokens=self.steps + 1,
            stop_ids=(),
        )
        return rollout_of_tokens(tokens, self.programs.layout, sampling, sample=sample)

"""The start-up check that on this device a row's bits depend on nothing but its own sequence.

Whether a matrix product treats its rows alike is a property of libraries, devices and sizes, so
it is measured with the very programs that will run, rather than looked up: one sequence is run
alone, then in every slot at once, then among random companions, in random places, on random
pages and in random chunks; decoded by the decode program and by mixed steps. A longer sequence,
over several blocks of attention, is run alone and then in few slots. Tokens, the bits of
log-probabilities, checksums of the logits, and the bits of all keys and values must agree.

Their digest tells engines apart whose programs were made differently (`Engine.fingerprint`).
"""

import hashlib
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Array, Int
from numpy.typing import NDArray

from rlboost_jax.engine import metadata
from rlboost_jax.engine.programs import CHECKSUMS, LOGPROBS, TOKENS, Pools, Programs
from rlboost_jax.engine.rollouts import Rollout, rollout_of_tokens
from rlboost_jax.messages import Sampling
from rlboost_jax.settings.errors import Mistake

_CROWDS: Final = 2  # trials with random companions
_BLOCK_TOKENS: Final = 64  # of attention, in the implementation with the widest blocks
_FEW: Final = 4  # copies of the longer sequence, so that the check stays short
_OUTPUTS: Final = {TOKENS: "token", LOGPROBS: "log-probability", CHECKSUMS: "logits"}


class RowsNotInvariant(Mistake, RuntimeError):
    """Equal rows gave different bits: rollouts would depend on their companions."""


@dataclass(frozen=True, kw_only=True)
class _Trace:
    """All that the device made of one sequence."""

    outputs: NDArray[np.int32]  # [3, sampled tokens], as the step programs return them
    kv: NDArray[np.uint8]  # [layers, tokens, bytes]


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
        (alone,) = probe.run(copies=1, companions=0, by_mixed=False, shuffle=False)
        bits.update(alone.outputs.tobytes() + alone.kv.tobytes())
        many = min(most, probe.capacity)
        half = max(1, many // 2)
        sizes = sorted({min(many, rows) for rows in programs.layout.decode_rows})
        trials = [(size, 0, False, False) for size in sizes] + [(many, 0, True, False)]
        trials += [(half, many - half, bool(i % 2), True) for i in range(_CROWDS)]
        for copies, companions, by_mixed, shuffle in trials:
            traces = probe.run(
                copies=copies, companions=companions, by_mixed=by_mixed, shuffle=shuffle
            )
            for copy, trace in enumerate(traces):
                _compare(programs, alone, trace, copy, "mixed" if by_mixed else "decode")
        pools = probe.pools
    return pools, bits.hexdigest()


def _compare(programs: Programs, alone: _Trace, trace: _Trace, copy: int, program: str) -> None:
    prompt = alone.kv.shape[1] - alone.outputs.shape[1] + 1
    for token in range(alone.kv.shape[1]):
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
                f"equal rows different bits: {what[0]} at token {token} of copy {copy}; on CPU "
                "take a multiple of 16, at least 64, or build the kernels (python -m "
                "rlboost_kernels.cpu), elsewhere another multiple of 64; or set "
                "deterministic = False"
            )


class _Probe:
    """Runs copies of one sequence, with and without companions, through the step programs."""

    def __init__(
        self,
        programs: Programs,
        leaves: tuple[Array, ...],
        pools: Pools,
        ends: Int[Array, " N"],
        known: int,
    ) -> None:
        """For a sequence of `known` tokens, or as many as fit a slot."""
        self.programs, self.leaves, self.pools, self._ends = programs, leaves, pools, ends
        layout = programs.layout
        slot_tokens = layout.pages_per_slot * layout.page_size
        self._steps = min(programs.max_steps, slot_tokens - 1)
        self._known = max(1, min(known, slot_tokens - self._steps - 1))
        self._pages = -(-(self._known + self._steps) // layout.page_size)
        self.capacity = min(layout.slots, layout.num_pages // self._pages)
        self._random = np.random.default_rng(0)
        self._subject = self._random.integers(0, programs.model.vocab_size, self._known)

    def run(self, *, copies: int, companions: int, by_mixed: bool, shuffle: bool) -> list[_Trace]:
        """Prefill, sample one token, then decode; return what became of the copies."""
        crowd = [self._rollout(0, self._subject) for _ in range(copies)]
        for sample in range(1, companions + 1):
            length = self._random.integers(1, self._known + 1)
            tokens = self._random.integers(0, self.programs.model.vocab_size, length)
            crowd.append(self._rollout(sample, tokens))
        order = list(range(len(crowd)))
        if shuffle:
            self._random.shuffle(order)
        outputs: dict[int, list[NDArray[np.int32]]] = {i: [] for i in range(len(crowd))}

        num_pages = self.programs.layout.num_pages
        pages = (self._random.permutation(num_pages) if shuffle else np.arange(num_pages)).tolist()
        for i in order:
            crowd[i].take_pages([pages.pop() for _ in range(self._pages)])
        self._prefill(crowd, order, outputs, random_chunks=shuffle)
        if by_mixed:
            for _ in range(self._steps):
                chunks = [crowd[i].chunk(crowd[i].computed, 1, 1) for i in order]
                self._mixed(chunks, crowd, order, outputs)
        else:
            records = [crowd[i].decode_record(self._steps) for i in order]
            packed = metadata.pack_decode(self.programs.layout, records, self._steps)
            self.pools, result, _ = self.programs.decode(
                self.leaves, self.pools, packed, self._ends
            )
            self._collect(np.asarray(result.sampled)[:, : self._steps], crowd, order, outputs)
        return [
            _Trace(outputs=np.concatenate(outputs[i], axis=1), kv=self._read(crowd[i]))
            for i in range(copies)
        ]

    def _prefill(
        self,
        crowd: list[Rollout],
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
        chunks: list[metadata.Chunk],
        crowd: list[Rollout],
        order: list[int],
        outputs: dict[int, list[NDArray[np.int32]]],
    ) -> None:
        packed = metadata.pack_mixed(self.programs.layout, chunks)
        self.pools, result = self.programs.mixed(self.leaves, self.pools, packed)
        self._collect(np.asarray(result.sampled), crowd, order, outputs)

    def _collect(
        self,
        result: NDArray[np.int32],
        crowd: list[Rollout],
        order: list[int],
        outputs: dict[int, list[NDArray[np.int32]]],
    ) -> None:
        for row, i in enumerate(order):
            if result[TOKENS, 0, row] >= 0:
                outputs[i].append(result[:, :, row])
                crowd[i].append(result[TOKENS, :, row])

    def _read(self, rollout: Rollout) -> NDArray[np.uint8]:
        """Bytes of the keys and values of every token that was run."""
        pages = np.array(rollout.pages, np.int32)
        layers = [np.asarray(layer) for layer in self.programs.read_pages(self.pools, pages)]
        tokens = self._known + self._steps
        return np.stack([x.view(np.uint8).reshape(-1, x[0, 0].nbytes)[:tokens] for x in layers])

    def _rollout(self, sample: int, tokens: NDArray[np.int64]) -> Rollout:
        sampling = Sampling(
            temperature=1.0,
            top_p=0.9,  # ignored where truncation is not compiled in
            top_k=0,
            max_tokens=self._steps + 1,
            stop_ids=(),
        )
        return rollout_of_tokens(tokens, self.programs.layout, sampling, sample=sample)

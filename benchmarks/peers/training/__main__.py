"""Tokens per second of the learner on CPU over those of torch and TRL.

    python -m benchmarks.peers.training [--peers=torch,trl] [--models=10M,50M] [--count=48]
        [--rounds=5] [--json=FILE]
    python -m benchmarks.peers.training --models=270M-lora,270M [--file=GGUF]

One update by GRPO: gradients of the same sequences, clipped, and AdamW. 10M and 50M have random
weights, prompts of 64 tokens and responses of 128 on average, at most 512 together. 270M is Gemma
3 270M with the settings of `configs/gemma3_270m_words.py`: 128 sequences of 28 + 1 to 6 tokens;
all parameters are trained, or adapters of rank 8.

All sides have the same weights and as many threads as there are cores, get what the trainer's
command asks of malloc, and take turns, each in a process of its own that goes on from its own
parameters. Each works with what it is fastest with: rows of a packed batch, or responses of a
padded one. Norms of the gradients of the first update are compared before anything is timed.
Rates count tokens of prompts and responses; *GiB* is the peak resident memory of a process.

torch: `transformers` over rows packed as the learner's, attention within sequences by torch's
fused kernel, log-probabilities of sampled tokens only, fused AdamW; adapters by PEFT.
trl: GRPOTrainer's own step, which pads its micro-batches; adapters by PEFT.
"""

import argparse
import contextlib
import functools
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import jax
import numpy as np

from benchmarks.engine import MODELS
from benchmarks.peers.__main__ import compared, imported, show
from benchmarks.peers.training.side import Side, module_of
from benchmarks.peers.training.work import RANKS, Work, work_of
from benchmarks.real_model import FILE
from benchmarks.turns import Clock, median_seconds, take_turns
from rlboost_jax.settings.memory_estimates import num_parameters

OURS: Final = "learner"
PEERS: Final = ("torch", "trl")  # modules beside this one
TRIALS: Final = 2  # timed updates of each size


class Updates(Protocol):
    """A `Side`, or what a test puts in its place."""

    def update(self) -> float: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Result:
    """The learner beside one peer. Rates are tokens per second, of prompts and responses."""

    peer: str
    model: str
    parameters: int
    rank: int  # of adapters; 0: all parameters are trained
    sequences: int  # of an update
    ours: float
    theirs: float
    our_size: int  # rows of a packed batch
    their_size: int  # the same, or responses of a padded one
    our_bytes: int  # peak resident memory
    their_bytes: int
    ratio: float  # ours over theirs, the median of turns
    low: float  # its quartiles
    high: float

    def line(self) -> str:
        trained = f"rank {self.rank}" if self.rank else "all"
        return (
            f"| {self.parameters / 1e6:.0f} M | {trained} | {self.peer} | {self.ours:,.0f} | "
            f"{self.theirs:,.0f} | {self.ratio:.2f} | {self.low:.2f}–{self.high:.2f} | "
            f"{self.our_size} | {self.their_size} | {self.our_bytes / 2**30:.1f} | "
            f"{self.their_bytes / 2**30:.1f} |"
        )


HEADER = (
    "| parameters | trained | peer | ours /s | theirs /s | ratio | quartiles | our rows | theirs |"
    " our GiB | theirs |\n|--:|---|---|--:|--:|--:|---|--:|--:|--:|--:|"
)


def fastest(
    make: Callable[[int], Updates], sizes: Sequence[int], *, clock: Clock = time.perf_counter
) -> int:
    """Which of the sizes updates are fastest with; a single one is not tried."""
    if len(sizes) == 1:
        return sizes[0]
    seconds = {}
    for size in sizes:
        with contextlib.closing(make(size)) as side:
            calls = {"": side.update}
            seconds[size] = median_seconds(calls, TRIALS, clock=clock)[""]
    return min(sizes, key=seconds.__getitem__)


def check_norms(norms: Mapping[str, float]) -> None:
    """Compare the norms of the sides' first gradients.

    Raises:
        AssertionError: one is not the learner's.
    """
    for name, norm in norms.items():
        np.testing.assert_allclose(norm, norms[OURS], rtol=1e-3, err_msg=name)


def measure(
    name: str, make_work: Callable[[], Work], peers: Sequence[str], rounds: int
) -> tuple[list[Result], list[str]]:
    """The peers that are installed, and what to install for the others.

    Raises:
        AssertionError: a peer's first gradient has another norm.
    """
    looked_for = {peer: imported(peer, module_of) for peer in peers}
    found = [peer for peer, (module, _) in looked_for.items() if module is not None]
    reasons = [reason for module, reason in looked_for.values() if module is None]
    if not found:
        return [], reasons
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        work = process.submit(make_work).result()  # there: it takes the memory of two sides
    sizes = {
        each: fastest(functools.partial(Side, each, work), module_of(each).sizes(work.shape))
        for each in (OURS, *found)
    }
    with contextlib.ExitStack() as stack:
        sides = {
            each: stack.enter_context(contextlib.closing(Side(each, work, size)))
            for each, size in sizes.items()
        }
        check_norms({each: side.update() for each, side in sides.items()})
        calls = {each: side.update for each, side in sides.items()}
        turns = take_turns(calls, rounds, uncounted=0)
        peaks = {each: side.peak_bytes() for each, side in sides.items()}
    rates = {each: work.all_tokens / statistics.median(turns[each]) for each in turns}
    quartiles = compared(np.stack(list(turns.values()), axis=1)).T
    return [
        Result(
            peer=peer,
            model=name,
            parameters=num_parameters(work.run.model),
            rank=work.run.model.lora.rank,
            sequences=work.count,
            ours=rates[OURS],
            theirs=rates[peer],
            our_size=sizes[OURS],
            their_size=sizes[peer],
            our_bytes=peaks[OURS],
            their_bytes=peaks[peer],
            low=float(low),
            ratio=float(ratio),
            high=float(high),
        )
        for peer, (low, ratio, high) in zip(found, quartiles, strict=True)
    ], reasons


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = (*MODELS, *RANKS)
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)}")
    parser.add_argument("--models", default="10M,50M", help=f"of {', '.join(known)}")
    parser.add_argument("--file", type=Path, default=FILE, help="GGUF file of 270M's weights")
    parser.add_argument("--count", type=int, help="sequences of an update; default: 48, or 128")
    parser.add_argument("--rounds", type=int, default=5, help="timed turns of each")
    parser.add_argument("--json", type=Path, default=None, help="where to write the results")
    options = parser.parse_args(arguments)
    peers, models = options.peers.split(","), options.models.split(",")
    for option, given, choices in (("peers", peers, PEERS), ("models", models, known)):
        if unknown := sorted(set(given) - set(choices)):
            parser.error(f"--{option} names {', '.join(unknown)}; choose of {', '.join(choices)}")
    print(f"jax {jax.__version__}, float32\n\n{HEADER}", flush=True)
    with tempfile.TemporaryDirectory(prefix="peers-") as place:
        show(
            (
                measure(
                    name,
                    functools.partial(
                        work_of, name, Path(place) / name, options.file, options.count
                    ),
                    peers,
                    options.rounds,
                )
                for name in models
            ),
            options.json,
        )


if __name__ == "__main__":
    main()

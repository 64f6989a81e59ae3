"""Trajectories per second of the learner on CPU over those of torch and TRL.

    python -m benchmarks.peers.training [--peers=torch,trl] [--models=10M,50M] [--count=48]
        [--rounds=5] [--json=FILE]

One update by GRPO: gradients of the same trajectories (a prompt of 64 tokens, a response of 128
on average, at most 512 together), clipped, and AdamW. All sides have the same weights and as many
threads as there are cores, get what the trainer's command asks of malloc, and take turns in one
process, each going on from its own parameters. Each works with what it is fastest with: rows of a
packed batch, or responses of a padded one. Norms of the gradients of the first update are
compared before anything is timed.

torch: `transformers` over rows packed as the learner's, attention within sequences by torch's
fused kernel, log-probabilities of sampled tokens only, fused AdamW.
trl: GRPOTrainer's own step, which pads its micro-batches.
"""

from rlboost_jax.host.huge_pages import start_with_huge_pages

if __name__ == "__main__":
    start_with_huge_pages()

import argparse
import importlib
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.engine import MODELS
from benchmarks.peers.__main__ import compared, imported, show
from benchmarks.peers.training.work import ROWS, Update, Work, learner_programs, make_work
from benchmarks.turns import Clock, median_seconds, take_turns
from rlboost_jax.learner.state import init_state
from rlboost_jax.models.params import Params, init_params
from rlboost_jax.settings.memory import num_parameters
from rlboost_jax.settings.model import ModelConfig

PEERS = ("torch", "trl")  # modules beside this one
TRIALS = 2  # timed updates of each of these


@dataclass(frozen=True, kw_only=True)
class Result:
    peer: str
    model: str
    parameters: int
    ours: float  # trajectories per second
    theirs: float
    our_size: int  # rows of a packed batch
    their_size: int  # the same, or responses of a padded one
    ratio: float  # ours over theirs, the median of turns
    low: float  # its quartiles
    high: float

    def line(self) -> str:
        return (
            f"| {self.parameters / 1e6:.0f} M | {self.peer} | {self.ours:.2f} | {self.theirs:.2f} |"
            f" {self.ratio:.2f} | {self.low:.2f}–{self.high:.2f} | {self.our_size} | "
            f"{self.their_size} |"
        )


HEADER = (
    "| parameters | peer | ours /s | theirs /s | ratio | quartiles | our rows | theirs |\n"
    "|--:|---|--:|--:|--:|---|--:|--:|"
)


def learner_update(work: Work, params: Params, rows: int) -> Update:
    """The learner's own programs, as its loop calls them."""
    programs, batches = learner_programs(work.run, rows), work.packed(rows)
    state = init_state(params, programs.optimizer, programs.shardings)

    def update() -> float:
        nonlocal state
        gradients, _ = programs.accumulate(state.params, None, batches)
        state, metrics = programs.apply(state, gradients, np.float32(work.tokens))
        return float(metrics["gradient_norm"])

    return update


def fastest(
    make: Callable[[int], Update],
    sizes: Sequence[int],
    norm: float,
    name: str,
    *,
    clock: Clock = time.perf_counter,
) -> tuple[Update, int]:
    """An update with the best of the sizes, and that size.

    Raises:
        AssertionError: a first gradient has another norm.
    """
    updates = {size: make(size) for size in sizes}
    for size, update in updates.items():
        np.testing.assert_allclose(update(), norm, rtol=1e-3, err_msg=f"{name} with {size}")
    calls = {str(size): update for size, update in updates.items()}
    seconds = median_seconds(calls, TRIALS, uncounted=0, clock=clock)
    best = min(sizes, key=lambda size: seconds[str(size)])
    return updates[best], best


def module_of(name: str) -> Any:
    """Raises ModuleNotFoundError where the peer is not installed."""
    return importlib.import_module(f"benchmarks.peers.training.{name}")


def measure(
    name: str, model: ModelConfig, peers: Sequence[str], count: int, rounds: int, folder: Path
) -> tuple[list[Result], list[str]]:
    """The peers that are installed, and what to install for the others.

    Raises:
        AssertionError: a peer's first gradient has another norm.
    """
    looked_for = {peer: imported(peer, module_of) for peer in peers}
    found = {peer: module for peer, (module, _) in looked_for.items() if module is not None}
    reasons = [reason for module, reason in looked_for.values() if module is None]
    if not found:
        return [], reasons
    params = init_params(model, 0)
    work = make_work(model, params, count, folder)
    make_ours = partial(learner_update, work, params)
    norm = make_ours(ROWS[0])()
    ours, our_rows = fastest(make_ours, ROWS, norm, "learner")
    updates, sizes = {"": ours}, []
    for peer, module in found.items():
        make = partial(module.make_update, work)
        updates[peer], size = fastest(make, module.SIZES, norm, peer)
        sizes.append(size)
    seconds = np.stack(list(take_turns(updates, rounds).values()), axis=1)
    rates = count / np.median(seconds, axis=0)
    quartiles = compared(seconds).T
    return [
        Result(
            peer=peer,
            model=name,
            parameters=num_parameters(model),
            ours=float(rates[0]),
            theirs=float(rate),
            our_size=our_rows,
            their_size=size,
            low=float(low),
            ratio=float(ratio),
            high=float(high),
        )
        for peer, rate, size, (low, ratio, high) in zip(
            found, rates[1:], sizes, quartiles, strict=True
        )
    ], reasons


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)}")
    parser.add_argument("--models", default="10M,50M", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--count", type=int, default=48, help="trajectories of an update")
    parser.add_argument("--rounds", type=int, default=5, help="timed turns of each")
    parser.add_argument("--json", type=Path, default=None, help="where to write the results")
    options = parser.parse_args(arguments)
    peers = options.peers.split(",")
    if unknown := sorted(set(peers) - set(PEERS)):
        parser.error(f"--peers names {', '.join(unknown)}; choose of {', '.join(PEERS)}")
    print(f"jax {jax.__version__}; {options.count} trajectories, float32\n\n{HEADER}", flush=True)
    count, rounds = options.count, options.rounds
    with tempfile.TemporaryDirectory(prefix="peers-") as place:
        show(
            (
                measure(name, MODELS[name], peers, count, rounds, Path(place) / name)
                for name in options.models.split(",")
            ),
            options.json,
        )


if __name__ == "__main__":
    main()

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
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.engine import MODELS
from benchmarks.peers.__main__ import compared, imported
from benchmarks.peers.training.work import LONGEST, ROWS, Update, Work, make_work
from benchmarks.turns import Clock, median_seconds, take_turns
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.learner.state import init_state
from rlboost_jax.models.params import Params, init_params
from rlboost_jax.models.sharding import make_mesh
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
    run, batches = work.run, work.packed(rows)
    programs = PolicyPrograms(
        run.model,
        replace(run.learner, pack_rows=rows, row_tokens=LONGEST),
        run.algorithm,
        run.sampling,
        num_updates=10**6,
        mesh=make_mesh((1, 1, 1)),
    )
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
    norm: float | None,
    name: str,
    *,
    clock: Clock = time.perf_counter,
) -> tuple[Update, int, float]:
    """An update with the best of the sizes, that size, and the norm of its first gradient.

    Raises:
        AssertionError: a first gradient has another norm than is said.
    """
    updates = {size: make(size) for size in sizes}
    for size, update in updates.items():
        found = update()
        norm = found if norm is None else norm
        np.testing.assert_allclose(found, norm, rtol=1e-3, err_msg=f"{name} with {size}")
    assert norm is not None
    calls = {str(size): update for size, update in updates.items()}
    seconds = median_seconds(calls, TRIALS, uncounted=0, clock=clock)
    best = min(sizes, key=lambda size: seconds[str(size)])
    return updates[best], best, norm


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
    ours, our_rows, norm = fastest(
        lambda rows: learner_update(work, params, rows), ROWS, None, "learner"
    )
    updates, sizes = {"": ours}, []
    for peer, module in found.items():
        make = partial(module.make_update, work)
        updates[peer], size, _ = fastest(make, module.SIZES, norm, peer)
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
    results, said = [], set[str]()
    with tempfile.TemporaryDirectory(prefix="peers-") as place:
        for name in options.models.split(","):
            rows, reasons = measure(
                name, MODELS[name], peers, options.count, options.rounds, Path(place) / name
            )
            for row in rows:
                print(row.line(), flush=True)
            for reason in [r for r in reasons if r not in said]:
                print(reason, file=sys.stderr)
                said.add(reason)
            results += rows
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Tokens per second of the engine on CPU over those of other engines.

    python -m benchmarks.peers [--peers=openvino,onnxruntime,torch] [--models=10M,50M]
        [--batches=16,64] [--dtypes=float32,bfloat16] [--new=256] [--rounds=5] [--json=FILE]

Every sequence has a prompt of 64 tokens and gets 256 more, greedily. All sides have the same
weights (one checkpoint, by our own export), the same prompts and as many threads as there are
cores, and take turns in one process: a ratio is that of two neighbours in time, and the table has
its median and its quartiles. First tokens are compared before anything is timed.

A peer that is not installed is left out with a line that says what to install; install them in an
environment of their own (`requirements.txt` beside this file).
"""

import argparse
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

from benchmarks.engine import MODELS, NEW, PROMPT, check_agreement, generate, make_engine
from benchmarks.peers.checkpoint import endless_params, write_folder
from benchmarks.turns import take_turns
from rlboost_jax.settings.memory_estimates import num_parameters
from rlboost_jax.settings.model_config import ModelConfig

REQUIREMENTS = "benchmarks/peers/requirements.txt"
PEERS = ("openvino", "onnxruntime", "torch")  # modules beside this one
AGREEING = {"float32": 16, "bfloat16": 1}  # first tokens; bfloat16 is rounded in other places


class Peer(Protocol):
    """What a peer's module calls `Peer`; made from (folder, dtype, threads, batch, tokens)."""

    note: str  # what a reader of its numbers should know

    def generate(self, prompts: NDArray[np.int32], num_tokens: int) -> NDArray[np.integer]: ...


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of one peer, model, batch and type; rates are tokens per second, prompts included."""

    peer: str
    model: str
    parameters: int
    batch: int
    dtype: str
    ours: float
    theirs: float
    ratio: float  # ours over theirs, the median of turns
    low: float  # its quartiles
    high: float
    note: str

    def line(self) -> str:
        return (
            f"| {self.parameters / 1e6:.0f} M | {self.batch} | {self.dtype} | {self.peer} | "
            f"{self.ours:,.0f} | {self.theirs:,.0f} | {self.ratio:.2f} | {self.low:.2f}–"
            f"{self.high:.2f} | {self.note} |"
        )


HEADER = (
    "| parameters | batch | type | peer | ours /s | theirs /s | ratio | quartiles | |\n"
    "|--:|--:|---|---|--:|--:|--:|--:|---|"
)


def module_of(name: str) -> Any:
    """Raises ModuleNotFoundError where the peer is not installed."""
    return importlib.import_module(f"benchmarks.peers.{name}")


def imported(name: str, module_of: Callable[[str], Any]) -> tuple[Any | None, str]:
    """A peer's module, or None with what to install."""
    try:
        return module_of(name), ""
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("benchmarks", "rlboost_jax"):
            raise
        return None, f"{name}: {error.name} is not installed; pip install -r {REQUIREMENTS}"


def make_peer(
    name: str,
    folder: Path,
    *,
    dtype: str,
    threads: int,
    batch: int,
    tokens: int,
    module_of: Callable[[str], Any] = module_of,
) -> tuple[Peer | None, str]:
    """A peer with that checkpoint, or None with the reason for a person."""
    module, reason = imported(name, module_of)
    if module is None:
        return None, reason
    try:
        peer = module.Peer(folder, dtype=dtype, threads=threads, batch=batch, tokens=tokens)
    except NotImplementedError as error:
        return None, f"{name}: {error}"
    return peer, ""


def compared(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Quartiles of how often the first call's rate has that of every other: [3, others].

    Args:
        seconds: [rounds, calls].
    """
    return np.quantile(seconds[:, 1:] / seconds[:, :1], [0.25, 0.5, 0.75], axis=0)


def measure(
    name: str,
    batch: int,
    dtype: str,
    peers: Sequence[str],
    rounds: int,
    folder: Path,
    new: int,
    *,
    models: Mapping[str, ModelConfig] = MODELS,
    module_of: Callable[[str], Any] = module_of,
) -> tuple[list[Result], list[str]]:
    """The peers that can, and why the others cannot."""
    model = replace(models[name], dtype=dtype)
    params = endless_params(model, 0)
    if not folder.exists():
        write_folder(model, params, folder)
    threads = len(os.sched_getaffinity(0))
    how = {"dtype": dtype, "threads": threads, "batch": batch, "tokens": PROMPT + new}
    made = {peer: make_peer(peer, folder, **how, module_of=module_of) for peer in peers}
    found = {peer: there for peer, (there, _) in made.items() if there is not None}
    reasons = [reason for there, reason in made.values() if there is None]
    if not found:
        return [], reasons
    engine = make_engine(model, params, batch, max(64, batch), PROMPT + new, dtype)
    rng = np.random.default_rng(0)

    def prompts() -> NDArray[np.int32]:
        """New ones every time: an engine would find old ones again."""
        return rng.integers(1, model.vocab_size, size=(batch, PROMPT)).astype(np.int32)

    given = prompts()
    ours = generate(engine, given, new)[0]
    for peer in found.values():
        check_agreement(ours, peer.generate(given, new), AGREEING[dtype])
    calls: dict[str, Callable[[], object]] = {"": lambda: generate(engine, prompts(), new)}
    for name_of_peer, peer in found.items():
        calls[name_of_peer] = lambda peer=peer: peer.generate(prompts(), new)
    seconds = np.stack(list(take_turns(calls, rounds).values()), axis=1)
    rates = batch * new / np.median(seconds, axis=0)
    return [
        Result(
            peer=peer,
            model=name,
            parameters=num_parameters(model),
            batch=batch,
            dtype=dtype,
            ours=float(rates[0]),
            theirs=float(rates[1 + i]),
            low=float(low),
            ratio=float(ratio),
            high=float(high),
            note=found[peer].note,
        )
        for i, (peer, (low, ratio, high)) in enumerate(zip(found, compared(seconds).T, strict=True))
    ], reasons


def show(measured: Iterable[tuple[Sequence[Any], Sequence[str]]], path: Path | None) -> None:
    """Print results as they come, and each reason once; then write the results.

    Args:
        measured: as `measure` returns them; results have a `line`.
    """
    results, said = [], set[str]()
    for rows, reasons in measured:
        for row in rows:
            print(row.line(), flush=True)
        for reason in [r for r in reasons if r not in said]:
            print(reason, file=sys.stderr)
            said.add(reason)
        results += rows
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)}")
    parser.add_argument("--models", default="10M,50M", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--batches", default="16,64")
    parser.add_argument("--dtypes", default="float32", help=f"of {', '.join(AGREEING)}")
    parser.add_argument("--new", type=int, default=NEW, help="tokens after every prompt")
    parser.add_argument("--rounds", type=int, default=5, help="timed turns of each")
    parser.add_argument("--json", type=Path, default=None, help="where to write the results")
    options = parser.parse_args(arguments)
    peers = options.peers.split(",")
    if unknown := sorted(set(peers) - set(PEERS)):
        parser.error(f"--peers names {', '.join(unknown)}; choose of {', '.join(PEERS)}")
    print(
        f"jax {jax.__version__}; prompt {PROMPT} + {options.new} tokens, greedy\n\n{HEADER}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="peers-") as place:
        show(
            (
                measure(name, batch, dtype, peers, options.rounds, Path(place) / name, options.new)
                for name in options.models.split(",")
                for dtype in options.dtypes.split(",")
                for batch in map(int, options.batches.split(","))
            ),
            options.json,
        )


if __name__ == "__main__":
    main()

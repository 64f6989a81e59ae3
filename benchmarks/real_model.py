"""The engine beside transformers and llama.cpp, on a real model on CPU.

    python -m benchmarks.real_model [--model=FILE.gguf] [--peers=torch,llamacpp] [--python=PYTHON]
        [--batches=1,16,64] [--new=64] [--rounds=3] [--agree=20] [--json=FILE]

Weights are those of a GGUF file, dequantised to float32: the engine reads the file itself,
transformers the safetensors that our export makes of it, llama.cpp a GGUF file in float32. Every
side is a process of its own, with as many threads as there are cores; they take turns, so that
ratios are those of neighbours in time. Each sequence has a prompt of 64 tokens and gets `--new`
more, greedily. Peers run under PYTHON, of an environment that has them (`peers/requirements.txt`);
one that does not start is printed as such and left out.

*Start*: from the start of the process to the first token of one sequence. The engine starts twice:
with an empty compile cache, and with the programs that it has left there. *Ceiling*: tokens per
second of decode steps that take no longer than reading all weights and keys at the rate of the
fastest linear read, or multiplying them at that of the fastest product, both measured in this run.
*CPU*: processor seconds a token, of all threads; on cores that others want they say more than wall
time, but threads that wait by spinning count.
"""

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from configs import gemma3_270m_words

FILE = Path(gemma3_270m_words.START) / "gemma-3-270m-q4_k_m.gguf"  # of `make gemma`
OURS, PEERS = "engine", ("torch", "llamacpp")
PROMPT, AGREE_PROMPT, AGREE_NEW = 64, 12, 16
REPO = Path(__file__).parents[1]

Generate = Callable[[NDArray[np.int32], int], NDArray[np.integer]]


class _Asked(msgspec.Struct):
    prompts: list[list[int]]
    new: int  # tokens after each


class _Answer(msgspec.Struct):
    tokens: list[list[int]]
    seconds: float
    cpu_seconds: float  # of all threads


@dataclass(frozen=True, kw_only=True)
class Result:
    """One side with one number of sequences; rates are tokens per second, prompts included."""

    side: str
    batch: int
    rate: float  # of the median turn
    cpu_seconds: float  # of all threads, for each token
    ratio: float  # of the engine's rate to this one, the median over turns
    low: float  # its quartiles
    high: float
    peak_bytes: int  # resident, so far
    ceiling: float  # tokens per second of decode steps alone

    def line(self) -> str:
        return (
            f"| {self.side} | {self.batch} | {self.rate:,.1f} | {self.cpu_seconds * 1e3:,.1f} | "
            f"{self.ratio:.2f} | {self.low:.2f}–{self.high:.2f} | {self.rate / self.ceiling:.2f} | "
            f"{self.peak_bytes / 2**30:.1f} |"
        )


HEADER = (
    "| side | sequences | tokens/s | CPU ms/token | ours over it | quartiles | of ceiling | GiB |\n"
    "|---|--:|--:|--:|--:|---|--:|--:|"
)


class Side:
    """One engine or peer, in a process of its own, that generates on request."""

    def __init__(self, name: str, python: str, arguments: Sequence[str]) -> None:
        """Start it.

        Raises:
            RuntimeError: it ended before it was ready; with the last line that it wrote.
        """
        self.name, began = name, time.perf_counter()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed with the side)
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.real_model", f"--serve={name}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=REPO,
            env={**os.environ, "PYTHONPATH": f"{REPO}:{REPO / 'kernels'}"},
            text=True,
        )
        self.generate(np.ones((1, PROMPT), np.int32), 1)
        self.start_seconds = time.perf_counter() - began

    def generate(
        self, prompts: NDArray[np.int32], new: int
    ) -> tuple[NDArray[np.int32], float, float]:
        """Continuations, wall seconds, and processor seconds of all threads."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        with contextlib.suppress(BrokenPipeError):  # what it said is read below
            asked = msgspec.json.encode(_Asked(prompts.tolist(), new))
            print(asked.decode(), file=stdin, flush=True)
        answer = stdout.readline()
        if not answer:
            self._process.wait()
            self._errors.seek(0)
            lines = self._errors.read().strip().splitlines() or ["no word"]
            raise RuntimeError(f"{self.name}: {lines[-1]}")
        found = msgspec.json.decode(answer, type=_Answer)
        return np.array(found.tokens, np.int32), found.seconds, found.cpu_seconds

    def peak_bytes(self) -> int:
        """Peak resident memory of the process, bytes."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._errors.close()


def serve(name: str, folder: Path, most: int, tokens: int, model: Path) -> None:
    """Answer each request, a line of standard input, with a line, until input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print
    if name == OURS:
        generate = _engine(model, folder, most, tokens)
    else:
        generate = _peer(name, folder, most, tokens)
    for line in sys.stdin:
        asked = msgspec.json.decode(line, type=_Asked)
        prompts = np.array(asked.prompts, np.int32)
        cpu, began = time.process_time(), time.perf_counter()
        found = generate(prompts, asked.new)
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
        answer = _Answer(np.asarray(found).tolist(), seconds, cpu_seconds)
        print(msgspec.json.encode(answer).decode(), file=out, flush=True)


def _engine(source: Path, folder: Path, most: int, tokens: int) -> Generate:
    from benchmarks.engine import make_engine, requests
    from rlboost_jax.models.checkpoint_reader import read_checkpoint
    from rlboost_jax.platform import compile_cache
    from rlboost_jax.settings.huggingface.sources import WEIGHTS, source_folder

    compile_cache.enable(str(folder / "programs"))
    model = _model(source)
    params = read_checkpoint(model, source_folder(str(source), WEIGHTS))
    engine = make_engine(model, params, most, 64, tokens)
    del params

    def generate(prompts: NDArray[np.int32], new: int) -> NDArray[np.int32]:
        engine.submit(requests(prompts, new))
        responses: list[list[int]] = [[] for _ in prompts]
        for dispatch in engine.run():
            tokens = iter(dispatch.tokens.tolist())
            for i, count in zip(dispatch.request_ids, dispatch.counts, strict=True):
                responses[i] += [next(tokens) for _ in range(count)]
        return np.array(responses, np.int32)

    return generate


def _peer(name: str, folder: Path, most: int, tokens: int) -> Generate:
    module: Any = importlib.import_module(f"benchmarks.peers.{name}")
    threads = len(os.sched_getaffinity(0))
    peer = module.Peer(folder, dtype="float32", threads=threads, batch=most, tokens=tokens)
    generate: Generate = peer.generate
    return generate


def _model(source: Path) -> Any:
    from rlboost_jax.settings.huggingface.sources import source_fields
    from rlboost_jax.settings.model_config import ModelConfig

    fields = source_fields(str(source), weights=True)
    return ModelConfig(source=str(source), dtype="float32", **fields)


def write_folder(source: Path, folder: Path) -> None:
    """Write what peers read: our export in float32, and a GGUF file in float32."""
    from benchmarks.peers.float32_gguf import FILE as FLOAT32
    from benchmarks.peers.float32_gguf import write_float32
    from rlboost_jax.models.checkpoint_reader import read_checkpoint
    from rlboost_jax.models.checkpoint_writer import write_checkpoint
    from rlboost_jax.settings.huggingface.config import to_huggingface
    from rlboost_jax.settings.huggingface.sources import WEIGHTS, source_folder

    model = _model(source)
    params = read_checkpoint(model, source_folder(str(source), WEIGHTS))
    folder.mkdir(parents=True)
    write_checkpoint(model, params, folder, dtype="float32")
    config = to_huggingface(model) | {"torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_float32(source, folder / FLOAT32)


def ceilings(source: Path, batches: Sequence[int], context: float) -> tuple[dict[int, float], str]:
    """Tokens per second of the ideal decode steps, and the rates that they come from."""
    from benchmarks.engine import product_rate, read_rate
    from rlboost_jax.settings.memory_estimates import num_parameters

    model, bandwidth = _model(source), read_rate()
    count = num_parameters(model)
    keys = 2 * model.num_layers * model.num_key_heads * model.head_dim
    rates = {batch: product_rate(model, batch) for batch in batches}
    found = {
        batch: batch
        / max(4 * (count + keys * context * batch) / bandwidth, 2 * count * batch / rates[batch])
        for batch in batches
    }
    products = ", ".join(f"{rate / 1e9:.0f} with {batch}" for batch, rate in rates.items())
    return found, f"linear read {bandwidth / 1e9:.1f} GB/s; products, GFLOP/s: {products} rows"


def sentences(source: Path, count: int) -> NDArray[np.int32]:
    """Prompts of `AGREE_PROMPT` tokens, cut from docstrings of Python's library."""
    from tokenizers import Tokenizer

    from rlboost_jax.settings.huggingface.sources import TOKENIZER, source_folder

    folder = source_folder(str(source), TOKENIZER)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = " ".join("".join(module.__doc__ or "" for module in (argparse, subprocess)).split())
    ids = tokenizer.encode(text).ids[1:]
    rows = [[2, *ids[i : i + AGREE_PROMPT - 1]] for i in range(0, len(ids), AGREE_PROMPT)]
    return np.array(rows[:count], np.int32)


def agreement(ours: NDArray[np.int32], theirs: NDArray[np.int32]) -> str:
    """How many sequences are equal, and tokens up to the first difference of each."""
    equal = ours == theirs
    first = np.where(equal.all(axis=1), equal.shape[1], equal.argmin(axis=1))
    return f"{equal.all(axis=1).sum()} of {len(ours)} equal, {first.sum()} of {equal.size} tokens"


def measure(
    sides: Sequence[Side], batch: int, new: int, rounds: int, ceiling: float, vocab_size: int
) -> list[Result]:
    """The sides in turns, the engine first."""
    rng = np.random.default_rng(batch)
    times: list[list[tuple[float, float]]] = []
    for turn in range(1 + rounds):
        prompts = rng.integers(1, vocab_size, size=(batch, PROMPT)).astype(np.int32)
        found = [side.generate(prompts, new)[1:] for side in sides]
        if turn:
            times.append(found)
    seconds, cpu = np.moveaxis(np.array(times), 2, 0)  # [rounds, sides] each
    low, ratio, high = np.quantile(seconds / seconds[:, :1], [0.25, 0.5, 0.75], axis=0)
    return [
        Result(
            side=side.name,
            batch=batch,
            rate=batch * new / float(np.median(seconds[:, i])),
            cpu_seconds=float(np.median(cpu[:, i])) / (batch * new),
            ratio=float(ratio[i]),
            low=float(low[i]),
            high=float(high[i]),
            peak_bytes=side.peak_bytes(),
            ceiling=ceiling,
        )
        for i, side in enumerate(sides)
    ]


def run(
    options: argparse.Namespace, place: Path, out: IO[str]
) -> tuple[dict[str, float], list[Result]]:
    """Print the comparison; returns seconds to each side's first token, and the rates."""
    batches = [int(batch) for batch in options.batches.split(",")]
    folder, tokens = place / "model", PROMPT + options.new
    write_folder(options.model, folder)
    serving = [f"--folder={folder}", f"--model={options.model}", f"--most={max(batches)}"]
    serving.append(f"--tokens={max(tokens, AGREE_PROMPT + AGREE_NEW)}")
    starts, sides = {}, []
    empty = Side(OURS, sys.executable, serving)
    starts[f"{OURS}, nothing compiled"] = empty.start_seconds
    empty.close()
    for name in (OURS, *options.peers.split(",")):
        python = sys.executable if name == OURS else options.python
        try:
            sides.append(Side(name, python, serving))
        except RuntimeError as error:
            print(f"not compared: {error}", file=out, flush=True)
    starts |= {side.name: side.start_seconds for side in sides}
    started = "; ".join(f"{name}: {seconds:.1f} s" for name, seconds in starts.items())
    print(f"start to first token: {started}", file=out, flush=True)
    vocab_size = _model(options.model).vocab_size
    prompts = sentences(options.model, options.agree)
    parts = np.split(prompts, range(max(batches), len(prompts), max(batches)))
    ours, *others = (
        np.concatenate([side.generate(part, AGREE_NEW)[0] for part in parts]) for side in sides
    )
    for side, theirs in zip(sides[1:], others, strict=True):
        print(f"greedy tokens, {side.name}: {agreement(ours, theirs)}", file=out, flush=True)
    ceiling, words = ceilings(options.model, batches, PROMPT + options.new / 2)
    print(f"{words}\n\n{HEADER}", file=out, flush=True)
    results = []
    for batch in batches:
        found = measure(sides, batch, options.new, options.rounds, ceiling[batch], vocab_size)
        for result in found:
            print(result.line(), file=out, flush=True)
        results += found
    for side in sides:
        side.close()
    return starts, results


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=FILE, help="GGUF file of the weights")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)}")
    parser.add_argument("--python", default=sys.executable, help="that has the peers")
    parser.add_argument("--batches", default="1,16,64", help="numbers of sequences")
    parser.add_argument("--new", type=int, default=64, help="tokens after every prompt")
    parser.add_argument("--rounds", type=int, default=3, help="timed turns of each")
    parser.add_argument("--agree", type=int, default=20, help="prompts whose tokens are compared")
    parser.add_argument("--json", type=Path, default=None, help="where to write the results")
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=Path(), help=argparse.SUPPRESS)
    parser.add_argument("--most", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--tokens", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.serve, options.folder, options.most, options.tokens, options.model)
        return
    with tempfile.TemporaryDirectory(prefix="real-model-") as place:
        starts, results = run(options, Path(place), sys.stdout)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        found = {"start_seconds": starts, "rates": [asdict(r) for r in results]}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

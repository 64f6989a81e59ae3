"""Seconds from the start of a process to an engine's first token, compile cache cold and warm.

    python -m benchmarks.cold_start [--config=configs/tiny.py] [--rounds=3] [--servers=1]

What a preemptible server does before it works: import, build the engine, compile its programs or
read them from the cache, check row invariance or read its verdict, load weights, prefill, sample.
Weights are constants of the run's shapes: to read or to fetch them takes no time here.
"""

import argparse
import itertools
import runpy
import statistics
import subprocess
import sys
import tempfile
import time

PHASES = ("imports", "engine", "weights", "first token")


def first_token(config_file: str, cache: str, started: float) -> None:
    """Print the seconds from `started` to the end of each phase, then all processor seconds."""
    ends = []

    import jax
    import numpy as np

    from rlboost_jax.messages import GenerateRequest, Sampling, pack_tokens
    from rlboost_jax.models.params import abstract_params
    from rlboost_jax.platform import compile_cache
    from rlboost_jax.rollout.server import engine_of
    from rlboost_jax.sequences.identities import Work
    from rlboost_jax.settings.config_loading import run_config

    ends.append(time.time())
    compile_cache.enable(cache)
    config = run_config(runpy.run_path(config_file)["get_config"]())
    engine = engine_of(config)
    ends.append(time.time())
    number = np.float32(0.01)
    shapes = abstract_params(config.model)
    engine.load(jax.tree.map(lambda leaf: np.broadcast_to(number, leaf.shape), shapes), 0)
    ends.append(time.time())
    request = GenerateRequest(
        work=Work(seed=0, batch=0, prompt=0, sample=0),
        request_id=0,
        version=0,
        prompt_tokens=pack_tokens([1, 2, 3]),
        response_tokens=b"",
        sampling=Sampling(temperature=1.0, top_p=1.0, top_k=0, max_tokens=1, stop_ids=()),
    )
    engine.submit([request])
    engine.begin()
    engine.finish()
    ends.append(time.time())
    print(*(end - started for end in ends), time.process_time())


def measure(config_file: str, cache: str, servers: int) -> list[float]:
    """Seconds of each phase in the slowest of so many processes, and processor seconds of all."""
    call = f"import sys; from {__spec__.name} import first_token as f; f(*sys.argv[1:3], "
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", f"{call}{time.time()!r})", config_file, cache],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(servers)
    ]
    said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a server failed; its error is above")
    found = [[float(word) for word in line.split()] for line in said]
    *ends, _ = max(found, key=lambda numbers: numbers[-2])
    phases = [end - start for start, end in itertools.pairwise([0.0, *ends])]
    return [*phases, sum(numbers[-1] for numbers in found)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/tiny.py")
    parser.add_argument("--rounds", type=int, default=3, help="of the warm cache")
    parser.add_argument("--servers", type=int, default=1, help="that start at once")
    options = parser.parse_args()
    columns = (*PHASES, "in all", "processor")
    print(f"{'cache':<6}" + "".join(f"{name:>13}" for name in columns))
    with tempfile.TemporaryDirectory() as cache:
        for name, rounds in (("cold", 1), ("warm", options.rounds)):
            runs = [measure(options.config, cache, options.servers) for _ in range(rounds)]
            *phases, processor = statistics.median_low(
                [tuple([sum(run[:-1]), *run]) for run in runs]
            )[1:]
            figures = (*phases, sum(phases), processor)
            print(f"{name:<6}" + "".join(f"{s:>11.2f} s" for s in figures), flush=True)


if __name__ == "__main__":
    main()

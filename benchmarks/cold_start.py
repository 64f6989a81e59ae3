"""Seconds from the start of a process to an engine's first token, compile cache cold and warm.

    python -m benchmarks.cold_start [--config=configs/tiny.py] [--rounds=3]

What a preemptible server does before it works: import, build the engine, compile its programs or
read them from the cache, check row invariance, load weights, prefill, sample.
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
    """Print the seconds from `started` to the end of each phase."""
    ends = []

    import jax
    import numpy as np

    from rlboost_jax import compile_cache
    from rlboost_jax.messages import GenerateRequest, Sampling, pack_tokens
    from rlboost_jax.models.params import abstract_params
    from rlboost_jax.rollout.server import engine_of
    from rlboost_jax.sequences.identities import Work
    from rlboost_jax.settings.load import run_config_from_dict

    ends.append(time.time())
    compile_cache.enable(cache)
    config = run_config_from_dict(runpy.run_path(config_file)["get_config"]().to_dict())
    engine = engine_of(config)
    ends.append(time.time())
    shapes = abstract_params(config.model)
    engine.load(jax.tree.map(lambda leaf: np.full(leaf.shape, 0.01, np.float32), shapes), 0)
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
    print(*(end - started for end in ends))


def measure(config_file: str, cache: str) -> list[float]:
    """Seconds that each phase takes in a process of its own."""
    call = f"import sys; from {__spec__.name} import first_token as f; f(*sys.argv[1:3], "
    command = [sys.executable, "-c", f"{call}{time.time()!r})", config_file, cache]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    ends = [0.0, *map(float, done.stdout.split())]
    return [end - start for start, end in itertools.pairwise(ends)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/tiny.py")
    parser.add_argument("--rounds", type=int, default=3, help="of the warm cache")
    options = parser.parse_args()
    print(f"{'cache':<6}" + "".join(f"{name:>13}" for name in (*PHASES, "in all")))
    with tempfile.TemporaryDirectory() as cache:
        for name, rounds in (("cold", 1), ("warm", options.rounds)):
            runs = [measure(options.config, cache) for _ in range(rounds)]
            seconds = statistics.median_low([(sum(run), *run) for run in runs])
            print(f"{name:<6}" + "".join(f"{s:>11.2f} s" for s in (*seconds[1:], seconds[0])))


if __name__ == "__main__":
    main()

"""A rollout server without a model: it samples at a set rate, and the rest is real.

    python benchmarks/stand_in.py --manager=HOST:PORT --token_file=F --rate=2000

Process, stream, worker thread and messages are those of `rlboost_jax.rollout`; only the
engine is a clock. All rollouts in slots advance together and a dispatch of n tokens takes
n / rate seconds, so that the rate does not depend on how many there are.
"""

import argparse
import asyncio
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlboost_jax.messages import GenerateRequest, Hello, Manifest, unpack_tokens
from rlboost_jax.rollout.stream import InstanceClient
from rlboost_jax.rollout.worker import Worker

STOP = 1
FILLER = 2
FINGERPRINT = "stand-in"


def response_length(sample: int, step: int, *, mean: float, longest: int) -> int:
    """Tokens of a response: exponential, at least 4; the same wherever it is sampled."""
    draw = np.random.default_rng([step, sample]).exponential(mean)
    return int(min(max(4, draw), longest))


@dataclass
class Dispatch:
    version: int
    request_ids: np.ndarray
    counts: np.ndarray
    tokens: np.ndarray
    logprobs: np.ndarray
    prefilled_again: int = 0


class StandInEngine:
    """Interface of `rlboost_jax.engine.engine.Engine`, as far as a worker uses it."""

    def __init__(self, *, rate: float, slots: int, steps: int, mean: float, longest: int):
        self.slots, self.slot_tokens = slots, longest + 8
        self._rate, self._steps, self._mean, self._longest = rate, steps, mean, longest
        self.version: int | None = None
        self._left: dict[int, int] = {}  # request id → tokens to go, in order of arrival
        self._due = 0.0
        self._plan: list[tuple[int, int]] = []

    @property
    def running(self) -> int:
        return min(len(self._left), self.slots)

    @property
    def waiting(self) -> int:
        return len(self._left) - self.running

    def load(self, params: object, version: int) -> None:
        self.version = version

    def held(self) -> list[int]:
        return list(self._left)

    def submit(self, requests: Sequence[GenerateRequest]) -> None:
        for request in requests:
            length = response_length(
                request.sample, request.step, mean=self._mean, longest=self._longest
            )
            done = len(unpack_tokens(request.response_tokens))
            self._left[request.request_id] = length - done

    def release(self, request_ids: Sequence[int]) -> list[int]:
        return [i for i in request_ids if self._left.pop(i, None) is not None]

    def begin(self) -> int:
        ids = list(self._left)[: self.slots]
        self._plan = [(i, min(self._steps, self._left[i])) for i in ids]
        total = sum(count for _, count in self._plan)
        # Time lost to the machine's own scheduling is not made up for, except that a
        # dispatch which follows at once counts from when the last one was due.
        now = time.perf_counter()
        self._due = max(now - 0.002, self._due) + total / self._rate
        return total

    def finish(self) -> Dispatch:
        delay = self._due - time.perf_counter()
        if delay > 0:
            time.sleep(delay)
        tokens: list[int] = []
        for request_id, count in self._plan:
            self._left[request_id] -= count
            over = self._left[request_id] == 0
            tokens += [FILLER] * (count - over) + [STOP] * over
            if over:
                del self._left[request_id]
        return Dispatch(
            version=-1 if self.version is None else self.version,
            request_ids=np.array([i for i, _ in self._plan], np.uint32),
            counts=np.array([c for _, c in self._plan], np.uint16),
            tokens=np.array(tokens, np.int32),
            logprobs=np.full(len(tokens), -1.0, np.float32),
        )


def stand_in_hello(name: str, engine: StandInEngine, *, reserved: bool) -> Hello:
    return Hello(
        instance=name,
        reserved=reserved,
        slots=engine.slots,
        slot_tokens=engine.slot_tokens,
        price_per_hour=2.66,
        zone="stand-in",
        host="localhost",
        pid=os.getpid(),
        device="clock",
        fingerprint=FINGERPRINT,
    )


async def nothing_to_pull(manifest: Manifest) -> object:
    return None


@dataclass
class Pulled:
    params: object = None
    fetched_bytes: int = 0


class NothingToPull:
    """Puller of a server whose engine needs no weights."""

    async def pull(self, manifest: Manifest) -> Pulled:
        return Pulled()


async def serve(options: argparse.Namespace) -> None:
    engine = StandInEngine(
        rate=options.rate,
        slots=options.slots,
        steps=options.steps,
        mean=options.mean,
        longest=options.longest,
    )
    client = InstanceClient(
        options.manager,
        Path(options.token_file).read_text().strip(),
        stand_in_hello(options.name, engine, reserved=False),
        Worker(engine),
        NothingToPull(),
    )
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, client.leave, "terminated")
    await client.run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--manager", required=True, help="HOST:PORT")
    parser.add_argument("--token_file", required=True)
    parser.add_argument("--name", default="")
    parser.add_argument("--rate", type=float, required=True, help="tokens per second")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8, help="tokens per row and dispatch")
    parser.add_argument("--mean", type=float, default=100.0, help="mean response length")
    parser.add_argument("--longest", type=int, default=800, help="longest response")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()

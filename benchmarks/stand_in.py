"""Rollout servers without a model: they sample at a set rate, and the rest is real.

    python -m benchmarks.stand_in --manager=HOST:PORT --join=FOLDER --rate=4000

Process, stream, worker thread and messages are those of `rlboost_jax.rollout`; only the
engine is a clock. All rollouts in slots advance together and a dispatch of n tokens takes
n / rate seconds, so that the rate does not depend on how many there are.

With `--nursery` it forks such servers on request, in the language of
`rlboost_jax.rollout.zygote`: a joiner is there at once, and its imports take no time from
the others.
"""

import argparse
import asyncio
import functools
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.messages import GenerateRequest, Hello, Manifest, unpack_tokens
from rlboost_jax.rollout.client import InstanceClient
from rlboost_jax.rollout.engine_worker import EngineWorker
from rlboost_jax.rollout.zygote import fork_servers
from rlboost_jax.trust.credentials import Endpoint, read_credentials
from rlboost_jax.weights.arrivals import ByteCounter
from rlboost_jax.weights.layer_feed import Begin
from rlboost_jax.weights.pull import Puller

STOP = 1
FILLER = 2
FINGERPRINT = "stand-in"
SHORTEST = 4  # tokens of a response
CATCH_UP_SECONDS = 0.02  # of lateness of this machine that a busy engine makes up for


@functools.lru_cache(maxsize=8)
def response_lengths(step: int, *, samples: int, mean: float, longest: int) -> NDArray[np.int64]:
    """Tokens of each response of a step: exponential, the same wherever it is sampled."""
    draws = np.random.default_rng(step).exponential(mean, samples)
    return np.clip(draws, SHORTEST, longest).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """What an engine without a model is made of."""

    rate: float  # tokens per second, whatever the batch
    slots: int
    steps: int  # tokens per rollout and dispatch
    samples: int  # responses of a training step
    mean: float  # tokens of a response, on average
    longest: int
    prefill_rate: float = 0.0  # tokens per second of prompts and of responses gone on with; 0: free


@dataclass
class Dispatch:
    """See `rlboost_jax.rollout.outgoing.DispatchLike`."""

    version: int
    request_ids: NDArray[np.uint32]
    counts: NDArray[np.uint16]
    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    leads: NDArray[np.uint32]
    routes: None = None
    prefilled_again: int = 0
    discarded: int = 0
    drafts: None = None


class StandInEngine:
    """Interface of `rlboost_jax.engine.engine.Engine`, as far as a worker uses it."""

    def __init__(self, settings: StandIn) -> None:
        self.settings = settings
        self.version: int | None = None
        self._left: dict[int, int] = {}  # request id → tokens to go, in order of arrival
        self.in_flight = 0
        self._due = 0.0
        self._prefill = 0.0  # seconds of it that the next dispatch begins with
        self._plan: list[tuple[int, int]] = []

    @property
    def running(self) -> int:
        return min(len(self._left), self.settings.slots)

    @property
    def waiting(self) -> int:
        return len(self._left) - self.running

    @property
    def parameters(self) -> "StandInEngine":
        return self

    def prepare(self, params: object) -> object:
        return params

    def arriving(self, shapes: object) -> None:
        """Nothing goes to a device before the whole has come."""

    def load(self, params: object, version: int) -> None:
        self.version = version

    def held(self) -> list[int]:
        return list(self._left)

    def submit(self, requests: Sequence[GenerateRequest]) -> None:
        own = self.settings
        for request in requests:
            lengths = response_lengths(
                request.work.batch, samples=own.samples, mean=own.mean, longest=own.longest
            )
            done = len(unpack_tokens(request.response_tokens))
            self._left[request.request_id] = int(lengths[request.work.sample]) - done
            if own.prefill_rate:
                prompt = len(unpack_tokens(request.prompt_tokens))
                self._prefill += (prompt + done) / own.prefill_rate

    def release(self, request_ids: Sequence[int]) -> list[int]:
        return [i for i in request_ids if self._left.pop(i, None) is not None]

    def begin(self) -> int:
        busy = bool(self._plan)
        ids = list(self._left)[: self.settings.slots]
        self._plan = [(i, min(self.settings.steps, self._left[i])) for i in ids]
        total = sum(count for _, count in self._plan)
        # A device has its next dispatch queued and does not wait for a late host: a
        # dispatch that follows another counts from when that was due.
        now = time.perf_counter()
        start = max(now - CATCH_UP_SECONDS, self._due) if busy else now
        self._due = start + total / self.settings.rate + self._prefill
        self._prefill = 0.0
        self.in_flight = total
        return total

    def follow(self) -> int:
        return 0  # `begin` counts as if it had

    def finish(self) -> Dispatch:
        time.sleep(max(0.0, self._due - time.perf_counter()))
        self.in_flight = 0
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
            leads=np.zeros(len(self._plan), np.uint32),
        )


def stand_in_hello(name: str, settings: StandIn, *, reserved: bool) -> Hello:
    return Hello(
        instance=name,
        reserved=reserved,
        slots=settings.slots,
        slot_tokens=settings.longest + 8,
        price_per_hour=0.0 if reserved else 2.66,
        zone="stand-in",
        host="localhost",
        device="clock",
        fingerprint=FINGERPRINT,
        nonce=str(os.getpid()),
        fetches_lists=True,
    )


@dataclass(frozen=True)
class Pulled:
    params: None = None
    fetched_bytes: int = 0


class NothingToPull:
    """Puller of a server whose engine needs no weights."""

    def __init__(self) -> None:
        self.pulled = ByteCounter()

    async def pull(self, manifest: Manifest, begin: Begin | None = None) -> Pulled:
        return Pulled()


async def serve(options: argparse.Namespace) -> None:
    settings = StandIn(
        rate=options.rate,
        slots=options.slots,
        steps=options.steps,
        samples=options.samples,
        mean=options.mean,
        longest=options.longest,
        prefill_rate=options.prefill_rate,
    )
    credentials = read_credentials(Path(options.join))
    manager = Endpoint(address=options.manager, credentials=credentials)
    weights = Endpoint(address=options.weights, credentials=credentials)
    fetcher = Puller(source="http", manager=weights)
    puller = fetcher if options.weights else NothingToPull()
    client = InstanceClient(
        lambda: manager,
        stand_in_hello(options.name, settings, reserved=False),
        EngineWorker(StandInEngine(settings)),
        puller,
    )
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, client.leave, "terminated")
    async with fetcher:
        await client.run()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--manager", required=True, help="HOST:PORT")
    parser.add_argument("--join", required=True, help="folder with credentials")
    parser.add_argument("--weights", default="", help="HOST:PORT to fetch versions from")
    parser.add_argument("--name", default="")
    parser.add_argument("--rate", type=float, required=True, help="tokens per second")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8, help="tokens per rollout and dispatch")
    parser.add_argument("--samples", type=int, default=1024, help="responses of a training step")
    parser.add_argument("--mean", type=float, default=64.0, help="mean response length")
    parser.add_argument("--longest", type=int, default=512, help="longest response")
    parser.add_argument("--prefill_rate", type=float, default=0.0, help="tokens per second")
    asyncio.run(serve(parser.parse_args(arguments)))
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--nursery"]:
        fork_servers(main)
    else:
        sys.exit(main(sys.argv[1:]))

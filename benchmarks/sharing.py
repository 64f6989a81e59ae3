"""A rollout server and a served model on one device: does a token come late, and what is left?

    python -m benchmarks.sharing                     # 10,000 requests in virtual time: the table
    python -m benchmarks.sharing --calibrate         # first measure this machine's programs anew
    python -m benchmarks.sharing --real=60           # both engines, for so many seconds

Requests come at random (Poisson), at half the rate that the served model could do alone. Latencies
of 0.5 s to the first token and 50 ms a token are those of a device whose program with prefill takes
10 ms; they are scaled to what it takes here. "All arrivals known" sees the future and every
program's duration, and runs rollouts wherever the served model, with the device to itself from
then on, is still in time with all that is to come; it is tried on the first 600 requests.
"""

import argparse
import asyncio
import dataclasses
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.shared_device import (
    MIXED,
    AllKnown,
    Programs,
    Result,
    Rollouts,
    Tenant,
    by_slack,
    draws,
    in_turns,
    least_tenant_seconds,
    most_rate,
    poisson,
    rollout_rate,
    simulate,
    tenant_first,
)
from rlboost_jax.rollout.sharing.slack import Latencies

COSTS = Path(__file__).parent / "results" / "sharing_costs.json"
SLOTS, TOKEN_ROWS, STEPS = 32, 64, 8
PROMPT_SECONDS: Final = 0.010  # of a program with prefill where 0.5 s and 50 ms are promised
FIRST, EACH = 0.5, 0.05
SAMPLES, STALLED = 200, 2.0  # of each program; times the fastest decile: the machine's own stall
KNOWN = 600
ROLLOUT_TOKENS, ROLLOUT_PROMPT = 64, 16


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--real", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument(
        "--rate", type=float, default=20.0, help="with --real: requests a second, nothing scaled"
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    if given.calibrate:
        COSTS.write_text(json.dumps(calibrated(), indent=1) + "\n")
    programs = read_programs()
    found = virtual(programs, given.requests)
    if given.real:
        found["real"] = asyncio.run(real(given.real, given.rate))
        print(json.dumps(found["real"], indent=1))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def read_programs() -> Programs:
    """What was measured last."""
    seconds = {int(kind): times for kind, times in json.loads(COSTS.read_text()).items()}
    return Programs(seconds, token_rows=TOKEN_ROWS, max_steps=STEPS)


def scaled(programs: Programs) -> Latencies:
    scale = programs.mean(MIXED) / PROMPT_SECONDS
    return Latencies(first_token_seconds=FIRST * scale, token_seconds=EACH * scale)


def virtual(programs: Programs, count: int) -> dict[str, Any]:
    """Print the table; returns what is in it."""
    latencies = scaled(programs)
    tenant = partial(Tenant, programs, latencies, SLOTS)
    ours = partial(Rollouts, programs, SLOTS, ROLLOUT_TOKENS, ROLLOUT_PROMPT)
    rate, alone = most_rate(tenant) / 2, rollout_rate(ours)
    requests = poisson(rate, count, seed=1)
    few = requests[:KNOWN]
    print(
        f"programs: {1e3 * programs.mean(MIXED):.2f} ms with prefill, "
        + ", ".join(f"{1e3 * programs.mean(r):.2f} ms of {r} rows" for r in programs.decode_rows)
    )
    print(
        f"promised: {1e3 * latencies.first_token_seconds:.0f} ms to the first token, "
        f"{1e3 * latencies.token_seconds:.1f} ms a token; {rate:.1f} requests/s of at most "
        f"{2 * rate:.1f}; rollouts alone {alone:,.0f} tokens/s\n"
    )
    rows = {
        "the server's policy": simulate(requests, tenant(), ours(), by_slack, draws(programs, 2)),
        "served model first": simulate(
            requests, tenant(), ours(), tenant_first, draws(programs, 2)
        ),
        "in turns": simulate(requests, tenant(), ours(), in_turns(), draws(programs, 2)),
        f"policy, first {KNOWN:,}": simulate(few, tenant(), ours(), by_slack, draws(programs, 2)),
        f"all arrivals known, first {KNOWN:,}": simulate(
            few, tenant(), ours(), AllKnown(few, programs), programs.mean
        ),
    }
    sys.stdout.flush()
    print("| schedule | requests | late | late tokens | first, worst | a token, worst | "
          "rollout tokens/s | of the device |\n|---|--:|--:|--:|--:|--:|--:|--:|")  # fmt: skip
    for name, result in rows.items():
        print(_row(name, result, latencies))
    policy, known = list(rows.values())[-2:]
    ratio = policy.rollout_tokens_per_second / known.rollout_tokens_per_second
    least = least_tenant_seconds(requests, tenant()) / requests[-1].arrival
    print(
        f"\npolicy / all arrivals known: {ratio:.3f}; no schedule has over "
        f"{(1 - least) * alone:,.0f} rollout tokens/s"
    )
    return {
        "latencies": dataclasses.asdict(latencies),
        "rate": rate,
        "rollouts_alone": alone,
        "ratio": ratio,
        "rows": {name: dataclasses.asdict(result) for name, result in rows.items()},
    }


def _row(name: str, result: Result, latencies: Latencies) -> str:
    first, each = latencies.first_token_seconds, latencies.token_seconds
    return (
        f"| {name} | {result.requests:,} | {result.late_requests:,} | {result.missed_tokens:,} | "
        f"{100 * result.first_worst / first:.0f} % | {100 * result.gap_worst / each:.0f} % | "
        f"{result.rollout_tokens_per_second:,.0f} | {100 * result.rollout_share:.0f} % |"
    )


def engine_of(*, steps: int, shared: bool) -> Any:
    """A warm engine with random weights."""
    from rlboost_jax.engine.engine import Engine
    from rlboost_jax.engine.shared import SharedEngine
    from rlboost_jax.models.params import init_params
    from rlboost_jax.sequences.identities import Version
    from tests.small import ENGINE, small_model

    model = small_model(vocab_size=256, embed_dim=128, hidden_dim=256, head_dim=32)
    config = dataclasses.replace(
        ENGINE,
        slots=SLOTS,
        page_size=16,
        token_rows=TOKEN_ROWS,
        steps_per_dispatch=steps,
        max_prompt_tokens=64,
    )
    engine = (SharedEngine if shared else Engine)(
        model, config, slot_tokens=192, truncated_sampling=False
    )
    engine.load(init_params(model, 0), Version(1))
    engine.warm_up()
    return engine


def request_of(number: int, prompt: int, tokens: int) -> Any:
    from rlboost_jax.messages import GenerateRequest, Sampling, pack_tokens
    from rlboost_jax.sequences.identities import Batch, Version, Work

    random = np.random.default_rng(number)
    return GenerateRequest(
        request_id=number,
        work=Work(seed=0, batch=Batch(0), prompt=number, sample=number),
        version=Version(1),
        prompt_tokens=pack_tokens(random.integers(1, 256, prompt)),
        response_tokens=b"",
        sampling=Sampling(temperature=1.0, top_p=1.0, top_k=0, max_tokens=tokens, stop_ids=()),
    )


def calibrated() -> dict[int, list[float]]:
    """Seconds of programs with prefill, and of decode steps by their rows.

    What took more than twice the fastest decile was the machine's doing, and is left out."""
    from rlboost_jax.engine.program_plans import ProgramAllowance

    engine = engine_of(steps=STEPS, shared=True)
    seconds: dict[int, list[float]] = {MIXED: []}
    number = 0
    while any(len(times) < SAMPLES for times in seconds.values()) or len(seconds) < 2:
        for _ in range(SLOTS - len(engine.held())):
            number += 1
            engine.submit([request_of(number, 32, 96)])
        for rows in (*engine.layout.decode_rows, engine.layout.decode_rows[-1]):
            engine.allow(ProgramAllowance(steps=1, rows=rows, prefill_tokens=TOKEN_ROWS))
            began = time.perf_counter()
            if engine.begin():
                engine.finish()
                kind = MIXED if engine.last.mixed else engine.layout.rows_for(len(engine.last.work))
                seconds.setdefault(kind, []).append(time.perf_counter() - began)
    kept = {}
    for kind, times in sorted(seconds.items()):
        limit = STALLED * float(np.quantile(times, 0.1))
        kept[kind] = [round(t, 6) for t in times if t <= limit][:SAMPLES]
        stalled = sum(t > limit for t in times) / len(times)
        print(f"{kind or 'prefill'}: {100 * stalled:.0f} % of {len(times)} left out as stalls")
    return kept


class Stalls:
    """How late this process is woken: what no policy can help."""

    def __init__(self, limit: float) -> None:
        self.limit, self.worst, self.over, self._stop = limit, 0.0, 0, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.perf_counter()
            time.sleep(0.001)
            late = time.perf_counter() - began - 0.001
            self.worst, self.over = max(self.worst, late), self.over + (late > self.limit)

    def end(self) -> dict[str, float]:
        self._stop.set()
        self._thread.join()
        return {"worst_ms": round(1e3 * self.worst, 1), "over_a_token": self.over}


async def real(seconds: float, rate: float) -> dict[str, Any]:
    """Both engines in this process, for so long each: the served one alone, with rollouts beside it
    that yield, and with rollouts that do not."""
    from rlboost_jax.gateway.engine_thread import EngineThread
    from rlboost_jax.gateway.tenancy import Promise, Tenancy
    from rlboost_jax.models.params import init_params
    from rlboost_jax.rollout.engine_worker import EngineWorker
    from rlboost_jax.rollout.sharing.shared_server import SharedServer
    from rlboost_jax.rollout.sharing.socket import tenants_heard
    from rlboost_jax.sequences.identities import Version

    served, rollouts = engine_of(steps=1, shared=False), engine_of(steps=STEPS, shared=True)
    latencies = Latencies(first_token_seconds=FIRST, token_seconds=EACH)
    found: dict[str, Any] = {
        "prefill_ms": round(1e3 * _real_mixed(served), 2),
        "first_token_ms": 1e3 * FIRST,
        "token_ms": 1e3 * EACH,
        "requests_per_second": rate,
    }
    sharing = SharedServer(rollouts)
    worker = EngineWorker(rollouts, turns=sharing)
    emitted: list[Any] = []
    worker.start(emitted.append)
    sharing.serve(worker)
    params = init_params(rollouts.programs.model, 0)
    await asyncio.wrap_future(worker.load(params, Version(1), "d"))
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "own" / "budget.sock"
        async with tenants_heard(path, sharing):
            for name in ("alone", "rollouts yield", "rollouts do not"):
                tenancy = None
                if name == "rollouts yield":
                    promise = Promise(
                        first_token_seconds=latencies.first_token_seconds,
                        token_seconds=latencies.token_seconds,
                    )
                    tenancy = await asyncio.to_thread(
                        partial(Tenancy, path, promise, token_rows=TOKEN_ROWS)
                    )
                feeding = None
                if name != "alone":
                    feeding = asyncio.create_task(_feed(worker))
                sampled, began = worker.sampled, time.perf_counter()
                with EngineThread(served, tenancy) as thread:
                    stalls = Stalls(latencies.token_seconds)
                    result = await _serve(thread, rate, seconds, latencies)
                    result["stalls"] = stalls.end()
                if feeding is not None:
                    feeding.cancel()
                took = time.perf_counter() - began
                result["rollout_tokens_per_second"] = round((worker.sampled - sampled) / took, 1)
                found[name] = result
    await asyncio.wrap_future(worker.stop())
    return found


def _real_mixed(engine: Any) -> float:
    """Median seconds of a program with prefill, now."""
    times = []
    for number in range(60):
        engine.submit([request_of(10**6 + number, 64, 2)])
        began = time.perf_counter()
        while engine.begin():
            engine.finish()
            times.append(time.perf_counter() - began)
            began = time.perf_counter()
    return statistics.median(times[len(times) // 2 :])


async def _feed(worker: Any) -> None:
    """Keep the slots of our engine full."""
    number = 10**7
    while True:
        for _ in range(max(0, SLOTS + 8 - worker.held)):
            number += 1
            worker.submit([request_of(number, ROLLOUT_PROMPT, ROLLOUT_TOKENS)], "d")
        await asyncio.sleep(0.02)


async def _serve(thread: Any, rate: float, seconds: float, latencies: Latencies) -> dict[str, Any]:
    """Requests at random for so long; what was late."""
    random = np.random.default_rng(3)
    firsts: list[float] = []
    gaps: list[float] = []
    late = [0]
    tasks = []

    async def one(number: int) -> None:
        began = time.perf_counter()
        count = int(min(1 + random.geometric(1 / 24), 96))
        stream = thread.begin(request_of(number, int(random.integers(8, 49)), count))
        before, is_late = began, False
        while True:
            piece = await stream.queue.get()
            if isinstance(piece, Exception):
                raise piece
            now = time.perf_counter()
            if before == began:
                firsts.append(now - began)
                is_late |= now - began > latencies.first_token_seconds
            else:
                gaps.append(now - before)
                is_late |= now - before > latencies.token_seconds
            before = now
            if piece.last:
                break
        late[0] += is_late

    end = time.perf_counter() + seconds
    number = int(time.perf_counter() * 1000) % 10**6
    while time.perf_counter() < end:
        number += 1
        tasks.append(asyncio.create_task(one(number)))
        await asyncio.sleep(float(random.exponential(1 / rate)))
    await asyncio.gather(*tasks)
    return {
        "requests": len(tasks),
        "late": late[0],
        "first_p99_ms": round(1e3 * float(np.quantile(firsts, 0.99)), 1),
        "token_p50_ms": round(1e3 * float(np.quantile(gaps, 0.5)), 1),
        "token_p99_ms": round(1e3 * float(np.quantile(gaps, 0.99)), 1),
        "tokens_late": sum(gap > latencies.token_seconds for gap in gaps),
        "tokens": len(gaps) + len(firsts),
    }


if __name__ == "__main__":
    sys.exit(main())

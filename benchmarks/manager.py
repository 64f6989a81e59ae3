"""What the manager's core costs by itself: no sockets, no journal on disk, one core.

    python -m benchmarks.manager [--out=benchmarks/results/manager.json]
    python -m benchmarks.manager --drafts

Four questions: how many tokens a second go through the ledger; how long it takes to dispatch
1,024 requests to 1,000 instances; what it costs to take in the end of a response, with all that
it sets in motion; and whether a token or an end costs more in a larger fleet. Times are
CPU seconds of this process, the least of some repetitions. With `--drafts` the same of a run that
drafts, in turns with one that does not: its order of siblings, and counts in servers' renewals.
"""

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

from rlboost_jax import messages as m
from rlboost_jax.manager.events import Action, FromServer, FromTrainer, Send, Tick
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.simulator.sim_config_loading import sim_config
from rlboost_jax.simulator.world import settings

PROMPTS, GROUP = 128, 8
ROW_TOKENS = 8  # of each rollout in a token batch, as engines dispatch
REPETITIONS = 3
FLEETS = (10, 100, 1000)
TRAINER = 1


class Core:
    """A manager with instances that are ready for step 0."""

    def __init__(self, instances: int, *, slots: int = 128, drafts: bool = False) -> None:
        from configs.sim import base

        config = base.get_config("14b")
        config.engine.slots = slots
        config.policy.siblings_follow = drafts
        self.manager = Manager(settings(sim_config(config)), 0.0)
        self.now = 0.0
        self.requests: dict[int, list[m.GenerateRequest]] = {}
        self._sequences: dict[int, int] = {}
        self.trainer(m.TrainerHello(run_id="simulated", window=None))
        manifest = m.Manifest(version=0, directory="/", params_digest="d", list_sha256="list")
        self.trainer(m.Publish(manifest=manifest))
        self.streams = range(2, 2 + instances)
        for stream in self.streams:
            self._sequences[stream] = 0
            self.server(stream, _hello(stream, slots))
            self.server(stream, m.Ready(version=0, params_digest="d"))

    def trainer(self, message: m.TrainerMessage) -> None:
        self._take(self.manager.handle(FromTrainer(TRAINER, message), self.now))

    def server(self, stream: int, message: m.ServerMessage) -> None:
        self._take(self.manager.handle(FromServer(stream, message), self.now))

    def begin(self, step: int = 0) -> None:
        sampling = m.Sampling(temperature=1.0, top_p=1.0, top_k=0, max_tokens=14_336, stop_ids=(0,))
        prompt = m.pack_tokens([1] * 200)
        prompts = tuple(m.PromptRequest(prompt=i, tokens=prompt) for i in range(PROMPTS))
        self.trainer(
            m.BeginBatch(batch=step, version=0, params_digest="d", seed=0, group_size=GROUP,
                sampling=sampling, prompts=prompts,
            )
        )  # fmt: skip

    def batch(self, stream: int, rows: int) -> m.TokenBatch:
        """The next `ROW_TOKENS` tokens of the first `rows` rollouts of a server."""
        ids = [request.request_id for request in self.requests[stream][:rows]]
        return self._batch(stream, ids, [1] * ROW_TOKENS)

    def last(self, stream: int, request: m.GenerateRequest) -> m.TokenBatch:
        """A token that ends a response."""
        return self._batch(stream, [request.request_id], [0])

    def _batch(self, stream: int, ids: list[int], tokens: list[int]) -> m.TokenBatch:
        sequence = self._sequences[stream]
        self._sequences[stream] += 1
        return m.TokenBatch(
            sequence=sequence,
            version=0,
            request_ids=m.pack_ids(ids),
            counts=m.pack_counts([len(tokens)] * len(ids)),
            tokens=m.pack_tokens(tokens * len(ids)),
            logprobs=bytes(4 * len(tokens) * len(ids)),
            in_flight=len(tokens) * len(ids),
            running=len(ids),
            waiting=0,
            prefilled_again=0,
        )

    def _take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, m.Generate):
                self.requests.setdefault(action.stream, []).extend(action.message.requests)


def dispatch_seconds(instances: int, *, drafts: bool = False) -> float:
    """Seconds from a step's beginning until all its requests are on their way."""

    def once() -> float:
        core = Core(instances, drafts=drafts)
        since = time.process_time()
        core.begin()
        seconds = time.process_time() - since
        assert sum(map(len, core.requests.values())) == PROMPTS * GROUP
        return seconds

    return min(once() for _ in range(REPETITIONS))


def tokens_per_second(instances: int, *, working: int = 8, drafts: bool = False) -> float:
    """Through the ledger, from `working` servers that hold all rollouts; the others are idle.

    With drafts each token batch comes with a renewal, which is more often than engines renew.
    """
    renewal = m.Renew(drafts=m.DraftCounts(drafted=900, accepted=600, steps_saved=5))

    def once() -> float:
        core = Core(working, drafts=drafts)
        core.begin()
        for stream in range(1000, 1000 + instances - working):
            core.server(stream, _hello(stream, 128))
            core.server(stream, m.Ready(version=0, params_digest="d"))
        batches = [
            (stream, core.batch(stream, rows=128)) for _ in range(20) for stream in core.streams
        ]
        tokens = sum(len(batch.tokens) // 4 for _, batch in batches)
        since = time.process_time()
        for stream, batch in batches:
            core.now += 0.05
            core.server(stream, batch)
            if drafts:
                core.server(stream, renewal)
            core.manager.handle(Tick(), core.now)
            core.manager.next_deadline()
        return tokens / (time.process_time() - since)

    return max(once() for _ in range(REPETITIONS))


class Ends:
    """The ends of all responses of a step that all instances work on, one by one."""

    def __init__(self, instances: int, *, drafts: bool = False) -> None:
        self.core = Core(instances, drafts=drafts)
        self.core.begin()
        self.batches = [
            (stream, self.core.last(stream, request))
            for stream, requests in self.core.requests.items()
            for request in requests
        ]

    def play(self) -> None:
        for stream, batch in self.batches:
            self.core.now += 0.05
            self.core.server(stream, batch)

    def check(self) -> None:
        step = self.core.manager.view.batch
        assert step is not None and step.finished


def seconds_per_end(instances: int, *, drafts: bool = False) -> float:
    def once() -> float:
        ends = Ends(instances, drafts=drafts)
        since = time.process_time()
        ends.play()
        seconds = time.process_time() - since
        ends.check()
        return seconds / len(ends.batches)

    return min(once() for _ in range(REPETITIONS))


def bytecodes_per_end(instances: int) -> float | None:
    """Instructions of the interpreter, which no other load on the machine changes; None: this
    Python cannot count them (from 3.12 on)."""
    if sys.version_info < (3, 12):
        return None
    ends, count, monitoring = Ends(instances), itertools.count(), sys.monitoring
    tool, event = monitoring.PROFILER_ID, monitoring.events.INSTRUCTION
    monitoring.use_tool_id(tool, "bytecodes")
    monitoring.register_callback(tool, event, lambda code, offset: next(count))
    monitoring.set_events(tool, event)
    ends.play()
    monitoring.set_events(tool, 0)
    monitoring.free_tool_id(tool)
    ends.check()
    return next(count) / len(ends.batches)


def measure() -> dict[str, Any]:
    rates = {str(n): round(tokens_per_second(n)) for n in FLEETS}
    return {
        "tokens_per_second_by_fleet": rates,
        "dispatch_seconds_by_fleet": {str(n): round(dispatch_seconds(n), 5) for n in FLEETS},
        "microseconds_per_end_by_fleet": {
            str(n): round(1e6 * seconds_per_end(n), 1) for n in FLEETS
        },
        "bytecodes_per_end_by_fleet": {str(n): bytecodes_per_end(n) for n in FLEETS},
        "requests": PROMPTS * GROUP,
        "row_tokens": ROW_TOKENS,
    }


def measure_drafts(instances: int = max(FLEETS)) -> dict[str, Any]:
    """Measure the manager without drafts and with them."""
    both = (False, True)
    return {
        "instances": instances,
        "tokens_per_second": [round(tokens_per_second(instances, drafts=on)) for on in both],
        "dispatch_seconds": [round(dispatch_seconds(instances, drafts=on), 5) for on in both],
        "microseconds_per_end": [
            round(1e6 * seconds_per_end(instances, drafts=on), 1) for on in both
        ],
    }


def _hello(stream: int, slots: int) -> m.Hello:
    return m.Hello(
        instance=f"i{stream}", reserved=False, slots=slots, slot_tokens=14_536, price_per_hour=5.32,
        zone="", host="h", device="d", fingerprint="f", nonce=str(stream), fetches_lists=True,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="a file for the numbers")
    parser.add_argument("--drafts", action="store_true", help="without and with drafts, alone")
    chosen = parser.parse_args()
    found = measure_drafts() if chosen.drafts else measure()
    print(json.dumps(found, indent=2))
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

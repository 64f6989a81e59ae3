"""Small runs as their files keep them, made by the real writers: a calm one, one whose servers were
killed, one that was resumed and did steps again, and a fork.

What servers do is a script here; rows count by it what the manager would report: everything since
the report of the newest step that was kept.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from configs import tiny
from rlboost_jax.observe.events_file import EventsWriter
from rlboost_jax.observe.files_tracker import FilesTracker
from rlboost_jax.observe.metrics import metrics_row, read_rows
from rlboost_jax.observe.summary import summarize, write_summary
from rlboost_jax.platform import at_rest
from rlboost_jax.settings.changes import Change
from rlboost_jax.settings.config_loading import Origin, run_config, write_run_config
from rlboost_jax.settings.run_config import RunConfig
from tests.observe.conftest import EPOCH, row

STEPS: Final = 12
COUNTED: Final = ("joined", "lost", "left")
KINDS: Final = ("calm", "killed", "resumed", "forked")


class Recorder:
    """A run in the making. The trainer's own engine and three servers are there at first."""

    def __init__(self, folder: Path, config: RunConfig, *, first: int = 0, **record: Any) -> None:
        folder.mkdir(parents=True)
        self.folder, self.config, self.first, self.now = folder, config, first, 0.0
        write_run_config(folder / "config.json", config, folder.name, **record)
        at_rest.write_sealed(
            folder / "fingerprints.json",
            {"engines": [{"step": 0, "fingerprint": "jax1-cpu-0"}], "releases": [
                {"step": 0, "release": "0.1.0"}]},
        )  # fmt: skip
        self.counts = dict.fromkeys(COUNTED, 0)  # of the run so far
        self.reported = {first - 1: dict(self.counts)}  # by step
        self.names = 0
        self.events = EventsWriter(folder)
        self.event("manager")
        self.event("joined", "own", reserved=True, nonce="own")
        self.event("working", "own")
        self.alive = [self.join() for _ in range(3)]

    def event(self, kind: str, instance: str = "", **detail: Any) -> None:
        self.now += 0.25
        self.events.write(
            time=EPOCH + self.now, step=0, kind=kind, instance=instance, detail=detail
        )

    def join(self, name: str = "") -> str:
        if not name:
            name, self.names = f"server-{self.names}", self.names + 1
            self.event("ordered", name)
        self.event("joined", name, reserved=False, nonce=name)
        self.event("ready", name)
        self.counts["joined"] += 1
        return name

    def lose(self, kind: str) -> None:
        """The oldest server goes; another comes."""
        name = self.alive.pop(0)
        self.event(kind, name, reason="stream closed")
        self.counts["lost"] += 1
        self.counts["left"] += kind == "drained"
        self.alive.append(self.join())

    def uncounted(self) -> None:
        """What looks like a loss and is none."""
        self.event("ordered", "never")
        self.event("lost", "never", reason="refused")
        self.event("rejected", self.alive[0], version=3, reason="a digest")  # of weights
        let_go, liar = self.alive[:2]
        self.event("dismissed", let_go)
        self.event("drained", let_go)
        self.event("quarantined", liar, reason="it lies")
        self.alive = [*self.alive[2:], self.join(), self.join()]

    def since(self, step: int) -> dict[str, int]:
        """Counts since the report of the newest kept step before this one."""
        self.reported = {s: counts for s, counts in self.reported.items() if s < step}
        before = self.reported[max(self.reported)]
        self.reported[step] = dict(self.counts)
        return {f"instances_{key}": self.counts[key] - before[key] for key in COUNTED}

    def step(self, step: int, losses: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
        for kind in losses:
            self.lose(kind)
        self.event("trained")
        billed = self.config.fleet.billed
        cost = {} if billed else {"cost_dollars": 0.0}
        drafts: dict[str, float | None] = {}  # forks have none
        if not self.first:
            saved = 0.001 * step if billed else None
            drafts = {"tokens_drafted": 100 + step, "drafts_accepted": 40, "dollars_saved": saved}
            drafts["decode_steps_saved"] = 9 * step
        return row(
            step,
            cost_between_dollars=0.01 if billed else 0.0,
            tokens_measured=0,
            durable_step=step,
            cost_forecast_dollars=1.0 if billed and step > self.first else None,
            **{**self.since(step), **cost, **drafts, **changes},
        )

    def finish(self, losses: tuple[str, ...] = ()) -> dict[str, Any]:
        """The final evaluation, then the end; a server goes between the two."""
        for kind in losses:
            self.lose(kind)
        self.event("trained")
        self.event("lost", self.alive.pop(), reason="nobody needs it any more")
        self.event("lost", "own", reason="stream closed")
        self.event("ended", reason="the run is over")
        return {
            **{"step": STEPS, "version": STEPS, "final": True, "accuracy": 0.8125},
            **{"requests_migrated": 2, "tokens_generated": 7, "tokens_lost": 7},
            **{"tokens_delivered": 0, "tokens_reserved": 0, "tokens_preemptible": 7},
            **{"tokens_measured": 40, "cost_between_dollars": 0.0},
            "cost_dollars": 0.02 if self.config.fleet.billed else 0.0,
            **self.since(STEPS),
        }

    def write(self, rows: list[dict[str, Any]], *, step: int, final: bool = False) -> None:
        with FilesTracker(self.folder, step=step) as files:
            for values in rows:
                files.step(metrics_row(values))

    def close(self, final: dict[str, Any]) -> Path:
        with FilesTracker(self.folder, step=STEPS) as files:
            files.evaluated(metrics_row(final))
        price = self.config.fleet.as_billed().reserved_price_per_hour
        rows = read_rows(self.folder)
        write_summary(self.folder, summarize(rows, reserved_price_per_hour=price))
        self.events.close()
        return self.folder


def config_of(**fleet: Any) -> RunConfig:
    config = run_config(tiny.get_config())
    return replace(config, num_steps=STEPS, fleet=replace(config.fleet, **fleet))


def recorded(kind: str, folder: Path) -> Path:
    """A run of one of `KINDS`; all have the weights of the first."""
    match kind:
        case "calm":
            run = Recorder(folder, config_of())
            run.write([run.step(step) for step in range(STEPS)], step=0)
            return run.close(run.finish())
        case "killed":
            run = Recorder(folder, config_of(bill_local=True))
            script = {2: ("lost", "lost"), 3: ("drained",), 7: ("lost",)}
            run.write([run.step(s, script.get(s, ())) for s in range(STEPS)][:STEPS], step=0)
            return run.close(run.finish(("lost", "drained")))
        case "resumed":
            change = Change(step=6, name="fleet.max_instances", before=2, value=3)
            run = Recorder(folder, config_of(provider="none"), changes=[change])
            run.write([run.step(s, ("lost",) if s == 4 else ()) for s in range(8)], step=0)
            run.lose("lost")  # in a step that is not done
            run.event("manager")  # after a power cut: steps 6 and 7 are done again
            for name in run.alive:
                run.join(name)  # the same process, on a new stream
            run.event("resumed")
            run.uncounted()
            again = [run.step(s, ("drained",) if s == 9 else ()) for s in range(6, STEPS)]
            run.write(again, step=6)
            return run.close(run.finish())
        case _:
            origin = Origin(workdir="/runs/calm", run_id="calm", step=5)
            run = Recorder(folder, config_of(provider="none"), first=5, fork=origin)
            losses = {5: ("drained",), 6: ("lost",)}
            run.write([run.step(s, losses.get(s, ())) for s in range(5, STEPS)], step=5)
            return run.close(run.finish())


def other_digest(step: int) -> str:
    """Return a digest that no recorded run has."""
    return hashlib.sha256(b"%d" % step).hexdigest()

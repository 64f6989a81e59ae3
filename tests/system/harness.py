"""Start real runs as a user does, at the pace that a test wants, watch their files, and end them.

`RLBOOST_TEST_SPEED` is how fast engines and learner seem to be, 1 where it is not set: at 10, steps
have a tenth of the tokens of a smaller model; at 0.1, each dispatch and micro-batch takes ten
times as long. Nothing that is tested may depend on it.
"""

import contextlib
import dataclasses
import functools
import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlboost_jax.platform.proxies import opened
from rlboost_jax.providers.base import NONCE_VARIABLE
from rlboost_jax.trust.credentials import Endpoint, read_credentials
from tests.patience import PATIENCE_SECONDS
from tests.processes import living

REPOSITORY = Path(__file__).parents[2]
TINY = REPOSITORY / "configs" / "tiny.py"
MARK = "RLBOOST_TEST_WORKDIR"  # in the environment of every process of a run
PACED = Path(__file__).parent / "paced"  # its sitecustomize.py makes runs go at our pace
PATIENT = (
    "manager.progress_seconds=3600",  # engines that wait for a tester are not stuck
    "fleet.orphan_seconds=3600",  # and a manager or trainer that restarts has all the time it needs
)
STEADY = ("manager.lease_seconds=20",)  # nor is a server lost because this machine stands still
# Six steps of half a second. Runs of other sizes compile programs of their own, for as long as all
# six steps take.
SHORT = (
    "seed=11",
    "num_steps=6",
    "warmup.max_updates=6",
    "warmup.habit_updates=2",
    "learner.prompts_per_step=16",
    "learner.micro_batch_prompts=4",
    "algorithm.advantage=return",  # compares nothing: a penalty teaches, though no answer is right
    "algorithm.overlong_penalty=1.0",  # yet; else hardly a gradient could go wrong
    "algorithm.overlong_band=0.9",
    "engine.max_prompt_tokens=16",  # of 5; the rest is for what tools say
    "evaluation.every_steps=0",
    "fleet.max_instances=2",
)
# Servers fetch versions from each other, and what these differ in from the ones that they hold.
SPREAD = ("weights.source=http", "weights.peers=True", "weights.deltas=(1,2)")
LOOK_SECONDS = 0.03
LOOK_SHARE = 0.2  # of a core, at most: what a look takes, the run has not
HOLDS = itertools.count(1)  # numbers: an engine's mark of one hold says nothing of the next
SPEED = float(os.environ.get("RLBOOST_TEST_SPEED", "1"))
FAST = (  # a step of a tenth of the time
    "model.embed_dim=32",
    "model.hidden_dim=64",
    "model.num_layers=1",
    "task.mean_length=8.0",
    "task.max_length=20",
    "sampling.max_response_tokens=48",
)


@dataclasses.dataclass(frozen=True)
class Standstill:
    """A run whose engines wait in the middle of a step.

    Attributes:
        at_work: process ids of preemptible servers that hold work and wait, by name.
    """

    at_work: dict[str, int]

    @property
    def one(self) -> tuple[str, int]:
        """Name and process id of a server at work."""
        return next(iter(self.at_work.items()))


class Child:
    """A process whose words go to files: it never waits for somebody to read them.

    Args:
        logs: folder for the files.
        environment: besides ours.
        nonce: of a server: by it its events are known.
    """

    def __init__(
        self, command: list[str], logs: Path, environment: dict[str, str], nonce: str = ""
    ) -> None:
        self.nonce = nonce
        logs.mkdir(parents=True, exist_ok=True)
        number = len(list(logs.iterdir()))
        self._files = [logs / f"{number}.{name}" for name in ("stdout", "stderr")]
        with contextlib.ExitStack() as stack:
            out, err = (stack.enter_context(open(path, "wb")) for path in self._files)
            self._process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        self.pid = self._process.pid

    @property
    def output(self) -> str:
        return self._files[0].read_text(errors="replace")

    @property
    def errors(self) -> str:
        return self._files[1].read_text(errors="replace")

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill with SIGKILL; the process is gone when this returns."""
        self._process.kill()
        self._process.wait()

    def end(self, patience_seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for the end, good or bad; returns the exit code."""
        try:
            return self._process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            said = (self.output + self.errors)[-4000:]
            raise AssertionError(f"not over in {patience_seconds:g} s:\n{said}") from None


class Run:
    """One trainer process in a workdir, with whatever it starts.

    `<workdir>.logs` holds what its processes print, `<workdir>.pace` how fast engines may go.

    Args:
        overrides: `section.field=value`.
        options: other flags, as on the command line.
        environment: of its processes, besides ours.
        beside: `<beside>.logs` and `<beside>.pace` are used in place of the workdir's.
    """

    def __init__(
        self,
        workdir: Path,
        *overrides: str,
        config: Path = TINY,
        options: tuple[str, ...] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        beside: Path | None = None,
    ):
        self.workdir = workdir
        self._environment = environment
        place = beside or workdir
        self.logs = place.with_name(f"{place.name}.logs")
        self._pace = place.with_name(f"{place.name}.pace")
        self._hold = 0  # number of the newest
        faster = FAST if SPEED > 1 and config == TINY else ()
        self.command = [
            *(sys.executable, "-m", "rlboost_jax.main"),
            *(f"--config={config}", f"--workdir={workdir}"),
            # Of these tests, and not of the user who runs them.
            f"--config.compile_cache_dir={os.environ['JAX_COMPILATION_CACHE_DIR']}",
            *(f"--config.{override}" for override in (*faster, *overrides)),
            *options,
        ]
        self.process: Child | None = None
        self.by_hand: list[Child] = []  # servers

    def start(self) -> "Run":
        """At the pace that was set before, a `hold` included."""
        if not (self._pace / "pace.json").exists():
            self.let_go()
        self.process = self._child(self.command)
        return self

    @property
    def environment(self) -> dict[str, str]:
        """Variables of its processes, besides ours."""
        path = os.pathsep.join(filter(None, [str(PACED), os.environ.get("PYTHONPATH")]))
        return {
            **self._environment,
            MARK: str(self.workdir),
            "RLBOOST_TEST_PACE": str(self._pace),
            "PYTHONPATH": path,
        }

    def _child(self, command: list[str], nonce: str = "") -> Child:
        own = {NONCE_VARIABLE: nonce} if nonce else {}
        return Child(command, self.logs, {**self.environment, **own}, nonce)

    def finish(self) -> str:
        """Wait for a good end; returns what was printed."""
        output = self.end()
        assert self.process is not None
        assert self.process.returncode == 0, output[-4000:]
        return output

    def end(self) -> str:
        """Wait for the end, good or bad; returns what was printed."""
        assert self.process is not None
        self.process.end()
        return self.process.output + self.process.errors

    def kill(self) -> None:
        """The trainer's process only."""
        assert self.process is not None
        self.process.kill()

    def close(self) -> None:
        """Leave nothing of it running."""
        while found := self.processes():
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        if self.process is not None:
            self.process.end()

    def _set_pace(self, **hold: int) -> None:
        """Set the pace of all engines; `hold` says where they are to wait."""
        pace = {"stretch": max(1.0, 1 / SPEED), **({"hold": hold} if hold else {})}
        (self._pace / "held").mkdir(parents=True, exist_ok=True)
        part = self._pace / "pace.json.part"
        part.write_text(json.dumps(pace))
        part.replace(self._pace / "pace.json")

    def let_go(self) -> None:
        """Take a standstill back."""
        self._set_pace()

    @contextlib.contextmanager
    def at_a_standstill(
        self,
        dispatches: int = 3,
        version: int | None = None,
        *,
        servers: bool = True,
        then: int | None = None,
        drafts: bool = False,
    ) -> Iterator[Standstill]:
        """While all engines wait in the middle of a step, servers hold work, and the manager has
        tokens of it.

        Servers that come now do so many dispatches too. It ends with `let_go` or the context.

        Args:
            dispatches: that each engine does in the step; tokens of the last one are not sent.
            version: of the step, where it is far off, however much of it is done by then; left
                out: one that comes soon, with half of its responses or more to come. Engines may
                be past one that is near: then `hold` comes before `start`.
            servers: preemptible ones hold work; else the trainer's engine may be the only one.
            then: version of the next standstill. Engines go on to that one and no further.
            drafts: the dispatch that each waits after had some.
        """
        self.hold(dispatches, version, drafts=drafts)
        try:
            yield self.wait_until(
                lambda: self._standstill(dispatches, version, servers), "a standstill"
            )
        finally:
            if then is None:
                self.let_go()
            else:
                self.hold(dispatches, then, drafts=drafts)

    def kill_servers_at_work(
        self,
        *versions: int,
        dispatches: int = 3,
        then: int | None = None,
        drafts: bool = False,
    ) -> None:
        """Kill all that hold work of these versions, in the middle of it."""
        for version, following in itertools.pairwise((*versions, then)):
            assert version is not None
            still_at = self.at_a_standstill(dispatches, version, then=following, drafts=drafts)
            with still_at as still:
                for pid in still.at_work.values():
                    os.kill(pid, signal.SIGKILL)
                gone = functools.partial(self.lost_at_work, set(still.at_work))
                self.wait_until(gone, "their losses")

    def lost_at_work(self, names: set[str]) -> bool:
        """No name is given twice."""
        return names <= {e["instance"] for e in self.events("lost") if e["detail"].get("count")}

    def hold(
        self, dispatches: int = 3, version: int | None = None, *, drafts: bool = False
    ) -> "Run":
        """Have all engines wait from a version on, or else from the step after the next: the next
        may be half over as this is read. See `at_a_standstill`."""
        newest = max((e["detail"]["version"] for e in self.events("published")), default=-1)
        self._hold = next(HOLDS)
        self._set_pace(
            number=self._hold,
            version=newest + 2 if version is None else version,
            dispatches=dispatches,
            drafts=drafts,
        )
        return self

    def _standstill(
        self, dispatches: int, version: int | None, with_servers: bool
    ) -> Standstill | None:
        names = (path.name.split("-") for path in (self._pace / "held").iterdir())
        marks = {int(pid) for pid, _, hold in names if int(hold) == self._hold}
        if not marks or not (waiting := marks & self.processes().keys()):
            return None
        if not (status := self.status()):
            return None
        left = status["total"] - status["finished"]
        if version is None and left < status["total"] // 2:  # it had begun too long before
            self.hold(dispatches)
            return None
        busy = {
            each["instance"]
            for each in status["instances"]
            if each["running"] and version in (None, each["version"])  # not of the step before
        }
        at_work = {n: pid for n, pid in self.servers().items() if n in busy and pid in waiting}
        return Standstill(at_work) if at_work or not with_servers else None

    def metrics(self) -> list[dict[str, Any]]:
        """Return the rows of its steps."""
        return [row for row in rows(self.workdir / "metrics.jsonl") if not row.get("final")]

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        found = rows(self.workdir / "events.jsonl")
        return [row for row in found if kind in (None, row["kind"])]

    def assert_accounts_hold(self) -> None:
        """Every token generated is delivered or lost, and was generated by somebody."""
        for row in self.metrics():
            generated = row["tokens_generated"]
            assert generated == row["tokens_delivered"] + row["tokens_lost"], row
            assert generated == row["tokens_reserved"] + row["tokens_preemptible"], row
            assert row["tokens_delivered"] == row["response_tokens"], row

    def assert_nothing_is_left(self) -> None:
        """Check that no process of the finished run is left.

        Relays end a moment after those whose words they pass on.
        """
        wait_until(lambda: not self.processes(), "end of all that it has started")

    def digests(self) -> list[tuple[int, str, str]]:
        return [
            (row["step"], row["trajectories_digest"], row["params_digest"])
            for row in self.metrics()
        ]

    def manager(self) -> dict[str, Any]:
        """The record of the living manager."""
        path = self.workdir / "manager.json"
        self.wait_until(path.exists, "a manager")
        return json.loads(path.read_text())

    def servers(self) -> dict[str, int]:
        """Process ids of the rollout servers that live now, by the name of their instance."""
        joined = [e for e in self.events("joined") if not e["detail"]["reserved"]]
        nonces = {event["instance"]: event["detail"]["nonce"] for event in joined}
        pids = {server.nonce: server.pid for server in self.by_hand}
        for path in (self.workdir / "servers").glob("*"):
            with contextlib.suppress(OSError, ValueError):  # it ends, or begins, just now
                note = json.loads(path.read_text())
                pids[note["nonce"]] = note["pid"]
        living = self.processes()
        return {n: pids[nonce] for n, nonce in nonces.items() if pids.get(nonce) in living}

    def processes(self) -> dict[int, str]:
        """Whatever this run has started that still lives: process ids and command lines."""
        mark, folder = f"{MARK}={self.workdir}", str(self.workdir)
        return {
            each.pid: each.command
            for each in living()
            if mark in each.environment
            or ("rlboost_jax" in each.command and folder in each.command)  # a clean environment
        }

    def status(self) -> dict[str, Any]:
        """The fleet as the manager sees it now; {} where none answers."""
        # None lives, or it is killed in the middle of its answer.
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            record = json.loads((self.workdir / "manager.json").read_text())
            credentials = read_credentials(self.workdir / "join", environment={})
            there = Endpoint(address=record["address"], credentials=credentials)
            request = urllib.request.Request(there.url("/status"), headers=there.headers)
            tls = credentials.tls
            with opened(request, timeout=5, tls=tls) as answer:
                return json.load(answer)
        return {}

    def serve(
        self, *options: str, join: Path | None = None, program: str = "rlboost_jax.rollout"
    ) -> Child:
        """Start a rollout server for this run, as one does from a second terminal."""
        server = self._child(
            [
                *(sys.executable, "-m", *program.split()),
                f"--manager={self.manager()['address']}",
                f"--join={join or self.workdir / 'join'}",
                *options,
            ],
            nonce=f"by-hand-{len(self.by_hand)}",
        )
        self.by_hand.append(server)
        return server

    def environments_by_hand(self, address: str, *, workers: int) -> Child:
        """Start a host of environments, as on another machine."""
        host = self._child(
            [
                *(sys.executable, "-m", "rlboost_jax.environments", f"--trainer={address}"),
                f"--join={self.workdir / 'environment_hosts' / 'join'}",
                f"--workers={workers}",
            ]
        )
        self.by_hand.append(host)
        return host

    def wait_until(self, settled: Callable[[], Any], what: str) -> Any:
        """The first true value of `settled`, looked at while the run lives."""

        def settled_or_over() -> Any:
            value = settled()
            if not value and self.process is not None and not self.process.lives:
                value = settled()  # it may have come with the end
                said = self.process.output + self.process.errors
                assert value, f"the run ended before {what}:\n{said[-4000:]}"
            return value

        return wait_until(settled_or_over, what)


def wait_until(settled: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
    """The first true value of `settled`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        began = time.thread_time()
        value = settled()
        if value:
            return value
        time.sleep(max(LOOK_SECONDS, (time.thread_time() - began) / LOOK_SHARE))
    raise AssertionError(f"no {what} in {seconds:g} s")


@functools.lru_cache(maxsize=8)  # they are looked at often, and change seldom
def rows_of(path: Path, inode: int, size: int, changed_at: int) -> tuple[dict[str, Any], ...]:
    """Objects of a JSON-lines file in that state; a last line in the making is left out."""
    text = path.read_text()
    return tuple(json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines())


def rows(path: Path) -> list[dict[str, Any]]:
    """Objects of a JSON-lines file, if there is one. They are nobody's to change."""
    if not path.exists():
        return []
    state = path.stat()
    return list(rows_of(path, state.st_ino, state.st_size, state.st_mtime_ns))


@contextlib.contextmanager
def running(workdir: Path, *overrides: str, **options: Any) -> Iterator[Run]:
    """A `Run` that is gone afterwards, with all that it started, however the test ends."""
    with prepared(workdir, *overrides, **options) as run:
        yield run.start()


@contextlib.contextmanager
def prepared(workdir: Path, *overrides: str, **options: Any) -> Iterator[Run]:
    """`running` before it is started."""
    run = Run(workdir, *overrides, **options)
    try:
        yield run
    finally:
        run.close()


def complete(workdir: Path, *overrides: str, **options: Any) -> Run:
    """A run that has come to its end."""
    with running(workdir, *overrides, **options) as run:
        run.finish()
    return run

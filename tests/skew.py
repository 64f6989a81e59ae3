"""Run processes of two releases together, and see what becomes of it.

    python -m tests.skew --before=COMMIT [CASE …] [--variant=tiny]

(COMMIT may be a folder of its sources with compiled kernels, as an earlier call has left one.)

One short run is trained calmly at COMMIT for its digests. Then, with processes of COMMIT ("old")
and of this checkout ("new"):

old_server     servers of the release before work for a new manager and trainer
new_server     and the other way round
upgrade        the old run is killed with all that it has; the new trainer goes on in its folder
rollback       the new run is killed, and the old trainer goes on
trainer        the old trainer is killed in mid-step, and the new one comes to its manager and fleet
manager        the old manager is killed in mid-step, and a new one serves the old trainer
rolling        servers, then the manager, then the trainer of a run in mid-step are replaced
rolling_back   the same from the new release to the old one

Outcomes: "equal", with the servers that brought tokens where that is the question; "refused" and a
line that says what to do; all else is a fault. What an old trainer does cannot be mended any more.

Exit status: 0 where all outcomes are equal or refused, 1 where not.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.golden import (
    LOOK_SECONDS,
    MARK,
    ROOT,
    Digests,
    Tree,
    compile_kernels,
    digests,
    end_all,
    tree_of,
)
from tests.processes import marked

PATIENT: Final = ("fleet.orphan_seconds=3600", "fleet.chaos.enabled=False")
BY_HAND: Final = (*PATIENT, "fleet.provider=none", "fleet.max_instances=0")
KILLED_AT: Final = 2  # rows
WAIT_SECONDS: Final = 900.0
LETTERS: Final = 400  # of a line


class Skewed:
    """A run whose processes are of different releases.

    Args:
        workdir: new.
        overrides: of its settings, all the time.
    """

    def __init__(self, variant: str, workdir: Path, *overrides: str) -> None:
        self.variant, self.workdir, self._overrides = variant, workdir, overrides
        self._trainer: subprocess.Popen[bytes] | None = None
        self._servers: list[subprocess.Popen[bytes]] = []
        self.names: list[str] = []  # of servers by hand

    def train(self, tree: Tree) -> None:
        self._trainer = tree.start(self.variant, self.workdir, *self._overrides)

    def serve(self, tree: Tree, name: str) -> None:
        """A server by hand."""
        until(lambda: "address" in self.record(), "a manager")
        path = os.pathsep.join([str(tree.folder), str(tree.folder / "kernels")])
        with open(f"{self.workdir}.{name}.log", "ab") as log:
            self._servers.append(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "rlboost_jax.rollout", f"--name={name}"),
                        *(f"--manager={self.record()['address']}", "--notices=none"),
                        f"--join={self.workdir / 'join'}",
                    ],
                    cwd=tree.folder,
                    env={**os.environ, "PYTHONPATH": path, MARK: str(self.workdir)},
                    stdout=log,
                    stderr=log,
                )
            )
        self.names.append(name)

    def manage(self, tree: Tree) -> None:
        """Kill the manager and start another before the trainer does."""
        assert self._trainer is not None
        before = self.record()["pid"]
        self._trainer.send_signal(signal.SIGSTOP)
        os.kill(before, signal.SIGKILL)
        path = os.pathsep.join([str(tree.folder), str(tree.folder / "kernels")])
        with open(self.workdir / "logs" / "manager.log", "ab") as log:
            successor = subprocess.Popen(
                [sys.executable, "-m", "rlboost_jax.manager", f"--workdir={self.workdir}"],
                cwd=tree.folder,
                env={**os.environ, "PYTHONPATH": path, MARK: str(self.workdir)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        with contextlib.suppress(Failed):
            until(lambda: self.record().get("pid") == successor.pid, "the new manager", successor)
        self._trainer.send_signal(signal.SIGCONT)

    def reach(self, rows: int) -> None:
        """Wait for so many rows, and then for the middle of a step."""
        until(lambda: len(digests(self.workdir)) >= rows, f"{rows} rows", self._trainer)
        size = self._journal_bytes()
        until(lambda: self._journal_bytes() != size, "tokens", self._trainer)

    def kill_trainer(self) -> None:
        assert self._trainer is not None
        self._trainer.kill()
        self._trainer.wait()

    def end(self) -> int:
        assert self._trainer is not None
        try:
            return self._trainer.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._trainer.send_signal(signal.SIGUSR1)  # writes stacks
            return -1

    def record(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((self.workdir / "manager.json").read_text())
            return found
        return {}

    def said(self) -> str:
        return Path(f"{self.workdir}.log").read_text(errors="replace").strip()

    def tokens(self) -> int:
        """Tokens that servers have brought."""
        found = 0
        with contextlib.suppress(OSError):
            for line in (self.workdir / "metrics.jsonl").read_text().splitlines():
                found += json.loads(line).get("tokens_preemptible") or 0
        return found

    def server_line(self, name: str) -> str:
        text = Path(f"{self.workdir}.{name}.log").read_text(errors="replace").strip()
        return text.splitlines()[-1][:LETTERS] if text else "nothing said"

    def _journal_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.workdir / "journal").glob("*"))


class Failed(Exception):
    """What was waited for does not come."""


def until(
    settled: Callable[[], bool], what: str, process: "subprocess.Popen[bytes] | None" = None
) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not settled():
        if time.monotonic() > end:
            raise Failed(f"no {what} in {WAIT_SECONDS:g} s")
        if process is not None and process.poll() is not None:
            raise Failed(f"ended with {process.returncode} before {what}")
        time.sleep(LOOK_SECONDS)


def old_server(before: Tree, here: Tree, run: Skewed) -> None:
    _serves(here, before, run)


def new_server(before: Tree, here: Tree, run: Skewed) -> None:
    _serves(before, here, run)


def _serves(tree: Tree, other: Tree, run: Skewed) -> None:
    run.train(tree)
    run.serve(other, "other")


def upgrade(before: Tree, here: Tree, run: Skewed) -> None:
    _goes_on(before, here, run)


def rollback(before: Tree, here: Tree, run: Skewed) -> None:
    _goes_on(here, before, run)


def _goes_on(first: Tree, then: Tree, run: Skewed) -> None:
    run.train(first)
    run.reach(KILLED_AT)
    run.kill_trainer()
    end_all(run.workdir)
    run.train(then)


def trainer(before: Tree, here: Tree, run: Skewed) -> None:
    run.train(before)
    run.reach(KILLED_AT)
    run.kill_trainer()
    run.train(here)


def manager(before: Tree, here: Tree, run: Skewed) -> None:
    run.train(before)
    run.reach(KILLED_AT)
    run.manage(here)


def rolling(before: Tree, here: Tree, run: Skewed) -> None:
    _rolls(before, here, run)


def rolling_back(before: Tree, here: Tree, run: Skewed) -> None:
    _rolls(here, before, run)


def _rolls(first: Tree, then: Tree, run: Skewed) -> None:
    run.train(first)
    run.serve(first, "first")
    run.reach(1)
    run.serve(then, "then")
    run._servers[0].send_signal(signal.SIGTERM)
    run.reach(2)
    run.manage(then)
    run.kill_trainer()
    run.train(then)


Case = Callable[[Tree, Tree, Skewed], None]
CASES: Final[Mapping[str, tuple[Case, tuple[str, ...]]]] = {
    "old_server": (old_server, BY_HAND),
    "new_server": (new_server, BY_HAND),
    "upgrade": (upgrade, PATIENT),
    "rollback": (rollback, PATIENT),
    "trainer": (trainer, PATIENT),
    "manager": (manager, PATIENT),
    "rolling": (rolling, BY_HAND),
    "rolling_back": (rolling_back, BY_HAND),
}


def outcome(case: Case, before: Tree, here: Tree, expected: Digests, run: Skewed) -> str:
    """Its first word is "equal", "refused" or a fault."""
    try:
        case(before, here, run)
        code = run.end()
    except Failed as error:
        code, why = -1, str(error)
    else:
        why = f"code {code}"
    end_all(run.workdir)
    servers = "".join(f"; {name}: {run.server_line(name)}" for name in run.names)
    tokens = f" {run.tokens()} tokens of servers" if code == 0 else ""
    found = digests(run.workdir)
    if code == 0:
        return f"{'equal' if found == expected else 'DIFFERENT'}:{tokens}{servers}"
    last = (run.said().splitlines() or [""])[-1][:LETTERS]
    if found != expected[: len(found)]:
        return f"DIFFERENT ({why}): {last}"
    if code in (1, 2) and "Traceback" not in run.said():
        return f"refused ({code}): {last}{servers}"
    return f"FAILED ({why}): {last}{servers}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.skew",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="left out: all")
    parser.add_argument("--before", required=True, help="commit, or its sources, kernels built")
    parser.add_argument("--variant", default="tiny", help="see tests.golden")
    chosen = parser.parse_args(arguments)
    if unknown := {*chosen.cases} - {*CASES}:
        parser.error(f"no {min(unknown)!r}; there are {', '.join(CASES)}")
    folder = Path(tempfile.mkdtemp(prefix="rlboost-skew-"))
    compiled = folder / "compiled"  # programs that are the same are
    source = Path(chosen.before)
    if not source.is_dir():
        source = tree_of(chosen.before, folder / "tree").folder
    compile_kernels(ROOT)
    before, here = Tree(source, compiled), Tree(ROOT, compiled)
    if code := before.run(chosen.variant, folder / "calm", "fleet.max_instances=0"):
        raise SystemExit(f"{chosen.variant} at {chosen.before} ended with {code}: see {folder}")
    expected, wrong = digests(folder / "calm"), False
    for name in chosen.cases or CASES:
        case, overrides = CASES[name]
        run = Skewed(chosen.variant, folder / name, *overrides)
        found = outcome(case, before, here, expected, run)
        wrong |= not found.startswith(("equal", "refused"))
        print(f"{name:13} {found}", flush=True)
    assert not marked(f"{MARK}={folder}")
    print(f"folders of all runs: {folder}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

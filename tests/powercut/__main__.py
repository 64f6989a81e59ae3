"""Power cuts at write boundaries of a real run, and what a start makes of each.

    python -m tests.powercut --cuts=200 --seed=1 --variant=tiny [--minutes=30] [--keep=FOLDER]

One run is recorded: all that trainer, manager and servers do to files. Then, for each of so many
moments, a disk is made as it may be after a power cut (`disk.py`) and looked at for what had been
promised until then. As many as there is time for, those that are unlike all others first, are gone
on with by a real trainer: its rows have to be those of the recorded run, and none before the last
durable step is made again.

tiny            parameters, two checkpoints, the best one
lora            adapters, with a base and a KL term
two_processes   a trainer of two processes

Exit status: 0 where nothing was lost and nothing differs, 1 where not.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.powercut.disk import write_tree
from tests.powercut.history import WORKDIR, Cut, History, broken, digest, likeness
from tests.powercut.journal import lost
from tests.powercut.operations import read_log
from tests.powercut.recording import Recording, prepare
from tests.processes import marked

ROOT = Path(__file__).parents[2]
SMALL = (
    *("seed=11", "num_steps=3", "fleet.max_instances=1", "checkpoint.every_steps=1"),
    *("warmup.max_updates=6", "warmup.habit_updates=2", "evaluation.every_steps=0"),
    *("model.embed_dim=32", "model.hidden_dim=64", "model.num_layers=1"),
    *("task.mean_length=8.0", "task.max_length=20", "sampling.max_response_tokens=48"),
    *("learner.prompts_per_step=8", "learner.micro_batch_prompts=4"),
    # A penalty teaches where nothing is compared, though no answer is right yet.
    *("algorithm.advantage=return", "algorithm.overlong_penalty=1.0"),
    "algorithm.overlong_band=0.9",
    *("manager.progress_seconds=3600", "fleet.chaos.enabled=False"),
)
VARIANTS = {
    "tiny": (
        *("evaluation.every_steps=1", "evaluation.num_prompts=4", "evaluation.keep_best=True"),
    ),
    "lora": ("model.lora.rank=4", "algorithm.kl_coefficient=0.1"),
    "two_processes": ("learner.mesh=(1, 2, 1)",),
}
PROCESSES = {"two_processes": 2}  # of a trainer
MARK = "RLBOOST_TEST_POWERCUT"  # in the environment of every process
WITH_SERVERS = 8  # every such start has one
SECONDS = 600  # for one start


class Failed(Exception):
    """There is nothing to cut, or a step waits for a sync."""


def command(variant: str, workdir: Path, cache: Path) -> list[str]:
    settings = (*SMALL, *VARIANTS[variant], f"compile_cache_dir={cache}")
    return [
        *(sys.executable, "-m", "rlboost_jax.main"),
        *(f"--config={ROOT / 'configs' / 'tiny.py'}", f"--workdir={workdir}"),
        *(f"--config.{setting}" for setting in settings),
    ]


def start(variant: str, workdir: Path, cache: Path, environment: dict[str, str]) -> str:
    """Run to the end with all its processes; returns "" or how it ended otherwise."""
    commands = [command(variant, workdir, cache)]
    if count := PROCESSES.get(variant):
        one = [*commands[0], f"--coordinator={_free_address()}", f"--num_processes={count}"]
        commands = [[*one, f"--process_index={index}"] for index in range(count)]
        environment = {**environment, "JAX_PLATFORMS": "cpu"}
    with open(f"{workdir.parent}.log", "a+") as log:
        processes = [
            subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **environment}, stdout=log, stderr=log
            )
            for command in commands
        ]
        try:
            codes = [process.wait(SECONDS) for process in processes]
        finally:
            for process in processes:
                process.kill()  # nothing where it has ended
        log.seek(0)
        last = log.read().strip().splitlines()[-1:]
    return "" if not any(codes) else f"exit codes {codes}: {last}"


def record(variant: str, folder: Path, cache: Path) -> Recording:
    """A calm run. Raises Failed."""
    recording = prepare(folder)
    workdir = recording.root / WORKDIR
    if why := start(variant, workdir, cache, dict(recording.environment)):
        raise Failed(f"the run to be recorded: {why}")
    return recording


class Resumer:
    """Processes of a trainer that go on with one run after the other."""

    def __init__(self, variant: str, config: Path) -> None:
        self._count, self._config = PROCESSES.get(variant, 1), config
        self._processes: list[subprocess.Popen[str]] = []

    def __call__(self, workdir: Path, max_instances: int) -> str:
        if not self._processes:
            self._processes = self._started()
        job = [str(workdir), str(self._config), max_instances]
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        for process in self._processes:
            assert process.stdout is not None
            answer = process.stdout.readline()
            if wrong := json.loads(answer) if answer else "its process ended":
                self.close()  # the others may wait for it
                return str(wrong)
        return ""

    def _started(self) -> list[subprocess.Popen[str]]:
        worlds: list[list[str]] = [[]]
        environment = dict(os.environ)
        if self._count > 1:
            place = _free_address()
            worlds = [[place, str(self._count), str(index)] for index in range(self._count)]
            environment |= {"JAX_PLATFORMS": "cpu"}
        return [
            subprocess.Popen(
                [sys.executable, "-m", "tests.powercut.resume", *world],
                cwd=ROOT,
                env=environment,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            for world in worlds
        ]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        self._processes = []


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def rows(workdir: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return (workdir / "metrics.jsonl").read_text().splitlines(keepends=True)
    return []


def digests(lines: Sequence[str]) -> list[tuple[int, str, str]]:
    found = map(json.loads, lines)
    return [(row["step"], row["trajectories_digest"], row["params_digest"]) for row in found]


def tried(cut: Cut, folder: Path, calm: Sequence[str], resume: Resumer, servers: int) -> list[str]:
    """Go on with a cut; what is wrong with what comes out."""
    workdir = folder / WORKDIR
    folder.mkdir(mode=0o700)
    if cut.workdir is not None:
        write_tree(cut.workdir, workdir)
    if why := resume(workdir, servers):
        return [why]
    found, wrong = rows(workdir), []
    if digests(found) != digests(calm):
        wrong.append("other digests")
    if found[: cut.promise.steps] != calm[: cut.promise.steps]:
        wrong.append("steps that were durable were made again")
    return wrong


def looked_at(cut: Cut, folder: Path) -> list[str]:
    """What is wrong with a cut before anything is started."""
    wrong = broken(cut)
    if cut.workdir is not None and "journal" in cut.workdir and "config.json" in cut.workdir:
        write_tree({k: cut.workdir[k] for k in ("journal", "config.json")}, folder)
        wrong += lost(folder, cut.promise)
        shutil.rmtree(folder)
    return wrong


def _history(recording: Recording) -> History:
    """History of a recording, which has all that is there. Raises Failed."""
    operations = read_log(recording.log)
    history = History(operations, recording.root)
    kinds = Counter(operation.kind.name.lower() for operation in operations)
    print(f"{len(operations)} operations:", ", ".join(f"{n} {k}" for k, n in kinds.most_common()))
    assert _same(history.end(), recording.root), "something was written that is not recorded"
    if waited := history.waited_for():
        raise Failed(f"{len(waited)} syncs that steps wait for, the first of {waited[0].path}")
    return history


def _end_all(folder: Path) -> None:
    """Leave nothing running, whatever has failed."""
    for pid in marked(f"{MARK}={folder}"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _same(tree: object, place: Path) -> bool:
    """Whether all that was recorded amounts to what is there."""
    if isinstance(tree, dict):
        names = set(os.listdir(place))
        return names == tree.keys() and all(_same(tree[n], place / n) for n in names)
    return place.read_bytes() == tree if isinstance(tree, bytes) else os.readlink(place) == tree


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.powercut", description=__doc__)
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variant", choices=VARIANTS, default="tiny")
    parser.add_argument("--minutes", type=float, default=60.0, help="for starts; all are looked at")
    parser.add_argument(
        "--keep", type=Path, help="new folder for what was recorded and what failed"
    )
    chosen = parser.parse_args(arguments)
    cache = Path(
        os.environ.get("JAX_COMPILATION_CACHE_DIR", tempfile.gettempdir() + "/powercut-jax")
    )
    with contextlib.ExitStack() as stack:
        folder = chosen.keep
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="powercut-")))
        os.environ[MARK] = str(folder)
        stack.callback(_end_all, folder)
        recording = record(chosen.variant, folder / "recorded", cache)
        workdir = recording.root / WORKDIR
        calm = rows(workdir)
        resume = Resumer(chosen.variant, workdir / "config.json")
        stack.callback(resume.close)
        history = _history(recording)
        since, failed, ranks, like = time.monotonic(), set[int](), dict[str, int](), Counter[str]()
        chosen_ones: list[tuple[int, int]] = []  # how many are like it, its number

        def say(number: int, cut: Cut, wrong: list[str]) -> None:
            if wrong:
                failed.add(number)
                print(
                    f"cut {number} after {cut.at} operations, {cut.loss} lost:", *wrong, sep="\n  "
                )

        for number, cut in enumerate(history.cuts(chosen.cuts, chosen.seed)):
            say(number, cut, looked_at(cut, folder / "looked_at"))
            state, kind = digest(cut.workdir or {}), likeness(cut.workdir or {})
            if state not in ranks:
                ranks[state] = like[kind]
                chosen_ones.append((like[kind], number))
                like[kind] += 1
        print(f"{chosen.cuts} looked at: {len(ranks)} different, {len(like)} unlike", flush=True)
        starts = 0
        for batch in sorted({rank for rank, _ in chosen_ones}):
            numbers = {number for rank, number in chosen_ones if rank == batch}
            for number, cut in enumerate(history.cuts(chosen.cuts, chosen.seed)):
                if number in numbers and time.monotonic() - since < 60 * chosen.minutes:
                    place = folder / f"cut-{number}"
                    servers = 1 if starts % WITH_SERVERS == 0 else 0
                    wrong = tried(cut, place, calm, resume, servers)
                    say(number, cut, wrong)
                    starts += 1
                    if not wrong or chosen.keep is None:
                        shutil.rmtree(place)
                    if starts % 10 == 0:
                        print(f"{starts} gone on with, {len(failed)} failed", flush=True)
        print(
            f"{chosen.variant}: {chosen.cuts} cuts, {len(ranks)} different, {starts} gone on with, "
            f"{len(failed)} failed, {time.monotonic() - since:.0f} s"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

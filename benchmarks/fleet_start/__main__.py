"""Seconds from one command to the first tokens of a whole fleet, and where they go.

    python -m benchmarks.fleet_start [--instances=20] [--providers=local,command] [--json=FILE]

Manager, provider, server processes, credentials, streams and weights are the real ones; engines are
clocks, and so is the trainer. `command` starts each server as a program of its own, as on other
hosts; `local` forks them from one that has imported everything.
"""

import argparse
import contextlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.fleet_start.engine import clock_of
from benchmarks.trainer import StandInTrainer
from configs import base
from rlboost_jax.observe.events_file import read_events
from rlboost_jax.settings.config_loading import run_config_from_dict, write_run_config
from rlboost_jax.settings.run_config import RunConfig

ROOT = Path(__file__).parents[2]
STAGES = ("ordered", "python", "imports", "config", "joined", "weights", "token")
SNAPSHOT_BYTES = 2**20
LIMIT_SECONDS = 60.0  # that 20 of them may take

SCRIPT = """\
#!/bin/sh -eu
# start | stop NAME GRACE | list, of servers on this host
cd "{folder}"
case "$1" in
start)
    {python} -m rlboost_jax.rollout --manager="$RLBOOST_MANAGER" --name="$RLBOOST_NAME" \\
        --price="$RLBOOST_PRICE" --notices=none </dev/null >"$RLBOOST_NAME.out" 2>&1 &
    echo "$RLBOOST_RUN $RLBOOST_NAME $RLBOOST_NONCE $!" >"$RLBOOST_NAME.job" ;;
stop)
    read -r run name nonce pid <"$2.job" || exit 0
    if [ "$3" = 0 ]; then kill -KILL "$pid"; else kill -TERM "$pid"; fi 2>/dev/null || true ;;
list)
    for job in *.job; do
        test -e "$job" || continue
        read -r run name nonce pid <"$job"
        state=$(cut -d" " -f3 "/proc/$pid/stat" 2>/dev/null || true)
        case "$state" in ""|Z|X) rm -f "$job" ;; *) echo "$run $name $nonce" ;; esac
    done ;;
esac
"""


@dataclass(frozen=True, kw_only=True)
class Start:
    """One fleet.

    Attributes:
        seconds: from the command to the first tokens of all.
        spent: median and longest seconds of a server in each stage.
        manager: seconds until the first server was asked for.
    """

    provider: str
    instances: int
    seconds: float
    manager: float
    spent: dict[str, tuple[float, float]]

    def lines(self) -> Iterator[str]:
        whole = f"first tokens of all in {self.seconds:.1f} s"
        yield f"{self.provider}: {self.instances} instances, {whole}"
        yield f"  {'manager':<10} {self.manager:6.2f} s until the first one was asked for"
        for stage, (median, longest) in self.spent.items():
            yield f"  {stage:<10} {median:6.2f} s median, {longest:6.2f} s longest"


def settings(provider: str, instances: int, script: Path) -> RunConfig:
    config = base.get_config()
    config.learner.prompts_per_step = 16 * instances
    config.learner.micro_batch_prompts = 4
    config.algorithm.group_size = 8
    config.sampling.max_response_tokens = 256
    config.weights.source = "http"
    config.fleet.provider = provider
    config.fleet.max_instances = instances
    config.fleet.orphan_seconds = 60.0
    if provider == "command":
        config.fleet.command.start = f"{script} start"
        config.fleet.command.stop = f"{script} stop {{name}} {{grace}}"
        config.fleet.command.list = f"{script} list"
        config.fleet.command.poll_seconds = 1.0
    return run_config_from_dict(config.to_dict())


@contextlib.contextmanager
def started(provider: str, instances: int, folder: Path) -> Iterator[Start]:
    """A fleet that has given tokens, while the context lasts; its run is in `<folder>/run`."""
    workdir, stages, hosts = (folder / name for name in ("run", "stages", "hosts"))
    for path in (workdir, stages, hosts):
        path.mkdir(mode=0o700, parents=True)
    script = hosts / "servers.sh"
    script.write_text(SCRIPT.format(folder=hosts, python=sys.executable))
    script.chmod(0o700)
    paths = (str(Path(__file__).parent / "path"), str(ROOT), os.environ.get("PYTHONPATH", ""))
    added = {"RLBOOST_STAGES": str(stages), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    before = {name: os.environ.get(name) for name in added}
    run = settings(provider, instances, script)
    write_run_config(workdir / "config.json", run, "benchmark")
    os.environ.update(added)
    began = time.time()
    trainer = StandInTrainer(
        run, workdir, clock_of(run), train_rate=1e6, snapshot_bytes=SNAPSHOT_BYTES
    )
    try:
        trainer.wait_for(instances)
        trainer.step(0)
        found = {path.name: _noted(path) for path in stages.iterdir()}
        yield _summary(provider, instances, began, found, workdir)
    finally:
        trainer.close()
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _noted(path: Path) -> dict[str, float]:
    words = (line.split() for line in path.read_text().splitlines())
    return {stage: float(moment) for stage, moment in words}


def _summary(
    provider: str,
    instances: int,
    began: float,
    found: dict[str, dict[str, float]],
    workdir: Path,
) -> Start:
    """Raises AssertionError where some server has given no token."""
    for event in read_events(workdir):
        if event["kind"] in ("ordered", "joined") and event["instance"] in found:
            found[event["instance"]].setdefault(event["kind"], event["time"])
    silent = [name for name, stages in found.items() if "token" not in stages]
    assert len(found) == instances and not silent, f"{silent} of {len(found)} gave no token"
    spent = {}
    for before, stage in itertools.pairwise(STAGES):
        seconds = [
            each[stage] - max(m for s, m in each.items() if STAGES.index(s) <= STAGES.index(before))
            for each in found.values()
            if stage in each
        ]
        if seconds:
            spent[stage] = (statistics.median(seconds), max(seconds))
    return Start(
        provider=provider,
        instances=instances,
        seconds=max(each["token"] for each in found.values()) - began,
        manager=min(each["ordered"] for each in found.values()) - began,
        spent=spent,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=20)
    parser.add_argument("--providers", default="local,command")
    parser.add_argument("--json", type=Path, default=None, help="where to write the results")
    options = parser.parse_args()
    results = []
    for provider in options.providers.split(","):
        with (
            tempfile.TemporaryDirectory() as folder,
            started(provider, options.instances, Path(folder)) as start,
        ):
            results.append(start)
            print("\n".join(start.lines()), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
    late = [r for r in results if r.instances <= 20 and r.seconds > LIMIT_SECONDS]
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())

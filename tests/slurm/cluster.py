"""A Slurm cluster of one node on this host: Debian's munged, slurmctld and slurmd in a folder.

    python -m tests.slurm.cluster FOLDER        until it is interrupted

For root. Ports, sockets, keys, states and logs are the folder's own: a cluster that the host is
part of is not touched. The node claims eight processors whatever there are, so that eight jobs of
one processor run at a time.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo")
PROCESSORS = 8
START_SECONDS = 60.0
GRACE_SECONDS = 60  # that a preempted job is given

CONFIGURATION = """\
ClusterName=rlboost-test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmctldParameters=preempt_send_user_signal
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000,bf_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=2
JobRequeue=1
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
NodeName=localhost NodeAddr=127.0.0.1 CPUs={processors} State=UNKNOWN
PartitionName=spot Nodes=localhost PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace} Default=YES
PartitionName=spare Nodes=localhost PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace}
PartitionName=urgent Nodes=localhost PriorityTier=10 PreemptMode=OFF
"""


def missing() -> str:
    """Why there can be no cluster here; "" if there can."""
    if os.geteuid() != 0:
        return "slurmd is for root"
    path = os.environ.get("PATH", "") + ":/usr/sbin"
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    return f"no {', '.join(absent)}; make test-slurm installs them" if absent else ""


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """A cluster while the context lasts; yields what Slurm's commands need in the environment."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    configuration = folder / "slurm.conf"
    with _free_port() as controller_port, _free_port() as node_port:
        pass
    configuration.write_text(
        CONFIGURATION.format(
            folder=folder,
            controller_port=controller_port,
            node_port=node_port,
            processors=PROCESSORS,
            grace=GRACE_SECONDS,
        )
    )
    environment = {"SLURM_CONF": str(configuration)}
    every = {**os.environ, **environment, "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    munged = ["munged", "--foreground", "--force", f"--key-file={key}"]
    munged += [f"--socket={folder}/munge.socket", f"--pid-file={folder}/munge.pid"]
    munged += [f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"]
    started: list[subprocess.Popen[bytes]] = []
    said = (folder / "daemons.log").open("ab")
    try:
        for command in (munged, ["slurmctld", "-D"], ["slurmd", "-D", "-N", "localhost"]):
            started.append(
                subprocess.Popen(
                    command, env=every, stdout=said, stderr=said, stdin=subprocess.DEVNULL
                )
            )
            if command is munged:
                _until(lambda: (folder / "munge.socket").exists(), folder)
        _until(lambda: _answers(every), folder)
        yield environment
    finally:
        subprocess.run(
            ["scancel", "--signal=KILL", "--full", "--user=root"], env=every, capture_output=True
        )
        subprocess.run(["scancel", "--user=root"], env=every, capture_output=True)
        with contextlib.suppress(AssertionError):
            _until(lambda: not _jobs(every), folder, seconds=10.0)
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        said.close()


def _answers(environment: dict[str, str]) -> bool:
    """Whether the node takes jobs."""
    command = ["sinfo", "--noheader", "--Format=StateLong", "--partition=spot"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True)
    return found.stdout.strip() == "idle"


def _jobs(environment: dict[str, str]) -> str:
    command = ["squeue", "--noheader"]
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout


def _until(true: object, folder: Path, *, seconds: float = START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        if time.monotonic() > deadline:
            logs = "\n".join(p.read_text(errors="replace")[-2000:] for p in folder.glob("*.log"))
            raise AssertionError(f"no cluster in {seconds:g} s:\n{logs}")
        time.sleep(0.05)


@contextlib.contextmanager
def _free_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener.getsockname()[1]


if __name__ == "__main__":
    with cluster(Path(sys.argv[1]).absolute()) as needed, contextlib.suppress(KeyboardInterrupt):
        for name, value in needed.items():
            print(f"export {name}={value}", flush=True)
        signal.pause()

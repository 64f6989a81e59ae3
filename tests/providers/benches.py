"""What the contract's tests need of a provider's world, one `Bench` for each.

A provider that is added gets a bench here, and all of test_contract.py with it.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Protocol
from unittest import mock

import pytest

from rlboost_jax.platform import durable
from rlboost_jax.providers.base import Provider, Rendezvous
from rlboost_jax.providers.command import CommandLauncher
from rlboost_jax.providers.ec2 import Ec2Launcher
from rlboost_jax.providers.kubernetes.kubernetes_api import KubernetesApi
from rlboost_jax.providers.kubernetes.kubernetes_launcher import KubernetesLauncher
from rlboost_jax.providers.launcher import Launcher
from rlboost_jax.providers.local import LocalProvider
from rlboost_jax.providers.none import NoProvider
from rlboost_jax.providers.polled import PolledProvider
from rlboost_jax.providers.pooled_provider import PooledProvider
from rlboost_jax.providers.skypilot import SkyPilotLauncher
from rlboost_jax.providers.skypilot_task import cluster_of
from rlboost_jax.providers.slurm import SlurmLauncher
from rlboost_jax.settings.ec2_config import Ec2Config
from rlboost_jax.settings.fleet_config import ChaosConfig, FleetConfig
from rlboost_jax.settings.kubernetes_config import KubernetesConfig
from rlboost_jax.settings.launchers_config import CommandConfig, SlurmConfig
from rlboost_jax.settings.skypilot_config import SkyPilotConfig
from rlboost_jax.trust.credentials import JOIN_FILES
from tests.docs_blocks import blocks_of
from tests.patience import PATIENCE_SECONDS
from tests.providers.ec2_cloud import Ec2Cloud
from tests.providers.fake import BrokenProvider, Cloud, FakeProvider, HangingProvider
from tests.providers.fake_sky import FakeSky
from tests.providers.kubernetes_fake import FakeCluster
from tests.providers.shell_cloud import CODE, ShellCloud
from tests.providers.sky_machines import pid_of

PAGE = "docs/how-to/fleet-command.md"
SECRET = "only-for-servers"  # in every file of credentials
SKY_LOOK_SECONDS = 0.02

# In place of a server: one that says its nonce through a pipe, if it has one, and waits.
SERVERS = f"""
import os, signal, sys, time
from pathlib import Path
from rlboost_jax.rollout.zygote import fork_servers

while (Path(sys.argv[1]) / "late").exists():
    time.sleep(0.01)

def run(args):
    name = next(a for a in args if a.startswith("--name=")).removeprefix("--name=")
    if name == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    asked = []  # a handler, since a server has threads in which no signal is blocked
    signal.signal(signal.SIGUSR1, lambda *_: asked.append(True))
    pipe = Path(sys.argv[1]) / name
    if pipe.exists():
        pipe.write_text(os.environ["RLBOOST_NONCE"])
    while not asked:
        time.sleep(0.01)
    os._exit({CODE})

fork_servers(run)
"""


class Bench(Protocol):
    """The server named "stubborn" does not leave when it is asked to."""

    grants: bool  # whether it starts servers at all

    def open(self) -> Provider:
        """A provider of the run; one more is that of the next manager."""
        ...

    async def lose(self, provider: Provider) -> None:
        """Its manager was killed."""
        ...

    async def nonce(self, provider: Provider, name: str) -> str:
        """What a server will echo, asked once before and once after its request."""
        ...

    async def end(self, provider: Provider, name: str) -> None:
        """Have a server end by itself, once its nonce was asked for, with `CODE`."""
        ...

    async def take(self, provider: Provider, name: str) -> None:
        """Have the owner of its machine take that, once its nonce was asked for."""
        ...


class LateBench(Bench, Protocol):
    """Whose machines may be a while in coming.

    Attributes:
        queues: a request returns before there is one.
    """

    queues: bool

    def hold(self) -> Callable[[], object]:
        """Have none come of what is asked for from now on, until the result is called."""
        ...


class TroubledBench(Bench, Protocol):
    """Whose machines are elsewhere, behind calls that may fail.

    Attributes:
        refusal: the end of the reason why nothing can be started.
    """

    refusal: str

    def open(self) -> PolledProvider: ...

    def refuse(self) -> None:
        """Whatever is asked for from now on."""
        ...

    @property
    def blind(self) -> Path:
        """A file, that holds why nothing can be listed while it is there."""
        ...


class LocalBench:
    grants = True
    queues = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: list[LocalProvider] = []

    def open(self) -> LocalProvider:
        program = (sys.executable, "-c", SERVERS, str(self.folder))
        provider = LocalProvider(
            rendezvous(self.folder),
            price_per_hour=1.0,
            zygote=program,
            start_seconds=PATIENCE_SECONDS,
        )
        self._opened.append(provider)
        return provider

    def close(self) -> None:
        """What a test that failed has left running."""
        for provider in self._opened:
            process = provider._forks._process
            pids = [server.pid for server in provider._servers.values() if server.pid]
            if process is not None and process.returncode is None:
                pids.append(process.pid)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    async def lose(self, provider: Provider) -> None:
        """The process that it forks from sees the end of its commands, and leaves."""
        assert isinstance(provider, LocalProvider)
        written = provider._disk.submit(int)  # its notes are: a disk takes as long as it likes
        await asyncio.wrap_future(written)
        forks = provider._forks
        assert forks._client is not None and forks._process is not None
        await forks._client.close()
        await forks._process.wait()

    async def nonce(self, provider: Provider, name: str) -> str:
        pipe = self.folder / name
        if not pipe.exists():
            os.mkfifo(pipe)
            return ""
        return await asyncio.to_thread(pipe.read_text)

    async def end(self, provider: Provider, name: str) -> None:
        assert isinstance(provider, LocalProvider)
        os.kill(provider._servers[name].pid, signal.SIGUSR1)  # its file may come later

    async def take(self, provider: Provider, name: str) -> None:
        assert isinstance(provider, LocalProvider)
        os.kill(provider._servers[name].pid, signal.SIGKILL)

    def hold(self) -> Callable[[], object]:
        """The process that servers are forked from is not ready."""
        return held_by(self.folder / "late")


class FakeBench:
    grants = True
    queues = False

    def __init__(self, folder: Path) -> None:
        self.cloud = Cloud(stubborn={"stubborn"})

    def open(self) -> FakeProvider:
        return FakeProvider(self.cloud)

    async def lose(self, provider: Provider) -> None:
        pass

    async def nonce(self, provider: Provider, name: str) -> str:
        machine = self.cloud.machines.get(name)
        return machine.nonce if machine is not None else ""

    async def end(self, provider: Provider, name: str) -> None:
        assert isinstance(provider, FakeProvider)
        provider.end(name, CODE)

    async def take(self, provider: Provider, name: str) -> None:
        assert isinstance(provider, FakeProvider)
        provider.withdraw(name, 0.0)
        provider.end(name, None)

    def hold(self) -> Callable[[], object]:
        self.cloud.held = asyncio.Event()
        return self.cloud.held.set


class CommandBench:
    """Shell scripts over a folder of process ids: the cloud of a user who has none."""

    grants = True
    queues = False
    refusal = "ended with code 1: quota exceeded"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cloud = ShellCloud(folder)
        made_join(folder)

    def refuse(self) -> None:
        """Whatever is asked for from now on."""
        durable.write(self.cloud.folder / "fail", b"asking for a machine\nquota exceeded\n\n")

    @property
    def blind(self) -> Path:
        """A file, that holds why nothing can be listed while it is there."""
        return self.cloud.folder / "blind"

    def open(self) -> PolledProvider:
        settings = CommandConfig(
            start=f"{self.cloud.script('start')} {{name}} {{nonce}} {{run}}",
            stop=f"{self.cloud.script('stop')} {{name}} {{grace}}",
            list=str(self.cloud.script("list")),
        )
        place = rendezvous(self.folder)
        launcher = CommandLauncher(settings, place, price_per_hour=1.0)
        return polled(launcher)

    async def lose(self, provider: Provider) -> None:
        await killed(provider)

    async def nonce(self, provider: Provider, name: str) -> str:
        return await self.cloud.nonce(name)

    async def end(self, provider: Provider, name: str) -> None:
        self.cloud.end(name)

    async def take(self, provider: Provider, name: str) -> None:
        os.kill(self.cloud.pid(name), signal.SIGKILL)

    def hold(self) -> Callable[[], object]:
        return held_by(self.cloud.folder / "late")


class PageBench(CommandBench):
    """The file that docs/how-to/fleet-command.md has for copying, with folders for hosts."""

    def open(self) -> PolledProvider:
        (text,) = (
            b.text for b in blocks_of("docs/how-to/fleet-command.md") if b.language == "text"
        )
        script, hosts = self.folder / "hosts.sh", [f"host{number}" for number in range(4)]
        script.write_text(text)
        script.chmod(0o700)
        (self.folder / "hosts.txt").write_text("".join(f"{host}\n" for host in hosts))
        for host in hosts:
            (self.cloud.folder / host).mkdir(exist_ok=True)
        settings = CommandConfig(
            start=f"{self.with_path} {script} start",
            stop=f"{self.with_path} {script} stop {{name}} {{grace}}",
            list=f"{self.with_path} {script} list",
        )
        place = rendezvous(self.folder)
        launcher = CommandLauncher(settings, place, price_per_hour=1.0)
        return polled(launcher)

    @property
    def with_path(self) -> str:
        """Where `ssh` is the cloud's, and `rlboost` a server in place of ours."""
        return f"env PATH={self.cloud.folder}/bin:{os.environ['PATH']}"

    async def end(self, provider: Provider, name: str) -> None:
        self._signal(name, signal.SIGUSR1)

    async def take(self, provider: Provider, name: str) -> None:
        self._signal(name, signal.SIGKILL)

    def _signal(self, name: str, number: signal.Signals) -> None:
        for note in self.cloud.folder.glob("host*/.rlboost/taken/server"):
            words = note.read_text().split()
            if words[1] == name:
                os.kill(int(words[3]), number)


class SlurmBench(CommandBench):
    """sbatch, squeue and scancel are scripts over that folder; tests/slurm has real ones."""

    def open(self) -> PolledProvider:
        place = rendezvous(self.folder)
        launcher = SlurmLauncher(self.fleet, place, programs=self.cloud.folder)
        return polled(launcher)

    @property
    def fleet(self) -> FleetConfig:
        slurm = SlurmConfig(
            partitions="spot, spare", program=str(self.cloud.script("server")), options="--mem=1"
        )
        return FleetConfig(provider="slurm", chaos=ChaosConfig(), slurm=slurm)


class KubernetesBench:
    """A fake API server whose pods are processes; tests/kubernetes has a real one."""

    grants = queues = True
    refusal = "exceeded quota: spot, limited: 0"

    def __init__(self, folder: Path) -> None:
        pytest.importorskip("lightkube", reason="no lightkube; make test installs it")
        self.folder = folder
        self.cloud = ShellCloud(folder)
        (folder / "cluster").mkdir()
        self.cluster = FakeCluster(folder / "cluster")
        made_join(folder)

    @property
    def fleet(self) -> FleetConfig:
        kubernetes = KubernetesConfig(image="rlboost", program=str(self.cloud.script("server")))
        return FleetConfig(provider="kubernetes", chaos=ChaosConfig(), kubernetes=kubernetes)

    def open(self) -> PolledProvider:
        place = rendezvous(self.folder)
        api = KubernetesApi("", "rlboost", timeout_seconds=30.0, kubeconfig=self.cluster.kubeconfig)
        launcher = KubernetesLauncher(self.fleet, place, api=api)
        return polled(launcher, settle_seconds=0.0)

    async def lose(self, provider: Provider) -> None:
        await killed(provider)

    async def nonce(self, provider: Provider, name: str) -> str:
        return await self.cloud.nonce(name)

    async def end(self, provider: Provider, name: str) -> None:
        os.kill(self.cluster.process(name).pid, signal.SIGUSR1)

    async def take(self, provider: Provider, name: str) -> None:
        self.cluster.evict(name)

    def hold(self) -> Callable[[], object]:
        """Pods wait for a node."""
        self.cluster.full = True
        return partial(setattr, self.cluster, "full", False)

    def refuse(self) -> None:
        self.cluster.quota = 0

    @property
    def blind(self) -> Path:
        return self.cluster.blind


class Ec2Bench(CommandBench):
    """moto's EC2, whose instances run their user data."""

    refusal = "InsufficientInstanceCapacity: quota exceeded"

    def __init__(self, folder: Path) -> None:
        self.ec2 = Ec2Cloud(folder / "ec2")
        super().__init__(folder)

    def open(self) -> PolledProvider:
        place = rendezvous(self.folder)
        launcher = Ec2Launcher(self.fleet, place)
        return polled(launcher)

    @property
    def fleet(self) -> FleetConfig:
        ec2 = Ec2Config(
            image=self.ec2.image,
            types="g6.xlarge,g5.xlarge",
            profile="servers",
            program=str(self.cloud.script("server")),
        )
        return FleetConfig(provider="ec2", chaos=ChaosConfig(), ec2=ec2)

    async def end(self, provider: Provider, name: str) -> None:
        os.kill(self.ec2.pid(self.ec2.of_name(name)), signal.SIGUSR1)

    async def take(self, provider: Provider, name: str) -> None:
        self.ec2.interrupt(self.ec2.of_name(name))

    def hold(self) -> Callable[[], object]:
        return held_by(self.ec2.late)

    def refuse(self) -> None:
        self.ec2.fails.append(("InsufficientInstanceCapacity", "quota exceeded"))

    @property
    def blind(self) -> Path:
        return self.ec2.blind

    def close(self) -> None:
        self.ec2.close()


class SkyPilotBench(CommandBench):
    """SkyPilot's SDK without its server, over processes of this host."""

    refusal = "ResourcesUnavailableError: quota exceeded"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sky = FakeSky(folder / "sky")
        self._stack = ExitStack()
        self._stack.enter_context(mock.patch.dict(sys.modules, {"sky": self.sky}))

    def open(self) -> PolledProvider:
        place = rendezvous(self.folder)
        launcher = SkyPilotLauncher(self.fleet, place, look_seconds=SKY_LOOK_SECONDS)
        return polled(launcher, settle_seconds=0.0)

    @property
    def fleet(self) -> FleetConfig:
        task = self.folder / "server.yaml"
        task.write_text("resources:\n  cpus: 1\n")
        sky = SkyPilotConfig(task=str(task), program=str(self.cloud.script("server")))
        return FleetConfig(provider="skypilot", chaos=ChaosConfig(), skypilot=sky)

    async def end(self, provider: Provider, name: str) -> None:
        """The job is `timeout`, and the server its child."""
        job = pid_of(self.sky.folder, cluster_of("run", name, "n"))
        (server,) = Path(f"/proc/{job}/task/{job}/children").read_text().split()
        os.kill(int(server), signal.SIGUSR1)

    async def take(self, provider: Provider, name: str) -> None:
        os.killpg(pid_of(self.sky.folder, cluster_of("run", name, "n")), signal.SIGKILL)

    def hold(self) -> Callable[[], object]:
        return held_by(self.sky.folder / "late")

    def refuse(self) -> None:
        durable.write(self.sky.folder / "fail", b"quota exceeded")

    @property
    def blind(self) -> Path:
        return self.sky.folder / "blind"

    def close(self) -> None:
        self._stack.close()


class NoBench:
    grants = False

    def __init__(self, folder: Path) -> None:
        pass

    def open(self) -> NoProvider:
        return NoProvider()

    async def lose(self, provider: Provider) -> None:
        pass

    async def nonce(self, provider: Provider, name: str) -> str:
        return ""

    async def end(self, provider: Provider, name: str) -> None:
        raise AssertionError("it has no servers")

    async def take(self, provider: Provider, name: str) -> None:
        raise AssertionError("it has no servers")


class PoolsBench:
    """Three pools: a fake one, whose instances these are, one that hangs and one that is broken."""

    grants = True

    def __init__(self, folder: Path) -> None:
        self.cloud = Cloud(stubborn={"stubborn"})
        self.made: dict[int, list[FakeProvider]] = {}

    def open(self) -> PooledProvider:
        mine: list[FakeProvider] = []

        def fake() -> FakeProvider:
            mine.append(FakeProvider(self.cloud))
            return mine[-1]

        provider = PooledProvider(
            {"spot": fake, "hangs": HangingProvider, "breaks": BrokenProvider},
            request_seconds=0.05,
            list_seconds=0.05,
            close_seconds=0.05,
        )
        self.made[id(provider)] = mine
        return provider

    async def lose(self, provider: Provider) -> None:
        assert isinstance(provider, PooledProvider)
        for task in (*provider._tasks, *(p.reader for p in provider._pools.values() if p.reader)):
            task.cancel()

    async def nonce(self, provider: Provider, name: str) -> str:
        machine = self.cloud.machines.get(name)
        return machine.nonce if machine is not None else ""

    async def end(self, provider: Provider, name: str) -> None:
        self.made[id(provider)][-1].end(name, CODE)

    async def take(self, provider: Provider, name: str) -> None:
        self.made[id(provider)][-1].withdraw(name, 0.0)
        self.made[id(provider)][-1].end(name, None)


def polled(launcher: Launcher, run: str = "run", *, settle_seconds: float = 0.2) -> PolledProvider:
    """Make a provider that looks often, and gives servers little time to leave."""
    return PolledProvider(
        launcher, run, poll_seconds=0.05, settle_seconds=settle_seconds, leave_seconds=0.2
    )


def held_by(file: Path) -> Callable[[], object]:
    """What looks for that file waits for as long as it is there."""
    file.touch()
    return file.unlink


async def killed(provider: Provider) -> None:
    """Its manager was: nothing watches any more, what is there goes on."""
    assert isinstance(provider, PolledProvider) and provider._watcher is not None
    provider._watcher.cancel()
    await asyncio.wait([provider._watcher])


def made_join(folder: Path) -> None:
    """Credentials that open nothing."""
    (folder / "join").mkdir(exist_ok=True)
    for name in JOIN_FILES:
        (folder / "join" / name).write_text(f"{SECRET} {name}")


def rendezvous(folder: Path) -> Rendezvous:
    return Rendezvous(
        run_id="run",
        workdir=folder,
        address="127.0.0.1:9",
        local_address="127.0.0.1:9",
        join=folder / "join",
    )


BENCHES: tuple[type[Bench], ...] = (
    LocalBench,
    FakeBench,
    CommandBench,
    PageBench,
    SlurmBench,
    KubernetesBench,
    Ec2Bench,
    SkyPilotBench,
    PoolsBench,
    NoBench,
)
LATE: tuple[type[LateBench], ...] = (
    LocalBench,
    FakeBench,
    CommandBench,
    SlurmBench,
    KubernetesBench,
    Ec2Bench,
    SkyPilotBench,
)
TROUBLED: tuple[type[TroubledBench], ...] = (
    CommandBench,
    SlurmBench,
    KubernetesBench,
    Ec2Bench,
    SkyPilotBench,
)

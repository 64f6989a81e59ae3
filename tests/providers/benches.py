"""What the contract's tests need of a provider's world, one `Bench` for each.

A provider that is added gets a bench here, and all of test_contract.py with it.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Protocol

from rlboost_jax.credentials import JOIN_FILES
from rlboost_jax.providers.base import Provider, Rendezvous
from rlboost_jax.providers.command import CommandLauncher
from rlboost_jax.providers.local import LocalProvider
from rlboost_jax.providers.none import NoProvider
from rlboost_jax.providers.polled import PolledProvider
from rlboost_jax.providers.pools import PooledProvider
from rlboost_jax.providers.slurm import SlurmLauncher
from rlboost_jax.settings.fleet import ChaosConfig, FleetConfig
from rlboost_jax.settings.launchers import CommandConfig, SlurmConfig
from tests.docs_blocks import blocks_of
from tests.providers.fake import BrokenProvider, Cloud, FakeProvider, HangingProvider
from tests.providers.shell_cloud import CODE, ShellCloud

PAGE = "docs/how-to/fleet-command.md"
SECRET = "only-for-servers"  # in every file of credentials

# In place of a server: one that says its nonce through a pipe, if it has one, and waits.
SERVERS = f"""
import os, signal, sys
from pathlib import Path
from rlboost_jax.rollout.zygote import Zygote

def run(args):
    name = next(a for a in args if a.startswith("--name=")).removeprefix("--name=")
    if name == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, lambda *_: os._exit({CODE}))
    pipe = Path(sys.argv[1]) / name
    if pipe.exists():
        pipe.write_text(os.environ["RLBOOST_NONCE"])
    while True:
        signal.pause()

Zygote(run, 0, 1).serve()
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


class LocalBench:
    grants = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self) -> LocalProvider:
        program = (sys.executable, "-c", SERVERS, str(self.folder))
        return LocalProvider(rendezvous(self.folder), price_per_hour=1.0, zygote=program)

    async def lose(self, provider: Provider) -> None:
        """The process that it forks from sees the end of its commands, and leaves."""
        assert isinstance(provider, LocalProvider)
        forks = provider._forks
        assert forks._reader is not None and forks._process is not None
        forks._reader.cancel()
        assert forks._process.stdin is not None
        forks._process.stdin.close()
        await forks._process.wait()

    async def nonce(self, provider: Provider, name: str) -> str:
        pipe = self.folder / name
        if not pipe.exists():
            os.mkfifo(pipe)
            return ""
        return await asyncio.to_thread(pipe.read_text)

    async def end(self, provider: Provider, name: str) -> None:
        note = json.loads((self.folder / "servers" / name).read_text())
        os.kill(note["pid"], signal.SIGUSR1)


class FakeBench:
    grants = True

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


class CommandBench:
    """Shell scripts over a folder of process ids: the cloud of a user who has none."""

    grants = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cloud = ShellCloud(folder)
        made_join(folder)

    def open(self) -> PolledProvider:
        settings = CommandConfig(
            start=f"{self.cloud.script('start')} {{name}} {{nonce}} {{run}}",
            stop=f"{self.cloud.script('stop')} {{name}} {{grace}}",
            list=str(self.cloud.script("list")),
        )
        place = rendezvous(self.folder)
        launcher = CommandLauncher(settings, place, price_per_hour=1.0)
        return PolledProvider(launcher, place.run_id, poll_seconds=0.1, settle_seconds=0.2)

    async def lose(self, provider: Provider) -> None:
        await killed(provider)

    async def nonce(self, provider: Provider, name: str) -> str:
        return await self.cloud.nonce(name)

    async def end(self, provider: Provider, name: str) -> None:
        self.cloud.end(name)


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
        return PolledProvider(launcher, place.run_id, poll_seconds=0.1, settle_seconds=0.2)

    @property
    def with_path(self) -> str:
        """Where `ssh` is the cloud's, and `rlboost` a server in place of ours."""
        return f"env PATH={self.cloud.folder}/bin:{os.environ['PATH']}"

    async def end(self, provider: Provider, name: str) -> None:
        for note in self.cloud.folder.glob("host*/.rlboost/taken/server"):
            words = note.read_text().split()
            if words[1] == name:
                os.kill(int(words[3]), signal.SIGUSR1)


class SlurmBench(CommandBench):
    """sbatch, squeue and scancel are scripts over that folder; tests/slurm has real ones."""

    def open(self) -> PolledProvider:
        place = rendezvous(self.folder)
        launcher = SlurmLauncher(self.fleet, place, programs=self.cloud.folder)
        return PolledProvider(launcher, place.run_id, poll_seconds=0.1, settle_seconds=0.2)

    @property
    def fleet(self) -> FleetConfig:
        slurm = SlurmConfig(
            partitions="spot, spare", program=str(self.cloud.script("server")), options="--mem=1"
        )
        return FleetConfig(provider="slurm", chaos=ChaosConfig(), slurm=slurm)


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
            close_seconds=0.2,
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
    PoolsBench,
    NoBench,
)
TROUBLED: tuple[type[CommandBench], ...] = (CommandBench, SlurmBench)

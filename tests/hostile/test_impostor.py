"""A process that listens where a manager did, or in between, hears no secret and gets no work."""

import asyncio
import os
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from rlboost_jax import messages as m
from rlboost_jax.learner.fleet.manager_process import ManagerProcess
from rlboost_jax.platform.proxies import opened
from rlboost_jax.rollout import manager_stream, server
from rlboost_jax.rollout.client import InstanceClient
from rlboost_jax.rollout.engine_worker import EngineWorker
from rlboost_jax.rollout.server import CannotServe, fetch_config
from rlboost_jax.trust.credentials import Endpoint, read_credentials
from rlboost_jax.trust.run_files import read_record
from rlboost_jax.trust.seal import read_seal_key, sealed
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.connections import Retries
from rlboost_jax.weights.pull import Puller
from tests.certificates import make_run
from tests.hostile.nobody import NOBODY, Impostor, needs_root, reachable
from tests.manager.test_main import at_any_ports, at_fixed_ports
from tests.patience import PATIENCE_SECONDS
from tests.rollout.conftest import FakeEngine
from tests.workdirs import begun

pytestmark = needs_root

MANIFEST = m.Manifest(
    version=1,
    directory="/not/here",
    params_digest="d",
    list_bytes=3,
    list_sha256="ab",
)


@pytest.fixture
def forged() -> Iterator[Path]:
    """Certificates with the manager's name, of an authority of the attacker's own."""
    with reachable() as folder:
        certificates = make_run(folder / "attacker") / "authority"
        for path in (certificates, *certificates.iterdir()):
            os.chown(path, NOBODY, NOBODY)
        yield certificates


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    begun(tmp_path)
    at_fixed_ports(tmp_path)
    return tmp_path


@pytest.fixture
def manager(workdir: Path) -> Iterator[ManagerProcess]:
    process = ManagerProcess(workdir, "run", answer_seconds=PATIENCE_SECONDS)
    yield process
    process.dismiss()


def secrets(workdir: Path) -> list[bytes]:
    """What lets in, in the forms in which it may be said."""
    files = [workdir / name / "token" for name in ("join", "trainer")]
    return [path.read_bytes().strip() for path in files]


def nothing(heard: tuple[int, bytes], workdir: Path, *, calls: int) -> None:
    count, said = heard
    assert count >= calls, "nobody came, so nothing was shown"
    assert not any(secret in said for secret in secrets(workdir))
    assert b"Authorization" not in said and b"Bearer" not in said


def kill(manager: ManagerProcess, workdir: Path) -> tuple[int, int]:
    """Its ports, which are anybody's now."""
    record = read_record(workdir)
    assert record is not None
    assert manager._child is not None and manager._child.pid == record.pid
    manager._child.kill()
    manager._child.wait()
    return record.port, record.weights_port


def test_a_trainer_asks_nobody_at_the_address_of_a_dead_manager(
    manager: ManagerProcess, workdir: Path, forged: Path
) -> None:
    """The next manager listens elsewhere, and is found."""
    manager.locate()
    port, _ = kill(manager, workdir)
    at_any_ports(workdir)
    with Impostor(port, forged) as impostor:
        found = manager.locate()
        assert not found.address.endswith(f":{port}")
        count, said = impostor.heard()
    assert count == 0 and said == b""


def test_a_trainer_that_is_sent_to_an_impostor_says_nothing(
    manager: ManagerProcess, workdir: Path, forged: Path
) -> None:
    """Should its note of the manager's address be wrong, for whatever reason."""
    manager.locate()
    record = read_record(workdir)
    assert record is not None
    with Impostor(0, forged) as impostor:
        lying = msgspec.structs.replace(record, local_address=f"127.0.0.1:{impostor.port}")
        (workdir / "manager.json").write_bytes(msgspec.json.encode(lying))
        hasty = ManagerProcess(workdir, "run", answer_seconds=0.5, ask_seconds=PATIENCE_SECONDS)
        with pytest.raises(RuntimeError, match="the manager's certificate is not of this run"):
            hasty.locate()
        (workdir / "manager.json").write_bytes(msgspec.json.encode(record))
        nothing(impostor.heard(), workdir, calls=1)


def test_a_server_says_nothing_to_an_impostor(
    manager: ManagerProcess,
    workdir: Path,
    forged: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not as it asks for the configuration, nor for a stream, nor for weights."""
    for module in (server, manager_stream):
        monkeypatch.setattr(module, "ANSWER_SECONDS", PATIENCE_SECONDS)
    manager.locate()
    port, weights_port = kill(manager, workdir)
    credentials = read_credentials(workdir / "join", environment={})
    there = Endpoint(address=f"127.0.0.1:{port}", credentials=credentials)
    manifest = sealed(MANIFEST, read_seal_key(workdir / "trainer"))

    async def serve() -> None:
        with pytest.raises(CannotServe, match="certificate is not of this run"):
            await fetch_config(there, 0.0)
        hello = m.Hello(
            instance="i", reserved=False, slots=1, slot_tokens=1, price_per_hour=0.0,
            zone="", host="", device="", fingerprint="", fetches_lists=True,
        )  # fmt: skip
        client = InstanceClient(
            lambda: there, hello, EngineWorker(FakeEngine()), None, orphan_seconds=0.0
        )
        assert "certificate is not of this run" in await client.run()
        retries = Retries(attempts=2)
        puller = Puller(source="http", manager=there, retries=retries)
        puller.reach(weights_port)
        with pytest.raises(WeightsError, match="certificate"):
            await puller.pull(manifest)

    with Impostor(port, forged) as impostor, Impostor(weights_port, forged) as files:
        asyncio.run(asyncio.wait_for(serve(), PATIENCE_SECONDS))
        nothing(impostor.heard(), workdir, calls=2)
        nothing(files.heard(), workdir, calls=1)


def test_who_hands_everything_on_reads_nothing(
    manager: ManagerProcess, workdir: Path, forged: Path
) -> None:
    """A squatter on the old port that connects its callers with the new manager: what passes is
    not its to read, although it passes."""
    real = manager.locate()
    port = int(real.address.rpartition(":")[2])
    with Impostor(0, forged, relays=port) as relay:
        credentials = read_credentials(workdir / "join", environment={})
        there = replace(real, address=f"127.0.0.1:{relay.port}", credentials=credentials)
        request = urllib.request.Request(there.url("/config"), headers=there.headers)
        with opened(request, timeout=PATIENCE_SECONDS, tls=there.tls) as answer:
            assert b'"num_steps"' in answer.read()
        count, said = relay.heard()
    nothing((count, said), workdir, calls=1)
    assert len(said) > 2_000 and b"num_steps" not in said

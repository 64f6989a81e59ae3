"""A manager and its file server as processes: the port announced to servers, and what is left
when the manager is killed."""

import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from rlboost_jax import messages as m
from rlboost_jax.platform.process_liveness import HAS_PROC, start_time
from rlboost_jax.platform.proxies import opened
from rlboost_jax.trust.seal import read_seal_key, sealed
from rlboost_jax.weights.pull import Puller
from rlboost_jax.weights.snapshots import SnapshotStore
from tests.endpoints import free_port
from tests.manager.fakes import hello
from tests.manager.test_main import (
    change,
    first_manager,
    manager,
    read_endpoint,
    record_in,
    workdir,
)
from tests.patience import PATIENCE_SECONDS

__all__ = ["workdir"]  # the fixture

Run = Callable[..., Any]


def file_server(manager: int, workdir: Path) -> int:
    """Find the process of a manager's file server, which is at work."""
    there = read_endpoint(workdir)
    url = f"https://127.0.0.1:{record_in(workdir)['weights_port']}/weights/0"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        opened(url, timeout=PATIENCE_SECONDS, tls=there.credentials.tls)
    children = Path(f"/proc/{manager}/task/{manager}/children").read_text().split()
    (child,) = [
        int(c) for c in children if b"file_server" in Path(f"/proc/{c}/cmdline").read_bytes()
    ]
    return child


def test_a_server_pulls_from_the_port_that_is_announced(workdir: Path, run: Run) -> None:
    store = SnapshotStore(workdir / "snapshots", dtype="float32", keep=1)
    written = store.write(3, {"a": {"b": np.arange(12, dtype=np.float32)}}, "d")

    async def story() -> None:
        servers, trainers = read_endpoint(workdir), read_endpoint(workdir, "trainer")
        manifest = sealed(written, read_seal_key(workdir / "trainer"))
        async with aiohttp.ClientSession() as session:
            trainer = await session.ws_connect(
                trainers.url("/trainer"), headers=trainers.headers, ssl=trainers.tls
            )
            await trainer.send_bytes(m.encode(m.TrainerHello(run_id="run", window=None)))
            await trainer.send_bytes(m.encode(m.Publish(manifest=manifest)))
            server = await session.ws_connect(
                servers.url("/instance"), headers=servers.headers, ssl=servers.tls
            )
            await server.send_bytes(m.encode(hello(slots=1, slot_tokens=2**20)))
            welcome, announce = [m.decode_to_server((await server.receive()).data) for _ in "ab"]
            assert isinstance(welcome, m.Welcome) and isinstance(announce, m.Announce)
            assert welcome.weights_port == record_in(workdir)["weights_port"] != 0
            puller = Puller(source="http", manager=servers)
            puller.reach(welcome.weights_port)
            pulled = await puller.pull(announce.manifest)
            assert pulled.params["a"]["b"].tolist() == list(range(12))
            # The same at an address of one's own, whatever is announced.
            here = f"127.0.0.1:{welcome.weights_port}"
            puller = Puller(source="http", manager=servers, weights=here)
            puller.reach(9)
            assert (await puller.pull(announce.manifest)).fetched_bytes == manifest.num_bytes

    with manager(workdir) as process:
        if HAS_PROC:
            file_server(process.pid, workdir)  # a pull waits some seconds for its start
        run(story())


@pytest.mark.skipif(not HAS_PROC, reason="finds children in /proc")
@pytest.mark.parametrize("stopped", [False, True])
def test_a_killed_manager_leaves_no_file_server(workdir: Path, stopped: bool) -> None:
    """Not even one that stands still; and the next manager serves at the same port."""
    with first_manager(workdir) as process:
        before = record_in(workdir)
        child = file_server(process.pid, workdir)
        assert start_time(child)
        if stopped:
            os.kill(child, signal.SIGSTOP)
        process.kill()
        while start_time(child):
            os.sched_yield()
    with manager(workdir):
        assert record_in(workdir)["weights_port"] == before["weights_port"]


@pytest.mark.skipif(not HAS_PROC, reason="finds children in /proc")
def test_a_manager_that_leaves_takes_its_file_server_along(workdir: Path) -> None:
    with manager(workdir) as process:
        child = file_server(process.pid, workdir)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
        assert not start_time(child)


def test_the_port_may_be_set(workdir: Path) -> None:
    port = free_port()
    change(workdir, manager__weights_port=port)
    with manager(workdir):
        assert record_in(workdir)["weights_port"] == port


def test_a_taken_port_for_weights_is_said_in_a_line(workdir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        change(workdir, manager__weights_port=taken.getsockname()[1])
        with pytest.raises(AssertionError, match="it ended"), manager(workdir):
            pass

"""Who a server talks to, and what it says where it cannot: real sockets, real certificates."""

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from aiohttp import web

from rlboost_jax import messages
from rlboost_jax.rollout.client import InstanceClient
from rlboost_jax.rollout.engine_worker import EngineWorker
from rlboost_jax.rollout.server import CannotServe, fetch_config
from rlboost_jax.trust import authority
from rlboost_jax.trust.credentials import (
    Credentials,
    CredentialsUnusable,
    Endpoint,
    explain,
    read_credentials,
)
from rlboost_jax.trust.gate import Gate
from rlboost_jax.trust.seal import read_seal_key, sealed
from rlboost_jax.weights import serve
from rlboost_jax.weights.pull import Puller
from rlboost_jax.weights.snapshots import SnapshotStore
from tests.certificates import (
    LONG_AGO,
    make_run,
    now,
    with_certificate_of,
    with_expired_certificate,
)
from tests.listeners import limits_of
from tests.patience import PATIENCE_SECONDS

HERE = "/config is not a configuration"  # what is said by who has come through


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two runs, one whose certificates have expired, and folders put together from them."""
    root = tmp_path_factory.mktemp("runs")
    ours, other = make_run(root / "ours"), make_run(root / "other")
    make_run(root / "expired", made=now() - LONG_AGO)
    with_certificate_of(other / "join", ours / "join", root / "mixed")
    with_expired_certificate(ours, root / "outdated")
    return root


@asynccontextmanager
async def listening(app: web.Application, tls: ssl.SSLContext | None) -> AsyncIterator[str]:
    runner = web.AppRunner(app)
    await runner.setup()
    assert runner.server is not None
    server = await Gate(limits_of()).listen(runner.server, "127.0.0.1", 0, tls)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await runner.cleanup()


def configuration() -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response([])

    app = web.Application()
    app.router.add_get("/config", answer)
    return app


def rejection(tls: ssl.SSLContext | None, credentials: Credentials) -> str:
    """What a server says that asks such a manager for its configuration."""

    async def scenario() -> None:
        async with listening(configuration(), tls) as address:
            await fetch_config(Endpoint(address=address, credentials=credentials), 0.0)

    with pytest.raises(CannotServe) as stopped:
        asyncio.run(scenario())
    line = str(stopped.value)
    assert "\n" not in line and "secret" not in line
    return line


@pytest.mark.parametrize(
    ("manager", "join", "said"),
    [
        ("ours", "ours/join", HERE),
        ("ours", "ours/trainer", HERE),
        ("other", "ours/join", "not of this run (self-signed certificate"),
        ("ours", "mixed", "a certificate of another run or one that has expired"),
        ("ours", "outdated", "a certificate of another run or one that has expired"),
        ("expired", "expired/join", "the manager's certificate has expired"),
        (None, "ours/join", "it is not a manager; check the address"),
    ],
)
def test_who_understands_whom(runs, manager, join, said):
    tls = authority.server_tls(runs / manager / "authority") if manager else None
    line = rejection(tls, read_credentials(runs / join, environment={}))
    assert said in line
    advice = ("<workdir>/join again", "renews it", "check the address")
    assert said == HERE or any(words in line for words in advice)


def test_a_stolen_client_certificate_makes_no_manager(runs):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    join = runs / "ours" / "join"
    context.load_cert_chain(join / "client.pem", join / "client.key")
    line = rejection(context, read_credentials(join, environment={}))
    assert "not of this run (unsuitable certificate purpose)" in line


def test_nobody_there_is_no_matter_of_credentials():
    assert explain(ConnectionRefusedError(111, "refused")) == ""


def test_weights_and_streams_come_through(runs, fakes, tmp_path):
    """A download and a stream with both sides certified."""
    store = SnapshotStore(tmp_path / "snapshots", dtype="float32", keep=1)
    served = store.write(3, {"a": {"b": np.arange(12, dtype=np.float32)}}, "d")
    key = read_seal_key(runs / "ours" / "trainer")
    manifest = sealed(msgspec.structs.replace(served, directory="/not/here"), key)
    credentials = read_credentials(runs / "ours" / "join", environment={})

    async def scenario():
        streams: asyncio.Queue[messages.ServerMessage] = asyncio.Queue()

        async def instance(request):
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            streams.put_nowait(messages.decode_server((await socket.receive()).data))
            welcome = messages.Welcome(instance="i", renew_seconds=9.0, orphan_seconds=9.0)
            await socket.send_bytes(messages.encode(welcome))
            await socket.send_bytes(messages.encode(messages.Announce(manifest=manifest)))
            while isinstance(
                heard := messages.decode_server((await socket.receive()).data), messages.Renew
            ):
                pass
            streams.put_nowait(heard)
            await socket.send_bytes(messages.encode(messages.Leave(reason="enough")))
            return socket

        app = web.Application()
        app.router.add_get("/instance", instance)
        serve.add_routes(app, serve.ServedVersions([serve.served_version(served)]))
        tls = authority.server_tls(runs / "ours" / "authority")
        async with listening(app, tls) as address:
            manager = Endpoint(address=address, credentials=credentials)
            puller = Puller(source="auto", manager=manager)
            engine = fakes.Engine()
            client = InstanceClient(lambda: manager, fakes.hello(), EngineWorker(engine), puller)
            assert await client.run() == "enough"
        hello, ready = streams.get_nowait(), streams.get_nowait()
        assert hello == fakes.hello() and ready.version == 3
        assert engine.loaded[0]["a"]["b"].tolist() == list(range(12))

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


class TestFolders:
    def test_the_environment_goes_before_the_file(self, runs):
        join = runs / "ours" / "join"
        given = read_credentials(join, environment={"RLBOOST_TOKEN": " another\n"})
        assert given.token == "another" and given.tls is not None

    def test_no_secret_shows(self, runs):
        credentials = read_credentials(runs / "ours" / "join", environment={})
        manager = Endpoint(address="a:1", credentials=credentials)
        assert credentials.token == "secret"
        assert "secret" not in repr(credentials) + repr(manager)

    @pytest.mark.parametrize("missing", ["ca.pem", "client.pem", "client.key", "seal.pub"])
    def test_half_a_folder_is_none(self, runs, tmp_path, missing):
        """Else who loses a file would fall back to a connection that anyone can read."""
        join = tmp_path / "join"
        shutil.copytree(runs / "ours" / "join", join)
        (join / missing).unlink()
        with pytest.raises(CredentialsUnusable, match=rf"lacks {missing}; copy .*/join again"):
            read_credentials(join, environment={})

    @pytest.mark.parametrize("name", ["ca.pem", "client.pem", "client.key"])
    def test_files_that_are_no_certificates(self, runs, tmp_path, name):
        join = tmp_path / "join"
        shutil.copytree(runs / "ours" / "join", join)
        (join / name).write_text("nonsense")
        with pytest.raises(CredentialsUnusable, match=r"cannot use the files in .*/join again"):
            read_credentials(join, environment={})

    def test_a_token_alone_is_none(self, runs, tmp_path):
        """It would be shown to any listener."""
        shutil.copy(runs / "ours" / "join" / "token", tmp_path)
        with pytest.raises(
            CredentialsUnusable, match=r"lacks ca.pem, client.pem, client.key, seal"
        ):
            read_credentials(tmp_path, environment={})
        with pytest.raises(CredentialsUnusable, match="--join=FOLDER"):
            read_credentials(None, environment={"RLBOOST_TOKEN": "x"})

    @pytest.mark.parametrize("content", ["nonsense", "", "ab" * 31, "ü"])
    def test_what_checks_no_seal(self, runs, tmp_path, content):
        join = tmp_path / "join"
        shutil.copytree(runs / "ours" / "join", join)
        (join / "seal.pub").write_text(content)
        with pytest.raises(CredentialsUnusable, match=r"seal.pub.*/join again"):
            read_credentials(join, environment={})

    @pytest.mark.parametrize("token", ["", "a b", "ü", "a\x00b"])
    def test_what_is_no_token(self, tmp_path, token):
        with pytest.raises(CredentialsUnusable, match="holds no token"):
            read_credentials(tmp_path, environment={"RLBOOST_TOKEN": token})

    def test_nothing_given(self):
        with pytest.raises(CredentialsUnusable, match="--join=FOLDER"):
            read_credentials(None, environment={})

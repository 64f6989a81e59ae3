"""The manager through real sockets: tokens, frames, a whole step, slow and lost peers."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import (
    Shutdown,
)
from rlboost_jax.platform.busy import busy_seconds
from rlboost_jax.trust.peer_limits import Allowance
from tests.manager.conftest import HEADERS, SERVER_HEADERS, Open, join, open_trainer, read
from tests.manager.fakes import (
    SNAPSHOTS,
    batch,
    begin_batch,
    hello,
    length,
    manifest,
    ready,
    token,
)

Run = Callable[..., Any]


async def engine(stream: aiohttp.ClientWebSocketResponse) -> None:
    """A fake engine: answers each request with the whole response at once, until asked to leave."""
    sequence = 0
    async for frame in stream:
        message = m.decode_to_server(frame.data)
        if isinstance(message, m.Generate):
            rows = [(r.request_id, whole_response(r)) for r in message.requests]
            await stream.send_bytes(m.encode(batch(sequence, 0, rows)))
            sequence += 1
        if isinstance(message, m.Leave):
            await stream.close()


def whole_response(r: m.GenerateRequest) -> list[int]:
    return [
        token("d", r.work.batch, r.work.sample, i)
        for i in range(length("d", r.work.batch, r.work.sample))
    ]


def test_w18_nothing_can_be_written_through_any_route(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback() as loop:
            routes = loop.client.app.router.routes()
            assert {route.method for route in routes} == {"GET", "HEAD"}
            paths = {route.resource.canonical for route in routes}
            assert paths == {"/instance", "/trainer", "/config", "/status"}
            for path in paths:
                for method in ("PUT", "POST", "PATCH", "DELETE"):
                    answer = await loop.client.request(method, path, headers=HEADERS)
                    assert answer.status == 405

    run(story())


@pytest.mark.parametrize("route", ["/instance", "/trainer", "/config", "/status", "/other"])
@pytest.mark.parametrize("header", [None, "", "secret", "Bearer wrong", "Bearer \udce9"])
def test_w16_every_route_asks_for_the_token(
    loopback: Open, run: Run, route: str, header: str | None
) -> None:
    async def story() -> None:
        async with loopback() as loop:
            headers = {} if header is None else {"Authorization": header}
            answer = await loop.client.get(route, headers=headers)
            assert answer.status == 401
            assert "token" in await answer.text()

    run(story())


def test_servers_have_no_business_on_the_trainers_route(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback() as loop:
            answer = await loop.client.get("/trainer", headers=SERVER_HEADERS)
            assert answer.status == 403 and "trainer's token" in await answer.text()
            for route in ("/config", "/status"):
                assert (await loop.client.get(route, headers=SERVER_HEADERS)).status == 200

    run(story())


def test_a_server_cannot_pass_for_the_reserved_engine(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback() as loop:
            liar = await loop.dial("/instance", SERVER_HEADERS)
            await liar.send_bytes(m.encode(hello(reserved=True)))
            leave = await read(liar, m.Leave, m.decode_to_server)
            assert "needs the trainer's token" in leave.reason
            assert not list(loop.driver.manager.view.roster)
            server = await loop.dial("/instance", SERVER_HEADERS)
            await server.send_bytes(m.encode(hello()))
            await read(server, m.Welcome, m.decode_to_server)
            await server.close()

    run(story())


@pytest.mark.parametrize("announces", [m.Publish, m.Teach])
@pytest.mark.parametrize(
    ("directory", "digest", "because"),
    [
        ("/etc", "list", "is not below"),
        (f"{SNAPSHOTS}/../../etc", "list", "is not below"),
        (f"{SNAPSHOTS}-of-others", "list", "is not below"),
        ("", "list", "is not below"),
        (SNAPSHOTS, "", "release before"),
    ],
)
def test_only_snapshots_are_published(
    loopback: Open, run: Run, directory: str, digest: str, because: str, announces: type
) -> None:
    async def story() -> None:
        async with loopback() as loop:
            trainer = await open_trainer(loop)
            snapshot = m.Manifest(
                version=0, directory=directory, params_digest="d", list_sha256=digest
            )
            named = {"manifest": snapshot} if announces is m.Publish else {"manifests": (snapshot,)}
            await trainer.send_bytes(m.encode(announces(**named)))
            refused = await read(trainer, m.RequestRefused, m.decode_to_trainer)
            assert because in refused.reason
            assert not list(loop.driver.manager.view.served)

    run(story())


def test_config_and_status_are_json(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback() as loop:
            answer = await loop.client.get("/config", headers=HEADERS)
            assert await answer.json() == {"run_id": "run"}
            stream = await join(loop, instance="a")
            status = await (await loop.client.get("/status", headers=HEADERS)).json()
            assert status["instances"][0]["instance"] == "a" and status["joined"] == 1
            await stream.close()

    run(story())


def test_a_step_there_and_back(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback() as loop:
            trainer, server = await open_trainer(loop), await join(loop, reserved=True)
            await server.send_bytes(m.encode(ready(0)))
            working = asyncio.create_task(engine(server))
            await trainer.send_bytes(m.encode(begin_batch(0, 0, "d")))
            got = {}
            while len(got) < 6:
                result = await read(trainer, m.FinishedRollout, m.decode_to_trainer)
                got[result.work.sample] = m.unpack_tokens(result.tokens).tolist()
            assert got == {
                s: [token("d", 0, s, i) for i in range(length("d", 0, s))] for s in range(6)
            }
            done = m.BatchTrained(batch=0, train_wait_seconds=0.0, train_seconds=0.1)
            await trainer.send_bytes(m.encode(done))
            report = await read(trainer, m.BatchReport, m.decode_to_trainer)
            assert report.tokens_generated == report.tokens_delivered == sum(map(len, got.values()))
            await trainer.send_bytes(m.encode(m.EndRun(reason="done", over=True)))
            assert (await loop.driver.finished).code == 0
            await working

    run(story())


@pytest.mark.parametrize(
    "frame", [b"", b"\xc1", b"not a message", m.encode(m.Leave(reason="")), "text"]
)
def test_a_malformed_frame_ends_its_stream_only(loopback: Open, run: Run, frame: Any) -> None:
    async def story() -> None:
        async with loopback() as loop:
            good, bad = await join(loop, instance="good"), await join(loop, instance="bad")
            await (bad.send_str(frame) if isinstance(frame, str) else bad.send_bytes(frame))
            assert (await bad.receive()).type is aiohttp.WSMsgType.CLOSE
            await good.send_bytes(m.encode(m.Renew()))
            assert [i.name for i in loop.driver.manager.view.roster] == ["good"]
            (lost,) = [r for r in loop.records if r.kind == "lost"]
            assert lost.instance == "bad" and lost.detail["reason"].startswith("malformed")
            await good.close()

    run(story())


def test_a_renewal_is_answered_with_how_busy_the_manager_is(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback() as loop:
            stream, before = await join(loop, instance="good"), busy_seconds()
            await stream.send_bytes(m.encode(m.Renew()))
            answer = await read(stream, m.Renewed, m.decode_to_server)
            assert before <= answer.busy <= busy_seconds()  # this very thread is its own
            assert answer.busy > 0 or not before
            await stream.close()

    run(story())


def test_an_oversized_frame_ends_its_stream_only(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback(frame_bytes=1000) as loop:
            good, bad = await join(loop, instance="good"), await join(loop, instance="bad")
            await bad.send_bytes(bytes(1001))
            frame = await bad.receive()
            assert frame.type is aiohttp.WSMsgType.CLOSE and frame.data == 1009
            assert [i.name for i in loop.driver.manager.view.roster] == ["good"]
            await good.close()

    run(story())


@pytest.mark.parametrize("kind", ["frames", "bytes", "pings"])
def test_who_sends_too_much_is_hung_up_on(loopback: Open, run: Run, kind: str) -> None:
    """Nothing else is on this stream's account; pings count as what they are, frames."""
    burst = {"byte_burst": 100} if kind == "bytes" else {"frame_burst": 50}
    little = Allowance(frames_per_second=1e-3, bytes_per_second=1e-3, **burst)

    async def story() -> None:
        async with loopback(allowance=little) as loop:
            good, bad = await join(loop, instance="good"), await join(loop, instance="bad")
            for _ in range(60):
                if kind == "pings":
                    await bad.ping(b"x")
                else:
                    await bad.send_bytes(m.encode(m.Renew()))
            async for _ in bad:
                pass
            (lost,) = [r for r in loop.records if r.kind == "lost"]
            assert lost.instance == "bad" and "sends too much" in lost.detail["reason"]
            assert [i.name for i in loop.driver.manager.view.roster] == ["good"]
            await good.close()

    run(story())


def test_a_ping_is_answered(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback() as loop:
            stream = await loop.client.ws_connect("/instance", headers=HEADERS, autoping=False)
            await stream.ping(b"are you there")
            answer = await stream.receive()
            assert (answer.type, answer.data) == (aiohttp.WSMsgType.PONG, b"are you there")
            await stream.close()

    run(story())


def test_a_storm_of_streams_from_one_address_is_held_off(loopback: Open, run: Run) -> None:
    three = Allowance(stream_burst=3, streams_per_second=1e-3)

    async def story() -> None:
        async with loopback(allowance=three) as loop:
            for _ in range(3):
                await (await loop.dial("/instance", SERVER_HEADERS)).close()
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await loop.dial("/instance", SERVER_HEADERS)
            assert refused.value.status == 429
            await (await join(loop, instance="trainers")).close()

    run(story())


def test_a_malformed_trainer_is_gone_and_may_come_back(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback() as loop:
            trainer = await open_trainer(loop)
            await trainer.send_bytes(b"\xc1")
            async for _ in trainer:  # a status may be on its way
                pass
            assert trainer.closed
            await open_trainer(loop)

    run(story())


def test_a_refused_server_hears_why(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback() as loop:
            stream = await loop.dial("/instance")
            await stream.send_bytes(m.encode(hello(slots=0)))
            leave = await read(stream, m.Leave, m.decode_to_server)
            assert "slots = 0" in leave.reason
            frame = await stream.receive()
            assert frame.type is aiohttp.WSMsgType.CLOSE and "slots" in frame.extra

    run(story())


def test_the_first_frame_has_a_time_limit(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback(first_frame_seconds=0.01) as loop:
            stream = await loop.dial("/instance")
            frame = await stream.receive()
            assert frame.type is aiohttp.WSMsgType.CLOSE and "no Hello" in frame.extra

    run(story())


def test_a_peer_that_does_not_read_is_lost_and_holds_up_nobody(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback(queue_bytes=2**20) as loop:
            trainer, slow, good = await open_trainer(loop), await join(loop), await join(loop)
            transport = slow._response.connection.transport  # type: ignore[union-attr]
            transport.pause_reading()  # type: ignore[attr-defined]
            name = "x" * 2**18
            for version in range(200):  # 50 MiB: more than sockets and the queue take
                snapshot = m.Manifest(
                    version=version, directory=SNAPSHOTS, params_digest="d", list_sha256=name
                )
                await trainer.send_bytes(m.encode(m.Publish(manifest=snapshot)))
                announced = await read(good, m.Announce, m.decode_to_server)
                assert announced.manifest.version == version
            (lost,) = [r for r in loop.records if r.kind == "lost"]
            assert "reads too slowly" in lost.detail["reason"]
            transport.abort()
            await good.close()

    run(story())


def test_a_vanished_server_is_lost_at_once(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback() as loop:
            trainer, keeper = await open_trainer(loop), await join(loop, reserved=True)
            await keeper.send_bytes(m.encode(ready(0)))
            victim = await join(loop, instance="victim")
            await trainer.send_bytes(m.encode(m.Publish(manifest=manifest(0, "d"))))
            await victim.send_bytes(m.encode(ready(0)))
            await trainer.send_bytes(m.encode(begin_batch(0, 0, "d", prompts=9)))
            await read(victim, m.Generate, m.decode_to_server)
            victim._response.connection.transport.abort()  # type: ignore[union-attr]
            working = asyncio.create_task(engine(keeper))
            got = set()
            while len(got) < 18:
                got.add((await read(trainer, m.FinishedRollout, m.decode_to_trainer)).work.sample)
            assert [r.instance for r in loop.records if r.kind == "lost"] == ["victim"]
            await keeper.close()
            await working

    run(story())


def test_orphans_leave_by_themselves(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback(fleet__orphan_seconds=0.05) as loop:
            trainer, server = await open_trainer(loop), await join(loop)
            await trainer.close()
            assert (await loop.driver.finished).code == 3
            leave = await read(server, m.Leave, m.decode_to_server)
            assert "no trainer for 0.05 s" in leave.reason

    run(story())


@pytest.mark.parametrize("name", ["x", "xx"])  # one of them puts a character across the bound
def test_a_reason_is_cut_between_two_characters(loopback: Open, run: Run, name: str) -> None:
    async def story() -> None:
        async with loopback() as loop:
            reserved = await join(loop, reserved=True, fingerprint="é" * 100)
            stream = await loop.dial("/instance")
            await stream.send_bytes(m.encode(hello(fingerprint=name)))
            await read(stream, m.Leave, m.decode_to_server)
            frame = await stream.receive()
            assert frame.type is aiohttp.WSMsgType.CLOSE and frame.extra.endswith("é")
            await reserved.close()

    run(story())


def test_a_mistake_in_the_state_machine_ends_the_process(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback() as loop:
            loop.driver.manager.handle = lambda *_: 1 / 0  # type: ignore[method-assign]
            with pytest.raises(ZeroDivisionError):
                loop.driver.apply(Shutdown("x"))
            with pytest.raises(ZeroDivisionError):
                await loop.driver.finished
            del loop.driver.manager.handle

    run(story())

"""The manager through real sockets: tokens, frames, a whole step, slow and lost peers."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager import driver as driver_module
from rlboost_jax.manager.events import MachineAdded, MachineRemoved, Shutdown
from tests.manager.conftest import HEADERS, Loopback, Open
from tests.manager.fakes import RUN, batch, begin_step, hello, length, manifest, token

Run = Callable[..., Any]


async def read(stream: aiohttp.ClientWebSocketResponse, kind: type, decode: Any) -> Any:
    """The next message of that kind."""
    async for frame in stream:
        message = decode(frame.data)
        if isinstance(message, kind):
            return message
    raise AssertionError(f"the stream ended before a {kind.__name__}")


async def join(loopback: Loopback, **changes: Any) -> aiohttp.ClientWebSocketResponse:
    stream = await loopback.dial("/instance")
    await stream.send_bytes(m.encode(hello(**changes)))
    await read(stream, m.Welcome, m.decode_to_server)
    return stream


async def open_trainer(loopback: Loopback) -> aiohttp.ClientWebSocketResponse:
    stream = await loopback.dial("/trainer")
    await stream.send_bytes(m.encode(m.TrainerHello(run_id=RUN, step=0, window=None, pid=1)))
    await read(stream, m.TrainerWelcome, m.decode_to_trainer)
    return stream


async def engine(stream: aiohttp.ClientWebSocketResponse) -> None:
    """A fake engine: answers each request with the whole response at once, until told to go."""
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
    return [token("d", r.step, r.sample, i) for i in range(length("d", r.step, r.sample))]


@pytest.mark.parametrize("route", ["/instance", "/trainer", "/config", "/status", "/weights/0/a"])
@pytest.mark.parametrize("header", [None, "", "secret", "Bearer wrong", "Bearer \udce9"])
def test_every_route_asks_for_the_token(
    loopback: Open, run: Run, route: str, header: str | None
) -> None:
    async def story() -> None:
        async with loopback() as loop:
            headers = {} if header is None else {"Authorization": header}
            answer = await loop.client.get(route, headers=headers)
            assert answer.status == 401
            assert "token" in await answer.text()

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
            await server.send_bytes(m.encode(m.Ready(version=0)))
            working = asyncio.create_task(engine(server))
            await trainer.send_bytes(m.encode(begin_step(0, 0, "d")))
            got = {}
            while len(got) < 6:
                result = await read(trainer, m.FinishedRollout, m.decode_to_trainer)
                got[result.sample] = m.unpack_tokens(result.tokens).tolist()
            assert got == {
                s: [token("d", 0, s, i) for i in range(length("d", 0, s))] for s in range(6)
            }
            done = m.StepTrained(step=0, train_wait_seconds=0.0, train_seconds=0.1)
            await trainer.send_bytes(m.encode(done))
            report = await read(trainer, m.StepReport, m.decode_to_trainer)
            assert report.tokens_generated == report.tokens_delivered == sum(map(len, got.values()))
            await trainer.send_bytes(m.encode(m.EndRun(reason="done")))
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
            assert [i.name for i in loop.driver.manager.roster] == ["good"]
            (lost,) = [r for r in loop.records if r.kind == "lost"]
            assert lost.instance == "bad" and lost.detail["reason"].startswith("malformed")
            await good.close()

    run(story())


def test_an_oversized_frame_ends_its_stream_only(
    loopback: Open, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlboost_jax.manager.app.MAX_FRAME_BYTES", 1000)

    async def story() -> None:
        async with loopback() as loop:
            good, bad = await join(loop, instance="good"), await join(loop, instance="bad")
            await bad.send_bytes(bytes(1001))
            frame = await bad.receive()
            assert frame.type is aiohttp.WSMsgType.CLOSE and frame.data == 1009
            assert [i.name for i in loop.driver.manager.roster] == ["good"]
            await good.close()

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


def test_the_first_frame_has_a_time_limit(
    loopback: Open, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlboost_jax.manager.app.FIRST_FRAME_SECONDS", 0.01)

    async def story() -> None:
        async with loopback() as loop:
            stream = await loop.dial("/instance")
            frame = await stream.receive()
            assert frame.type is aiohttp.WSMsgType.CLOSE and "no Hello" in frame.extra

    run(story())


def test_a_peer_that_does_not_read_is_lost_and_holds_up_nobody(
    loopback: Open, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "SERVER_QUEUE_BYTES", 2**20)

    async def story() -> None:
        async with loopback() as loop:
            trainer, slow, good = await open_trainer(loop), await join(loop), await join(loop)
            transport = slow._response.connection.transport  # type: ignore[union-attr]
            transport.pause_reading()  # type: ignore[attr-defined]
            name = "x" * 2**18
            for version in range(200):  # 50 MiB: more than sockets and the queue take
                files = (m.FileEntry(path=name, size=1, sha256=""),)
                snapshot = m.Manifest(
                    version=version, directory="/", params_digest="d", files=files, leaves=()
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
            await keeper.send_bytes(m.encode(m.Ready(version=0)))
            victim = await join(loop, instance="victim")
            await trainer.send_bytes(m.encode(m.Publish(manifest=manifest(0, "d"))))
            await victim.send_bytes(m.encode(m.Ready(version=0)))
            await trainer.send_bytes(m.encode(begin_step(0, 0, "d", prompts=9)))
            await read(victim, m.Generate, m.decode_to_server)
            victim._response.connection.transport.abort()  # type: ignore[union-attr]
            working = asyncio.create_task(engine(keeper))
            got = set()
            while len(got) < 18:
                got.add((await read(trainer, m.FinishedRollout, m.decode_to_trainer)).sample)
            assert [r.instance for r in loop.records if r.kind == "lost"] == ["victim"]
            await keeper.close()
            await working

    run(story())


def test_orphans_leave_by_themselves(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback(fleet__orphan_seconds=0.05) as loop:
            server = await join(loop)
            assert (await loop.driver.finished).code == 3
            leave = await read(server, m.Leave, m.decode_to_server)
            assert "no trainer for 0.05 s" in leave.reason

    run(story())


class FakeProvider:
    """Says what it was asked for; the first start fails."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[str] = asyncio.Queue()
        self.failures = 1
        self.closed = False

    async def start(self, instance: str) -> int:
        self.calls.put_nowait(f"start {instance}")
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no fork today")
        return 1

    async def signal(self, target: str, number: object) -> bool:
        self.calls.put_nowait(f"{getattr(number, 'name', number)} {target}")
        return True

    async def close(self) -> None:
        self.closed = True


def test_the_provider_starts_signals_and_closes(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback() as loop:
            loop.driver.provider = provider = FakeProvider()
            loop.driver.apply(MachineAdded("m1"))
            assert await provider.calls.get() == "start local-1"
            assert await provider.calls.get() == "start local-2"  # after the pause
            loop.driver.apply(MachineRemoved("m1", notice=False))
            assert await provider.calls.get() == "SIGKILL local-2"
            loop.driver.apply(Shutdown("SIGTERM"))
            assert (await loop.driver.finished).reason == "SIGTERM"
        assert provider.closed
        (lost,) = [r for r in loop.records if r.kind == "lost"]
        assert "no fork today" in lost.detail["reason"]

    run(story())


def test_a_server_is_signalled_once_it_has_started(loopback: Open, run: Run) -> None:
    class Slow(FakeProvider):
        async def start(self, instance: str) -> int:
            await released.wait()
            return await super().start(instance)

    released = asyncio.Event()

    async def story() -> None:
        async with loopback() as loop:
            loop.driver.provider = provider = Slow()
            provider.failures = 0
            loop.driver.apply(MachineAdded("m1"))
            loop.driver.apply(MachineRemoved("m1", notice=True))
            released.set()
            assert await provider.calls.get() == "start local-1"
            assert await provider.calls.get() == "SIGTERM local-1"

    run(story())


def test_a_timer_that_is_very_late_forgives_silence(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback(manager__lease_seconds=100.0, fleet__orphan_seconds=1e6) as loop:
            server = await join(loop, instance="a")
            due = loop.driver.now()
            loop.driver.now = lambda: due + 150.0
            loop.driver._tick(due)
            assert [i.name for i in loop.driver.manager.roster] == ["a"]
            loop.driver.now = lambda: due + 251.0
            loop.driver._tick(due + 250.9)
            assert not list(loop.driver.manager.roster)
            await server.close()

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

"""Watchers: which, how often, and that none of them ever disturbs the server."""

import asyncio
import time

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import unused_port

from rlboost_jax.rollout.notices import aws_notices, gcp_notices, notice_watch
from rlboost_jax.rollout.notices.azure_notices import NAME_PATH
from rlboost_jax.rollout.notices.metadata_server import (
    CloudNotice,
    Metadata,
    NoAnswer,
    http_date,
    utc,
)
from tests.patience import PATIENCE_SECONDS

NOTICE = CloudNotice(seconds=1.0, reason="x")


class Script:
    """A source that follows a script, then has nothing more to say."""

    name, every_seconds = "script", 1.0

    def __init__(self, *steps):
        self.steps = list(steps)

    async def look(self):
        step = self.steps.pop(0) if self.steps else []
        if isinstance(step, Exception):
            raise step
        return step


class Over(Exception):
    """Ends a watcher from its sleep."""


def pauses_of(source, looks):
    """What it reported, and how long it slept after each of so many looks."""
    notices, pauses = [], []

    async def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == looks:
            raise Over

    with pytest.raises(Over):
        asyncio.run(notice_watch.watch(source, notices.append, sleep))
    return notices, pauses


def test_failures_make_it_ask_more_seldom_until_one_succeeds():
    broken = [NoAnswer("x")] * 7
    notices, pauses = pauses_of(Script(*broken, [NOTICE], NoAnswer("x")), looks=10)
    assert notices == [NOTICE]
    assert pauses == [1, 2, 4, 8, 15, 15, 15, 1, 1, 1]


GENUINE = {
    "aws": (aws_notices.TOKEN_PATH, lambda _: web.Response(text="AQAA==")),
    "gcp": (f"{gcp_notices.ROOT}/id", lambda _: web.Response(text="1", headers=gcp_notices.FLAVOR)),
    "azure": (NAME_PATH.split("?")[0], lambda _: web.Response(text="vm")),
}


@pytest.mark.parametrize("name", [*GENUINE, "none"])
def test_auto_finds_out_where_it_is(cloud, run, name):
    async def story():
        async with cloud() as stand_in:
            if name != "none":
                path, answer = GENUINE[name]
                stand_in.routes[path] = answer
            assert await notice_watch.which_cloud(stand_in.metadata) == name
            methods = {r.path: r.method for r in stand_in.asked}
            assert methods.pop(aws_notices.TOKEN_PATH) == "PUT" and set(methods.values()) == {"GET"}

    run(story())


def test_auto_does_not_wait_for_a_server_that_hangs(cloud, run):
    async def story():
        async with cloud() as stand_in:
            forever = asyncio.Event()

            async def hang(request):
                await forever.wait()
                return web.Response()

            for path, _ in GENUINE.values():
                stand_in.routes[path] = hang
            path, answer = GENUINE["gcp"]
            stand_in.routes[path] = answer
            seconds = 0.1  # or as many as it takes this machine to answer
            while (found := await notice_watch.which_cloud(stand_in.metadata, seconds)) == "none":
                seconds *= 2
                assert seconds < PATIENCE_SECONDS
            assert found == "gcp"
            del stand_in.routes[path]
            assert await notice_watch.which_cloud(stand_in.metadata, 0.2) == "none"
            forever.set()

    run(story())


def test_nobody_there_is_no_cloud(run):
    async def story():
        async with aiohttp.ClientSession() as session:
            nowhere = Metadata(session, f"http://127.0.0.1:{unused_port()}")
            assert await notice_watch.which_cloud(nowhere) == "none"

    run(story())


def test_a_whole_watch_of_a_machine(cloud, run):
    """It goes from `auto` to a notice, over a real socket."""

    async def story():
        async with cloud() as stand_in:
            path, answer = GENUINE["gcp"]
            value = lambda v: lambda _: web.Response(text=v, headers=gcp_notices.FLAVOR)  # noqa: E731
            stand_in.routes = {
                path: answer,
                f"{gcp_notices.ROOT}/preempted": value("TRUE"),
                f"{gcp_notices.ROOT}/maintenance-event": value("NONE"),
            }
            heard, lines = asyncio.Queue(), []
            watching = asyncio.create_task(
                notice_watch.watch_machine(
                    "auto", heard.put_nowait, lines.append, address=stand_in.address
                )
            )
            assert await heard.get() == CloudNotice(seconds=30.0, reason="gcp: preempted")
            assert lines == ["notices of gcp"]
            watching.cancel()

    run(story())


def test_none_asks_nobody(run):
    async def story():
        await notice_watch.watch_machine("none", print, print, address="http://nobody.invalid")

    run(story())


def test_a_mistake_in_a_watcher_is_said_and_ends_it_alone(run):
    sources = [Script(ZeroDivisionError("oops")), Script([NOTICE])]

    async def story():
        notices, lines = asyncio.Queue(), []
        watching = asyncio.create_task(
            notice_watch.watch_machine(
                "aws", notices.put_nowait, lines.append, sources=lambda *_: sources
            )
        )
        assert await notices.get() == NOTICE
        assert lines == ["notices of script are not watched any more: ZeroDivisionError('oops')"]
        assert not watching.done()
        watching.cancel()

    run(story())


# What any metadata server may do to us


async def flood(request):
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        while True:
            await response.write(b"x" * 65_536)
    except (ConnectionError, asyncio.CancelledError):
        return response


async def drip(request):
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        while True:
            await response.write(b"x")
            await asyncio.sleep(0.01)
    except (ConnectionError, asyncio.CancelledError):
        return response


@pytest.mark.parametrize(
    ("handler", "seconds", "why"), [(flood, PATIENCE_SECONDS, "more than"), (drip, 0.3, "Timeout")]
)
def test_answers_are_bounded_in_size_and_time(cloud, run, handler, seconds, why):
    async def story():
        async with cloud(answer_seconds=seconds) as stand_in:
            stand_in.routes["/a"] = handler
            with pytest.raises(NoAnswer, match=why):
                await stand_in.metadata.ask("/a", {})

    run(story())


def test_redirects_are_not_followed(cloud, run):
    async def story():
        async with cloud() as stand_in:
            stand_in.routes["/a"] = lambda _: web.Response(status=302, headers={"Location": "/b"})
            assert (await stand_in.metadata.ask("/a", {})).status == 302
            assert stand_in.paths() == ["/a"]

    run(story())


@pytest.mark.parametrize("date", ["", "soon", "Mon, 99 Sep 2026 18:29:47 GMT"])
def test_an_answer_without_a_time_is_dated_by_our_own_clock(cloud, run, date):
    async def story():
        async with cloud() as stand_in:
            stand_in.routes["/a"] = lambda _: web.Response(headers={"Date": date})
            assert (await stand_in.metadata.ask("/a", {})).at == 1_790_000_000.0

    run(story())


def test_times_are_read_as_the_standard_library_writes_them():
    moment = 1_789_718_520
    written = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
    assert utc(written) == moment
    written = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(moment))
    assert http_date(written) == moment

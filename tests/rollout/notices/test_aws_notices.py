"""AWS's formats, as the EC2 User Guide shows them."""

import json

import pytest
from aiohttp import web

from rlboost_jax.rollout.notices import aws_notices
from rlboost_jax.rollout.notices.metadata_server import CloudNotice, NoAnswer

TOKEN, TTL = "X-aws-ec2-metadata-token", "X-aws-ec2-metadata-token-ttl-seconds"
ACTION, REBALANCE = aws_notices.ACTION_PATH, aws_notices.REBALANCE_PATH
NOW = "Fri, 18 Sep 2026 08:20:00 GMT"


class Imds:
    """IMDSv2: tokens by PUT, everything else with one of them only."""

    def __init__(self, stand_in):
        self.tokens, self.items = 0, {}
        self.valid = ""
        stand_in.routes = {
            aws_notices.TOKEN_PATH: self.token,
            ACTION: self.item,
            REBALANCE: self.item,
        }

    def token(self, request):
        if request.method != "PUT" or not 1 <= int(request.headers[TTL]) <= 21_600:
            return web.Response(status=400)
        self.tokens += 1
        self.valid = f"AQAAA{self.tokens}=="
        return web.Response(text=self.valid)

    def item(self, request):
        if request.headers.get(TOKEN) != self.valid or not self.valid:
            return web.Response(status=401)
        if request.path not in self.items:
            return web.Response(status=404, text="<?xml version='1.0'?><h1>404</h1>")
        content = self.items[request.path]
        text = content if isinstance(content, str) else json.dumps(content)
        return web.Response(text=text, headers={"Date": NOW})


def test_nothing_until_there_is_something_and_then_once(cloud, run):
    async def story():
        async with cloud() as stand_in:
            imds = Imds(stand_in)
            source = aws_notices.interruption(stand_in.metadata)
            assert await source.look() == [] == await source.look()
            imds.items[ACTION] = {"action": "terminate", "time": "2026-09-18T08:22:00Z"}
            assert await source.look() == [
                CloudNotice(seconds=120.0, reason="aws: terminate 2026-09-18T08:22:00Z")
            ]
            assert await source.look() == []
            assert imds.tokens == 1

    run(story())


def test_an_expired_token_is_renewed_at_once(cloud, run):
    async def story():
        async with cloud() as stand_in:
            imds = Imds(stand_in)
            source = aws_notices.interruption(stand_in.metadata)
            await source.look()
            imds.valid = "another"
            imds.items[ACTION] = {"action": "stop", "time": "2026-09-18T08:20:30Z"}
            (notice,) = await source.look()
            assert notice.seconds == 30.0 and imds.tokens == 2

    run(story())


@pytest.mark.parametrize(
    ("action", "time", "seconds"),
    [
        ("terminate", "2026-09-18T08:19:00Z", 0.0),  # has passed
        ("terminate", "2027-09-18T08:22:00Z", 120.0),  # no notice is so early: a wrong clock
        ("terminate", "2026-09-18T08:21:00+00:00", 60.0),
        ("terminate", "2026-09-18T08:21:00", 60.0),  # is UTC all the same
        ("hibernate", "2026-09-18T08:22:00Z", 0.0),  # begins at once
    ],
)
def test_how_long_there_is(cloud, run, action, time, seconds):
    """By the clock of the cloud, which says it with every answer: ours is years off."""

    async def story():
        async with cloud() as stand_in:
            imds = Imds(stand_in)
            imds.items[ACTION] = {"action": action, "time": time}
            (notice,) = await aws_notices.interruption(stand_in.metadata).look()
            assert notice.seconds == seconds

    run(story())


def test_a_notice_that_is_moved_is_reported_again(cloud, run):
    async def story():
        async with cloud() as stand_in:
            imds = Imds(stand_in)
            source = aws_notices.interruption(stand_in.metadata)
            seconds = []
            for time in ("2026-09-18T08:22:00Z", "2026-09-18T08:21:00Z"):
                imds.items[ACTION] = {"action": "terminate", "time": time}
                seconds += [notice.seconds for notice in await source.look()]
            assert seconds == [120.0, 60.0]

    run(story())


def test_a_rebalance_recommendation_is_a_hint(cloud, run):
    async def story():
        async with cloud() as stand_in:
            imds = Imds(stand_in)
            source = aws_notices.rebalance(stand_in.metadata)
            assert await source.look() == []
            imds.items[REBALANCE] = {"noticeTime": "2026-09-18T08:20:00Z"}
            (notice,) = await source.look()
            assert notice.seconds is None and "rebalance" in notice.reason
            assert await source.look() == []

    run(story())


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '"terminate"',
        "<html>",
        {"action": "terminate"},
        {"action": 3, "time": "2026-09-18T08:22:00Z"},
        {"action": "terminate", "time": "soon"},
        {"action": "terminate", "time": None},
        {"action": "terminate", "time": "99999-01-01T00:00:00Z"},
        "[" * 100_000,
    ],
)
def test_nonsense_is_no_answer_and_harms_nothing(cloud, run, content):
    async def story():
        async with cloud() as stand_in:
            imds = Imds(stand_in)
            source = aws_notices.interruption(stand_in.metadata)
            imds.items[ACTION] = content
            with pytest.raises(NoAnswer):
                await source.look()
            imds.items[ACTION] = {"action": "terminate", "time": "2026-09-18T08:22:00Z"}
            assert len(await source.look()) == 1

    run(story())


@pytest.mark.parametrize("token", ["", "a\nb: c", "\x00", "\u00e9"])
def test_a_token_that_is_none_is_never_sent(cloud, run, token):
    async def story():
        async with cloud() as stand_in:
            stand_in.routes[aws_notices.TOKEN_PATH] = lambda _: web.Response(text=token)
            with pytest.raises(NoAnswer):
                await aws_notices.interruption(stand_in.metadata).look()
            assert stand_in.paths() == [aws_notices.TOKEN_PATH]

    run(story())

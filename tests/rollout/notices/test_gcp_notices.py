"""Google Cloud's formats, as the Compute Engine documentation shows them."""

import asyncio
import zlib

import pytest
from aiohttp import web

from rlboost_jax.rollout.notices import gcp_notices
from rlboost_jax.rollout.notices.metadata_server import CloudNotice, NoAnswer

PREEMPTED = f"{gcp_notices.ROOT}/preempted"
MAINTENANCE = f"{gcp_notices.ROOT}/maintenance-event"


class Server:
    """Values with an ETag each; a question that waits is answered when the value changes."""

    def __init__(self, stand_in):
        self.values = {PREEMPTED: "FALSE", MAINTENANCE: "NONE"}
        self.changed = asyncio.Event()
        self.waiting = asyncio.Event()
        stand_in.routes = dict.fromkeys(self.values, self.value)

    async def value(self, request):
        if request.headers.get("Metadata-Flavor") != "Google":
            return web.Response(status=403, text="Missing Metadata-Flavor:Google header.")
        if request.query.get("wait_for_change") == "true":
            assert 0 < int(request.query["timeout_sec"]) <= 60
            while request.query["last_etag"] == self.etag(request.path):
                self.waiting.set()
                await self.changed.wait()
                self.changed.clear()
        headers = {"Metadata-Flavor": "Google", "ETag": self.etag(request.path)}
        return web.Response(text=self.values[request.path], headers=headers)

    def etag(self, path):
        return f"{zlib.crc32(self.values[path].encode())}+&/"  # to be quoted

    def set(self, path, value):
        self.values[path] = value
        self.changed.set()


@pytest.mark.parametrize(
    ("make", "path", "value", "notice"),
    [
        (
            gcp_notices.preempted,
            PREEMPTED,
            "TRUE",
            CloudNotice(seconds=30.0, reason="gcp: preempted"),
        ),
        (
            gcp_notices.maintenance,
            MAINTENANCE,
            "TERMINATE_ON_HOST_MAINTENANCE",
            CloudNotice(seconds=3600.0, reason="gcp: TERMINATE_ON_HOST_MAINTENANCE"),
        ),
        (
            gcp_notices.maintenance,
            MAINTENANCE,
            "MIGRATE_ON_HOST_MAINTENANCE",
            CloudNotice(seconds=None, reason="gcp: MIGRATE_ON_HOST_MAINTENANCE"),
        ),
    ],
)
def test_waits_for_a_change_and_tells_it_once(cloud, run, make, path, value, notice):
    async def story():
        async with cloud() as stand_in:
            server = Server(stand_in)
            source = make(stand_in.metadata)
            assert await source.look() == []  # as it is now
            looking = asyncio.create_task(source.look())
            await server.waiting.wait()
            server.set(path, value)
            assert await looking == [notice]
            server.waiting.clear()
            looking = asyncio.create_task(source.look())
            await server.waiting.wait()
            looking.cancel()

    run(story())


def test_a_machine_that_is_preempted_already_knows_at_the_first_look(cloud, run):
    async def story():
        async with cloud() as stand_in:
            Server(stand_in).values[PREEMPTED] = "TRUE"
            assert len(await gcp_notices.preempted(stand_in.metadata).look()) == 1

    run(story())


def test_a_wait_that_ends_without_a_change_tells_nothing(cloud, run):
    """As `timeout_sec` has it: the answer then is the value as it was."""

    async def story():
        async with cloud() as stand_in:
            headers = {"Metadata-Flavor": "Google", "ETag": "7"}
            stand_in.routes[PREEMPTED] = lambda _: web.Response(text="TRUE", headers=headers)
            source = gcp_notices.preempted(stand_in.metadata)
            assert [len(await source.look()) for _ in range(3)] == [1, 0, 0]
            assert [r.query.get("last_etag") for r in stand_in.asked] == [None, "7", "7"]

    run(story())


def test_the_second_maintenance_is_reported_as_well(cloud, run):
    async def story():
        async with cloud() as stand_in:
            server = Server(stand_in)
            source = gcp_notices.maintenance(stand_in.metadata)
            notices = []
            for value in ("NONE", "MIGRATE_ON_HOST_MAINTENANCE") * 2:
                server.set(MAINTENANCE, value)
                notices += await source.look()
            assert len(notices) == 2

    run(story())


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: web.Response(text="TRUE"),  # by somebody else
        lambda _: web.Response(status=503, text="TRUE", headers={"Metadata-Flavor": "Google"}),
        lambda _: web.Response(status=302, headers={"Location": "/elsewhere"}),
    ],
)
def test_only_google_is_believed(cloud, run, answer):
    async def story():
        async with cloud() as stand_in:
            stand_in.routes[PREEMPTED] = answer
            with pytest.raises(NoAnswer):
                await gcp_notices.preempted(stand_in.metadata).look()
            assert stand_in.paths() == [PREEMPTED]

    run(story())


@pytest.mark.parametrize("value", ["", "MAYBE", "true\x00", "x" * 1000])
def test_an_unknown_value_is_nothing_to_tell(cloud, run, value):
    async def story():
        async with cloud() as stand_in:
            Server(stand_in).values[PREEMPTED] = value
            assert await gcp_notices.preempted(stand_in.metadata).look() == []

    run(story())

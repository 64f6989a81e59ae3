"""Azure's formats, as the documentation of Scheduled Events shows them."""

import pytest
from aiohttp import web

from rlboost_jax.rollout.notices.azure_notices import EVENTS_PATH, NAME_PATH, Azure
from rlboost_jax.rollout.notices.metadata_server import NoAnswer

NOW = "Mon, 19 Sep 2026 18:29:17 GMT"
EVENTS, NAME = EVENTS_PATH.split("?")[0], NAME_PATH.split("?")[0]


def event(kind="Preempt", *, number=1, machine="vmss_3", **changes):
    return {
        "EventId": f"602d9444-d2cd-49c7-8624-8643e717{number:04}",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": ["vmss_1", machine],
        "EventStatus": "Scheduled",
        "NotBefore": "Mon, 19 Sep 2026 18:29:47 GMT",
        "Description": "Virtual machine is going to be preempted",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
        **changes,
    }


class Server:
    def __init__(self, stand_in):
        self.incarnation, self.events = 1, []
        stand_in.routes = {EVENTS: self.document, NAME: self.name}

    def document(self, request):
        if request.headers.get("Metadata") != "true" or "api-version" not in request.query:
            return web.Response(status=400)
        body = {"DocumentIncarnation": self.incarnation, "Events": self.events}
        return web.json_response(body, headers={"Date": NOW})

    def name(self, request):
        assert request.query["format"] == "text"
        return web.Response(text="vmss_3")

    def set(self, *events):
        self.incarnation += 1
        self.events = list(events)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, 30.0),
        ({"kind": "Terminate"}, 30.0),
        ({"kind": "Reboot"}, 30.0),
        ({"kind": "Redeploy"}, 30.0),
        ({"kind": "Freeze"}, None),  # it pauses for some seconds and goes on
        ({"NotBefore": ""}, 0.0),
        ({"EventStatus": "Started", "NotBefore": ""}, 0.0),
        ({"NotBefore": "Mon, 19 Sep 2026 18:29:07 GMT"}, 0.0),  # has passed
        ({"NotBefore": "Mon, 19 Sep 2027 18:29:07 GMT"}, 3600.0),  # a wrong clock
    ],
)
def test_how_long_there_is(cloud, run, changes, seconds):
    async def story():
        async with cloud() as stand_in:
            server = Server(stand_in)
            source = Azure(stand_in.metadata)
            assert await source.look() == []
            server.set(event(**changes))
            (notice,) = await source.look()
            assert notice.seconds == seconds and changes.get("kind", "Preempt") in notice.reason
            assert await source.look() == []

    run(story())


def test_events_of_other_machines_are_not_ours(cloud, run):
    async def story():
        async with cloud() as stand_in:
            server = Server(stand_in)
            server.set(event(machine="vmss_33"), event(machine="VMSS_3", number=2))
            assert await Azure(stand_in.metadata).look() == []

    run(story())


def test_an_event_is_reported_again_only_if_it_is_moved(cloud, run):
    async def story():
        async with cloud() as stand_in:
            server = Server(stand_in)
            source = Azure(stand_in.metadata)
            counts = []
            sooner = event(NotBefore="Mon, 19 Sep 2026 18:29:27 GMT")
            for events in ([event()], [event(), event("Freeze", number=2)], [sooner], []):
                server.set(*events)
                counts.append(len(await source.look()))
            assert counts == [1, 1, 1, 0]

    run(story())


def test_an_unreadable_time_does_not_hide_the_other_events(cloud, run):
    async def story():
        async with cloud() as stand_in:
            server = Server(stand_in)
            server.set(event(NotBefore="soon"), event(number=2))
            (notice,) = await Azure(stand_in.metadata).look()
            assert notice.seconds == 30.0

    run(story())


@pytest.mark.parametrize(
    "body", ["", "[]", "{}", '{"DocumentIncarnation": 1}', '{"DocumentIncarnation":1,"Events":[3]}']
)
def test_nonsense_is_no_answer(cloud, run, body):
    async def story():
        async with cloud() as stand_in:
            server = Server(stand_in)
            stand_in.routes[EVENTS] = lambda _: web.Response(text=body)
            source = Azure(stand_in.metadata)
            with pytest.raises(NoAnswer):
                await source.look()
            stand_in.routes[EVENTS] = server.document
            server.set(event())
            assert len(await source.look()) == 1

    run(story())


def test_nobody_is_asked_for_events_before_its_name_is_known(cloud, run):
    async def story():
        async with cloud() as stand_in:
            Server(stand_in)
            stand_in.routes[NAME] = lambda _: web.Response(status=500)
            with pytest.raises(NoAnswer):
                await Azure(stand_in.metadata).look()
            assert stand_in.paths() == [NAME]

    run(story())

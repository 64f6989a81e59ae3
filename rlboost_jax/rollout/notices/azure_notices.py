"""Azure: Scheduled Events of this machine.

Events are only read. To approve of one (`StartRequests`) would let it begin at once.

Source: Azure documentation, "Scheduled Events for Linux VMs" and "Azure Instance Metadata
Service".
"""

from typing import ClassVar

import msgspec

from rlboost_jax.rollout.notices.metadata_server import (
    CloudNotice,
    Metadata,
    NoAnswer,
    decode,
    http_date,
    until,
)

HEADERS = {"Metadata": "true"}
EVENTS_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
EVERY_SECONDS = 1.0  # as Microsoft recommends: Preempt leaves 30 s
FIRST_SECONDS = 120.0  # the service may take as long to start, when it is first asked
LEAD_SECONDS = 3_600.0  # Terminate can be set to 15 minutes; nothing is announced hours before
GOES = ("Preempt", "Terminate", "Reboot", "Redeploy")  # Freeze is a pause


class Scheduled(msgspec.Struct, frozen=True):
    ALSO: ClassVar = ("ResourceType", "Description", "EventSource", "DurationInSeconds")

    id: str = msgspec.field(name="EventId")
    kind: str = msgspec.field(name="EventType")
    resources: tuple[str, ...] = msgspec.field(name="Resources")
    status: str = msgspec.field(name="EventStatus", default="Scheduled")
    not_before: str = msgspec.field(name="NotBefore", default="")  # "" once it has begun


class ScheduledEvents(msgspec.Struct, frozen=True):
    incarnation: int = msgspec.field(name="DocumentIncarnation")
    events: tuple[Scheduled, ...] = msgspec.field(name="Events")


class Azure:
    """Scheduled events of the whole scale or availability set, filtered to this machine's."""

    name = "azure"
    every_seconds = EVERY_SECONDS

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._machine = ""
        self._incarnation: int | None = None
        self._reported: set[tuple[str, str]] = set()  # event and its time: it may be moved

    async def present(self) -> bool:
        """Whether this machine is in Azure. Raises NoAnswer."""
        await self._learn_name()
        return True

    async def look(self) -> list[CloudNotice]:
        if not self._machine:
            await self._learn_name()
        wait = FIRST_SECONDS if self._incarnation is None else 0.0
        answer = await self._metadata.ask(EVENTS_PATH, HEADERS, wait_seconds=wait)
        if answer.status != 200:
            raise NoAnswer(f"{EVENTS_PATH}: HTTP {answer.status}")
        document = decode(answer, ScheduledEvents)
        if document.incarnation == self._incarnation:
            return []
        notices = []
        for event in document.events:
            key = event.id, event.not_before
            if self._machine not in event.resources or key in self._reported:
                continue
            begun = event.status == "Started" or not event.not_before
            try:
                moment = answer.at if begun else http_date(event.not_before)
            except NoAnswer:
                continue  # the others may be in order
            seconds = until(moment, answer, LEAD_SECONDS) if event.kind in GOES else None
            reason = f"azure: {event.kind} {event.not_before}".rstrip()
            notices.append(CloudNotice(seconds=seconds, reason=reason))
            self._reported.add(key)
        self._incarnation = document.incarnation
        return notices

    async def _learn_name(self) -> None:
        answer = await self._metadata.ask(NAME_PATH, HEADERS)
        name = answer.text.strip()
        if answer.status != 200 or not name or not name.isprintable():
            raise NoAnswer(f"{NAME_PATH}: HTTP {answer.status}, no name")
        self._machine = name

"""Ways in which a server's part in a run ends, in the words used by manager, metrics and pages.

- **lost**: a preemptible server that had joined went away while the run needed it. It gave
  **notice** (a goodbye, with all its work handed over) or none: it was killed, fell silent, failed.
- **turned away**: the run refused or excluded it.
- **absent**: it was ordered and never joined.
- **unknown**: the manager was restarted and has not seen it since.
- **ended**: it was sent home, or the run was over. The trainer's own engines end in no other way.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Departure = Literal["killed", "notice", "turned_away", "absent", "unknown", "ended"]

LOST: Final[tuple[Departure, ...]] = ("killed", "notice")  # without notice, and with
KINDS: Final[dict[str, Departure]] = {  # of events that end a server's stream
    "lost": "killed",
    "drained": "notice",
    "rejected": "turned_away",
    "quarantined": "turned_away",
}


def departure_of(
    kind: str, *, reserved: bool, joined: bool = True, dismissed: bool = False
) -> Departure:
    """Return how a server's part in the run ended.

    Args:
        kind: the event's, one of `KINDS`.
        reserved: whether it is one of the trainer's own engines.
        joined: whether it had joined.
        dismissed: whether it was sent home for want of work.
    """
    if reserved or dismissed:
        return "ended"
    if kind == "lost" and not joined:
        return "absent"
    return KINDS[kind]


@dataclass(frozen=True, kw_only=True)
class ServerCounts:
    """Preemptible servers of a run so far."""

    joined: int = 0
    lost: int = 0  # with notice or without
    left: int = 0  # of these, with notice


def tally_of(departures: Iterable[Departure], *, joined: int) -> ServerCounts:
    ends = list(departures)
    left = ends.count("notice")
    return ServerCounts(joined=joined, lost=left + ends.count("killed"), left=left)


def losses_text(tally: ServerCounts) -> str:
    """Text for people, such as "21 servers were lost (4 with notice) and 22 joined"."""
    were = "server was" if tally.lost == 1 else "servers were"
    notice = f" ({tally.left} with notice)" if tally.left else ""
    return f"{tally.lost} {were} lost{notice} and {tally.joined} joined"

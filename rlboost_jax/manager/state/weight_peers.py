"""Which servers were told to fetch a version from which others, and how that went.

What a server says of another is its word. It decides what that one server is handed; what others
are handed it decides only together with a second one's, and the work of a server never.
"""

from collections import Counter
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from typing import Final

from rlboost_jax.manager.policies.weight_sources import PeerSources
from rlboost_jax.messages import SourceFault, SourceOutcome
from rlboost_jax.trust.peer_limits import REMARK_BURST, REMARKS_PER_SECOND, Bucket

ACCUSERS: Final = 2  # servers that a source must have failed before no others are sent to it
NEWEST_RATE: Final = 0.3  # weight of the last rate


@dataclass(slots=True)
class PeerRecord:
    """A server that fetches from others, or serves them.

    Attributes:
        root: of the version that it fetches, or fetched last; "": none.
        sources: that it was handed for it; None: none.
        faults: by source, of those that failed it.
        accusers: servers that had wrong pieces from it, or did not reach it.
        rate: bytes per second that it gave lately; 0: not known.
        remarks: that it may still make on its sources: each is a line of events.
    """

    root: str = ""
    sources: PeerSources | None = None
    faults: dict[str, SourceFault] = field(default_factory=dict)
    accusers: dict[str, SourceFault] = field(default_factory=dict)
    rate: float = 0.0
    remarks: Bucket = field(default_factory=lambda: Bucket(REMARKS_PER_SECOND, REMARK_BURST))

    def hand(self, root: str, sources: PeerSources) -> None:
        """Record what it is handed; what was merely slow may be handed to it for another one."""
        if self.root != root:
            self.faults = {s: fault for s, fault in self.faults.items() if fault != "slow"}
        self.root, self.sources = root, sources

    def failed_by(self, source: str, fault: SourceFault) -> None:
        self.faults[source] = fault

    def accused_by(self, name: str, fault: SourceFault) -> None:
        self.accusers[name] = fault

    def gave(self, num_bytes: int, seconds: float) -> None:
        """Record what it has given another server."""
        rate = num_bytes / seconds
        known = self.rate or rate
        self.rate = known + NEWEST_RATE * (rate - known)


class WeightPeers:
    """Records by name, of servers with an open stream.

    Attributes:
        changed: whether a server has failed another since `settled`.
    """

    def __init__(self) -> None:
        self._records: dict[str, PeerRecord] = {}
        self._exchanged: int | None = None  # bytes since they were reported; None: nobody fetched
        self.changed = False

    def keep(self, names: Container[str]) -> None:
        """Forget all servers but these."""
        self._records = {name: record for name, record in self._records.items() if name in names}

    def may_say(self, name: str, now: float) -> bool:
        """Whether what a server says of its sources is still worth a line."""
        record = self._records.get(name)
        return record is not None and record.remarks.take(1, now)

    def take_exchanged(self) -> int | None:
        """Bytes that servers had from each other since the last call; None: none ever had any."""
        exchanged = self._exchanged
        self._exchanged = None if exchanged is None else 0
        return exchanged

    def settled(self) -> None:
        """Note that all servers were handed what they should have."""
        self.changed = False

    def handed(self, root: str, names: Collection[str]) -> dict[str, PeerSources]:
        """What servers were handed for a version, by name; of these names only."""
        return {
            name: record.sources
            for name, record in self._records.items()
            if record.root == root and record.sources is not None and name in names
        }

    def hand(self, name: str, root: str, sources: PeerSources) -> None:
        """Record what a server is handed."""
        self._records.setdefault(name, PeerRecord()).hand(root, sources)

    def loads(self, handed: Mapping[str, PeerSources]) -> Counter[str]:
        """How many of some servers were handed each source."""
        return Counter(
            source for own in handed.values() for source in (*own.near, *own.far)
        )  # fmt: skip

    def refused(self, name: str) -> Collection[str]:
        """Sources that have failed a server."""
        record = self._records.get(name)
        return () if record is None else record.faults.keys()

    def rate(self, name: str) -> float:
        """Bytes per second that a server gave another one lately; 0: not known."""
        record = self._records.get(name)
        return 0.0 if record is None else record.rate

    def shunned(self, name: str) -> bool:
        """Whether no server is sent to this source any more."""
        record = self._records.get(name)
        if record is None:
            return False
        wrong = sum(fault == "wrong" for fault in record.accusers.values())
        silent = len(record.accusers) if not record.rate else 0  # else it can be reached
        return max(wrong, silent) >= ACCUSERS

    def used(self, name: str, root: str, outcome: SourceOutcome) -> bool:
        """Record what a server says of a source; False: it was not handed that for this version."""
        record, source = self._records.get(name), outcome.source
        if record is None or record.root != root or record.sources is None:
            return False
        if source not in (*record.sources.near, *record.sources.far):
            return False
        of_source = self._records.setdefault(source, PeerRecord())
        if outcome.fetched_bytes and outcome.seconds > 0:
            of_source.gave(outcome.fetched_bytes, outcome.seconds)
        self._exchanged = (self._exchanged or 0) + outcome.fetched_bytes
        if outcome.fault:
            record.failed_by(source, outcome.fault)
            if outcome.fault != "slow":
                of_source.accused_by(name, outcome.fault)
            self.changed = True
        return True

"""A rollout server as the manager knows it: one stream, and the records of its server.

Each subject is a record with its own verbs; what concerns two of them, or what the roster's index
has to hear of, goes through the instance.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from rlboost_jax.manager.state.activity import Activity
from rlboost_jax.manager.state.departure import Departure
from rlboost_jax.manager.state.held_rollouts import HeldRollouts
from rlboost_jax.manager.state.kept_pages import Pages
from rlboost_jax.manager.state.lease import Lease
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout
from rlboost_jax.manager.state.server_parameters import Parameters
from rlboost_jax.messages import Capacity, Hello, InstanceStatus, Manifest, TokenBatch
from rlboost_jax.sequences.identities import Version
from rlboost_jax.trust.peer_limits import REMARK_BURST, REMARKS_PER_SECOND, Bucket

LAST_LINES: Final = 12  # of a server's log, that stand with its loss


class Watcher(Protocol):
    """Callback interface for changes of an instance that an index depends on."""

    def held_changed(self, instance: "Instance") -> None: ...

    def state_changed(self, instance: "Instance") -> None: ...


class Instance:
    """One stream of one rollout server.

    joining → pulling (a version was announced) → ready (it holds it) → leaving.

    Attributes:
        held: rollouts by request id, oldest placement first; to be read.
        order: of joining.
        slots: of its Hello, or fewer while somebody else uses its device.
        frozen: it shares its device, and has fewer slots until the next step.
        room: rollouts that it can sample at once: as many as it has slots, or as its memory has
            pages for if that is less. What it holds beyond is pending there.
    """

    __slots__ = (
        "_cache_tokens",
        "_held_rollouts",
        "_remarks",
        "_said",
        "_watcher",
        "activity",
        "departure",
        "frozen",
        "held",
        "hello",
        "joined_at",
        "lease",
        "name",
        "order",
        "pages",
        "parameters",
        "reserved",
        "room",
        "slots",
        "stream",
    )  # fmt: skip

    def __init__(self, stream: int, name: str, hello: Hello, now: float) -> None:
        self.stream, self.name, self.hello = stream, name, hello
        self.reserved = hello.reserved
        self.slots = self.room = hello.slots
        self._cache_tokens = hello.cache_tokens
        self.frozen = False
        self.joined_at = now
        self.lease = Lease(now)
        self.parameters = Parameters()
        self.activity = Activity(now)
        self.pages = self._empty_pages()
        self.departure = Departure()
        self._held_rollouts = HeldRollouts()
        self.held: Mapping[int, Rollout] = self._held_rollouts.rollouts
        self.order = 0
        self._said: deque[str] = deque(maxlen=LAST_LINES)
        self._remarks = Bucket(REMARKS_PER_SECOND, REMARK_BURST)  # what is worth a line
        self._watcher: Watcher | None = None  # None: not in the roster

    @property
    def state(self) -> str:
        if self.departure.leaving:
            return "leaving"
        parameters = self.parameters
        if parameters.announced is None:  # a reserved engine may have been handed some
            return "ready" if self.reserved and parameters.version is not None else "joining"
        return "ready" if parameters.are(parameters.announced) else "pulling"

    def says(self, lines: Iterable[str]) -> None:
        """Keep lines that the server has printed."""
        self._said.extend(lines)

    @property
    def last_words(self) -> dict[str, list[str]]:
        """The last lines that the server has printed, for the record of its loss."""
        return {"log": list(self._said)} if self._said else {}

    @property
    def groups(self) -> Mapping[int, int]:
        """Number of rollouts held, by group."""
        return self._held_rollouts.groups

    @property
    def num_releasing(self) -> int:
        """Number of rollouts that are being released."""
        return self._held_rollouts.num_releasing

    @property
    def asked_at(self) -> float:
        """Since when an answer to a release is overdue; inf: none is."""
        return self._held_rollouts.asked_at

    @property
    def kind(self) -> tuple[str, str, int]:
        """Kind of the instance; instances of one kind share a throughput profile."""
        return self.hello.device, self.hello.fingerprint, self.hello.slots

    @property
    def cache_tokens(self) -> float:
        """Tokens of context that its memory has pages for; inf: not reported."""
        return self._cache_tokens or math.inf

    @property
    def last_room(self) -> int:
        """Room for a batch's last rollouts, whose mean context is taken as half of the longest."""
        room = _room(self.cache_tokens, self.hello.slot_tokens / 2)
        return min(self.room, room) if self.slots else 0

    @property
    def member(self) -> bool:
        """Whether Algorithm 1 counts it: pulling a new version is no absence, having no slot is."""
        present = not self.reserved and not self.departure.leaving and self.slots > 0
        return present and self.parameters.version is not None

    @property
    def newcomer(self) -> bool:
        """Whether it becomes a member once it has its first parameters."""
        there = not self.reserved and not self.departure.leaving
        return there and self.parameters.version is None

    @property
    def context(self) -> float:
        """Mean length of the rollouts held, in tokens."""
        held = self.held.values()
        return sum([r.transcript.length for r in held]) / len(held) if held else 0.0

    def contradiction(self, batch: TokenBatch, slot_tokens: int) -> str:
        """Claim of a batch that no engine with these slots can make; "" if there is none.

        What is in flight is charged when the server vanishes, so it must be possible.
        """
        slots = self.hello.slots
        whole = slots * slot_tokens
        if batch.in_flight > whole:
            return f"in_flight = {batch.in_flight} where {slots} slots allow {whole}"
        if batch.prefilled_again > whole:
            return f"prefilled_again = {batch.prefilled_again} where {slots} slots allow {whole}"
        if batch.running > slots:
            return f"running = {batch.running} where {slots} slots allow {slots}"
        return ""

    def ready_for(self, batch: BatchRecord) -> bool:
        """Whether it holds exactly the parameters of that step."""
        return self.state == "ready" and self.parameters.are(batch.begin)

    def may_remark(self, now: float) -> bool:
        """Whether a remark of the server is still worth a line; floods of them are not."""
        return self._remarks.take(1, now)

    def fit(self, row_tokens: float) -> None:
        """Update its room for rollouts that hold `row_tokens` on average while they are sampled.

        The average is of all rollouts, not of those that this instance holds: otherwise a long one
        would be moved for being long, and fit nowhere.
        """
        room = min(self.slots, _room(self.cache_tokens, row_tokens))  # none without a slot
        if room != self.room:
            self.room = room
            self._held_changed()

    def resize(self, capacity: Capacity, row_tokens: float) -> str:
        """Change its slots and pages as another program takes part of its device, or returns it.

        Its pages are other ones then: what was left there counts as gone. Returns what is wrong
        with what it says, or "".

        Args:
            row_tokens: as for `fit`.
        """
        most, cache = self.hello.slots, self.hello.cache_tokens
        if capacity.slots > most or (cache and capacity.cache_tokens > cache):
            return (
                f"capacity of {capacity.slots} slots and {capacity.cache_tokens} tokens where its "
                f"Hello said {most} and {cache}"
            )
        if capacity.slots and cache and capacity.cache_tokens < self.hello.slot_tokens:
            return f"capacity of {capacity.cache_tokens} tokens has no room for one rollout"
        if capacity.cache_tokens != self._cache_tokens:
            self._cache_tokens = capacity.cache_tokens
            self.pages = self._empty_pages()
        if capacity.slots != self.slots:
            self.activity.changed()
        self.slots, self.frozen = capacity.slots, capacity.frozen
        self.fit(row_tokens)
        self._state_changed()
        return ""

    def enter(self, order: int, watcher: Watcher) -> None:
        """Add it to the roster; `watcher` hears its changes."""
        self.order, self._watcher = order, watcher

    def quit(self) -> None:
        """Remove it from the roster."""
        self._watcher = None

    def prefetch(self, manifest: Manifest) -> bool:
        """Note a version to be fetched in advance; returns whether to tell the server."""
        parameters = self.parameters
        if manifest in (parameters.prefetched, parameters.announced):
            return False
        parameters.prefetch(manifest)
        return True

    def announce(self, manifest: Manifest, *, back: bool = False) -> bool:
        """Note the version that it is to hold; False if it holds just that already."""
        held = self.state == "ready" and self.parameters.are(manifest)
        self.parameters.announce(manifest, held=held, back=back and not held)
        if not held:
            self._state_changed()
        return not held

    def loaded(self, version: Version, digest: str) -> None:
        """Record the parameters that its engine has loaded."""
        self.parameters.loaded(version, digest)
        self.activity.changed()
        self.pages = self._empty_pages()
        self._state_changed()

    def retire(self) -> None:
        """Stop giving it work."""
        self.departure.begin()
        self._state_changed()

    def hold(self, rollouts: Sequence[Rollout], now: float) -> None:
        """Add rollouts that were placed here."""
        if not self.held:
            self.activity.begin(now)
        for rollout in rollouts:
            if rollout.sequences.begun or rollout.group not in self.groups:
                self.activity.prefill(rollout.transcript.length - rollout.placement.spared)
            self.pages.take(rollout.transcript.length)
            self._held_rollouts.hold(rollout)
        self._held_changed()

    def release(self, rollouts: Sequence[Rollout], now: float) -> None:
        """Mark some of its rollouts as being released; none of them was before."""
        self._held_rollouts.release(rollouts, now)
        self._held_changed()

    def let_go(self, request_id: int) -> Rollout | None:
        """Remove a rollout, whatever the reason; None if it was not held."""
        rollout = self._held_rollouts.let_go(request_id)
        if rollout is not None:
            if rollout.parked:
                others = sum([r.transcript.length for r in self.held.values()])
                rollout.placement.leave(self.pages.left(rollout.transcript.length, others))
            if not self.held:
                self.activity.end()
            self._held_changed()
        return rollout

    def forgive(self, seconds: float, now: float) -> None:
        """Move timestamps forward by a time in which this manager could not hear it."""
        self.lease.forgive(seconds, now)
        self.excuse(seconds, now)
        self.departure.forgive(seconds)

    def excuse(self, seconds: float, now: float) -> None:
        """Extend its time for progress by a delay that is this manager's fault."""
        self._held_rollouts.forgive(seconds, now)
        self.activity.forgive(seconds, now)
        self.parameters.forgive(seconds, now)

    def newest_pending(self, count: int, batch: BatchRecord | None = None) -> list[Rollout]:
        """The last placed rollouts without a token here: a server begins with the oldest.

        Args:
            batch: whose; None: of any.
        """
        return self._held_rollouts.newest_pending(count, batch)

    def pending_of_others(self, batch: BatchRecord) -> int:
        """Number of other batches' rollouts that wait here for a slot, or may."""
        return self._held_rollouts.pending_of_others(batch)

    def shortest(self, batch: BatchRecord, count: int) -> list[Rollout]:
        """The `count` rollouts of a batch that cost the least prefill elsewhere."""
        return self._held_rollouts.shortest(batch, count)

    def status(self, lease_seconds: float, now: float, *, price: float) -> InstanceStatus:
        """Return the server's status for the trainer's live view.

        Args:
            price: dollars per hour.
        """
        version, activity, line = self.parameters.version, self.activity, self.lease.line
        return InstanceStatus(
            instance=self.name,
            reserved=self.reserved,
            state=self.state,
            version=Version(-1) if version is None else version,
            running=activity.running,
            waiting=activity.waiting,
            tokens=activity.tokens,
            price_per_hour=price,
            seconds=now - self.joined_at,
            round_trip=line.round_trip,
            deviation=line.deviation,
            losses=line.losses,
            lease_seconds=lease_seconds,
            drafts=activity.drafts,
        )

    def _empty_pages(self) -> Pages:
        """Account of an empty page pool; without a reported size it has room for all slots."""
        return Pages(self._cache_tokens or self.slots * self.hello.slot_tokens)

    def _held_changed(self) -> None:
        if self._watcher is not None:
            self._watcher.held_changed(self)

    def _state_changed(self) -> None:
        if self._watcher is not None:
            self._watcher.state_changed(self)


def _room(cache_tokens: float, row_tokens: float) -> int:
    """Number of rollouts of `row_tokens` each that a cache has room for, at least 1."""
    return max(1, int(min(cache_tokens / row_tokens, 2**31)))

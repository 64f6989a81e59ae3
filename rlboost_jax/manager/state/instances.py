"""A rollout server as the manager knows it: one stream, and what is known of its server.

Each subject is a record with its own verbs; what concerns two of them, or what the roster's index
has to hear of, goes through the instance.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from rlboost_jax.manager.limits import REMARK_BURST, REMARKS_PER_SECOND, Bucket
from rlboost_jax.manager.state.activity import Activity
from rlboost_jax.manager.state.departure import Departure
from rlboost_jax.manager.state.held_rollouts import HeldRollouts
from rlboost_jax.manager.state.lease import Lease
from rlboost_jax.manager.state.pages import Pages
from rlboost_jax.manager.state.parameters import Parameters
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout
from rlboost_jax.messages import Capacity, Hello, InstanceStatus, Manifest, TokenBatch
from rlboost_jax.sequences.identities import Version

LAST_LINES: Final = 12  # of a server's log, that stand with its loss


class Watcher(Protocol):
    """Hears when what it keeps up to date about instances has changed."""

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
        self.stream = stream
        self.name = name
        self.hello = hello
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
        """It has printed these."""
        self._said.extend(lines)

    @property
    def last_words(self) -> dict[str, list[str]]:
        """The last lines that it has printed, for the record of its loss."""
        return {"log": list(self._said)} if self._said else {}

    @property
    def groups(self) -> Mapping[int, int]:
        """Rollouts held, per group."""
        return self._held_rollouts.groups

    @property
    def num_releasing(self) -> int:
        """Rollouts that are being released."""
        return self._held_rollouts.num_releasing

    @property
    def asked_at(self) -> float:
        """Since when it owes an answer to a release; inf: it owes none."""
        return self._held_rollouts.asked_at

    @property
    def kind(self) -> tuple[str, str, int]:
        """Instances of one kind share a throughput profile."""
        return self.hello.device, self.hello.fingerprint, self.hello.slots

    @property
    def cache_tokens(self) -> float:
        """Of context that its memory has pages for; inf: it has not said."""
        return self._cache_tokens or math.inf

    @property
    def last_room(self) -> int:
        """Of a batch's last rollouts, which are the long ones: as if these had any length up to
        the longest."""
        room = _room(self.cache_tokens, self.hello.slot_tokens / 2)
        return min(self.room, room) if self.slots else 0

    @property
    def member(self) -> bool:
        """Whether Algorithm 1 counts it: a new version's pull is no absence, no slot is one."""
        present = not self.reserved and not self.departure.leaving and self.slots > 0
        return present and self.parameters.version is not None

    @property
    def newcomer(self) -> bool:
        """Whether it becomes a member with its first parameters."""
        there = not self.reserved and not self.departure.leaving
        return there and self.parameters.version is None

    @property
    def context(self) -> float:
        """Mean length of the rollouts held, in tokens."""
        held = self.held.values()
        return sum([r.length for r in held]) / len(held) if held else 0.0

    def contradiction(self, batch: TokenBatch, slot_tokens: int) -> str:
        """What a batch says that no engine with these slots can mean; "" if nothing.

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
        """Whether what it says is worth a line, as long as it does not say too much."""
        return self._remarks.take(1, now)

    def fit(self, row_tokens: float) -> None:
        """Note its room, for rollouts that hold so many tokens on average while they are sampled.

        The average is of all rollouts, not of those that this instance holds: otherwise a long one
        would be moved for being long, and fit nowhere.
        """
        room = min(self.slots, _room(self.cache_tokens, row_tokens))  # none without a slot
        if room != self.room:
            self.room = room
            self._held_changed()

    def resize(self, capacity: Capacity, row_tokens: float) -> str:
        """Somebody else takes a part of its device, or gives it back.

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
        """It is in the roster, and `watcher` hears of it."""
        self.order, self._watcher = order, watcher

    def quit(self) -> None:
        """It is in the roster no longer."""
        self._watcher = None

    def prefetch(self, manifest: Manifest) -> bool:
        """A version is to be fetched beforehand; whether a message has to say so."""
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
        """Its engine has these parameters now."""
        self.parameters.loaded(version, digest)
        self.activity.changed()
        self.pages = self._empty_pages()
        self._state_changed()

    def retire(self) -> None:
        """No more work for it."""
        self.departure.begin()
        self._state_changed()

    def hold(self, rollouts: Sequence[Rollout], now: float) -> None:
        """These were placed here."""
        if not self.held:
            self.activity.begin(now)
        for rollout in rollouts:
            if rollout.begun or rollout.group not in self.groups:
                self.activity.prefill(rollout.length - rollout.spared)
            self.pages.take(rollout.length)
            self._held_rollouts.hold(rollout)
        self._held_changed()

    def release(self, rollouts: Sequence[Rollout], now: float) -> None:
        """These of its rollouts are to be given back; none of them was before."""
        self._held_rollouts.release(rollouts, now)
        self._held_changed()

    def let_go(self, request_id: int) -> Rollout | None:
        """No longer held here, whatever the reason; None if it never was."""
        rollout = self._held_rollouts.let_go(request_id)
        if rollout is not None:
            if rollout.parked:
                others = sum([r.length for r in self.held.values()])
                rollout.leave(self.pages.left(rollout.length, others))
            if not self.held:
                self.activity.end()
            self._held_changed()
        return rollout

    def forgive(self, seconds: float, now: float) -> None:
        """It could not be heard for so long, by our own fault."""
        self.lease.forgive(seconds, now)
        self.excuse(seconds, now)
        self.departure.forgive(seconds)

    def excuse(self, seconds: float, now: float) -> None:
        """It owes no progress for so long, by our own fault."""
        self._held_rollouts.forgive(seconds, now)
        self.activity.forgive(seconds, now)
        self.parameters.forgive(seconds, now)

    def newest_pending(self, count: int, batch: BatchRecord | None = None) -> list[Rollout]:
        """The last placed that have shown no token here: a server begins with the oldest.

        Args:
            batch: whose; None: of any.
        """
        return self._held_rollouts.newest_pending(count, batch)

    def pending_of_others(self, batch: BatchRecord) -> int:
        """Rollouts that wait here for a slot, or may, and are not of this batch."""
        return self._held_rollouts.pending_of_others(batch)

    def shortest(self, batch: BatchRecord, count: int) -> list[Rollout]:
        """Those that cost the least prefill elsewhere."""
        return self._held_rollouts.shortest(batch, count)

    def status(self, lease_seconds: float, now: float) -> InstanceStatus:
        version, activity, line = self.parameters.version, self.activity, self.lease.line
        return InstanceStatus(
            instance=self.name,
            reserved=self.reserved,
            state=self.state,
            version=Version(-1) if version is None else version,
            running=activity.running,
            waiting=activity.waiting,
            tokens=activity.tokens,
            price_per_hour=self.hello.price_per_hour,
            seconds=now - self.joined_at,
            round_trip=line.round_trip,
            deviation=line.deviation,
            losses=line.losses,
            lease_seconds=lease_seconds,
        )

    def _empty_pages(self) -> Pages:
        """Of a pool of no stated size, which holds every slot."""
        return Pages(self._cache_tokens or self.slots * self.hello.slot_tokens)

    def _held_changed(self) -> None:
        if self._watcher is not None:
            self._watcher.held_changed(self)

    def _state_changed(self) -> None:
        if self._watcher is not None:
            self._watcher.state_changed(self)


def _room(cache_tokens: float, row_tokens: float) -> int:
    """Rollouts of so many tokens each that a cache has room for: one always has."""
    return max(1, int(min(cache_tokens / row_tokens, 2**31)))

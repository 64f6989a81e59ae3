"""A rollout server as the manager knows it: its state, its version, and what it holds."""

import math
from collections import Counter
from typing import Protocol

from rlboost_jax.manager.limits import REMARK_BURST, REMARKS_PER_SECOND, Bucket
from rlboost_jax.manager.policies.speeds import BusySpan
from rlboost_jax.manager.state.rollouts import Rollout, Step
from rlboost_jax.manager.state.usage import Usage
from rlboost_jax.messages import BeginStep, Hello, InstanceStatus, Manifest, TokenBatch


class Watcher(Protocol):
    """Is told when what it keeps up to date about instances has changed."""

    def held_changed(self, instance: "Instance") -> None: ...

    def state_changed(self, instance: "Instance") -> None: ...


class Instance:
    """One stream of one rollout server.

    joining → pulling (a version was announced) → ready (it holds it) → leaving.
    """

    def __init__(self, stream: int, name: str, hello: Hello, now: float) -> None:
        self.stream = stream
        self.name = name
        self.hello = hello
        self.reserved = hello.reserved
        self.slots = hello.slots
        self.joined_at = self.heard_at = now
        self.hears_at = math.inf  # the newest stamp it echoed; inf: none
        self.leaving = False
        self.goes_at = math.inf  # with its machine, by its own notice
        self.draining = False  # what waited there was asked back
        self.leave_by = math.inf  # it was told to
        self.dismissed = False  # sent away for want of work
        self.leave_reason = ""
        self.notices = 0
        self.announced: Manifest | None = None
        self.version: int | None = None
        self.paid_version = -1  # the newest that it was charged for pulling
        self.digest = ""  # of the parameters it holds; "" once others were announced
        self.worked = False
        self.held: dict[int, Rollout] = {}  # by request id, oldest placement first
        self.groups: Counter[int] = Counter()  # rollouts held per prompt
        self.num_releasing = 0
        self.next_sequence = 0
        self.in_flight = 0
        self.running = 0
        self.waiting = 0
        self.tokens = 0  # taken into the ledger
        self.programs_compiled = 0
        self.batch_at = math.inf  # when the dispatch now running began
        self.slowest = 0.0  # dispatch so far, in seconds
        self.usage = Usage()  # since it was recorded last
        self.progress_at = now  # of the last token or answer, or since when it holds work
        self.span: BusySpan | None = None  # since all its tokens were known; None: it holds nothing
        self.remarks = Bucket(REMARKS_PER_SECOND, REMARK_BURST)  # what is worth a line
        self.order = 0  # of joining
        self.watcher: Watcher | None = None  # None: it has left

    @property
    def state(self) -> str:
        if self.leaving:
            return "leaving"
        if self.reserved:
            return "joining" if self.version is None else "ready"
        if self.announced is None:
            return "joining"
        return "ready" if self.holds(self.announced) else "pulling"

    @property
    def asked_at(self) -> float:
        """Since when it owes an answer to a release; inf: it owes none."""
        if not self.num_releasing:
            return math.inf
        return min(rollout.asked_at for rollout in self.held.values())

    @property
    def kind(self) -> tuple[str, str, int]:
        """Instances of one kind share a throughput profile."""
        return self.hello.device, self.hello.fingerprint, self.slots

    @property
    def member(self) -> bool:
        """Whether Algorithm 1 counts it: a new version's pull is no absence."""
        return not self.reserved and not self.leaving and self.version is not None

    def contradiction(self, batch: TokenBatch, slot_tokens: int) -> str:
        """What a batch says that no engine with these slots can mean; "" if nothing.

        What is in flight is charged when the server vanishes, so it must be possible.
        """
        whole = self.slots * slot_tokens
        limits = {"in_flight": whole, "prefilled_again": whole, "running": self.slots}
        for name, most in limits.items():
            if (value := getattr(batch, name)) > most:
                return f"{name} = {value} where {self.slots} slots allow {most}"
        return ""

    def ready_for(self, step: Step) -> bool:
        """Whether it holds exactly the parameters of that step."""
        return self.state == "ready" and self.holds(step.begin)

    def announce(self, manifest: Manifest) -> bool:
        """Note a new version; False if it holds just that already.

        Whatever was announced is taken for on its way into the engine: what the server holds
        is known again when it says so.
        """
        if self.state == "ready" and self.holds(manifest):
            self.announced = manifest
            return False
        self.announced, self.digest = manifest, ""
        self._state_changed()
        return True

    def loaded(self, version: int, digest: str) -> None:
        self.version, self.digest = version, digest
        self._state_changed()

    def leave_soon(self) -> None:
        """No more work for it."""
        self.leaving = True
        self._state_changed()

    def asking(self, count: int) -> None:
        """So many more rollouts are asked back."""
        self.num_releasing += count
        self._held_changed()

    def hold(self, rollout: Rollout, now: float) -> None:
        if not self.held:
            self.progress_at, self.span = now, BusySpan(now)
        rollout.holder, rollout.asked_at, rollout.yielded = self.name, math.inf, False
        self.held[rollout.request_id] = rollout
        self.groups[rollout.group] += 1
        self._held_changed()

    def let_go(self, request_id: int) -> Rollout | None:
        """No longer held here, whatever the reason; None if it never was."""
        rollout = self.held.pop(request_id, None)
        if rollout is None:
            return None
        self.num_releasing -= rollout.releasing
        self.groups[rollout.group] -= 1
        if not self.groups[rollout.group]:
            del self.groups[rollout.group]
        rollout.holder, rollout.previous, rollout.asked_at = "", self.name, math.inf
        if not self.held:
            self.span = None
        self._held_changed()
        return rollout

    def status(self, now: float) -> InstanceStatus:
        return InstanceStatus(
            instance=self.name,
            reserved=self.reserved,
            state=self.state,
            version=-1 if self.version is None else self.version,
            running=self.running,
            waiting=self.waiting,
            tokens=self.tokens,
            price_per_hour=self.hello.price_per_hour,
            seconds=now - self.joined_at,
        )

    def holds(self, named: Manifest | BeginStep) -> bool:
        """Whether the parameters it has are just those."""
        return self.version == named.version and self.digest == named.params_digest

    def _held_changed(self) -> None:
        if self.watcher is not None:
            self.watcher.held_changed(self)

    def _state_changed(self) -> None:
        if self.watcher is not None:
            self.watcher.state_changed(self)

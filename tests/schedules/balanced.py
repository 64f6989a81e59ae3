"""What the last check of the invariants has seen of a manager, and what followed from it.

The getters read all that the results beside them follow from, so that what is equal need not be
worked out again.
"""

from collections.abc import Container
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout

ROLLOUT = attrgetter(
    *("finished", "parked", "transcript.num_tokens", "transcript.num_sampled", "transcript.turn"),
    *("sequences.ended", "sequences.tokens_before", "sequences.work", "sequences.attempt"),
    "transcript.prompt",
)
HELD = attrgetter(
    *("placement.request_id", "placement.holder", "placement.spared", "placement.asked_at"),
    *("transcript.num_tokens", "transcript.prompt", "finished", "group"),
)
MEMBER = attrgetter(
    *("stream", "name", "hello", "reserved", "slots", "room", "frozen", "departure.leaving"),
    *("parameters.version", "parameters.digest", "parameters.announced"),
)
SERVER = attrgetter(
    *("name", "nonce", "machine", "pool", "granted", "joined", "doomed", "dismissed"),
    "started_at",
)
POOL = attrgetter("present", "standing", "waiting", "paid", "members")


class Batch:
    """
    Attributes:
        kept: sampled tokens that are there, rollout by rollout.
        dormant: ids of rollouts that are finished or parked; `resting`: of the others.
    """

    def __init__(self, step: BatchRecord) -> None:
        """Begin with nothing known."""
        self.step = step
        self.rollouts: list[Rollout] = list(step.rollouts)
        self.fields: list[Any] = []
        self.kept = [0] * len(self.rollouts)
        self.look([])

    def look(self, fields: list[Any]) -> None:
        """Its rollouts were found like this, and right."""
        self.fields = fields
        finished = [one[0] for one in fields]
        parked = [one[1] for one in fields]
        self.num_finished, self.num_parked = sum(finished), sum(parked)
        self.all_kept = sum(self.kept)
        ids = list(map(id, self.rollouts))
        pairs = zip(ids, finished, parked, strict=False)
        self.dormant = {key for key, one, other in pairs if one or other}
        self.resting = set(ids) - self.dormant


@dataclass
class Index:
    """Results for a roster's index, by the prices told and the pools of streams."""

    told: dict[str, float]
    streams: dict[int, str]
    pools: dict[tuple[int | None, str], list[Instance]] = field(default_factory=dict)
    fingerprints: set[str | None] = field(default_factory=set)  # of ready instances
    reserved: list[Instance] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    claims: dict[str, int] = field(default_factory=dict)
    prices: dict[float, int] = field(default_factory=dict)
    lent: int = 0
    num_frozen: int = 0
    num_preemptible: int = 0
    hourly: float = 0.0


@dataclass
class Loads:
    """Results for a roster's loads, by what each instance holds: streams, and a count."""

    crowded: set[int] = field(default_factory=set)
    overfull: set[int] = field(default_factory=set)
    idle: set[int] = field(default_factory=set)
    free: set[int] = field(default_factory=set)  # those of them that are not reserved
    num_releasing: int = 0


@dataclass
class Fleet:
    """Results for the provider's servers and the pools of streams."""

    servers: list[Any]
    streams: list[str]
    standing: list[str] = field(default_factory=list)
    starting: int = 0
    absent: bool = False  # one whose stream has ended is waited for
    sent_home: set[tuple[str, str]] = field(default_factory=set)  # without a stream, not over yet
    pools: list[tuple[int, ...]] = field(default_factory=list)  # as `POOL`
    asked: dict[str, int] = field(default_factory=dict)  # servers on machines, by pool


class Balanced:
    """All that the last check has seen of one manager.

    Attributes:
        checks: since nothing was known.
        held: by stream, what `HELD` gave; `counts`: what is being released of it, and its groups.
        holders: ids of rollouts that are held.
        members: of the roster in order; `held_counts`: how many each holds, and is releasing.
    """

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.checks = 0
        self.batches: dict[int, Batch] = {}
        self.held: dict[int, list[Any]] = {}
        self.counts: dict[int, tuple[int, dict[int, int]]] = {}
        self.holders: set[int] = set()
        self.members: list[object] = []
        self.held_counts: list[tuple[int, int]] = []
        self.loads: Loads | None = None
        self.index: Index | None = None
        self.fleet: Fleet | None = None

    def forget_but(self, streams: Container[int]) -> None:
        """Instances with other streams are gone."""
        for stream in [stream for stream in self.held if stream not in streams]:
            del self.held[stream], self.counts[stream]

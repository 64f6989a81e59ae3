"""Journal entries and their encoding: a manager writes them before it sends anything.

A killed manager is followed by one that reads this and goes on: every token that was taken in is
here before it is sent to anybody. Entries say what became true, never what to do, so reading them
twice or only the first half of them does no harm: what is missing is generated again.

A segment is a file of records (`platform.record_stream`), read up to the first damaged one: all
behind it can be generated again.
"""

from typing import Any, Final

import msgspec

from rlboost_jax.manager.accounts import Books
from rlboost_jax.messages import BeginBatch, ExtendBatch, Manifest, WindowState
from rlboost_jax.platform.record_stream import RecordsRead, read_records
from rlboost_jax.sequences.identities import Batch

FORMAT: Final = 3


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Base of all entries. Times are seconds on the manager's clock."""


class SegmentBegun(Entry, frozen=True, kw_only=True):
    """First entry of every segment."""

    run_id: str
    format: int = FORMAT


class PoolEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """State of one of several pools, see `state.pools`."""

    asked: int
    granted: int
    refused: int
    lost: int
    losses: float
    seconds: float
    alive: float  # instance-seconds
    dollars: float
    dollars_per_second: float
    price: float
    start_seconds: float
    speed: float
    failures: int
    retry_in: float


class RunState(Entry, frozen=True, kw_only=True):
    """State that outlives a batch. Each entry replaces the one before."""

    window: WindowState
    learnt: bool  # that window follows from a whole batch seen here
    paid: dict[Batch, float]  # batch → dollars of the run when it was reported
    banished: dict[str, str]
    joined: int
    lost: int
    # In names given out: none is given twice, for tokens and processes are known by them.
    numbers: int
    fleet_numbers: int
    dollars: float  # at `at`, growing by `dollars_per_second`
    dollars_per_second: float
    at: float
    pools: dict[str, PoolEntry] = {}
    left: int = 0  # of the lost, with notice
    # Batch → how many had joined, were lost and had left when it was reported.
    counts: dict[Batch, tuple[int, int, int]] = {}


class Published(Entry, frozen=True, kw_only=True):
    manifest: Manifest


class BatchOpened(Entry, frozen=True, kw_only=True):
    """A new batch was begun, of which nothing was kept. Begins a segment."""

    begin: BeginBatch
    at: float
    still_open: tuple[Batch, ...] = ()  # earlier ones that stay open


class BatchExtended(Entry, frozen=True, kw_only=True):
    """New prompts were added to a batch."""

    extend: ExtendBatch


class BatchResumed(Entry, frozen=True, kw_only=True):
    """A batch that was kept was opened again."""

    batch: Batch
    at: float
    still_open: tuple[Batch, ...] = ()  # earlier ones that stay open


class TurnBegun(Entry, frozen=True, kw_only=True):
    """An open batch has become the oldest open one.

    A batch that is begun as the oldest has its turn at once, without this entry.
    """

    batch: Batch
    at: float


class CollectedTokens(Entry, frozen=True, kw_only=True):
    """Common fields of `Collected` and `CollectedRouted`, encoded before their own."""

    batch: Batch
    instance: str
    samples: bytes  # uint32
    # uint32: tokens that the rollout had before after its prompts, given ones included
    starts: bytes
    counts: bytes  # uint16
    tokens: bytes  # int32
    logprobs: bytes  # float32
    at: float


class Collected(CollectedTokens, frozen=True, kw_only=True):
    """Tokens that one instance added to rollouts of one batch; row i has `counts[i]` of them."""

    server: str = ""  # who has that name (`state.names`); "" for an engine of the trainer's


class CollectedRouted(CollectedTokens, frozen=True, kw_only=True):
    """Like `Collected`, with routes laid out as in `messages.RoutedTokenBatch`."""

    leads: bytes  # uint32
    routes: bytes
    server: str = ""


class Redone(Entry, frozen=True, kw_only=True):
    """Rollouts were cut to their first `lengths[i]` tokens, counted over all their sequences."""

    batch: Batch
    samples: bytes  # uint32
    lengths: bytes  # uint32


class Answered(Entry, frozen=True, kw_only=True):
    """Answer of the environment to a parked rollout.

    That it was parked follows from its tokens. If the environment has a rollout start anew, the
    entry is `Redone`.
    """

    batch: Batch
    sample: int
    attempt: int
    turn: int
    tokens: bytes  # int32; without those that there was no room for
    over: bool
    sequence: int = 0
    prompt: bytes = b""  # int32, of the next sequence; without what there was no room for


class Counted(Entry, frozen=True, kw_only=True):
    """The counts of a batch so far (-1: of the time after the last one).

    `in_flight_…` are tokens of all running dispatches: lost if this is the last `Counted`.
    """

    batch: Batch
    books: Books
    in_flight_reserved: int
    in_flight_preemptible: int


class BatchClosed(Entry, frozen=True, kw_only=True):
    """The update of a batch was applied."""

    batch: Batch


class Forgotten(Entry, frozen=True, kw_only=True):
    """Steps up to `committed` are in a durable checkpoint."""

    committed: Batch


class RunOver(Entry, frozen=True, kw_only=True):
    """The run has ended; nothing is left to resume."""


AnyEntry = (
    SegmentBegun
    | RunState
    | Published
    | BatchOpened
    | BatchExtended
    | BatchResumed
    | TurnBegun
    | Collected
    | CollectedRouted
    | Redone
    | Answered
    | Counted
    | BatchClosed
    | Forgotten
    | RunOver
)

decode_entry: Final = msgspec.msgpack.Decoder(AnyEntry).decode


def read_segment(data: bytes) -> RecordsRead[Any]:
    """Read a whole segment from bytes in memory."""
    return read_records(data, decode_entry)

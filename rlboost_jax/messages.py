"""All that crosses a process boundary: frozen records, encoded as MessagePack.

Token ids and log-probabilities travel as raw little-endian arrays inside `bytes` fields
(int32 and float32); `pack_*` and `unpack_*` convert. Nothing here is ever pickled, and a
frame that does not decode into one of the records is an error that ends its stream.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlboost_jax.sequences.identities import Batch, Index, Purpose, Version, Work
from rlboost_jax.sequences.sequence import Runs
from rlboost_jax.sequences.shared_limits import MAX_POSITIONS, MAX_STOP_ROWS
from rlboost_jax.sequences.stop_table import ROW_BYTES

MAX_FRAME_BYTES: Final = 64 * 2**20
TOKEN_BATCH_BYTES: Final = 16 * 2**20  # of tokens and all about them; more is split between rows
MAX_NOTICE_SECONDS: Final = 86_400.0
MAX_SPANS: Final = 24  # in a message: 4 kB, which even the smallest engine's frames may have
MAX_SPAN_ARGS: Final = 8
MAX_LINES: Final = 12  # of a log in a message: 4 kB at most
MAX_LINE: Final = 300  # characters
MAX_TEACHERS: Final = 64  # of distillation
MAX_LIST_BYTES: Final = 2**26  # of a list of pieces: those of 1 TB in 4 MB pieces are 40 MB
MAX_CERTIFICATE: Final = 1024  # bytes
MAX_OUTCOMES: Final = 16  # of sources, in a message
MAX_TEXTS: Final = 2**14  # that drafts are made from, in a message
FAILED_EXIT_CODE: Final = 5  # of a rollout server whose device failed; see `Goodbye`


class WireMessage(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Base of all records."""


# Text that a peer chooses. Nothing that a terminal or a report would take for more than text,
# and no more of it than a person wants to read: it is kept, logged and shown.
PLAIN: Final = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z"
MAX_REASON: Final = 1000
Name = Annotated[str, msgspec.Meta(max_length=100, pattern=r"^[A-Za-z0-9._-]*\Z")]
Label = Annotated[str, msgspec.Meta(max_length=200, pattern=PLAIN)]
PeerAddress = Annotated[
    str,
    msgspec.Meta(
        max_length=200, pattern=r"^([A-Za-z0-9._-]+:[0-9]{1,5}|\[[0-9A-Fa-f:]+\]:[0-9]{1,5})?\Z"
    ),
]
Line = Annotated[str, msgspec.Meta(max_length=MAX_LINE, pattern=PLAIN)]
Reason = Annotated[str, msgspec.Meta(max_length=MAX_REASON)]
Digest = Annotated[str, msgspec.Meta(max_length=128, pattern=PLAIN)]
# Counts fit 32 bits: sums of them stay far within the 64 that travel.
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
# A peer's word for a version, or -1: none.
VersionSaid = Annotated[Version, msgspec.Meta(ge=-1, lt=2**53)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]  # no NaN either
Number = (
    Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
    | Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
)


StopRows = Annotated[bytes, msgspec.Meta(max_length=ROW_BYTES * MAX_STOP_ROWS)]


# Shared parts -------------------------------------------------------------------------


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of sampling a response, and its limits."""

    temperature: float  # 0 is greedy
    top_p: float
    top_k: int
    max_tokens: int  # to be sampled for the whole sequence, whatever part is already there
    stop_ids: tuple[Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)], ...]
    # Most tokens to sample in one turn, which is then over as if by its length; 0: no limit.
    turn_tokens: Count = 0
    stops: StopRows = b""  # of the stop strings, see `sequences/stop_table.py`; b"": there are none


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    path: str  # relative to the snapshot's folder, with forward slashes
    size: int
    sha256: str


class LeafEntry(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # parameter path joined by "."; the array's folder has this name
    shape: tuple[int, ...]
    dtype: str
    lasting: bool = False  # in every version, with the same files: a server that has it may keep it


class PieceList(msgspec.Struct, frozen=True, kw_only=True):
    """Files, tensors and digests of a policy version: itself a file, which its manifest names."""

    files: tuple[FileEntry, ...]
    leaves: tuple[LeafEntry, ...]

    @property
    def num_bytes(self) -> int:
        return sum(entry.size for entry in self.files)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The root of a policy version: what is announced of it, whatever its size.

    The digest of the list of its pieces covers every digest in that list, and the seal covers all.
    `rlboost_jax.trust.seal` makes and checks the seal.
    """

    version: Version
    directory: str  # absolute path on the learner's host
    params_digest: str  # SHA-256 over the learner's parameters
    piece_bytes: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] = 0  # of all files in the list
    list_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_LIST_BYTES)] = 0
    list_sha256: str = ""  # "": of a release that sent the list itself
    seal: str = ""  # the trainer's signature of all else, in hexadecimal digits

    @property
    def num_bytes(self) -> int:
        return self.list_bytes + self.piece_bytes


class PromptRequest(msgspec.Struct, frozen=True, kw_only=True):
    prompt: Index  # its number among the prompts of the batch with this purpose
    tokens: bytes
    purpose: Purpose = "train"


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout to begin or to continue."""

    request_id: int  # of this placement: unsigned 32 bit, unique in the manager's life
    work: Work
    version: Version  # the only policy version that may sample it
    prompt_tokens: bytes
    response_tokens: bytes  # known already: sampled elsewhere, or given since
    sampling: Sampling
    runs: Runs = ()  # of the response tokens, in turn sampled and given; (): all were sampled


class PeerOffer(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How other servers may fetch pieces of weights from a server, see `weights/peers/`."""

    address: PeerAddress  # HOST:PORT; "": it does not listen
    key: Annotated[bytes, msgspec.Meta(max_length=64)]  # of tokens for it; the manager makes them
    certificate: Annotated[bytes, msgspec.Meta(max_length=MAX_CERTIFICATE)]  # DER; b"": no TLS


class PieceSource(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A server that pieces of a version can be had from."""

    name: str
    address: str  # HOST:PORT
    certificate: bytes  # DER, of its listener; b"": no TLS, within tests
    token: str  # for this server, this source and this version only
    near: bool  # in the same zone


# Server → manager ---------------------------------------------------------------------


class Hello(WireMessage, frozen=True, kw_only=True):
    """First message of a server's stream: its identity and capacity."""

    instance: Name  # unique in the fleet; "" lets the manager choose
    reserved: bool  # the trainer's own engine
    slots: Count
    slot_tokens: Count  # longest prompt plus response
    price_per_hour: float
    zone: Label
    host: Label
    device: Label
    fingerprint: Label  # what equal bits depend on: program, jax version, device kind
    # Unlike any other's: given by the provider that started the server, or drawn at random as it
    # starts. With the name it is the instance; see `rlboost_jax.providers.base`.
    nonce: Name = ""
    cache_tokens: Count = 0  # of context that its memory has pages for; 0: not said
    fetches_lists: bool = False  # of pieces; servers of a release before were sent them
    peer: PeerOffer | None = None  # None: it neither serves weights nor fetches them from servers
    # Of responses to prompts of earlier epochs that it makes drafts from; 0: it wants none.
    text_tokens: Count = 0
    bids: bool = False  # servers of other runs are on its device: it is to be told a `Bid`


class DraftCounts(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What an engine's drafts came to."""

    drafted: Count  # tokens that were verified
    accepted: Count  # of them
    steps_saved: Count  # decode steps


class Renew(WireMessage, frozen=True, kw_only=True):
    """Renewal of the server's lease."""

    programs_compiled: Count = 0  # since the engine was warm; more than 0 is a mistake in it
    echo: float = 0.0  # the newest stamp heard: proof that this side hears the manager at all
    # The longest that an answer has taken since the last renewal; 0: none has come.
    round_trip: Seconds = 0.0
    pulled_bytes: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] = 0  # of all versions, so far
    discarded: Count = 0  # tokens sampled behind stop strings since the last renewal
    drafts: DraftCounts | None = None  # since the last renewal; None: there were none


class Ready(WireMessage, frozen=True, kw_only=True):
    """The engine holds these parameters and accepts work for them."""

    version: VersionSaid
    params_digest: Digest  # of the manifest that was announced, or of what the trainer offered
    seconds: Seconds = 0.0  # from announcement to readiness
    fetched_bytes: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] = 0


class WeightsRejected(WireMessage, frozen=True, kw_only=True):
    """A version could not be fetched or did not match its manifest; it will be tried again."""

    version: VersionSaid
    reason: Reason


SourceFault = Literal["", "unreachable", "slow", "wrong"]


class SourceOutcome(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a server has had from another one since it said so last."""

    source: Name
    fetched_bytes: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
    seconds: Seconds  # in which they came
    fault: SourceFault = ""  # for which it is not used any more


class SourcesUsed(WireMessage, frozen=True, kw_only=True):
    """What a server's sources of a version were good for: as the version is complete, or as one of
    them has failed it. The manager hands out others then."""

    root: Digest  # of the version
    outcomes: Annotated[tuple[SourceOutcome, ...], msgspec.Meta(max_length=MAX_OUTCOMES)]
    outside_bytes: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] = 0  # from trainer or store
    wasted_bytes: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] = 0  # of all that has come


class TokenBatch(WireMessage, frozen=True, kw_only=True):
    """New tokens that one engine dispatch sampled for all its rollouts.

    Row i carries `counts[i]` tokens of request `request_ids[i]`, concatenated in `tokens`
    and `logprobs`. At most 14 bytes per token plus about 30 per message. The end of a
    turn is not said: stop ids and limits decide it on both sides alike. Only sampled tokens
    travel this way; what is given the manager knows.
    """

    sequence: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]  # 0, 1, 2, … within a stream
    version: VersionSaid  # sampled all of these
    request_ids: bytes  # uint32
    counts: bytes  # uint16
    tokens: bytes  # int32
    logprobs: bytes  # float32, nats
    in_flight: Count  # most tokens that can follow from the dispatches begun; with drafts, likely
    running: Count  # rollouts in slots
    waiting: Count  # rollouts accepted and not in a slot
    prefilled_again: Count  # tokens recomputed since the last message because of evictions


class RoutedTokenBatch(TokenBatch, frozen=True, kw_only=True):
    """A token batch of a run that replays routes, see `settings/routing.py`.

    Row i comes with `leads[i] + counts[i]` routes: that of the position which each of its tokens
    was sampled after and, with the first token of a turn, those of the positions since the last
    sampled token: of the prompt, or of what was given.
    """

    leads: bytes  # uint32
    routes: bytes  # uint8 or uint16 [routes, layers, experts]


class Released(WireMessage, frozen=True, kw_only=True):
    """Answer to `Release`: requests that are no longer held; their last tokens were sent."""

    request_ids: bytes  # uint32


class Notice(WireMessage, frozen=True, kw_only=True):
    """The server's machine goes away, by its owner's notice.

    The manager trusts it only to hurry.
    """

    seconds: float  # from now; 0..MAX_NOTICE_SECONDS
    reason: Reason


class Capacity(WireMessage, frozen=True, kw_only=True):
    """Current capacity of a server that shares its device, in place of its Hello's.

    Never more than its Hello said; 0 slots: nothing at all for now. Said again on every stream.
    """

    slots: Count
    cache_tokens: Count = 0  # 0 beside slots: not said, as in Hello
    # uint32: what is no longer held here for want of room, as by `Released`. Their last tokens
    # were sent before.
    request_ids: bytes = b""
    frozen: bool = False  # it grows again with the next step, and not before
    reason: Reason = ""


class Teaches(WireMessage, frozen=True, kw_only=True):
    """The teachers that this server holds, in answer to `Teach`; none where it has no room."""

    digests: Annotated[tuple[Digest, ...], msgspec.Meta(max_length=MAX_TEACHERS)]  # of parameters
    fetched_bytes: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] = 0  # since it was said last


class TokenScores(WireMessage, frozen=True, kw_only=True):
    """What a teacher thinks of the tokens of a `ScoreTokens`; from a server to the manager and,
    once two servers said the same bits, from the manager to the trainer."""

    number: Index  # of the `ScoreTokens` of this sender
    logprobs: bytes  # float32, nats: of each token from its `first` on


class Hint(WireMessage, frozen=True, kw_only=True):
    """The machine may go away before long, or pause. The time is unknown, so nothing changes."""

    reason: Reason


class Span(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A period of some process's work, or a moment to mark (0 seconds)."""

    name: Label
    lane: Label  # thread or subject, within the process
    start: Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]  # seconds, on the manager's clock
    seconds: Seconds
    args: Annotated[dict[Name, Number | Label], msgspec.Meta(max_length=MAX_SPAN_ARGS)]


class Spans(WireMessage, frozen=True, kw_only=True):
    """Work of this server in the step that is profiled (`observe.profile_step`)."""

    spans: Annotated[tuple[Span, ...], msgspec.Meta(max_length=MAX_SPANS)]
    clock_error: Seconds  # by which the starts may be off
    dropped: Count = 0  # spans since the last message that there was no room for


class Said(WireMessage, frozen=True, kw_only=True):
    """Lines that this server printed since the last such message, if the manager `hears_logs`."""

    lines: Annotated[tuple[Line, ...], msgspec.Meta(max_length=MAX_LINES)]
    dropped: Count = 0  # lines before these that there was no room for


class Goodbye(WireMessage, frozen=True, kw_only=True):
    """The server leaves of its own accord; all its tokens were sent before.

    A failed one (a failed device, no memory, logits that are no numbers) has lost those of the
    dispatch that failed.
    """

    reason: Reason
    failed: bool = False


# Manager → server ---------------------------------------------------------------------


class Welcome(WireMessage, frozen=True, kw_only=True):
    instance: str
    renew_seconds: float
    orphan_seconds: float  # how long to look for a lost manager
    stamp: float = 0.0  # as in `Renewed`
    # At the manager's host, where weights are served over HTTP; 0: at the manager's own.
    weights_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    hears_logs: bool = False  # `Said` is welcome; managers of the release before know none


class Renewed(WireMessage, frozen=True, kw_only=True):
    """Answer to `Renew`."""

    stamp: float  # on a clock of the manager's own, for the next `Renew` to echo
    lease_seconds: float = 0.0  # that the manager goes by on this line: hear it out for as long
    busy: float = 0.0  # seconds that the manager has run or waited for a processor so far


class Announce(WireMessage, frozen=True, kw_only=True):
    """Version to hold from now on, nearly always a newer one.

    With a lag it may be an older one again, where no server holds the version of its rollouts. A
    server that loads it gives back work of another (`Released`).
    """

    manifest: Manifest


class Prefetch(WireMessage, frozen=True, kw_only=True):
    """The version that is likely to be announced next with a lag, to be fetched during work.

    It replaces any other that was fetched so.
    """

    manifest: Manifest


class FetchFrom(WireMessage, frozen=True, kw_only=True):
    """Servers to fetch pieces of a version from, in place of any that were named before.

    The trainer has them, too, and is asked last, except for the parts that this server brings to
    its zone. See `rlboost_jax.manager.policies.weight_sources`.
    """

    root: Digest  # of the version
    sources: tuple[PieceSource, ...]
    parts: Annotated[int, msgspec.Meta(ge=0)]  # bit i: it brings pieces i, i + 64, i + 128, …


class PromptText(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A response to the same prompt, of an earlier epoch. It serves drafts and nothing else."""

    request: Count  # the place, in the same message, of a request with that prompt
    tokens: Annotated[bytes, msgspec.Meta(max_length=4 * MAX_POSITIONS)]


class Generate(WireMessage, frozen=True, kw_only=True):
    """Work for an engine that holds these parameters. An engine that does not returns it.

    Requests may have thousands of rows for stop strings, and all have the same: `saying_once` takes
    them out of each, and `whole` puts them back.
    """

    params_digest: str  # of all requests; a version alone may be published twice
    requests: tuple[GenerateRequest, ...]
    stops: StopRows = b""  # of every request that says none
    # For servers whose Hello has `text_tokens`.
    texts: Annotated[tuple[PromptText, ...], msgspec.Meta(max_length=MAX_TEXTS)] = ()

    def __post_init__(self) -> None:
        for text in self.texts:
            if text.request >= len(self.requests):
                count = len(self.requests)
                raise ValueError(f"texts: request {text.request} where there are {count}")
            if len(text.tokens) % 4:
                raise ValueError(f"texts: {len(text.tokens)} bytes; a token is 4 bytes")

    @property
    def offered(self) -> tuple[tuple[bytes, bytes], ...]:
        """Prompts and the tokens of responses to them."""
        requests = self.requests
        return tuple((requests[text.request].prompt_tokens, text.tokens) for text in self.texts)

    @property
    def whole(self) -> tuple[GenerateRequest, ...]:
        """Requests in their original form."""
        return _with_stops(self.requests, self.stops) if self.stops else self.requests


def saying_once(
    params_digest: str, requests: Sequence[GenerateRequest], texts: Sequence[PromptText] = ()
) -> Generate:
    """Pack requests, with their common stop strings in one place."""
    stops = {request.sampling.stops for request in requests}
    if stops in (set(), {b""}) or len(stops) > 1:
        return Generate(params_digest=params_digest, requests=tuple(requests), texts=tuple(texts))
    said = _with_stops(requests, b"")
    return Generate(
        params_digest=params_digest, requests=said, stops=stops.pop(), texts=tuple(texts)
    )


def _with_stops(requests: Sequence[GenerateRequest], stops: bytes) -> tuple[GenerateRequest, ...]:
    replace = msgspec.structs.replace
    return tuple(
        replace(request, sampling=replace(request.sampling, stops=stops)) for request in requests
    )


class ScoreTokens(WireMessage, frozen=True, kw_only=True):
    """One sequence for a teacher to score; from the trainer to the manager, and from there to two
    servers that hold the teacher. The same question always has the same answer."""

    number: Index  # unlike that of any other of this sender
    batch: Batch  # that the sequence is of
    teacher: Digest  # of the teacher's parameters
    temperature: Annotated[float, msgspec.Meta(gt=0, le=1e6)]  # that its logits are divided by
    first: Count  # tokens before the first one to be scored; at least 1
    tokens: bytes  # of the whole sequence


class Teach(WireMessage, frozen=True, kw_only=True):
    """The teachers to hold, all of them; from the trainer to the manager, and from there to each
    server. As a version of the policy is, each is a sealed snapshot that can be fetched."""

    manifests: Annotated[tuple[Manifest, ...], msgspec.Meta(max_length=MAX_TEACHERS)]


class Release(WireMessage, frozen=True, kw_only=True):
    """Order to stop requests, send their tokens, and answer `Released`."""

    request_ids: bytes  # uint32


class Bid(WireMessage, frozen=True, kw_only=True):
    """What the device of a server that `bids` is worth to its run from now on, until the next."""

    price: float  # dollars an hour for a token of the work left; 0: there is nothing to do


class Leave(WireMessage, frozen=True, kw_only=True):
    reason: str


# Trainer → manager --------------------------------------------------------------------


class WindowState(msgspec.Struct, frozen=True, kw_only=True):
    """State of the seeding-window controller; the trainer's checkpoint carries it."""

    seconds: float
    memory: dict[int, float]  # number of preemptible instances → window, in seconds
    instance_cap: int  # N_prem


class TrainerHello(WireMessage, frozen=True, kw_only=True):
    run_id: str
    window: WindowState | None  # from the checkpoint, None at the first start
    changes: tuple[Line, ...] = ()  # of settings, from the step on that the trainer goes on with


class Publish(WireMessage, frozen=True, kw_only=True):
    """A snapshot is complete on disk and may be announced.

    A trainer that dials again says those again, the oldest first, that its open batches are
    sampled from, before it begins these again.
    """

    manifest: Manifest


class BeginBatch(WireMessage, frozen=True, kw_only=True):
    """Begin a batch with all its prompts.

    If the manager still keeps tokens of the same batch and parameters, it continues with them.

    With a lag, batches are begun ahead of the one that is trained, each as its version is
    published. Batches before the first that is begun on a stream are over, and so are those before
    `version`, which counts the updates. To begin a batch again is to begin all later ones again.
    """

    batch: Batch
    version: Version
    params_digest: str
    seed: int
    group_size: Count
    sampling: Sampling
    prompts: tuple[PromptRequest, ...]
    # Most turns of a response, in all its sequences: after each but the last the trainer is asked
    # what follows.
    turns: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] = 1


class ExtendBatch(WireMessage, frozen=True, kw_only=True):
    """More prompts for a batch that is being worked on.

    What is known of a prompt already is not begun anew: its finished responses are delivered
    again. What is not finished when the batch is trained is abandoned.
    """

    batch: Batch
    prompts: tuple[PromptRequest, ...]
    samples: Count = 0  # responses per prompt, the first of its group; 0: all of them
    sampling: Sampling | None = None  # None: the batch's


class Doubt(WireMessage, frozen=True, kw_only=True):
    """The learner's own log-probabilities or choices contradict these finished responses.

    The server that sampled the named tokens is not believed any more. Other servers continue the
    responses from before its first token. All sequences of such a response are then delivered
    again, in order, also those before the contradicted one.
    """

    batch: Batch
    samples: bytes  # uint32
    attempts: bytes  # uint32: of each sequence in doubt, as it was delivered
    positions: bytes  # uint32: among the tokens after the prompt, of the first one in doubt
    gap: float  # nats, the largest
    sequences: bytes = b""  # uint32: in which of a response's sequences that is; b"": in the first
    # uint32: `checksum` of each sequence in doubt, since a manager that has lost a part of its
    # journal may make another of the same attempt; b"": not said.
    checksums: bytes = b""
    choice_gap: float = 0.0  # probability between a token's interval and its noise, the largest


class Answer(WireMessage, frozen=True, kw_only=True):
    """Answer of the environment to a parked response, named by work, attempt and turn.

    One that comes a second time, or late, changes nothing. It is sent on the stream that asked:
    another manager's response of the same name may have other tokens.

    A response is over without the answer if its slot has no room for the answer, or for its next
    prompt, together with all that it may still sample.
    """

    work: Work
    attempt: Count
    turn: Count
    tokens: bytes  # that it is given
    over: bool  # nothing is sampled after them
    # With `over`: the response goes on with another sequence, which begins with these tokens.
    prompt: bytes = b""
    # Nothing else is said: all tokens of the response, in all its sequences, are discarded, and it
    # is sampled again from its first prompt on.
    restart: bool = False


class BatchTrained(WireMessage, frozen=True, kw_only=True):
    """The update of the oldest batch was applied; answered with `BatchReport`."""

    batch: Batch
    train_wait_seconds: Seconds  # learner idle for want of finished groups, window excluded
    train_seconds: Seconds  # learner busy with gradients and the update


class BatchCommitted(WireMessage, frozen=True, kw_only=True):
    """A checkpoint that includes this batch's update is durable: its tokens may be deleted."""

    batch: Batch


class EndRun(WireMessage, frozen=True, kw_only=True):
    """End the run, and let all servers leave."""

    reason: str
    over: bool  # the run is complete; else tokens are kept for a trainer that goes on


# Manager → trainer --------------------------------------------------------------------


class TrainerWelcome(WireMessage, frozen=True, kw_only=True):
    window: WindowState
    announces_lists: bool = False  # of pieces, by their digest; a release before sent them


class RequestRefused(WireMessage, frozen=True, kw_only=True, tag="Refused"):
    """The trainer asked for something impossible; a repetition would not help."""

    reason: str


class FinishedRollout(WireMessage, frozen=True, kw_only=True):
    """One sequence of a response of which no more is sampled.

    Sequences of a response are said in order. One that is said again takes the place of the one
    that was said before, and those after it count no more: they are said again, or others are.
    """

    work: Work
    tokens: bytes  # all after the prompt
    logprobs: bytes  # of those that were sampled
    versions: tuple[tuple[Version, int], ...]  # (policy version, number sampled) in token order
    instances: tuple[str, ...]  # that took part, in order
    attempt: int = 0  # how often tokens of the response were discarded before
    runs: Runs = ()  # of the tokens, in turn sampled and given; (): all were sampled
    last: bool = True  # the response is complete with it; else another sequence follows
    prompt: bytes = b""  # of a later sequence: what it begins with; b"": the prompt of the batch


class RoutedRollout(FinishedRollout, frozen=True, kw_only=True):
    """A finished rollout of a run that replays routes."""

    routes: bytes  # of all positions before the last sampled token's, from the prompt's first on


class Parked(WireMessage, frozen=True, kw_only=True):
    """A response's turn is over, and the environment is to answer.

    Sent again to a trainer that comes back.
    """

    work: Work
    attempt: int  # how often tokens of the response were discarded before
    turn: int  # 0, 1, 2, … in its sequence
    tokens: bytes  # all after the prompt
    runs: Runs  # of these, in turn sampled and given; (): all were sampled
    logprobs: bytes  # of those that were sampled


class WindowClosed(WireMessage, frozen=True, kw_only=True):
    """The seeding window is over, and the reserved engines hand over.

    It is that of the oldest batch; with a lag, it may come as soon as the batch before is reported.
    """

    batch: Batch
    seconds: float
    reason: str


class ResponsesWithdrawn(WireMessage, frozen=True, kw_only=True, tag="Withdrawn"):
    """Finished evaluation responses that are sampled again.

    The servers that sampled them are no longer trusted, so all their sequences are delivered once
    more. Training responses are checked by the learner itself.
    """

    batch: Batch
    samples: bytes  # uint32


class BatchReport(WireMessage, frozen=True, kw_only=True):
    """The manager's figures from the beginning of a batch's turn to `BatchTrained`.

    A batch has its turn while it is the oldest that is open: from `BeginBatch` on or, where it was
    begun ahead, from the report of the batch before. Seconds, instances and migrations are those
    of its turn, tokens are its own whenever they were sampled; tokens of no batch, and of batches
    that were cancelled, are counted with the oldest.
    """

    batch: Batch
    rollout_seconds: float  # of its turn, to the last token of any open batch
    remote_wait_seconds: float  # from that to BatchTrained: nobody has work
    seeding_window_seconds: float  # reserved engines eligible for work
    instances_mean: float  # preemptible instances ready, averaged over the batch
    instances_joined: int
    instances_lost: int
    requests_migrated: int
    tokens_generated: int
    tokens_delivered: int
    tokens_lost: int
    tokens_prefilled_again: int
    tokens_reserved: int
    tokens_preemptible: int
    tokens_measured: int  # delivered of another sampling than the batch's; in none of the others
    cost_dollars: float  # since the report of the batch before: the pause between them included
    window: WindowState
    # The part of `cost_dollars` in that pause; before the first turn, in the run's start.
    cost_between_dollars: float = 0.0
    # Lines to preemptible instances at the end of its turn, in seconds or a share of packets; None:
    # none is known, or the manager is of an earlier release.
    line_round_trip_median: float | None = None
    line_round_trip_worst: float | None = None
    line_losses_median: float | None = None
    line_losses_worst: float | None = None
    lease_seconds_median: float | None = None
    lease_seconds_worst: float | None = None
    # Figures of a batch whose responses have turns; None of any other batch.
    parked_share: float | None = None  # of its unfinished responses, averaged over its turn
    turns_mean: float | None = None  # of a delivered response, in all its sequences
    sequences_mean: float | None = None
    # Share of answered responses that resumed at the server that they came from.
    returned_share: float | None = None
    # Servers that share their device: slots that others had, averaged over its turn; servers that
    # might not grow before the next step; rollouts that they returned for want of room.
    slots_lent_mean: float = 0.0
    instances_frozen_mean: float = 0.0
    rollouts_handed_back: int = 0
    instances_left: int = 0  # of the lost, with notice
    # Drafts of engines, by renewals that came in its turn; None: there were none.
    tokens_drafted: int | None = None
    drafts_accepted: int | None = None
    decode_steps_saved: int | None = None
    dollars_saved: float | None = None  # None also where nothing is billed
    # Bytes of weights that servers had from each other; None: none have had any.
    weights_from_servers: int | None = None


class InstanceStatus(msgspec.Struct, frozen=True, kw_only=True):
    instance: str
    reserved: bool
    state: str  # "joining" | "pulling" | "ready" | "leaving"
    version: Version
    running: int
    waiting: int
    tokens: int  # delivered since it joined
    price_per_hour: float
    seconds: float  # since it joined
    round_trip: float = (
        0.0  # seconds, of its line; see `rlboost_jax.manager.policies.connection_quality`
    )
    deviation: float = 0.0  # seconds
    losses: float = 0.0  # share of packets
    lease_seconds: float = 0.0
    drafts: tuple[int, int] = (0, 0)  # tokens since it joined: drafted, and accepted of these


class FleetStatus(WireMessage, frozen=True, kw_only=True):
    """State of the fleet, about once a second, for the live view and for keeping used snapshots."""

    instances: tuple[InstanceStatus, ...]
    finished: int  # responses of the oldest open batch
    total: int
    window_open: bool
    window_seconds: float
    joined: int  # since the run began
    lost: int
    versions_in_use: tuple[Version, ...]
    cost_dollars: float  # since the run began
    left: int = 0  # of the lost, with notice
    starting: tuple[str, ...] = ()  # names of servers that are paid for and have not joined yet
    quarantined: int = 0  # servers with wrong tokens or scores, since the manager began


ServerMessage = (
    Hello
    | Renew
    | Ready
    | WeightsRejected
    | SourcesUsed
    | TokenBatch
    | RoutedTokenBatch
    | Released
    | Notice
    | Capacity
    | Teaches
    | TokenScores
    | Hint
    | Spans
    | Said
    | Goodbye
)
ToServer = (
    Welcome
    | Renewed
    | Announce
    | Prefetch
    | FetchFrom
    | Teach
    | Generate
    | ScoreTokens
    | Release
    | Bid
    | Leave
)
TrainerMessage = (
    TrainerHello
    | Publish
    | Teach
    | BeginBatch
    | ExtendBatch
    | ScoreTokens
    | Doubt
    | Answer
    | BatchTrained
    | BatchCommitted
    | EndRun
)
ToTrainer = (
    TrainerWelcome
    | RequestRefused
    | FinishedRollout
    | RoutedRollout
    | Parked
    | TokenScores
    | ResponsesWithdrawn
    | WindowClosed
    | BatchReport
    | FleetStatus
)

Serves = Publish | Teach  # name snapshots that can be fetched from now on

encode = msgspec.msgpack.Encoder().encode


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    decode = msgspec.msgpack.Decoder(kind).decode

    def decoded(data: bytes) -> Any:
        try:
            return decode(data)
        except (UnicodeDecodeError, RecursionError) as error:  # of text, of lists in lists
            raise msgspec.DecodeError(str(error)) from None

    return decoded


# Each raises `msgspec.DecodeError` for whatever is not exactly one message of its side.
decode_server: Final[Callable[[bytes], ServerMessage]] = _decoder(ServerMessage)
decode_to_server: Final[Callable[[bytes], ToServer]] = _decoder(ToServer)
decode_trainer: Final[Callable[[bytes], TrainerMessage]] = _decoder(TrainerMessage)
decode_to_trainer: Final[Callable[[bytes], ToTrainer]] = _decoder(ToTrainer)


def pack_tokens(tokens: ArrayLike) -> bytes:
    return np.asarray(tokens, "<i4").tobytes()


def unpack_tokens(data: bytes) -> NDArray[np.int32]:
    return np.frombuffer(data, "<i4")


def pack_logprobs(logprobs: ArrayLike) -> bytes:
    return np.asarray(logprobs, "<f4").tobytes()


def unpack_logprobs(data: bytes) -> NDArray[np.float32]:
    return np.frombuffer(data, "<f4")


def checksum(tokens: bytes, logprobs: bytes) -> int:
    """CRC-32 of a sequence as it is delivered."""
    return zlib.crc32(logprobs, zlib.crc32(tokens))


def pack_ids(request_ids: ArrayLike) -> bytes:
    return np.asarray(request_ids, "<u4").tobytes()


def unpack_ids(data: bytes) -> NDArray[np.uint32]:
    return np.frombuffer(data, "<u4")


def pack_counts(counts: ArrayLike) -> bytes:
    return np.asarray(counts, "<u2").tobytes()


def unpack_counts(data: bytes) -> NDArray[np.uint16]:
    return np.frombuffer(data, "<u2")

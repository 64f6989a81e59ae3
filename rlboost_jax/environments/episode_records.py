"""Records of a batch's episodes, written before anything is built on them.

Records say what became true, in the order in which it did. A turn is named by a digest of all that
led to it (`Past.name`), so what is known of it is right for any caller, however often, and in which
attempt. A call is named after its turn.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rlboost_jax.sequences.transcript import TurnTokens

FORMAT: Final = 1
NAME_BYTES: Final = 16


class EpisodeRecord(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Base of all records."""


class BatchBegun(EpisodeRecord, frozen=True, kw_only=True):
    """First record of every journal."""

    run_id: str
    batch: int
    format: int = FORMAT


class CallBegun(EpisodeRecord, frozen=True, kw_only=True):
    """A call that may have been carried out from here on."""

    key: str


class CallDone(EpisodeRecord, frozen=True, kw_only=True):
    key: str
    content: str
    failed: bool


class TurnAnswered(EpisodeRecord, frozen=True, kw_only=True):
    """The environment's answer to a turn.

    Attributes:
        sample, sequence: whose turn it was.
        before: the name of the turn before it; of a first one, that of the episode.
        sampled: the turn, int32.
        given: that the policy goes on with, int32; b"": nothing.
        prompt: of another sequence that follows, int32; b"": none does.
        over: nothing is sampled after it in this sequence.
        messages: of the conversation, this turn's and what was said to it, as JSON.
        calls: names of tools, and whether each failed.
        retokenised: sampled tokens that are in `prompt` as others.
        anew: `messages` are all of the conversation: what was said before is no part of it.
    """

    sample: int
    sequence: int
    name: bytes
    before: bytes
    sampled: bytes
    given: bytes
    prompt: bytes
    over: bool
    reward: float
    metrics: dict[str, float]
    messages: bytes
    seconds: float
    calls: tuple[tuple[str, bool], ...] = ()
    retokenised: int = 0
    anew: bool = False

    @property
    def said(self) -> tuple[Any, ...]:
        """Fields that must be the same if the turn is answered again.

        Metrics may be times, and are not.
        """
        return self.given, self.prompt, self.over, self.reward


class EpisodeRestarted(EpisodeRecord, frozen=True, kw_only=True):
    """All earlier answers to this sample, up to this attempt, no longer count."""

    sample: int
    attempt: int


class EpisodeLeftOut(EpisodeRecord, frozen=True, kw_only=True):
    sample: int
    why: str


AnyRecord = BatchBegun | CallBegun | CallDone | TurnAnswered | EpisodeRestarted | EpisodeLeftOut

decode_record: Final = msgspec.msgpack.Decoder(AnyRecord).decode


@dataclass(frozen=True, kw_only=True)
class Past:
    """An earlier turn of the policy.

    Attributes:
        name: of all that led to it and of its own tokens.
        sampled: its tokens, int32.
        given: what it was answered, int32; None: not known from the sequence.
        logprobs: of its tokens, float32; b"": not known, as for completed sequences.
    """

    name: bytes
    sampled: bytes
    given: bytes | None
    logprobs: bytes = b""


def named(before: bytes, prompt: bytes, turns: Iterable[TurnTokens]) -> tuple[Past, ...]:
    """Name the turns of a sequence.

    Args:
        before: the name of the turn that the sequence follows on; of a first one, that of the
            episode (`identity`).
        prompt: of the sequence, int32.
    """
    digest = hashlib.blake2b(before, digest_size=NAME_BYTES)
    _add(digest, prompt)
    found: list[Past] = []
    for sampled, logprobs, given in turns:
        _add(digest, sampled)
        name = digest.copy().digest()
        found.append(Past(name=name, sampled=sampled, given=given, logprobs=logprobs))
        _add(digest, given or b"")
    return tuple(found)


def identity(run_id: str, batch: int, sample: int, seed: int, example: bytes) -> bytes:
    """Name of an episode: no two have the same, whichever runs they belong to.

    Two runs with the same settings sample the same turns. A service that is handed a call's key
    must not take what one of them does for a repetition of the other's.
    """
    digest = hashlib.blake2b(f"{batch} {sample} {seed}\n".encode(), digest_size=NAME_BYTES)
    _add(digest, run_id.encode())
    _add(digest, example)
    return digest.digest()


def _add(digest: Any, part: bytes) -> None:
    digest.update(len(part).to_bytes(8, "little"))
    digest.update(part)

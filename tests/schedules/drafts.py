"""What a simulated server drafts, and how many tokens its verification yields.

A server that drafts yields more tokens in a dispatch than the dispatch has steps, how many more
nobody knows before. What it proposes is right in part, or of no use: of the version before, of
another prompt's response, or each token twice.
"""

import random
from enum import Enum
from typing import NamedTuple

from rlboost_jax import messages as m
from tests.manager.fakes import token

MOST = 3  # drafts of a rollout in a step
RIGHT = 0.7  # chance of a draft, where they are likely

Key = tuple[str, int, int]  # digest, batch and sample, by which tokens are made


class Proposals(Enum):
    LIKELY = "likely"
    STALE = "stale"
    FOREIGN = "foreign"
    DOUBLED = "doubled"


class Verified(NamedTuple):
    """Outcome of a dispatch for one rollout."""

    tokens: int
    drafted: int
    accepted: int


def verified(
    kind: Proposals, key: Key, position: int, end: int, steps: int, chance: random.Random
) -> Verified:
    """Tokens from a position on in so many decode steps, each of which has drafts."""
    at, drafted, accepted = position, 0, 0
    for _ in range(steps):
        if at >= end:
            break
        most = min(MOST, end - at - 1)
        drafts = [_proposed(kind, key, at, n, chance) for n in range(most)]
        right = 0
        while right < most and drafts[right] == token(*key, at + right):
            right += 1
        at, drafted, accepted = at + 1 + right, drafted + most, accepted + right
    return Verified(at - position, drafted, accepted)


def _proposed(kind: Proposals, key: Key, at: int, n: int, chance: random.Random) -> int:
    digest, batch, sample = key
    match kind:
        case Proposals.LIKELY:
            return token(*key, at + n) if chance.random() < RIGHT else -1
        case Proposals.STALE:
            return token(f"before {digest}", batch, sample, at + n)
        case Proposals.FOREIGN:
            return token(digest, batch, sample + 2, at + n)  # groups have two
        case Proposals.DOUBLED:
            return token(*key, at + n // 2)


class DraftSums:
    """What a server has yet to say of its drafts."""

    def __init__(self) -> None:
        self._drafted = self._accepted = 0

    def add(self, found: Verified) -> None:
        self._drafted += found.drafted
        self._accepted += found.accepted

    def take(self) -> m.DraftCounts | None:
        drafted, accepted = self._drafted, self._accepted
        self._drafted = self._accepted = 0
        if not drafted:
            return None
        return m.DraftCounts(drafted=drafted, accepted=accepted, steps_saved=accepted // 2)

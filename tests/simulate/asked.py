"""A batch that the simulated trainer asked for: what came of it, against what had to come."""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlboost_jax import messages as m
from rlboost_jax.sequences.identities import Work
from tests.manager.fakes import Episode, begin_batch, episode, logprob, routes


@functools.cache
def begin_of(
    batch: int, version: int, digest: str, prompts: int, group_size: int, turns: int
) -> m.BeginBatch:
    return begin_batch(batch, version, digest, prompts=prompts, group_size=group_size, turns=turns)


@dataclass
class Asked:
    """A batch that was begun, and what came of it."""

    begin: m.BeginBatch
    prompts_known: int
    needed: set[int]  # samples
    results: dict[int, m.FinishedRollout] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)  # tokens delivered, believed or not
    made_up: set[int] = field(default_factory=set)  # whose last delivery was not believed
    extends: list[m.TrainerMessage] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return self.needed <= self.results.keys()

    def possibly_delivered(self) -> set[int]:
        """Tokens of all responses, but that training may begin before those come again that were
        made up and are not needed."""
        sums = {0}
        for sample, size in self.sizes.items():
            absent = sample in self.made_up and sample not in self.needed
            sums = {known + size for known in sums} | (sums if absent else set())
        return sums

    def expected(self, work: Work, turns: int, slot_tokens: int) -> Episode:
        """What its version samples."""
        return episode(self.begin.params_digest, work.batch, work.sample, turns, slot_tokens)

    def check(self, result: m.FinishedRollout, expected: Episode, *, routed: bool) -> None:
        """All that comes with the right tokens is right, bit for bit."""
        assert result.runs == expected.wire_runs
        assert result.logprobs == m.pack_logprobs([logprob(t) for t in expected.sampled])
        assert result.versions == ((self.begin.version, len(expected.sampled)),)
        if routed:
            leads = (2, *expected.runs[1::2])
            found_routes = b"".join(map(routes, leads, expected.split[::2]))
            assert isinstance(result, m.RoutedRollout) and result.routes == found_routes
        else:
            assert type(result) is m.FinishedRollout


def doubt_of(result: m.FinishedRollout, found: Sequence[int], tokens: Sequence[int]) -> m.Doubt:
    """About the first token that is not what it should be."""
    pairs = itertools.zip_longest(found, tokens)
    position = next(i for i, (one, other) in enumerate(pairs) if one != other)
    return m.Doubt(
        batch=result.work.batch,
        samples=m.pack_ids([result.work.sample]),
        attempts=m.pack_ids([result.attempt]),
        positions=m.pack_ids([position]),
        gap=9.0,
    )

"""A batch that the simulated trainer asked for: what came of it, against what had to come."""

import functools
from dataclasses import dataclass, field

from rlboost_jax import messages as m
from rlboost_jax.sequences.identities import Work
from tests.manager.fakes import begin_batch, logprob, routes
from tests.schedules.environment import Rules, Whole, episode


@functools.cache
def begin_of(
    batch: int, version: int, digest: str, prompts: int, group_size: int, rules: Rules
) -> m.BeginBatch:
    return begin_batch(
        batch,
        version,
        digest,
        prompts=prompts,
        group_size=group_size,
        turns=rules.turns,
        turn_tokens=rules.turn_tokens,
    )


@dataclass
class Asked:
    """A batch that was begun, and what came of it.

    Attributes:
        said: of each sample, its sequences in order, as they were delivered last.
        whole: samples whose sequences are all there, and right.
        made_up: samples whose last delivery is not believed.
    """

    begin: m.BeginBatch
    rules: Rules
    prompts_known: int
    needed: set[int]  # samples
    said: dict[int, list[m.FinishedRollout]] = field(default_factory=dict)
    whole: set[int] = field(default_factory=set)
    sizes: dict[int, int] = field(default_factory=dict)  # tokens delivered, believed or not
    made_up: set[int] = field(default_factory=set)
    extends: list[m.TrainerMessage] = field(default_factory=list)
    scored: set[int] = field(default_factory=set)  # samples, by their teacher

    @property
    def complete(self) -> bool:
        return self.needed <= self.whole

    def add(self, result: m.FinishedRollout) -> None:
        """A sequence takes the place of the one that was said before, and of all behind it."""
        said = self.said.setdefault(result.work.sample, [])
        del said[result.work.sequence :]
        said.append(result)
        if result.last:
            self.sizes[result.work.sample] = sum(len(one.logprobs) // 4 for one in said)

    def forget(self, sample: int) -> None:
        """Nothing of it is believed: all its sequences come again."""
        self.said.pop(sample, None)
        self.sizes.pop(sample, None)
        self.whole.discard(sample)
        self.scored.discard(sample)

    def possibly_delivered(self) -> set[int]:
        """Tokens of all responses, but that training may begin before those come again that were
        made up and are not needed."""
        sums = {0}
        for sample, size in self.sizes.items():
            absent = sample in self.made_up and sample not in self.needed
            sums = {known + size for known in sums} | (sums if absent else set())
        return sums

    def expected(self, work: Work) -> tuple[Whole, ...]:
        """What its version samples, sequence by sequence."""
        return episode(self.begin.params_digest, work.batch, work.sample, self.rules)

    def check(self, result: m.FinishedRollout, expected: Whole, *, routed: bool) -> None:
        """All that comes with the right tokens is right, bit for bit."""
        assert result.runs == expected.wire_runs
        assert result.last == expected.last
        assert result.logprobs == m.pack_logprobs([logprob(t) for t in expected.sampled])
        assert result.versions == ((self.begin.version, len(expected.sampled)),)
        if routed:
            leads = ((len(expected.prompt) or 3) - 1, *expected.runs[1::2])
            found_routes = b"".join(map(routes, leads, expected.split[::2]))
            assert isinstance(result, m.RoutedRollout) and result.routes == found_routes
        else:
            assert type(result) is m.FinishedRollout

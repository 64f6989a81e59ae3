"""Sequences of several turns, made of prompts and responses."""

from dataclasses import replace

import numpy as np

from rlboost_jax.learner.episodes.trajectory import Group, Trajectory
from rlboost_jax.sequences.sequence import Sequence
from tests.sequences.given import with_given


def in_turns(
    sequence: Sequence, rng: np.random.Generator, *, vocab_size: int = 112, most_given: int = 3
) -> Sequence:
    """The same sampled tokens, with others in between, and sometimes after the last one."""
    turns = Sequence.of_prompt(sequence.prompt)
    (version, _), *more = sequence.versions
    assert not more and len(sequence.runs) == 2, "a response of one version"
    tokens, logprobs = sequence.sampled_tokens, sequence.logprobs
    cuts = np.flatnonzero(rng.random(len(tokens) - 1) < 0.4) + 1
    for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        turns = turns.with_sampled(tokens[start:end], logprobs[start:end], version=version)
        if end < len(tokens) or rng.random() < 0.3:
            given = rng.integers(vocab_size, size=rng.integers(1, most_given + 1))
            turns = with_given(turns, given)
    return turns


def trajectories_in_turns(
    trajectories: list[Trajectory], *, seed: int = 3, most_given: int = 3
) -> list[Trajectory]:
    rng = np.random.default_rng(seed)
    return [
        replace(t, sequence=in_turns(t.sequence, rng, most_given=most_given)) for t in trajectories
    ]


def groups_in_turns(groups: tuple[Group, ...], *, most_given: int = 3) -> tuple[Group, ...]:
    """At least one of them with three sampled runs, and one that ends with what was given."""
    made = tuple(
        replace(
            group,
            trajectories=tuple(
                trajectories_in_turns(
                    list(group.trajectories), seed=group.prompt, most_given=most_given
                )
            ),
        )
        for group in groups
    )
    runs = [t.sequence.runs for group in made for t in group.trajectories]
    assert max(map(len, runs)) >= 6 and any(len(each) % 2 for each in runs)
    return made

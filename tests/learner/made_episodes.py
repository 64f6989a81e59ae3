"""Episodes of several sequences, made of responses."""

from dataclasses import replace

import numpy as np

from rlboost_jax.learner.episodes.trajectory import Group, Trajectory
from rlboost_jax.sequences.sequence import Sequence
from tests.learner.turns import in_turns


def in_sequences(t: Trajectory, rng: np.random.Generator, *, vocab_size: int = 112) -> Trajectory:
    """The same sampled tokens, in one to three sequences, each with a prompt and turns."""
    tokens, logprobs = t.sequence.sampled_tokens, t.sequence.logprobs
    ((version, _),) = t.sequence.versions
    most = min(3, len(tokens))
    cuts = np.sort(rng.permutation(np.arange(1, len(tokens)))[: rng.integers(most)])
    made = []
    for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        prompt = rng.integers(vocab_size, size=rng.integers(1, 7)) if start else t.sequence.prompt
        plain = Sequence.of_response(
            prompt, tokens[start:end], logprobs[start:end], version=version
        )
        made.append(in_turns(plain, rng, most_given=1))
    first, *later = made
    return replace(t, sequence=first, later=tuple(later), attempts=tuple(range(len(made))))


def groups_in_sequences(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """At least one of them with three sequences, and one with one."""
    rng = np.random.default_rng(5)
    made = tuple(
        replace(group, trajectories=tuple(in_sequences(t, rng) for t in group.trajectories))
        for group in groups
    )
    counts = {len(t.sequences) for group in made for t in group.trajectories}
    assert counts == {1, 2, 3}
    return made


def sequences_apart(t: Trajectory, *, first_sample: int) -> list[Trajectory]:
    """Each sequence as a trajectory of its own, which knows nothing of the others."""
    found, start = [], 0
    for place, sequence in enumerate(t.sequences):
        own = slice(start, start := start + sequence.num_sampled)
        arrays = {
            name: None if getattr(t, name) is None else getattr(t, name)[own]
            for name in ("advantages", "old_logprobs", "old_values", "returns")
        }
        found.append(
            replace(
                t, sample=first_sample + place, sequence=sequence, later=(), attempts=(0,), **arrays
            )
        )
    return found

"""What things are called, on every wire, in every file and in every signature.

A *version* is parameters that the learner published. A *batch* is what one update of the policy
is made of; it says which version samples it. In the simplest run batch b is sampled from version
b, but they are never the same thing. A *work* is one sequence to be made. Where it is made, and
how often it is begun anew, is no part of any of these names.
"""

import hashlib
from typing import Annotated, Final, Literal, NewType

import msgspec

Batch = NewType("Batch", int)  # 0, 1, 2, … in a run
Version = NewType("Version", int)  # 0, 1, 2, … in a run; 0 is what the run began with

# Prompts are trained on, or measure the policy; both are numbered from 0 on.
Purpose = Literal["train", "evaluate"]

MOST_TRAINED: Final = 2**22  # prompts of a batch that are trained on
_UINT32: Final = 2**32

Index = Annotated[int, msgspec.Meta(ge=0, lt=_UINT32)]


class Work(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One sequence to be made. Names its noise, its place in the ledger and in digests.

    Attributes:
        seed: of the run.
        prompt: its number among the prompts of the batch with the same purpose.
        sample: its number in the batch, see `sample_number`.
        sequence: its number within the episode; more than 0 only where an environment has several.
    """

    seed: Index
    batch: Batch
    purpose: Purpose = "train"
    prompt: Index
    sample: Index
    sequence: Index = 0

    @property
    def noise_seed(self) -> int:
        """Seed of this sequence's noise, in place of the run's: 32 bits.

        The first sequence of an episode folds nothing in, so that the noise of a run without
        episodes is a function of (seed, batch, sample, position) alone.
        """
        return noise_seed(self.seed, self.sequence)


def noise_seed(seed: int, sequence: int) -> int:
    """Compute `Work.noise_seed`."""
    if sequence == 0:
        return seed
    named = hashlib.sha256(f"{seed} {sequence}".encode()).digest()
    return int.from_bytes(named[:4], "little")


def sample_number(prompt: int, place: int, *, group_size: int, purpose: Purpose) -> int:
    """Return the number, in its batch, of the response at `place` in the group of a prompt.

    The numbers of what measures the policy follow those of all that could be trained on: the
    noise of a response does not depend on how much else the batch has.
    """
    first = MOST_TRAINED if purpose == "evaluate" else 0
    return (first + prompt) * group_size + place

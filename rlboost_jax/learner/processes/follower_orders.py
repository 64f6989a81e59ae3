"""Orders of process 0 to the others, which all processes carry out in the same order.

An order is a list: its name, then its arguments.

    begin   step, version              the updates of a batch, which that version has sampled
    check   groups                     compare log-probabilities with what was said
    heldout groups                     the same of what is measured, by the newest version if no
                                       batch has begun
    train   index, groups              take a micro-batch in
    finish                             make the updates
    write   name                       begin to write their shares of the parameters
    digest  name, digest of the base   of the parameters, which takes all processes
    keep    version, digest, versions  keep the newest version besides these; with a lag
    save    step, extra                begin a checkpoint
    again                              set up anew: the steps to come have other settings

The name of parameters is that of their folder: of a version, or `BASE`. Versions are the newest,
made by the last updates, or older ones that are kept.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rlboost_jax.learner.episodes.trajectory import Group, Trajectory
from rlboost_jax.rewards.verdict import NO_ACCOUNT, Verdict
from rlboost_jax.sequences.sequence import Sequence

BEGIN: Final = "begin"
CHECK: Final = "check"
HELDOUT: Final = "heldout"
TRAIN: Final = "train"
FINISH: Final = "finish"
WRITE: Final = "write"
DIGEST: Final = "digest"
KEEP: Final = "keep"
SAVE: Final = "save"
AGAIN: Final = "again"


def groups_from_wire(groups: Iterable[Mapping[str, Any]]) -> tuple[Group, ...]:
    """Decode a sequence of `Group`."""
    return tuple(
        Group(
            prompt=group["prompt"],
            trajectories=tuple(map(_trajectory, group["trajectories"])),
        )
        for group in groups
    )


def _trajectory(members: Mapping[str, Any]) -> Trajectory:
    """Decode a trajectory, turning the wire's lists into tuples."""
    changed = {
        "sequence": _sequence(members["sequence"]),
        "later": tuple(map(_sequence, members["later"])),
        "attempts": tuple(members["attempts"]),
        "verdict": _verdict(members["verdict"]),
    }
    return Trajectory(**{**members, **changed})


def _verdict(members: Mapping[str, Any]) -> Verdict:
    turn_rewards = tuple(members["turn_rewards"])
    # The account is for the leader's records.
    return Verdict(**{**members, "turn_rewards": turn_rewards, "account": NO_ACCOUNT})


def _sequence(parts: Mapping[str, Any]) -> Sequence:
    return Sequence(
        tokens=parts["tokens"],
        runs=tuple(parts["runs"]),
        logprobs=parts["logprobs"],
        versions=tuple((version, count) for version, count in parts["versions"]),
        routes=parts["routes"],
    )

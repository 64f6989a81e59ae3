"""Choice of the checkpoint to resume from: the newest that is sound on all processes.

A damaged one is never trained on. The run goes back to the one before, reports it, and renames the
broken one to `<step>.broken`; so it does with an intact one of another step or run. The steps in
between are trained again and, in deterministic mode, give the same bits.

Invariants:
- all processes resume from the same checkpoint: none uses one that another cannot read;
- nothing is moved unless there is a sound one to resume from.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from rlboost_jax.learner.checkpoints import reading as checkpoint_reading
from rlboost_jax.learner.checkpoints.reading import CheckpointBroken
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.processes.process_group import ProcessGroup, tell_all

Tree = TypeVar("Tree")  # a pytree of arrays
_LETTERS: Final = 300  # of a reason, between processes
_STEPS: Final = 100  # that are looked at, the newest


def newest_sound(
    checkpoints: Checkpoints,
    abstract: Tree,
    world: ProcessGroup,
    note: Callable[[str], None],
    *,
    step_of: Callable[[Tree], int | None] = lambda state: None,
) -> tuple[Tree, dict[str, Any]] | None:
    """State and extra of the newest sound checkpoint; None if there is no checkpoint at all.

    Newer ones that are broken are put aside, so it is the newest now. Every process of a trainer
    calls this at the same point.

    Args:
        abstract: see `Checkpoints.restore`.
        note: shows a line to people.
        step_of: the step that a state is of, where it says so; None: it does not.

    Raises:
        CheckpointBroken: none is sound, or what is sound is of another model.
    """
    steps, reasons = _steps(checkpoints, world), dict[int, str]()
    for step in reversed(steps):
        found, reason = _tried(checkpoints, step, abstract, world)
        if found is not None and (own := step_of(found[0])) not in (None, step):
            found, reason = None, f"its state is of step {own}"  # all processes have the same
        if found is None:
            reasons[step] = reason
            continue
        for broken, why in reasons.items():
            aside = _put_aside(checkpoints, broken, world)
            note(
                f"checkpoint {broken} is broken: {why}; it is kept as {aside}, and the run goes on "
                f"from checkpoint {step}"
            )
        if not checkpoint_reading.has_digests(checkpoints.folder, step):
            note(f"checkpoint {step} was written without digests: its files cannot be checked")
        return found
    if not steps:
        return None
    shown = "; ".join(f"{step}: {reason}" for step, reason in reasons.items())
    raise CheckpointBroken(
        f"no checkpoint in {checkpoints.folder} is sound ({shown}); bring one back from a copy, "
        "rename those in the place of others, or begin in a new --workdir"
    )


def _steps(checkpoints: Checkpoints, world: ProcessGroup) -> list[int]:
    """Steps of the newest complete checkpoints, as process 0 sees them."""
    own = checkpoints.complete()[-_STEPS:]
    if world.count == 1:
        return own
    steps: list[int] = tell_all({"steps": own} if world.leads else None)["steps"]
    return steps


def _tried(
    checkpoints: Checkpoints, step: int, abstract: Tree, world: ProcessGroup
) -> tuple[tuple[Tree, dict[str, Any]] | None, str]:
    """Read a checkpoint, or return None and what is wrong with it on some process.

    Raises:
        CheckpointBroken: it is as it was written, and cannot be read all the same.
    """
    share = (world.index, world.count)
    if reason := _said(checkpoint_reading.damage(checkpoints.folder, step, share), world):
        return None, reason
    found, failure = None, None
    try:
        found = checkpoints.restore(step, abstract, checked=True)
    except CheckpointBroken as error:
        failure = error
    reason = _said(str(failure or ""), world)
    if not reason:
        return found, ""
    if checkpoint_reading.has_digests(checkpoints.folder, step):
        raise failure or CheckpointBroken(reason)
    return None, reason


def _said(reason: str, world: ProcessGroup) -> str:
    """The first process's reason that is not empty, on all processes; "" if none has one."""
    if world.count == 1:
        return reason
    said = [
        tell_all({"reason": reason[:_LETTERS]} if world.index == source else None, source=source)
        for source in range(world.count)
    ]
    others = (
        (each["reason"], f"process {index} of {world.count}: {each['reason']}")
        for index, each in enumerate(said)
    )
    return next((line for reason, line in others if reason), "")


def _put_aside(checkpoints: Checkpoints, step: int, world: ProcessGroup) -> str:
    """Put a checkpoint aside and return its new name, if this process leads."""
    aside = checkpoints.put_aside(step).name if world.leads else ""
    if world.count > 1:
        tell_all({})  # the others see it gone
    checkpoints.look_again()
    return aside

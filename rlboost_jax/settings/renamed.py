"""Settings of earlier releases, and what each is called now.

A configuration file, a command line or a `config.json` that still has one is refused with a line
that says what to write instead.
"""

from typing import Final

_SUCCESSORS: Final = {
    "algorithm.normalize_by_std": 'algorithm.advantage = "group_std" for True, "group_mean" for '
    "False",
    "fleet.adaptive_cap": 'fleet.sizing = "paper" for True, "fixed" for False',
    "learner.guard_logprob_gap": "learner.tolerated_gap, in nats as before; 0 is by precision now",
    "policy.adaptive_cap": 'policy.sizing = "paper" for True, "fixed" for False',  # the simulator's
    "observe.tensorboard": 'observe.trackers = ("tensorboard",) for True, () for False',
}


def successor(name: str) -> str:
    """What to say of a setting that has another name now; "" of any other.

    Args:
        name: dotted.
    """
    now = _SUCCESSORS.get(name)
    return "" if now is None else f"it was renamed; write {now}"

"""Settings of earlier releases and of other libraries, and what each is called here.

A configuration file, a command line or a `config.json` that has one is refused with a line that
says what to write instead.
"""

from collections.abc import Mapping
from typing import Any, Final

from rlboost_jax.settings.other_names import meant

_SUCCESSORS: Final = {
    "algorithm.normalize_by_std": 'algorithm.advantage = "group_std" for True, "group_mean" for '
    "False",
    "fleet.adaptive_cap": 'fleet.sizing = "paper" for True, "fixed" for False',
    "learner.guard_logprob_gap": "learner.tolerated_gap, in nats as before; 0 is by precision now",
    "policy.adaptive_cap": 'policy.sizing = "paper" for True, "fixed" for False',  # the simulator's
    "observe.tensorboard": 'observe.trackers = ("tensorboard",) for True, () for False',
}
# Gone, and not missed: a `config.json` that has one is read as if it had not.
_RETIRED: Final = {
    "fleet.tls": "TLS is spoken always, on loopback too; leave it out",
}
# What an earlier release allowed: a `config.json` with less is read as if it had this.
_AT_LEAST: Final = {"checkpoint.keep": 2}


def successor(name: str) -> str:
    """Say what became of a setting: renamed, removed or another library's; "" of any other.

    Args:
        name: dotted.
    """
    now = _SUCCESSORS.get(name)
    return (_RETIRED.get(name) or meant(name)) if now is None else f"it was renamed; write {now}"


def without_retired(values: Mapping[str, Any]) -> dict[str, Any]:
    """Update an older `config.json`: drop retired settings, raise values below new limits."""
    kept = dict(values)
    for name in _RETIRED:
        section, _, field = name.partition(".")
        if isinstance(kept.get(section), Mapping):
            kept[section] = {k: v for k, v in kept[section].items() if k != field}
    for name, least in _AT_LEAST.items():
        section, _, field = name.partition(".")
        if isinstance(kept.get(section), Mapping) and isinstance(kept[section].get(field), int):
            kept[section] = {**kept[section], field: max(least, kept[section][field])}
    return kept

"""Facts about the machine at hand, which a test replaces by another's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rlboost_jax.qualification import child_process, machine
from rlboost_jax.qualification.trial_records import KernelVerdict, Spec


@dataclass(frozen=True, kw_only=True)
class Host:
    """Functions that describe the machine at hand.

    Attributes:
        gpu_expected, facts: see `machine.py`.
        verdict_of: trials of all the candidates of a spec: see `child_process.py`.
    """

    gpu_expected: Callable[[], bool] = machine.gpu_expected
    facts: Callable[[], Mapping[str, str] | None] = machine.facts
    verdict_of: Callable[[Spec], KernelVerdict] = child_process.verdict_of


HERE: Final = Host()

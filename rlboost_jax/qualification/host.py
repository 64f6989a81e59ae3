"""What a start asks of the machine at hand. A test asks another."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rlboost_jax.qualification import child_process, machine
from rlboost_jax.qualification.records import Spec, Verdict


@dataclass(frozen=True, kw_only=True)
class Host:
    """
    Attributes:
        gpu_expected, facts: see `machine.py`.
        verdict_of: trials of all the candidates of a spec: see `child_process.py`.
    """

    gpu_expected: Callable[[], bool] = machine.gpu_expected
    facts: Callable[[], Mapping[str, str] | None] = machine.facts
    verdict_of: Callable[[Spec], Verdict] = child_process.verdict_of


HERE: Final = Host()

"""The problems there are. A new one is a module with `problem(shape)`, a name, and a line here."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, get_args

from rlboost_jax.qualification.problem import TrialProblem
from rlboost_jax.qualification.trial_records import ProblemName

Maker = Callable[[Mapping[str, Any]], TrialProblem]

_MODULES: Final[dict[ProblemName, str]] = {
    "engine_attention": "rlboost_jax.qualification.engine_attention",
    "learner_attention": "rlboost_jax.qualification.learner_attention",
    "learner_experts": "rlboost_jax.qualification.learner_experts",
}
assert set(_MODULES) == set(get_args(ProblemName))


def problem_of(name: str, shape: Mapping[str, Any]) -> TrialProblem:
    """Make a problem by its name. No device is touched until one of its cases is.

    Args:
        shape: JSON's version of the problem's own record.

    Raises:
        KeyError: there is no such problem.
        msgspec.ValidationError: it has another shape.
    """
    module = _MODULES[name]  # type: ignore[index]
    make: Maker = import_module(module).problem
    return make(shape)

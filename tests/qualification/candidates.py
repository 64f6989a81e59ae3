"""A problem's candidates, changed where a test wants another."""

from dataclasses import replace
from typing import Any

from rlboost_jax.qualification.problem import Candidate, TrialProblem


def candidate(of: TrialProblem, name: str, **changes: Any) -> Candidate:
    """The one of that name."""
    found = next(candidate for candidate in of.candidates if candidate.name == name)
    return replace(found, **changes)

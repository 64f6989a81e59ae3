"""What a problem is: inputs of the run's shapes, what is right, and who may compute it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from numpy.typing import NDArray

Inputs = tuple[Any, ...]  # arrays on the device

# Largest relative error of a row, by the type of the result.
TOLERANCE: Final[Mapping[str, float]] = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 2e-2}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Other inputs on which some rows must have the bits that they have in the case itself.

    Rows are indices of the first axis of every result.
    """

    name: str  # such as "alone"
    inputs: Callable[[], Inputs]
    rows: slice  # of the variant's results
    same_as: slice  # of the case's


def repeated(inputs: Inputs) -> tuple[Variant, ...]:
    """A second call with equal arguments, for candidates that promise equal bits for these only."""
    every = slice(None)
    return (Variant(name="at a second call", inputs=lambda: inputs, rows=every, same_as=every),)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call. Everything in it is made when it is first asked for, and then kept.

    Attributes:
        weight: of its seconds in those that candidates are compared by; 0: it is not timed.
        make: the inputs, the same at every call.
        reference: what results should be, computed elsewhere; one array for each result.
        options: static keyword arguments of the candidates' function.
    """

    name: str
    weight: float
    make: Callable[[], Inputs]
    reference: Callable[[Inputs], tuple[NDArray[Any], ...]]
    options: Mapping[str, Any] = field(default_factory=dict)
    variants: Callable[[Inputs], tuple[Variant, ...]] = lambda inputs: ()

    @cached_property
    def inputs(self) -> Inputs:
        return self.make()

    @cached_property
    def expected(self) -> tuple[NDArray[Any], ...]:
        return self.reference(self.inputs)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An implementation to try.

    Attributes:
        bound: seconds that it takes at least, by which candidates are tried in order.
        run: takes a case's inputs and options; traced and compiled by the trial.
        why_not: why it cannot run a case's inputs here; "" if it can.
    """

    name: str
    bound: float
    run: Callable[..., Any]
    why_not: Callable[[Inputs], str] = lambda inputs: ""


@dataclass(frozen=True, kw_only=True)
class TrialProblem:
    """A computation with its candidates and cases.

    Attributes:
        plain: the candidate that runs where none is right.
        tolerance: of a row's relative error.
    """

    candidates: tuple[Candidate, ...]
    plain: str
    cases: tuple[Case, ...]
    tolerance: float

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the candidates by their bound, equal ones in the problem's order."""
        ordered = sorted(self.candidates, key=lambda candidate: candidate.bound)
        return tuple(candidate.name for candidate in ordered)

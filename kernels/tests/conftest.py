"""Implementations by name, with those that cannot run here skipped out loud."""

from collections.abc import Iterator

import jax
import pytest
from rlboost_kernels.cpu import library
from rlboost_kernels.implementations import PLAIN

_REASON = library.why_missing()
_CPU = pytest.param("cpu", marks=pytest.mark.skipif(bool(_REASON), reason=f"cpu: {_REASON}"))


@pytest.fixture
def unoptimized() -> Iterator[None]:
    """For what is compared to a tolerance: programs that run once take less time to compile."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(params=[*PLAIN, _CPU])
def implementation(request) -> str:
    return request.param


@pytest.fixture(params=[_CPU])
def cpu(request) -> str:
    """For tests that need the compiled library."""
    return request.param

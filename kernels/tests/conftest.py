"""Implementations by name, with those that cannot run here skipped out loud."""

import pytest
from rlboost_kernels.cpu import library
from rlboost_kernels.implementations import PLAIN

_REASON = library.why_missing()
_CPU = pytest.param("cpu", marks=pytest.mark.skipif(bool(_REASON), reason=f"cpu: {_REASON}"))


@pytest.fixture(params=[*PLAIN, _CPU])
def implementation(request) -> str:
    return request.param


@pytest.fixture(params=[_CPU])
def cpu(request) -> str:
    """For tests that need the compiled library."""
    return request.param

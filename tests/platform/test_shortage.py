"""A manager that has no descriptor for those who dial says so; one without memory ends."""

import asyncio
import errno
import logging
import os
import socket

import pytest

from rlboost_jax.platform.shortage import meet_shortages

# As asyncio has it for each attempt to accept.
MESSAGE = "socket.accept() out of system resource"


def reported(*errors: Exception) -> list[Exception]:
    """Returns those that this process is to end for."""
    ends: list[Exception] = []

    async def report() -> None:
        loop = asyncio.get_running_loop()
        meet_shortages(loop, ends.append)
        with socket.socket() as listener:
            for error in errors:
                loop.call_exception_handler(
                    {"message": MESSAGE, "exception": error, "socket": listener}
                )

    asyncio.run(report())
    return ends


def test_a_hundred_attempts_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        ends = reported(*[OSError(errno.EMFILE, os.strerror(errno.EMFILE))] * 100)
    assert not ends
    record = caplog.records[0]
    assert (
        len(caplog.records) == 1 and "ulimit -n" in record.getMessage() and record.exc_info is None
    )


def test_all_else_is_reported_as_before(caplog: pytest.LogCaptureFixture) -> None:
    assert not reported(ValueError("y"), OSError(errno.ECONNABORTED, "gone"))
    assert [record.exc_info is not None for record in caplog.records] == [True, True]


def test_a_process_without_memory_ends_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """One that lived on would refuse everybody, and nobody starts another beside it."""
    error = MemoryError()
    assert error in reported(*[error] * 10)
    (record,) = caplog.records
    assert "no memory" in record.getMessage() and record.exc_info is None

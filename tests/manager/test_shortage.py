"""A manager that has no descriptor for those who dial says so in a line, now and then."""

import asyncio
import errno
import logging
import os
import socket

import pytest

from rlboost_jax.manager.service.shortage import say_shortages

# As asyncio has it for each attempt to accept.
MESSAGE = "socket.accept() out of system resource"


def reported(*errors: Exception) -> None:
    async def report() -> None:
        loop = asyncio.get_running_loop()
        say_shortages(loop)
        with socket.socket() as listener:
            for error in errors:
                loop.call_exception_handler(
                    {"message": MESSAGE, "exception": error, "socket": listener}
                )

    asyncio.run(report())


def test_a_hundred_attempts_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        reported(*[OSError(errno.EMFILE, os.strerror(errno.EMFILE))] * 100)
    record = caplog.records[0]
    assert (
        len(caplog.records) == 1 and "ulimit -n" in record.getMessage() and record.exc_info is None
    )


def test_all_else_is_reported_as_before(caplog: pytest.LogCaptureFixture) -> None:
    reported(ValueError("y"), OSError(errno.ECONNABORTED, "gone"))
    assert [record.exc_info is not None for record in caplog.records] == [True, True]


def test_connections_without_memory_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    reported(*[MemoryError()] * 10)
    (record,) = caplog.records
    assert "no memory" in record.getMessage() and record.exc_info is None

"""A test of a listener runs in an event loop that a hang does not outlive."""

from tests.manager.conftest import run

__all__ = ["run"]

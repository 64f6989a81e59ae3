"""Workers that have the time to end what they have started."""

from tests.workers.conftest import patient

__all__ = ["patient"]

"""One side of the comparison in a process of its own, whose memory is its own, too."""

import importlib
import multiprocessing
import os
import resource
from concurrent.futures import ProcessPoolExecutor
from types import ModuleType
from unittest import mock

from benchmarks.peers.training.work import Update, Work
from rlboost_jax.platform import compile_cache
from rlboost_jax.platform.huge_pages import TUNABLES, WANTED

_held: list[Update] = []  # of this process


def module_of(name: str) -> ModuleType:
    """The module of a side, beside this one.

    Raises:
        ModuleNotFoundError: what it needs is not installed.
    """
    return importlib.import_module(f"benchmarks.peers.training.{name}")


class Side:
    """Updates of one side, each of which begins with the parameters of the one before."""

    def __init__(self, name: str, work: Work, size: int) -> None:
        """Start the process, which asks malloc for the pages that the trainer's command asks for.

        Args:
            name: module beside this one.
            size: one of the module's `sizes`.
        """
        spawn = multiprocessing.get_context("spawn")
        self._process = ProcessPoolExecutor(1, mp_context=spawn)
        with mock.patch.dict(os.environ, {TUNABLES: WANTED}):
            self._process.submit(_make, name, work, size).result()

    def update(self) -> float:
        """Make one update; returns the norm of its gradient before clipping."""
        return self._process.submit(_update).result()

    def peak_bytes(self) -> int:
        """Peak resident memory of the process so far."""
        return self._process.submit(_peak_bytes).result()

    def close(self) -> None:
        """End the process."""
        self._process.shutdown()


def _make(name: str, work: Work, size: int) -> None:
    compile_cache.enable()
    _held.append(module_of(name).make_update(work, size))


def _update() -> float:
    return _held[0]()


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

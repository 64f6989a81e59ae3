"""`with` for whatever has a `close`."""

import threading
from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """A context manager that is closed at its end, with or without an error."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class ClosingThread(Closing):
    """Base of classes with a thread that a condition wakes and `close` ends.

    A class made of this starts `_thread` when all else is there, and looks at `_closed` in `_run`.
    """

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None: ...

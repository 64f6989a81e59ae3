"""`with` for whatever has a `close`."""

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

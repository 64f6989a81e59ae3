"""What an engine still has pages of, by the manager's count: see `policies/returning.py`."""

from typing import NamedTuple

from rlboost_jax.manager.policies.returning import still_there


class Pages:
    """Of one engine while it holds one version.

    Attributes:
        taken: tokens that it has taken pages for, of all that it was given and has sampled.
    """

    __slots__ = ("_tokens", "taken")

    def __init__(self, tokens: float) -> None:
        """Args: tokens: that it has pages for."""
        self._tokens = tokens
        self.taken = 0

    def take(self, tokens: int) -> None:
        self.taken += tokens

    def left(self, length: int, others: int) -> "Left":
        """A response of so many tokens has left, and others have so many together."""
        return Left(self, length, self._tokens - others - length, self.taken)


class Left(NamedTuple):
    """What a response has left behind."""

    pages: Pages
    tokens: int
    free: float  # tokens that pages were free for besides
    taken: int  # that had been taken by then

    @property
    def still_there(self) -> int:
        """Tokens that need no prefill if it goes back."""
        return still_there(self.tokens, free=self.free, taken=self.pages.taken - self.taken)

    def first(self, tokens: int) -> "Left":
        """Of its first tokens alone."""
        return self._replace(tokens=min(self.tokens, tokens))

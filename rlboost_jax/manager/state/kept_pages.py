"""The manager's estimate of the pages an engine still has, see `policies/returning.py`."""

from typing import NamedTuple

from rlboost_jax.manager.policies.returning import still_there


class Pages:
    """Page account of one engine while it holds one version.

    Attributes:
        taken: tokens that it has taken pages for, of all that it was given and has sampled.
    """

    __slots__ = ("_tokens", "taken")

    def __init__(self, tokens: float) -> None:
        """Start with no page taken.

        Args:
            tokens: that it has pages for.
        """
        self._tokens = tokens
        self.taken = 0

    def take(self, tokens: int) -> None:
        self.taken += tokens

    def left(self, length: int, others: int) -> "Left":
        """Record what a response of `length` tokens leaves while `others` tokens are held."""
        return Left(self, length, self._tokens - others - length, self.taken)


class Left(NamedTuple):
    """Pages that a response has left behind at an engine."""

    pages: Pages
    tokens: int
    free: float  # tokens that pages were free for besides
    taken: int  # that had been taken by then

    @property
    def still_there(self) -> int:
        """Number of tokens that need no prefill if the response returns."""
        return still_there(self.tokens, free=self.free, taken=self.pages.taken - self.taken)

    def first(self, tokens: int) -> "Left":
        """The part of it for the response's first `tokens` alone."""
        return self._replace(tokens=min(self.tokens, tokens))

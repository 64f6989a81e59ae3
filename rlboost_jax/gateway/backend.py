"""What samples for a gateway: the seam between HTTP and an engine, or a run."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rlboost_jax.gateway.session import Ask, SampledTurn


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Tokens of a turn as they come, and the text that has become certain with them."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Model:
    """What `/v1/models` says.

    Attributes:
        name: that calls name; "" in a call is taken for it.
        max_tokens: of prompt and response together; 0: not known.
        any_name: calls may name any other, and get this one.
        own_sampling: a run's settings sample; what calls say of it is listed as ignored.
    """

    name: str
    max_tokens: int
    any_name: bool = False
    own_sampling: bool = False


class Backend(Protocol):
    """Samples turns of sessions, which it knows by their ids.

    `turn` yields pieces as they come, or none, and last of all the turn. It raises `ApiError` for
    what can only be known with tokens, such as a context that is full. A caller that stops early
    closes the iterator, and then the turn was not made.
    """

    model: Model

    def turn(self, session: str, ask: Ask) -> AsyncIterator[Piece | SampledTurn]: ...

    async def opened(self, session: str) -> Mapping[str, Any]:
        """A client asks for a session. Returns what else it receives, such as an example.

        Raises:
            ApiError: there is none.
        """
        ...

    async def ended(
        self, session: str, reward: float | None, metrics: Mapping[str, float], reason: str
    ) -> None:
        """A session is over, with the reward that was posted, if one was."""
        ...

    def token_text(self, token: int) -> str | None:
        """Of one token, special ones included; None: unknown here."""
        ...

    def token_bytes(self, token: int) -> bytes | None:
        """The bytes that one token stands for, maybe half a character; None: unknown here."""
        ...

"""Interface between HTTP and what samples: an engine, or a run."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rlboost_jax.gateway.gateway_session import Ask, SampledTurn


@dataclass(frozen=True, kw_only=True)
class TurnPiece:
    """New tokens of a turn, and the text that has become final with them."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Model:
    """Model as `/v1/models` describes it.

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

    def turn(self, session: str, ask: Ask) -> AsyncIterator[TurnPiece | SampledTurn]: ...

    async def opened(self, session: str) -> Mapping[str, Any]:
        """Handle a client's request for a session.

        Returns what else it receives, such as an example.

        Raises:
            ApiError: there is none.
        """
        ...

    async def ended(
        self, session: str, reward: float | None, metrics: Mapping[str, float], reason: str
    ) -> None:
        """Handle the end of a session, with the reward that was posted, if one was."""
        ...

    def token_text(self, token: int) -> str | None:
        """Text of one token, special ones included; None: unknown here."""
        ...

    def token_bytes(self, token: int) -> bytes | None:
        """Bytes of one token, perhaps half a character; None: unknown here."""
        ...

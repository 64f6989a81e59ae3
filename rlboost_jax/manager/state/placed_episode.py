"""Where a response in the making is: at one instance, or at none."""

import math

from rlboost_jax.manager.state.episode import Episode
from rlboost_jax.manager.state.pages import Left, Pages
from rlboost_jax.messages import Sampling
from rlboost_jax.sequences.identities import Version, Work
from rlboost_jax.sequences.sequence import common_tokens


class PlacedEpisode(Episode):
    """
    Attributes:
        holder: instance that has it now; "": none has.
        previous: instance that had it last.
        request_id: of the present placement.
        asked_at: when its holder was asked to release it; inf: it was not.
        yielded: the present placement has given tokens.
        left: what it has left at the instance before, since it was parked; None: nothing known.
        spared: tokens that needed no prefill at the present placement, as far as is known.
    """

    __slots__ = ("asked_at", "holder", "left", "previous", "request_id", "spared", "yielded")

    def __init__(self, prompt_tokens: bytes, sampling: Sampling) -> None:
        """Nowhere yet."""
        super().__init__(prompt_tokens, sampling)
        self.holder = self.previous = ""
        self.request_id = 0
        self.asked_at = math.inf
        self.yielded = False
        self.left: Left | None = None
        self.spared = 0

    @property
    def home(self) -> str:
        """The instance that its pages may be at; "" if that is none."""
        return "" if self.left is None else self.previous

    @property
    def releasing(self) -> bool:
        """Its release was asked for and has not come yet."""
        return self.asked_at < math.inf

    def place(self, request_id: int, name: str, pages: Pages | None = None) -> None:
        """It goes to instance `name`, which has these pages."""
        self.request_id, self.holder = request_id, name
        self.asked_at, self.yielded = math.inf, False
        self.spared, self.left = self.kept_in(pages), None

    def leave(self, left: Left) -> None:
        """Its pages may be found there again."""
        self.left = left

    def kept_in(self, pages: Pages | None) -> int:
        """Tokens of it that are likely there still."""
        left = self.left
        return left.still_there if left is not None and left.pages is pages else 0

    def _follow(self, work: Work, version: Version, attempt: int, prompt_tokens: bytes) -> None:
        """Its pages serve the next sequence as far as that begins with the same tokens."""
        before = self.prompt_tokens + self.tokens
        super()._follow(work, version, attempt, prompt_tokens)
        self._keep(common_tokens(before, prompt_tokens))

    def _go_back(self, length: int) -> None:
        newest = len(self.ended)
        super()._go_back(length)
        if len(self.ended) < newest:
            self._keep(0)  # they are a later sequence's

    def _truncate(self, length: int) -> None:
        super()._truncate(length)
        self._keep(self.length)

    def _keep(self, tokens: int) -> None:
        """Of what it has left only the first tokens are its own still."""
        if self.left is not None:
            self.left = self.left.first(tokens)

    def release(self, at: float) -> None:
        """Its holder was asked for it then."""
        self.asked_at = at

    def take_back(self) -> None:
        """Its holder has it no longer."""
        self.holder, self.previous, self.asked_at = "", self.holder, math.inf

    def take_in(self, tokens: bytes, logprobs: bytes, name: str, routes: bytes = b"") -> None:
        """Append what instance `name` sampled."""
        self._append(tokens, logprobs, name, routes)
        self.yielded = True

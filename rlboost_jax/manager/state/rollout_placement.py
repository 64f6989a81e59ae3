"""Placement of an unfinished response: at one instance, or at none."""

import math

from rlboost_jax.manager.state.kept_pages import Left, Pages


class RolloutPlacement:
    """The place of an unfinished response.

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

    def __init__(self) -> None:
        """Start without a placement."""
        self.holder = self.previous = ""
        self.request_id = 0
        self.asked_at = math.inf
        self.yielded = False
        self.left: Left | None = None
        self.spared = 0

    @property
    def home(self) -> str:
        """Instance that may still have its pages; "" if none."""
        return "" if self.left is None else self.previous

    @property
    def releasing(self) -> bool:
        """Whether its release was requested and is still outstanding."""
        return self.asked_at < math.inf

    @property
    def pending(self) -> bool:
        """Whether it stays, and has given no token yet."""
        return not (self.releasing or self.yielded)

    def begin(self, request_id: int, name: str, pages: Pages | None = None) -> None:
        """Place it on instance `name`, which has these pages."""
        self.request_id, self.holder = request_id, name
        self.asked_at, self.yielded = math.inf, False
        self.spared, self.left = self.kept_in(pages), None

    def yields(self) -> None:
        """Note that it has given tokens."""
        self.yielded = True

    def release(self, at: float) -> None:
        """Note when its holder was asked to release it."""
        self.asked_at = at

    def end(self) -> None:
        """End its placement."""
        self.holder, self.previous, self.asked_at = "", self.holder, math.inf

    def leave(self, left: Left) -> None:
        """Note that its pages may still be found at the instance it leaves."""
        self.left = left

    def kept_in(self, pages: Pages | None) -> int:
        """Count its tokens whose pages are probably still there."""
        left = self.left
        return left.still_there if left is not None and left.pages is pages else 0

    def keep(self, tokens: int) -> None:
        """Restrict the pages left behind to those of the first `tokens`."""
        if self.left is not None:
            self.left = self.left.first(tokens)

"""Something about each prompt for when it comes again, within a bound of tokens.

A prompt is known by its tokens: these are the same in every epoch of a data set, in every
evaluation, and in no other run that this process has ever met.
"""

from typing import Generic, TypeVar

T = TypeVar("T")


class PromptMemory(Generic[T]):
    """One value for each prompt. Those written longest ago are forgotten first.

    Attributes:
        num_tokens: of all that is kept, prompts included; at most `most_tokens`.
    """

    def __init__(self, most_tokens: int) -> None:
        self._most = most_tokens
        self._kept: dict[bytes, tuple[T, int]] = {}
        self.num_tokens = 0

    def __len__(self) -> int:
        """Number of prompts."""
        return len(self._kept)

    def of(self, prompt: bytes) -> T | None:
        """Return what is kept for a prompt; None: nothing is."""
        kept = self._kept.get(prompt)
        return None if kept is None else kept[0]

    def keep(self, prompt: bytes, value: T, num_tokens: int) -> None:
        """Put a value in the place of the prompt's last one.

        Args:
            num_tokens: of the value.
        """
        self.drop(prompt)
        size = len(prompt) // 4 + num_tokens
        self._kept[prompt] = value, size
        self.num_tokens += size
        while self.num_tokens > self._most:
            self.drop(next(iter(self._kept)))

    def drop(self, prompt: bytes) -> None:
        """Forget what is kept for a prompt, if anything is."""
        if prompt in self._kept:
            self.num_tokens -= self._kept.pop(prompt)[1]

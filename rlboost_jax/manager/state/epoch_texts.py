"""Responses that the manager keeps for when their prompts are sampled again.

They serve drafts of engines and nothing else: a draft decides when a token is sampled and never
which. So they are in no journal, and a manager that begins anew has none.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout
from rlboost_jax.sequences.prompt_memory import PromptMemory

TEXTS: Final = 2  # of a prompt: the longest responses of its last batch
TOKEN_BYTES: Final = 14  # by which a sampled token comes
SHARE: Final = 0.5  # of the bytes that a prompt's responses came by, for its texts in one batch


class EpochText(NamedTuple):
    """A response, and the servers that sampled it: these may have it still."""

    tokens: bytes
    samplers: tuple[str, ...]


class _OfPrompt(NamedTuple):
    texts: tuple[EpochText, ...]
    most_bytes: float  # to be sent in one batch


class EpochTexts:
    """The longest responses to each prompt in the last trained batch that had it."""

    def __init__(self, most_tokens: int) -> None:
        """
        Args:
            most_tokens: of prompts and responses; the prompts trained on longest ago go first.
        """
        self._memory: PromptMemory[_OfPrompt] = PromptMemory(most_tokens)

    @property
    def num_tokens(self) -> int:
        """Number of tokens kept, prompts included."""
        return self._memory.num_tokens

    def learn(self, batch: BatchRecord) -> None:
        """Keep responses of a batch that was trained."""
        groups: dict[int, list[Rollout]] = {}
        for rollout in batch.rollouts:
            if rollout.finished:
                groups.setdefault(rollout.group, []).append(rollout)
        for group in groups.values():
            firsts = [rollout.sequences.transcripts[0] for rollout in group]
            sampled = sum([first.num_sampled for first in firsts])
            firsts.sort(key=lambda first: -first.num_tokens)
            texts = tuple(
                [EpochText(bytes(first.tokens), first.samplers) for first in firsts[:TEXTS]]
            )
            tokens = sum([len(text.tokens) // 4 for text in texts])
            kept = _OfPrompt(texts, SHARE * TOKEN_BYTES * sampled)
            self._memory.keep(firsts[0].prompt, kept, tokens)

    def of(self, prompt: bytes, name: str, spent: int) -> Iterator[bytes]:
        """Yield what to send a server with a prompt, as far as the prompt's bytes allow.

        Args:
            name: of the server. What it has sampled itself it has.
            spent: bytes that were sent of this prompt before, in the same batch.
        """
        kept = self._memory.of(prompt)
        if kept is None:
            return
        for tokens, samplers in kept.texts:
            if name not in samplers and spent + len(tokens) <= kept.most_bytes:
                spent += len(tokens)
                yield tokens


class SentTexts:
    """What was sent of which prompt in one batch, and to whom."""

    def __init__(self) -> None:
        self._told: set[tuple[int, int]] = set()  # streams, and groups of requests to them
        self._bytes: dict[int, int] = {}  # by group

    def has(self, stream: int, group: int) -> bool:
        """Whether a server got what it gets of a group."""
        return (stream, group) in self._told

    def num_bytes(self, group: int) -> int:
        """Number of bytes sent of a group so far."""
        return self._bytes.get(group, 0)

    def send(self, stream: int, group: int, num_bytes: int) -> None:
        """Note that a server gets so much of a group, and no more."""
        self._told.add((stream, group))
        self._bytes[group] = self.num_bytes(group) + num_bytes

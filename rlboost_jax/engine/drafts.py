"""Drafts of what a rollout will sample next, taken from texts that are likely to resemble it.

Texts are the responses to the same prompt at this engine (Seer, arXiv:2511.14617, section 3.4),
those to the same prompt when it was last sampled, here or elsewhere (DAS, arXiv:2511.13841), the
rollout's own prompt and response (prompt lookup) and the newest responses to any prompt, which say
alike what all say: forms, counts, steps of a calculation. The host gathers them once a dispatch;
the device finds the place that the newest tokens match best and proposes what follows there, anew
in every step, so that a rejected draft costs one step of drafts and not a dispatch.

A draft decides when a token is sampled and never which: noise and logits of a token do not depend
on drafts, and a draft that is not the sampled token is dropped. So texts may be stale, cut off or
wrong.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from numpy.typing import NDArray

from rlboost_jax.engine.engine_rollouts import EngineRollout, PromptKey
from rlboost_jax.engine.layouts import DRAFT_CONTEXT
from rlboost_jax.engine.requests import EngineLimits, checked_texts
from rlboost_jax.messages import unpack_tokens
from rlboost_jax.sequences.prompt_memory import PromptMemory
from rlboost_jax.settings.speculation_config import Drafter

LEAST_MATCH: Final = 2  # equal tokens that a place needs
MOST_DRAFTS: Final = 7  # of a sequence in one step
MOST_LEFT: Final = 2**21  # tokens of rollouts whose prompt has none held any more
MOST_EARLIER: Final = 2**21  # tokens of earlier epochs, prompts included
MOST_OF_PROMPT: Final = 8  # responses of earlier epochs
NO_TOKEN: Final = -1  # ends a text, and fills up
_PARTS: Final = 4  # long siblings that have their texts in a row
_LEAST_PART: Final = 64  # tokens, of which half lie ahead: more than most dispatches yield
_NO_CONTEXT: Final = -2  # equal to nothing in a text


class DraftTexts:
    """Texts of the rollouts at one engine. Of those that it holds it makes no copy.

    A prompt's texts are kept as long as one of its rollouts is held, those of finished rollouts
    too: these are what younger siblings repeat. As siblings may come later, the newest of the
    others are kept as well, MOST_LEFT tokens of them. With "epochs" responses to a prompt are then
    kept until it comes again, under other weights too, and beside them what the manager offers:
    MOST_EARLIER tokens in all. With "recent" the newest responses of all, as many as a row holds,
    are copied as they leave, and stay under other weights.
    """

    def __init__(self, drafters: Collection[Drafter], row_tokens: int) -> None:
        """
        Args:
            row_tokens: numbers in a row of `pack`; what is older is left out.
        """
        self._row_tokens = row_tokens
        self._own, self._of_siblings = "prompt" in drafters, "siblings" in drafters
        self._groups: dict[PromptKey, list[EngineRollout]] = {}
        self._held: dict[PromptKey, int] = {}
        self._left: dict[PromptKey, int] = {}  # tokens of prompts without held rollouts
        self._left_tokens = 0
        self._of_recent = "recent" in drafters
        self._recent = np.zeros(0, np.int32)  # texts that left, each followed by NO_TOKEN
        self.most_earlier = MOST_EARLIER if "epochs" in drafters else 0
        self._earlier: PromptMemory[tuple[bytes, ...]] = PromptMemory(self.most_earlier)

    def join(self, rollout: EngineRollout) -> None:
        """Add a rollout that is now held."""
        key = rollout.prompt_key
        self._held[key] = self._held.get(key, 0) + 1
        self._left_tokens -= self._left.pop(key, 0)
        self._groups.setdefault(key, []).append(rollout)

    def leave(self, rollout: EngineRollout) -> None:
        """Note that a rollout is no longer held. Its text stays while siblings are."""
        key = rollout.prompt_key
        if self._of_recent:
            self._add(rollout)
        self._held[key] -= 1
        if self._held[key]:
            return
        del self._held[key]
        self._left[key] = sum(each.known for each in self._groups[key])
        self._left_tokens += self._left[key]
        most = MOST_LEFT if self._of_siblings or self.most_earlier else 0
        while self._left_tokens > most:
            self._drop(next(iter(self._left)))

    def _add(self, rollout: EngineRollout) -> None:
        """Put a text behind those that left, unless it is in one of them."""
        text = rollout.tokens(rollout.prompt_length, rollout.known)[-self._row_tokens :]
        if text.tobytes() not in self._recent.tobytes():
            texts = np.concatenate([self._recent, text, np.array([NO_TOKEN], np.int32)])
            self._recent = texts[-self._row_tokens :]

    def offer(self, texts: Iterable[tuple[bytes, bytes]], limits: EngineLimits) -> None:
        """Keep responses to prompts that were sampled elsewhere, beside those sampled here.

        Args:
            texts: the tokens of a prompt, and of a response to it.

        Raises:
            RequestRejected: a text is none of the model's tokens. Nothing of the call is taken.
        """
        for prompt, responses in checked_texts(texts, limits).items():
            both = dict.fromkeys((*responses, *(self._earlier.of(prompt) or ())))
            self._keep(prompt, tuple(both)[:MOST_OF_PROMPT])

    def forget(self) -> None:
        """Drop the texts of rollouts that left: other weights say other things.

        With "epochs" they are still worth something where nothing newer is known.
        """
        for key in tuple(self._left):
            self._drop(key)

    def _drop(self, key: PromptKey) -> None:
        self._left_tokens -= self._left.pop(key)
        group = self._groups.pop(key)
        if self.most_earlier:
            texts = (bytes(each.transcript.tokens) for each in _longest_first(group))
            self._keep(key[-1], tuple(filter(None, texts))[:MOST_OF_PROMPT])

    def _keep(self, prompt: bytes, texts: tuple[bytes, ...]) -> None:
        if texts:
            self._earlier.keep(prompt, texts, sum(map(len, texts)) // 4)

    def pack(self, rollouts: Sequence[EngineRollout], rows: int) -> NDArray[np.int32]:
        """Gather the input of a verification, a row per rollout and then unused ones.

        Returns:
            [rows, row_tokens]: the newest tokens, then texts, each followed by NO_TOKEN.
            Where places match equally well, the last one is proposed: so responses to other
            prompts come first, then the rollout's own text, those of earlier epochs, and of the
            siblings' the longest comes last.
        """
        packed = np.full((rows, self._row_tokens), NO_TOKEN, np.int32)
        packed[:, :DRAFT_CONTEXT] = _NO_CONTEXT
        for row, rollout in zip(packed, rollouts, strict=False):
            newest = rollout.tokens(max(0, rollout.known - DRAFT_CONTEXT), rollout.known)
            row[DRAFT_CONTEXT - len(newest) : DRAFT_CONTEXT] = newest
            room = len(row)
            for text in self._texts(rollout, room - DRAFT_CONTEXT - 1):
                text = text[-(room - DRAFT_CONTEXT - 1) :]
                row[room - 1 - len(text) : room - 1] = text
                room -= len(text) + 1
                if room <= DRAFT_CONTEXT + 1:
                    break
            others = self._recent[-(room - DRAFT_CONTEXT) :] if room > DRAFT_CONTEXT else ()
            row[room - len(others) : room] = others
        return packed

    def _texts(self, rollout: EngineRollout, most: int) -> Iterator[NDArray[np.int32]]:
        """Yield the texts that serve a rollout; the best first.

        Of a long response to its prompt it is what lies around the place where the rollout is, of
        its own text the last `most` tokens.
        """
        start = max(0, rollout.prompt_length - DRAFT_CONTEXT)
        part = max(_LEAST_PART, self._row_tokens // _PARTS)
        until = max(rollout.known + part // 2, start + part)
        if self._of_siblings:
            others = [r for r in self._groups[rollout.prompt_key] if r is not rollout]
            for other in _longest_first(others):
                end = min(other.known, until)
                yield other.tokens(max(start, end - part), end)
        if self.most_earlier:
            before = rollout.transcript.between(start, rollout.prompt_length)
            for text in self._earlier.of(rollout.prompt_key[-1]) or ():
                yield unpack_tokens((before + text)[: 4 * (until - start)][-4 * part :])
        if self._own:
            yield rollout.tokens(max(0, rollout.known - most), rollout.known)


def _longest_first(rollouts: Iterable[EngineRollout]) -> list[EngineRollout]:
    return sorted(rollouts, key=lambda r: -r.transcript.num_tokens)


def proposals(newest: Int[Array, "R C"], texts: Int[Array, "R D"]) -> Int[Array, "R W"]:
    """Traced: for each row what follows the place that its newest tokens match best.

    Tokens match up to the second that is unequal, so that a name or a number that is another one
    here does not end the drafts. Of places where as many match, that with the most before the first
    unequal one is best.

    Args:
        newest: the oldest first.

    Returns:
        Drafts, NO_TOKEN behind the last: as many as tokens match, and none where fewer than
        LEAST_MATCH do. A short match is often wrong, and the rows are wanted by others.
    """
    D = texts.shape[1]
    unequal = jnp.zeros(texts.shape, jnp.int32)
    exact, near = unequal, unequal
    for back in range(DRAFT_CONTEXT):
        earlier = jnp.pad(texts, ((0, 0), (back, 0)), constant_values=NO_TOKEN)[:, :D]
        equal = earlier == newest[:, DRAFT_CONTEXT - 1 - back, None]
        unequal += ~equal
        exact += unequal == 0
        near += equal & (unequal <= 1)
    following = jnp.pad(texts, ((0, 0), (0, MOST_DRAFTS)), constant_values=NO_TOKEN)
    usable = (near >= LEAST_MATCH) & (following[:, 1 : D + 1] != NO_TOKEN)
    place = jnp.arange(D)[None, :]
    rank = (near * (DRAFT_CONTEXT + 1) + exact) * D + place
    best = jnp.where(usable, rank, -1).argmax(axis=1)
    columns = best[:, None] + 1 + jnp.arange(MOST_DRAFTS)[None, :]
    drafts = jnp.take_along_axis(following, columns, axis=1)
    on = usable.any(axis=1)[:, None] & (jnp.cumprod(drafts != NO_TOKEN, axis=1) > 0)
    on &= jnp.arange(MOST_DRAFTS)[None, :] < jnp.take_along_axis(near, best[:, None], axis=1)
    return jnp.where(on, drafts, NO_TOKEN)

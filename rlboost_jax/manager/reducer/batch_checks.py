"""Checks of a trainer's requests and answers. A bad one is refused before any of it is done."""

from collections.abc import Sequence

import numpy as np

from rlboost_jax.manager.state.rollouts import BatchRecord
from rlboost_jax.messages import (
    Answer,
    BeginBatch,
    ExtendBatch,
    PromptRequest,
    Sampling,
    unpack_tokens,
)
from rlboost_jax.sequences.identities import Batch
from rlboost_jax.trust.peer_limits import MAX_OPEN_BATCHES, MAX_TURNS

MAX_ROLLOUTS = 2**20  # of all open batches; each costs the manager about a kilobyte


class ProtocolError(ValueError):
    """The trainer asked for something impossible. Its stream ends with the reason."""


def check_begin(begin: BeginBatch, others: Sequence[BatchRecord], *, slot_tokens: int) -> None:
    """Raise ProtocolError for a batch that cannot be worked on.

    Args:
        others: that stay open beside it, the oldest first.
        slot_tokens: longest prompt plus response.
    """
    if len(others) >= MAX_OPEN_BATCHES:
        raise ProtocolError(
            f"batch {begin.batch} is begun while {len(others)} are open, the oldest "
            f"{others[0].begin.batch}; the limit is {MAX_OPEN_BATCHES} at once, lower algorithm.lag"
        )
    if begin.group_size < 1 or not begin.prompts:
        raise ProtocolError(f"batch {begin.batch} asks for no tokens at all")
    if begin.turns > MAX_TURNS:
        raise ProtocolError(
            f"batch {begin.batch} lets a response have {begin.turns:,} turns; the limit is "
            f"{MAX_TURNS:,}, lower environment.max_turns"
        )
    asked = len(begin.prompts) * begin.group_size
    _check_number(begin.batch, asked, others)
    _check_prompts(begin.batch, begin.prompts, begin.sampling, slot_tokens)


def check_extension(
    batch: BatchRecord, extend: ExtendBatch, others: Sequence[BatchRecord], *, slot_tokens: int
) -> None:
    """Raise ProtocolError if a batch has no room for the prompts or responses are too many.

    Args:
        others: that are open, too.
        slot_tokens: as for `check_begin`.
    """
    begin = batch.begin
    sampling = extend.sampling or begin.sampling
    if extend.samples > begin.group_size:
        raise ProtocolError(
            f"batch {extend.batch} is extended by {extend.samples} responses to a prompt; its "
            f"groups have {begin.group_size}"
        )
    asked = len(batch.rollouts)
    for prompt in extend.prompts:
        wanted = prompt.tokens, sampling
        for sample in batch.samples_of(prompt, extend.samples):
            known = batch.rollout_of(sample)
            if known is None:
                asked += 1
            elif (known.sequences.first_prompt, known.sequences.sampling) != wanted:
                raise ProtocolError(
                    f"batch {extend.batch} has a prompt {prompt.prompt} already, and it is "
                    "another, or sampled in another way"
                )
    _check_number(extend.batch, asked, others)
    _check_prompts(extend.batch, extend.prompts, sampling, slot_tokens)


def check_answer(answer: Answer, *, vocab_size: int) -> None:
    """Raise ProtocolError for an environment's answer that no response can continue with."""
    name = f"the answer to turn {answer.turn} of sample {answer.work.sample}"
    if not (answer.tokens or answer.over or answer.restart):
        raise ProtocolError(f"{name} is empty; give it a token, or say that it is over")
    if answer.restart and (answer.tokens or answer.over or answer.prompt):
        raise ProtocolError(f"{name} has it begin anew, and go on; say one of the two")
    if answer.prompt and not answer.over:
        raise ProtocolError(f"{name} begins another sequence; say that this one is over")
    for data in (answer.tokens, answer.prompt):
        if len(data) % 4:
            raise ProtocolError(f"{name} has {len(data)} bytes; a token is 4 bytes")
        tokens = unpack_tokens(data)
        outside = tokens[(tokens < 0) | (tokens >= vocab_size)]
        if np.size(outside):
            raise ProtocolError(
                f"{name} has token {outside[0]}; the vocabulary is 0..{vocab_size - 1}"
            )


def _check_number(batch: Batch, asked: int, others: Sequence[BatchRecord]) -> None:
    """Raise ProtocolError if a batch and the other open ones have too many responses."""
    whole = asked + sum(len(other.rollouts) for other in others)
    if whole > MAX_ROLLOUTS:
        beside = f" beside {whole - asked:,} of open batches" if others else ""
        raise ProtocolError(
            f"batch {batch} asks for {asked:,} responses{beside}; the limit is {MAX_ROLLOUTS:,}, "
            "lower learner.prompts_per_step"
        )


def _check_prompts(
    batch: Batch, prompts: Sequence[PromptRequest], sampling: Sampling, slot_tokens: int
) -> None:
    """Raise ProtocolError for prompts that a batch cannot have."""
    if len({(p.purpose, p.prompt) for p in prompts}) != len(prompts):
        raise ProtocolError(f"batch {batch} names a prompt twice")
    for prompt in prompts:
        length = len(prompt.tokens) // 4 + sampling.max_tokens
        if length > slot_tokens or sampling.max_tokens < 1 or len(prompt.tokens) % 4:
            raise ProtocolError(
                f"prompt {prompt.prompt} of {len(prompt.tokens) / 4:g} tokens with "
                f"{sampling.max_tokens} to sample does not fit a slot of {slot_tokens}; raise "
                "engine.max_prompt_tokens or lower sampling.max_response_tokens"
            )
        if not prompt.tokens:
            raise ProtocolError(f"prompt {prompt.prompt} of batch {batch} has no tokens")

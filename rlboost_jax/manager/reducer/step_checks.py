"""What a trainer may ask of a step. Anything else is refused before any of it is done."""

from collections.abc import Sequence

from rlboost_jax.manager.state.rollouts import Step
from rlboost_jax.messages import BeginStep, ExtendStep, PromptRequest, Sampling

MAX_ROLLOUTS = 2**20  # of a step; each costs the manager about a kilobyte


class ProtocolError(ValueError):
    """The trainer asked for something impossible. It is told the reason and hung up on."""


def check_begin(begin: BeginStep, *, slot_tokens: int) -> None:
    """Raise ProtocolError for a step that cannot be worked on.

    Args:
        slot_tokens: longest prompt plus response.
    """
    if begin.group_size < 1 or not begin.prompts:
        raise ProtocolError(f"step {begin.step} asks for no tokens at all")
    asked = len(begin.prompts) * begin.group_size
    _check_prompts(begin.step, begin.prompts, begin.sampling, asked, slot_tokens)


def check_extension(step: Step, extend: ExtendStep, *, slot_tokens: int) -> None:
    """Raise ProtocolError where a step has no room for more prompts, or has others by their number.

    Args:
        slot_tokens: as for `check_begin`.
    """
    begin = step.begin
    sampling = extend.sampling or begin.sampling
    if extend.samples > begin.group_size:
        raise ProtocolError(
            f"step {extend.step} is extended by {extend.samples} responses to a prompt; its "
            f"groups have {begin.group_size}"
        )
    asked = len(step.rollouts)
    for prompt in extend.prompts:
        wanted = prompt.tokens, sampling
        for sample in step.samples_of(prompt, extend.samples):
            known = step.rollout_of(sample)
            if known is None:
                asked += 1
            elif (known.prompt_tokens, known.sampling) != wanted:
                raise ProtocolError(
                    f"step {extend.step} has a prompt {prompt.prompt} already, and it is "
                    "another, or sampled in another way"
                )
    _check_prompts(extend.step, extend.prompts, sampling, asked, slot_tokens)


def _check_prompts(
    step: int, prompts: Sequence[PromptRequest], sampling: Sampling, asked: int, slot_tokens: int
) -> None:
    """Raise ProtocolError for prompts that a step cannot have.

    Args:
        asked: responses of the whole step.
    """
    if asked > MAX_ROLLOUTS:
        raise ProtocolError(
            f"step {step} asks for {asked:,} responses; the limit is {MAX_ROLLOUTS:,}, lower "
            "learner.prompts_per_step"
        )
    if len({(p.purpose, p.prompt) for p in prompts}) != len(prompts):
        raise ProtocolError(f"step {step} names a prompt twice")
    for prompt in prompts:
        length = len(prompt.tokens) // 4 + sampling.max_tokens
        if length > slot_tokens or sampling.max_tokens < 1 or len(prompt.tokens) % 4:
            raise ProtocolError(
                f"prompt {prompt.prompt} of {len(prompt.tokens) / 4:g} tokens with "
                f"{sampling.max_tokens} to sample does not fit a slot of {slot_tokens}; raise "
                "engine.max_prompt_tokens or lower sampling.max_response_tokens"
            )
        if not prompt.tokens:
            raise ProtocolError(f"prompt {prompt.prompt} of step {step} has no tokens")

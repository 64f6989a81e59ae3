"""Settings of how responses are sampled, to train on and to evaluate."""

from dataclasses import dataclass
from typing import Literal

from rlboost_jax.settings.setting import setting

NoiseKind = Literal["inverse_cdf", "tree"]


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How responses are sampled for training."""

    # Greedy responses of a group are equal and teach nothing.
    temperature: float = setting(1.0, "temperature: the divisor of the logits", above=0)
    top_p: float = setting(1.0, "share of the probability that is kept; 1: all", above=0, at_most=1)
    top_k: int = setting(0, "tokens that are kept; 0: all", at_least=0)
    max_response_tokens: int = setting(200, "a longer response is cut off here", at_least=1)
    noise: NoiseKind = setting(
        "inverse_cdf",
        "how a token's noise selects it",
        note="inverse_cdf inverts the distribution over ids; tree chooses among 16 sums on each "
        "level of a tree, so that policies that differ little choose the same token about as often "
        "as any noise allows. Both sample the same distribution, with other tokens.",
        may_change="never",
    )

    @property
    def truncated(self) -> bool:
        """Whether sampling leaves out any part of the softmax."""
        return self.top_p < 1 or self.top_k > 0


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Held-out prompts ride on a step whose version they measure, and queue behind its own."""

    every_steps: int = setting(
        10,
        "steps between evaluations; there is one before the last update and after it; 0: never",
        at_least=0,
    )
    num_prompts: int = setting(
        128, "prompts of an evaluation; of a generated task at most task.num_heldout", at_least=1
    )
    samples: int = setting(1, "responses to each prompt: the k of mean@k and pass@k", at_least=1)
    temperature: float = setting(
        0.0, "temperature: the divisor of the logits; 0: greedy", at_least=0
    )
    # Engines are built for it, and steps that are done again would not find those of before.
    top_p: float = setting(
        1.0,
        "share of the probability that is kept; 1: all",
        note="Of evaluation alone: sampling.top_p cuts what is trained on. "
        "No effect on greedy evaluations.",
        above=0,
        at_most=1,
        may_change="never",
    )
    top_k: int = setting(0, "tokens that are kept; 0: all", at_least=0, may_change="never")
    keep_best: bool = setting(False, "the checkpoint with the highest accuracy is never deleted")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, without noise."""
        return self.temperature == 0

    @property
    def truncated(self) -> bool:
        """Whether sampling leaves out any part of the softmax."""
        return self.top_p < 1 or self.top_k > 0

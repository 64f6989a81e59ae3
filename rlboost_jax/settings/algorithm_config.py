"""Settings of what is optimised."""

from dataclasses import dataclass
from typing import Literal, cast, get_args

from rlboost_jax.settings.outside import Outside, outside
from rlboost_jax.settings.setting import FROM_PRESET, setting

AlgorithmName = Literal[
    "grpo",
    "dr_grpo",
    "dapo",
    "gspo",
    "rloo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "cispo",
    "sapo",
    "ppo",
]
GroupAdvantage = Literal[  # compares the rewards of one prompt
    "group_std",
    "group_mean",
    "leave_one_out",
    "pass_at_k",
]
TokenAdvantage = Literal["return", "gae"]
BuiltInAdvantage = Literal[GroupAdvantage, TokenAdvantage]
ComparingAdvantage = GroupAdvantage | Outside
Advantage = BuiltInAdvantage | Outside
Deviation = Literal["population", "sample"]
TurnAdvantages = Literal["episode", "turn", "both"]
OldPolicy = Literal["behaviour", "recomputed"]
RatioLevel = Literal["token", "sequence", "sequence_token"]
BuiltInSurrogate = Literal["clip", "cispo", "sapo", "reinforce"]
Surrogate = BuiltInSurrogate | Outside
LossAggregation = Literal["token_mean", "sequence_mean", "sequence_sum", "constant"]
KlEstimator = Literal["k1", "k2", "k3"]
KlPlacement = Literal["loss", "reward"]
KlGradient = Literal["own", "straight_through", "importance"]
BuiltInCorrection = Literal["none", "truncate", "mask", "reject"]
ActiveCorrection = Literal["truncate", "mask", "reject"] | Outside
Correction = Literal["none"] | ActiveCorrection
DynamicSamplingBy = Literal["first_function", "reward"]
CorrectionLevel = Literal["token", "sequence", "geometric"]


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """What is optimised, choices that combine freely; `algorithm_checks.py` says which do not.

    A name stands for the choices of a paper (`algorithms/`, a module for each); a field that the
    configuration leaves at None takes that paper's. `config.json` in the workdir has the result.
    Formulas: docs/reference/algorithms.md.
    """

    name: AlgorithmName = setting("grpo", "preset of the choices below; nothing else depends on it")
    group_size: int = setting(FROM_PRESET, "responses per prompt", at_least=1)
    advantage: str = setting(
        FROM_PRESET,
        "what a response's reward is compared with",
        choices=get_args(BuiltInAdvantage),
        outside=True,
    )
    deviation: Deviation = setting(
        FROM_PRESET,
        "what group_std divides the sum of squares by: the size of the group, or one less",
    )
    turn_advantages: TurnAdvantages = setting(
        "episode",
        "what is compared within a group: whole episodes, their turns, or both, added up",
        note="Turn k of an episode is compared with turn k of the others, by the rewards from it "
        "on; docs/reference/algorithms.md, Turns.",
    )
    turn_discount: float = setting(
        1.0, "γ per turn, of turn_advantages", above=0, at_most=1, may_change="from its step"
    )
    whiten: bool = setting(
        FROM_PRESET, "advantages of all tokens of the batch get mean 0 and deviation 1"
    )
    discount: float = setting(FROM_PRESET, "γ per token, of return and gae", above=0, at_most=1)
    gae_lambda: float = setting(FROM_PRESET, "λ of gae, per token", at_least=0, at_most=1)
    old_policy: OldPolicy = setting(
        FROM_PRESET, "denominator of the ratio: the engine's log-probabilities, or the learner's"
    )
    ratio_level: RatioLevel = setting(
        FROM_PRESET, "level of the ratio: a token, or its whole sequence"
    )
    surrogate: str = setting(
        FROM_PRESET,
        "objective of a token, from its ratio and advantage",
        choices=get_args(BuiltInSurrogate),
        outside=True,
    )
    clip_low: float = setting(
        FROM_PRESET,
        "ratios range over [1 - clip_low, 1 + clip_high]",
        above=0,
        at_most=1,
        may_change="from its step",
    )
    clip_high: float = setting(
        FROM_PRESET,
        "ratios range up to 1 + clip_high: an offset, not the bound itself",
        above=0,
        may_change="from its step",
    )
    dual_clip: float = setting(
        FROM_PRESET,
        "most a ratio counts where the advantage is negative; 0: no bound",
        at_least=0,
        may_change="from its step",
    )
    sapo_temperature_positive: float = setting(
        FROM_PRESET, "τ of SAPO's gate where the advantage is positive", above=0
    )
    sapo_temperature_negative: float = setting(FROM_PRESET, "τ of SAPO's gate elsewhere", above=0)
    loss_aggregation: LossAggregation = setting(
        FROM_PRESET, "how losses of tokens become one of the update"
    )
    kl_coefficient: float = setting(
        FROM_PRESET,
        "β, the weight of the KL to the starting model; 0: none is kept",
        at_least=0,
        may_change="from its step",
    )
    kl_estimator: KlEstimator = setting(FROM_PRESET, "estimator of the KL to the starting model")
    kl_placement: KlPlacement = setting(FROM_PRESET, "what the KL is a term of")
    kl_gradient: KlGradient = setting(FROM_PRESET, "gradient of the KL in the loss")
    entropy_coefficient: float = setting(
        0.0,
        "weight of the policy's entropy, which lowers the loss: per token, added up as the loss is",
        at_least=0,
        may_change="from its step",
    )
    correction: str = setting(
        FROM_PRESET,
        "what is done where engine and learner disagree about a probability",
        choices=get_args(BuiltInCorrection),
        outside=True,
    )
    correction_level: CorrectionLevel = setting(FROM_PRESET, "level of the ratio learner / engine")
    correction_low: float = setting(
        FROM_PRESET,
        "lowest ratio that mask and reject keep",
        at_least=0,
        may_change="from its step",
    )
    correction_high: float = setting(
        FROM_PRESET, "highest ratio kept; truncate cuts here", above=0, may_change="from its step"
    )
    overlong_penalty: float = setting(
        FROM_PRESET,
        "taken from the reward of a response without an end; 0: nothing",
        at_least=0,
        may_change="from its step",
    )
    overlong_band: float = setting(
        FROM_PRESET,
        "share of sampling.max_response_tokens over which the penalty rises",
        above=0,
        at_most=1,
        may_change="from its step",
    )
    overlong_filter: bool = setting(FROM_PRESET, "responses that were cut off are not trained on")
    dynamic_sampling: bool = setting(FROM_PRESET, "a batch is made of groups whose rewards differ")
    dynamic_sampling_by: DynamicSamplingBy = setting(
        "first_function",
        "whose rewards have to differ: the first reward function's too, or the weighted sum alone",
        note="An environment is the first function of its runs. By the sum a bonus for the format "
        "lets groups through whose answers are all wrong.",
    )
    dynamic_sampling_factor: float = setting(
        FROM_PRESET, "most prompts of a batch, over learner.prompts_per_step", at_least=1
    )
    mini_batches: int = setting(
        FROM_PRESET, "updates that a batch is divided into", unit="updates", at_least=1
    )
    epochs: int = setting(FROM_PRESET, "passes over a batch", at_least=1)
    lag: int = setting(
        0,
        "updates between the version that samples a batch and the one that trains on it",
        unit="versions",
        note="Batch b is sampled from version max(0, b - lag), so that generation goes on while "
        "the learner trains; docs/how-to/lag.md.",
        at_least=0,
        at_most=8,
    )
    critic_learning_rate: float = setting(
        FROM_PRESET, "learning rate of gae's critic (AdamW)", above=0, may_change="from its step"
    )
    value_clip: float = setting(
        FROM_PRESET,
        "largest change of a value in a batch; 0: no limit",
        unit="reward",
        at_least=0,
        may_change="from its step",
    )
    routing_replay: bool = setting(
        FROM_PRESET, "the learner sends tokens to the experts that they were sampled with"
    )

    @property
    def chosen_advantage(self) -> Advantage:
        found = outside("algorithm.advantage", self.advantage)
        return found or cast(BuiltInAdvantage, self.advantage)

    @property
    def chosen_surrogate(self) -> Surrogate:
        found = outside("algorithm.surrogate", self.surrogate)
        return found or cast(BuiltInSurrogate, self.surrogate)

    @property
    def chosen_correction(self) -> Correction:
        found = outside("algorithm.correction", self.correction)
        return found or cast(BuiltInCorrection, self.correction)

    @property
    def outside_functions(self) -> tuple[Outside, ...]:
        """The functions of other packages that it is made of."""
        chosen = (self.chosen_advantage, self.chosen_surrogate, self.chosen_correction)
        return tuple(each for each in chosen if isinstance(each, Outside))

    @property
    def compares_groups(self) -> bool:
        """Whether advantages compare the responses of one prompt."""
        return self.advantage not in get_args(TokenAdvantage)

    @property
    def has_critic(self) -> bool:
        return self.advantage == "gae"

    @property
    def has_reference(self) -> bool:
        """Whether a copy of the starting model is kept for a KL term."""
        return self.kl_coefficient > 0

    @property
    def kl_in_reward(self) -> bool:
        return self.has_reference and self.kl_placement == "reward"

    @property
    def updates_per_batch(self) -> int:
        return self.mini_batches * self.epochs

    @property
    def needs_batch(self) -> bool:
        """Whether advantages are not final before the whole batch is there: they are whitened, or
        a critic's, which are 0 where all rewards of the batch are equal."""
        return self.whiten or self.has_critic

    @property
    def has_evaluation_pass(self) -> bool:
        """Whether responses are evaluated as they arrive, apart from their gradients: for
        advantages that rewards alone do not give, or because their update comes later."""
        return self.whiten or self.kl_in_reward or self.has_critic or self.updates_per_batch > 1

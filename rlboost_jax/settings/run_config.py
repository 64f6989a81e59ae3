"""The settings of a run: its sections, and what follows from several of them.

Modules receive the record of their own section and never the whole. No JAX in this package: the
manager reads it too.
"""

from dataclasses import dataclass, field

from rlboost_jax.sequences.shared_limits import MAX_SEED, MAX_STEPS
from rlboost_jax.settings.algorithm_config import AlgorithmConfig
from rlboost_jax.settings.data_config import DataConfig, TaskConfig
from rlboost_jax.settings.distillation_config import DistillationConfig
from rlboost_jax.settings.engine_config import EngineConfig
from rlboost_jax.settings.environment_config import EnvironmentConfig
from rlboost_jax.settings.fleet_config import FleetConfig
from rlboost_jax.settings.learner_config import LearnerConfig
from rlboost_jax.settings.manager_config import ManagerConfig
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.observe_config import ObserveConfig
from rlboost_jax.settings.outside import Outside
from rlboost_jax.settings.rewards_config import RewardsConfig
from rlboost_jax.settings.sampling_config import EvaluationConfig, SamplingConfig
from rlboost_jax.settings.setting import section, setting
from rlboost_jax.settings.speculation_config import SpeculationConfig
from rlboost_jax.settings.warmup_config import WarmupConfig
from rlboost_jax.settings.weights_config import CheckpointConfig, WeightsConfig


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run, checked. The functions of `config_loading.py` are the only makers."""

    seed: int = setting(0, "seed of every random choice of the run", at_least=0, at_most=MAX_SEED)
    deterministic: bool = setting(True, "same bits whatever the fleet does")
    num_steps: int = setting(
        100,
        "steps of the run, each with one batch; 0: the supervised updates of warmup alone",
        unit="steps",
        at_least=0,
        at_most=MAX_STEPS,
        may_change="from its step",
    )
    compile_cache_dir: str = setting(
        "",
        'compiled programs; "": $JAX_COMPILATION_CACHE_DIR, or ~/.cache/rlboost_jax',
        note="Processes of one host that share it compile and check each program once.",
        may_change="at once",
    )
    model: ModelConfig
    task: TaskConfig
    data: DataConfig
    rewards: RewardsConfig
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    warmup: WarmupConfig
    algorithm: AlgorithmConfig
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    sampling: SamplingConfig
    learner: LearnerConfig
    engine: EngineConfig
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    manager: ManagerConfig = section(may_change="at once")
    weights: WeightsConfig
    checkpoint: CheckpointConfig = section(may_change="at once")
    fleet: FleetConfig = section(may_change="at once")
    evaluation: EvaluationConfig = section(may_change="from its step")
    observe: ObserveConfig = section(may_change="at once")

    @property
    def outside_functions(self) -> tuple[Outside, ...]:
        """What the run takes from other packages in place of built-in choices."""
        return (*self.algorithm.outside_functions, *self.fleet.outside_functions)

    @property
    def num_updates(self) -> int:
        """Number of optimizer steps of the whole run; schedules count in these."""
        return self.num_steps * self.algorithm.updates_per_batch

    @property
    def truncated_sampling(self) -> bool:
        """Whether engines must be able to sample from a part of the softmax."""
        return self.sampling.truncated or self.evaluation.truncated

    @property
    def slot_tokens(self) -> int:
        """Most tokens of a slot: prompt and response, with the environment's text between."""
        return (
            self.engine.max_prompt_tokens
            + self.sampling.max_response_tokens
            + self.environment.max_given_tokens
        )

    @property
    def row_tokens(self) -> int:
        """Tokens of the longest packed rows."""
        return self.learner.row_tokens or self.slot_tokens

    @property
    def pack_rows(self) -> int:
        """Number of rows in a packed batch of the longest rows."""
        data, fsdp, _ = self.learner.mesh
        if self.learner.pack_tokens:
            return data * fsdp * (self.learner.pack_tokens // self.row_tokens)
        return self.learner.pack_rows

"""The settings of a run as frozen records, one per section of the configuration file.

`configs/base.py` lists the same fields with their units and defaults. Modules receive the
record of their own section and never the whole. No JAX here: the manager reads this too.
"""

from dataclasses import dataclass, field
from typing import Final

# Matrices of a layer, as Hugging Face calls them, that an adapter can be added to.
ATTENTION_TARGETS: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
LORA_TARGETS: Final = (*ATTENTION_TARGETS, "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters, which are then all that is trained; see docs/lora.md."""

    rank: int = 0  # of an adapter; 0: none, all parameters are trained
    alpha: float = 32.0  # an adapter's product counts alpha / rank
    targets: tuple[str, ...] = LORA_TARGETS  # of these, the matrices that have one

    @property
    def scale(self) -> float:
        """Factor of an adapter's product."""
        return self.alpha / self.rank


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One decoder; which checkpoints are described by what is in `config/huggingface.py`."""

    source: str  # "" from scratch | folder of a checkpoint | name on the Hugging Face hub
    family: str  # Hugging Face's model type, under which it is exported
    vocab_size: int
    embed_dim: int
    num_layers: int
    num_query_heads: int
    num_key_heads: int
    head_dim: int
    hidden_dim: int
    attention_bias: bool  # of query, key and value
    output_bias: bool  # of attention's output
    qk_norm: bool
    query_scalar: float  # scores are divided by its root; 0: head_dim
    attention_soft_cap: float  # of scores; 0: none
    final_soft_cap: float  # of logits; 0: none
    sliding_window: int  # tokens that a layer "L" sees, its own included
    attention_pattern: str  # "G" sees all before, "L" a window; repeated over the layers
    rope_theta: float
    local_rope_theta: float  # of layers "L", which are then not scaled; 0: as the others
    rope_scaling: str  # "" | "linear" | "llama3" | "yarn"
    rope_factor: float  # by which positions are divided, where they are
    rope_low_frequency_factor: float  # llama3, yarn: those of fewer turns are divided …
    rope_high_frequency_factor: float  # … those of more are not; turns in so many positions:
    rope_original_positions: int  # llama3, yarn
    rope_attention_factor: float  # yarn: of the rotated queries and keys
    norm_epsilon: float
    norm_offset: bool  # norms multiply by 1 + scale
    post_norms: bool  # also after attention and feed-forward layer
    activation: str  # "silu" | "gelu_tanh"
    scale_embeddings: bool  # by the root of embed_dim
    tie_embeddings: bool
    num_experts: int  # 0: the feed-forward layer is dense
    experts_per_token: int
    expert_dim: int
    normalize_experts: bool  # the weights of a token's experts add up to 1
    dtype: str  # of activations in learner and engine; what is trained is float32 in the learner
    lora: LoraConfig = field(default_factory=LoraConfig)

    def adapts(self, target: str) -> bool:
        """Whether the matrices of that name have adapters."""
        return self.lora.rank > 0 and target in self.lora.targets

    @property
    def layer_windows(self) -> tuple[int, ...]:
        """Tokens that each layer sees; 0: all before."""
        pattern = self.attention_pattern
        return tuple(
            self.sliding_window if pattern[i % len(pattern)] == "L" else 0
            for i in range(self.num_layers)
        )

    @property
    def attention_scale(self) -> float:
        """Factor of the scores."""
        return float((self.query_scalar or self.head_dim) ** -0.5)


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    name: str  # a generated task, see rlboost_jax/data/tasks; "dataset": see DataConfig
    mean_length: float  # how long the worked problems are, in the task's own unit
    max_length: int  # longest problem, same unit
    num_heldout: int  # prompts kept for evaluation, disjoint from training


@dataclass(frozen=True, kw_only=True)
class FilterConfig:
    """Keeps the rows of which all that is given here is true; see docs/data.md."""

    column: str
    pattern: str = ""  # regular expression found somewhere in the text of the value
    one_of: tuple[str | int | float | bool | None, ...] = ()  # the value is one of these
    at_least: float | None = None
    at_most: float | None = None
    exclude: bool = False  # keep the other rows instead


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where prompts come from, with `task.name = "dataset"`; see docs/data.md."""

    preset: str  # "" or a name of config/data_presets.py, which fills fields that are left empty
    source: str  # file, folder, pattern with *, or a name on the Hugging Face hub
    format: str  # "auto" | "jsonl" | "parquet" | "arrayrecord" | "huggingface"
    subset: str  # of a Hugging Face data set
    split: str  # same; "" takes "train"
    heldout_source: str  # "" takes `heldout_split` or a share of the rows
    heldout_subset: str  # of `heldout_source`
    heldout_split: str
    heldout_share: float  # of the rows, by a hash of the prompt, where they have no own place
    prompt_column: str
    messages_column: str  # of chats, in place of prompt_column
    template: str  # of the prompt, with columns in braces; "" is prompt_column as it is
    answer_column: str  # reaches rewards as `answer`; "" if there is none
    answer_format: str  # "" | "after_hashes" | "boxed": how the answer stands in its column
    reward_columns: tuple[str, ...]  # reach rewards under their own names
    filters: tuple[FilterConfig, ...]
    bad_rows: str  # "skip" | "error": what a row does that cannot be read
    max_prompt_tokens: int  # longer ones are left out; 0: engine.max_prompt_tokens
    tokenizer: str  # "bytes", or a folder or hub name; "" is model.source
    chat: str  # "auto" | "always" | "never": whether prompts go through the chat template
    chat_template: str  # Jinja; "" takes the tokenizer's
    system_prompt: str  # first message of each chat
    stop_ids: tuple[int, ...]  # besides those of tokenizer and generation configuration


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """One term of a response's reward; see docs/rewards.md."""

    name: str  # built in (rlboost_jax/rewards/builtin.py), or "package.module:function"
    label: str = ""  # what records call it, and no other of the run; "" is its name
    weight: float = 1.0
    options: dict[str, bool | int | float | str] = field(default_factory=dict)
    time_limit_seconds: float = 0.0  # 0: rewards.time_limit_seconds

    @property
    def shown_as(self) -> str:
        return self.label or self.name


@dataclass(frozen=True, kw_only=True)
class RewardsConfig:
    functions: tuple[RewardConfig, ...]  # () takes those of data.preset
    workers: int  # processes that reward functions run in
    time_limit_seconds: float  # of one function for one response
    memory_mb: int  # that one call may allocate
    fallback: float  # what a function that failed is taken to have returned
    tolerated_failures: float  # share of a step's responses; with more the run ends
    sandbox: str  # "required" | "best_effort": whether code runs where it cannot be contained


@dataclass(frozen=True, kw_only=True)
class WarmupConfig:
    """Supervised updates before reinforcement learning, so that a from-scratch model can start."""

    max_updates: int  # of the first phase; 0 skips the warm-up
    target_loss: float  # nats per token at which the first phase ends
    habit_updates: int  # length of the second phase
    worked_fraction: float  # of worked answers in the first phase; the rest are guesses
    habit_worked_fraction: float  # same, second phase
    learning_rate: float
    habit_learning_rate: float


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """What is optimised, choices that combine freely; `validate_algorithm.py` says which do not.

    A name stands for the choices of a paper (`presets.py`); a field that the configuration
    leaves at None takes the named paper's. Formulas: `docs/algorithms.md`.
    """

    name: str  # a preset; nothing but the choices below is computed from it
    group_size: int  # responses per prompt
    advantage: str  # "group_std" | "group_mean" | "leave_one_out" | "return" | "gae"
    deviation: str  # of "group_std": "population" (n) | "sample" (n - 1)
    whiten: bool  # advantages of all tokens of the batch to mean 0, deviation 1
    discount: float  # γ of "return" and "gae", per token
    gae_lambda: float  # λ of "gae"
    old_policy: str  # denominator of the ratio: "behaviour" (the engine's) | "recomputed"
    ratio_level: str  # "token" | "sequence" | "sequence_token"
    surrogate: str  # "clip" | "cispo" | "sapo" | "reinforce"
    clip_low: float  # ratio range is [1 - clip_low, 1 + clip_high]
    clip_high: float
    dual_clip: float  # most a ratio counts where the advantage is negative; 0: no such bound
    sapo_temperature_positive: float  # τ of SAPO's gate where the advantage is positive
    sapo_temperature_negative: float  # … and elsewhere
    loss_aggregation: str  # "token_mean" | "sequence_mean" | "sequence_sum" | "constant"
    kl_coefficient: float  # β, nats to reward or loss; 0 keeps no reference model
    kl_estimator: str  # "k1" | "k2" | "k3"
    kl_placement: str  # "loss" | "reward"
    kl_gradient: str  # in the loss: "own" | "straight_through" | "importance"
    correction: str  # engine against learner: "none" | "truncate" | "mask" | "reject"
    correction_level: str  # "token" | "sequence" | "geometric"
    correction_low: float  # least ratio old / behaviour that "mask" and "reject" let through
    correction_high: float  # most; "truncate" cuts here
    overlong_penalty: float  # taken from the reward of a response without an end; 0: none
    overlong_band: float  # share of max_response_tokens over which the penalty rises
    overlong_filter: bool  # responses cut off at max_response_tokens are not trained on
    dynamic_sampling: bool  # the batch is made of groups whose rewards differ
    dynamic_sampling_factor: float  # most prompts of a step, in units of prompts_per_step
    mini_batches: int  # updates that a batch is divided into
    epochs: int  # passes over the batch
    critic_learning_rate: float  # of "gae"
    value_clip: float  # a value may move this far from the old one, units of reward; 0: freely
    routing_replay: bool  # the learner sends tokens to the experts that they were sampled with

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
    def looks_first(self) -> bool:
        """Whether responses are evaluated as they arrive, apart from their gradients: for
        advantages that rewards alone do not give, or because their update comes later."""
        return self.whiten or self.kl_in_reward or self.has_critic or self.updates_per_batch > 1


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    temperature: float
    top_p: float  # 1 keeps all
    top_k: int  # 0 keeps all
    max_response_tokens: int

    @property
    def truncated(self) -> bool:
        """Whether anything but the whole softmax is sampled from."""
        return self.top_p < 1 or self.top_k > 0


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    prompts_per_step: int
    micro_batch_prompts: int  # groups per micro-batch
    pack_rows: int  # rows of one packed batch
    row_tokens: int  # tokens of a packed row; 0 takes the longest prompt plus response
    row_lengths: int  # lengths of rows to choose from: row_tokens, half of it, …
    pack_tokens: int  # tokens of a packed batch on each device, in place of pack_rows; 0: off
    learning_rate: float
    schedule: str  # "constant" | "linear" | "cosine"
    schedule_warmup_steps: int
    weight_decay: float
    beta1: float
    beta2: float
    max_gradient_norm: float
    tolerated_gap: float  # nats from the learner's log-probabilities; 0: by precision
    guard_gradient_norm: float  # an update beyond a guard is not applied and ends the run; 0: off
    guard_kl: float  # nats per token
    mesh: tuple[int, int, int]  # devices along (data, fsdp, tensor)
    device_gb: float  # GB (10^9 bytes) that each of them gives the trainer; 0: only the start knows
    remat: str  # "none" | "dots" | "attention" | "full": what is computed again backwards
    moment_dtype: str  # of AdamW's moments in memory; arithmetic is float32
    moment_memory: str  # "device" | "host"
    attention: str  # "auto" | "paged" (the engine's own order of sums) | "dense" | "chunked" | …
    experts: str  # "auto" | "xla" | "blocks" | "mosaic_gpu": products of groups of rows


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    slots: int  # rollouts decoded together
    page_size: int  # tokens per page
    num_pages: int  # 0 gives every slot its longest rollout, or as many as fit
    memory_fraction: float  # of the device's memory that weights, pool and working space may take
    max_prompt_tokens: int
    token_rows: int  # rows T of a mixed step, and of all where products need it
    steps_per_dispatch: int  # decode steps per program call when nothing is waiting
    attention: str  # implementation of rlboost_kernels, or "auto"
    kv_dtype: str
    tensor_parallel: int  # devices that an engine's weights and pages are split over


@dataclass(frozen=True, kw_only=True)
class ManagerConfig:
    host: str
    port: int  # 0 takes a free one
    lease_seconds: float  # a server silent for longer, or deaf, is lost; at most 2
    renew_seconds: float
    progress_seconds: float  # one that holds work and gives no token for longer is lost
    drain_seconds: float  # a machine that goes later than this works on until then
    max_pending: int  # requests sent to an instance beyond those it runs (Θ)
    balance: bool  # continuous load balancing
    migration: bool  # keep the tokens of rollouts that move
    seeding: bool  # False: reserved engines help only while no instance is ready
    window: str  # "paper" | "model": who decides how long reserved engines seed
    window_initial_seconds: float
    window_eta: float  # η of Algorithm 1
    window_memory: bool
    routing: str  # "pending" | "speed": where rollouts go
    longest_first: bool  # begin with what is expected to be longest, where that is faster


@dataclass(frozen=True, kw_only=True)
class WeightsConfig:
    rollout_dtype: str
    keep_versions: int  # snapshots kept besides those in use
    source: str  # "auto" | "directory" | "http"


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    every_steps: int
    keep: int


@dataclass(frozen=True, kw_only=True)
class ChaosConfig:
    enabled: bool
    seed: int
    kills_per_minute: float  # SIGKILL of a working server
    terms_per_minute: float  # SIGTERM
    joins_per_minute: float  # return of capacity


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    provider: str  # "local" | "none"
    tls: bool  # streams and downloads encrypted, both sides certified by the run's own authority
    max_instances: int  # preemptible instances the provider may start
    sizing: str  # "fixed" | "paper" | "marginal": how many of those are wanted
    worth_per_hour: float  # dollars: what an hour sooner is worth, for "marginal"
    merge_tail: bool  # let instances go that have no work for longer than it takes to start one
    trace: str  # "" | path of a CSV | "synthetic"
    trace_speed: float  # trace seconds per wall second
    synthetic_lifetime_seconds: float  # mean time an instance lives, in trace time
    synthetic_gap_seconds: float  # mean time until lost capacity returns, in trace time
    price_per_hour: float  # dollars, one preemptible instance
    reserved_price_per_hour: float  # dollars, all reserved devices
    egress_dollars_per_gb: float  # of 1e9 bytes of weights that an instance pulls
    orphan_seconds: float
    notices: str  # "auto" | "none" | "aws" | "gcp" | "azure": whose metadata servers watch
    notice_signal: str  # that says: the machine goes in notice_seconds
    notice_seconds: float  # 0: nobody says so with a signal
    chaos: ChaosConfig


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    every_steps: int  # 0: never
    num_prompts: int
    samples: int  # responses to each prompt: the k of mean@k and pass@k
    temperature: float  # 0 is greedy
    keep_best: bool  # the checkpoint with the highest accuracy is never deleted


@dataclass(frozen=True, kw_only=True)
class WandbConfig:
    project: str
    entity: str  # "" is the account's own
    name: str  # of the run; "" is the workdir's
    mode: str  # "online" | "offline"


@dataclass(frozen=True, kw_only=True)
class ObserveConfig:
    live: bool  # redraw a live view when standard output is a terminal
    trackers: tuple[str, ...]  # "tensorboard", "wandb"; files and console are always told
    wandb: WandbConfig
    samples_every_steps: int  # 0: never
    samples_prompts: int  # whose responses are kept, each with its whole group
    profile_step: int  # 0: none; the first step is like no other
    profile_jax: bool  # also trace the learner's own process with jax.profiler


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run, checked. The functions of `load.py` are the only makers."""

    seed: int
    deterministic: bool
    num_steps: int
    compile_cache_dir: str  # "" uses ~/.cache/rlboost_jax
    model: ModelConfig
    task: TaskConfig
    data: DataConfig
    rewards: RewardsConfig
    warmup: WarmupConfig
    algorithm: AlgorithmConfig
    sampling: SamplingConfig
    learner: LearnerConfig
    engine: EngineConfig
    manager: ManagerConfig
    weights: WeightsConfig
    checkpoint: CheckpointConfig
    fleet: FleetConfig
    evaluation: EvaluationConfig
    observe: ObserveConfig

    @property
    def slot_tokens(self) -> int:
        """Longest prompt plus response that a slot holds."""
        return self.engine.max_prompt_tokens + self.sampling.max_response_tokens

    @property
    def row_tokens(self) -> int:
        """Of the longest packed rows."""
        return self.learner.row_tokens or self.slot_tokens

    @property
    def pack_rows(self) -> int:
        """Rows of a packed batch of the longest rows."""
        data, fsdp, _ = self.learner.mesh
        if self.learner.pack_tokens:
            return data * fsdp * (self.learner.pack_tokens // self.row_tokens)
        return self.learner.pack_rows

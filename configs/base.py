"""Every field of a run, with its unit. Other files in this folder change what they need.

Any value can be set from the command line: `--config.learner.prompts_per_step=128`.
The fields are those of `rlboost_jax/config/records.py`, which checks them.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.seed = 0  # names every random choice of the run
    config.deterministic = True  # same bits whatever the fleet does
    config.num_steps = 100  # updates
    config.compile_cache_dir = ""  # compiled programs; "" is ~/.cache/rlboost_jax

    config.model = ConfigDict()
    # A checkpoint to begin with: a folder in Hugging Face's format, or a name on the hub such as
    # "Qwen/Qwen3-0.6B" (with "@revision" if one is meant). The fields that follow, all but dtype,
    # are then read from its config.json, whatever they are set to here.
    config.model.source = ""  # "": from scratch
    config.model.family = "qwen3"  # Hugging Face's model type, under which it is exported
    config.model.vocab_size = 112  # entries; at least the tokenizer's
    config.model.embed_dim = 128  # width of the residual stream
    config.model.num_layers = 2  # transformer blocks
    config.model.num_query_heads = 4  # attention heads
    config.model.num_key_heads = 2  # divides num_query_heads
    config.model.head_dim = 32  # width of a head; even
    config.model.hidden_dim = 256  # width of the gated feed-forward layer
    config.model.attention_bias = False  # of query, key and value (Qwen2.5)
    config.model.output_bias = False  # of attention's output
    config.model.qk_norm = True  # normalise queries and keys per head (Qwen3, Gemma 3)
    config.model.query_scalar = 0.0  # scores are divided by its root; 0: head_dim
    config.model.attention_soft_cap = 0.0  # scores become cap * tanh(score / cap); 0: none
    config.model.final_soft_cap = 0.0  # the same for logits (both: Gemma 2)
    config.model.sliding_window = 0  # tokens that a layer "L" sees, its own included
    # A letter for each layer, repeated until all have one: Gemma 3 has "LLLLLG", Mistral "L".
    config.model.attention_pattern = "G"  # "G" sees all before, "L" a window of them
    config.model.rope_theta = 10_000.0  # base of the rotary frequencies
    config.model.local_rope_theta = 0.0  # of layers "L", then unscaled; 0: as the others
    config.model.rope_scaling = ""  # or "linear" (Gemma 3), "llama3", "yarn": longer contexts
    config.model.rope_factor = 1.0  # frequencies, or low ones, are divided by it
    config.model.rope_low_frequency_factor = 1.0  # llama3, yarn: wavelengths > original / low …
    config.model.rope_high_frequency_factor = 4.0  # … are scaled, < original / high are not
    config.model.rope_original_positions = 8192  # same: context before the scaling, tokens
    config.model.rope_attention_factor = 1.0  # yarn: rotated queries and keys, times this
    config.model.norm_epsilon = 1e-6  # added to the mean square in RMSNorm
    config.model.norm_offset = False  # norms multiply by 1 + scale (Gemma)
    config.model.post_norms = False  # norms also after attention and feed-forward layer (Gemma)
    config.model.activation = "silu"  # of the gate; or "gelu_tanh" (Gemma)
    config.model.scale_embeddings = False  # multiply by the root of embed_dim (Gemma)
    config.model.tie_embeddings = False  # output head = input embedding
    config.model.num_experts = 0  # feed-forward layers to choose from; 0: a single one, for all
    config.model.experts_per_token = 0  # the most probable ones
    config.model.expert_dim = 0  # width of an expert
    config.model.normalize_experts = True  # weights of a token's experts add up to 1
    config.model.dtype = "float32"  # activations; what is trained is float32 in the learner
    # Low-rank adapters, docs/lora.md: with a rank above 0 they are all that is trained, the model
    # itself stays as it begins, in `dtype`, and servers fetch it once.
    config.model.lora = ConfigDict()
    config.model.lora.rank = 0  # 8 to 64 are usual; 0: none, all parameters are trained
    config.model.lora.alpha = 32.0  # an adapter's product counts alpha / rank
    config.model.lora.targets = (  # matrices of each layer that have an adapter
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    )

    config.task = ConfigDict()
    config.task.name = "clock"  # a name of rlboost_jax.data.tasks; "dataset": that of config.data
    config.task.mean_length = 14.0  # mean problem length, in the task's own unit
    config.task.max_length = 90  # longest problem, same unit
    config.task.num_heldout = 256  # prompts kept apart for evaluation

    config.data = ConfigDict()  # with task.name "dataset"; docs/data.md
    config.data.preset = ""  # "gsm8k", "math", "openr1_math", "deepscaler", "countdown", or none
    config.data.source = ""  # file, folder, pattern such as data/*.jsonl, or hub name
    config.data.format = "auto"  # "jsonl", "parquet", "arrayrecord", "huggingface"; auto: by ending
    config.data.subset = ""  # configuration of a Hugging Face data set
    config.data.split = ""  # of a Hugging Face data set; "" is "train"
    config.data.heldout_source = ""  # rows for evaluation; "": those of the split or share below
    config.data.heldout_subset = ""  # configuration of heldout_source
    config.data.heldout_split = ""  # split of the source (or heldout_source) for evaluation
    config.data.heldout_share = 0.05  # else this share, chosen by a hash of the prompt
    config.data.prompt_column = ""  # text of the prompt; "" is "prompt" where there is no template
    config.data.messages_column = ""  # a chat: a list of {"role": …, "content": …}
    config.data.template = ""  # of the prompt, such as "{question} Answer in \\boxed{{}}."
    config.data.answer_column = ""  # what rewards get as `answer`
    config.data.answer_format = ""  # "after_hashes" (#### 42), "boxed"; "": the whole column
    config.data.reward_columns = ()  # further columns for rewards
    config.data.filters = ()  # of dictionaries: {"column": "level", "one_of": ("Level 5",)}
    config.data.bad_rows = "skip"  # and count; or "error": broken line, no value, empty prompt
    config.data.max_prompt_tokens = 0  # longer ones are left out; 0: engine.max_prompt_tokens
    config.data.tokenizer = ""  # "bytes", or a folder or hub name; "" is model.source
    config.data.chat = "auto"  # use the chat template where there is one; or "always", "never"
    config.data.chat_template = ""  # Jinja, in place of the tokenizer's
    config.data.system_prompt = ""  # first message of each chat
    config.data.stop_ids = ()  # besides those of tokenizer and generation configuration

    config.rewards = ConfigDict()  # with task.name "dataset"; docs/rewards.md
    # Dictionaries: {"name": "math"} or {"name": "my.module:function", "weight": 0.1,
    # "options": {"limit": 3}, "time_limit_seconds": 2.0, "label": "short"}; two of one name need
    # a label each; () takes those of data.preset.
    config.rewards.functions = ()  # their weighted sum is the reward
    config.rewards.workers = 2  # processes that functions run in
    config.rewards.time_limit_seconds = 10.0  # of one function for one response
    config.rewards.memory_mb = 1024  # MiB that one call may allocate
    config.rewards.fallback = 0.0  # what a function that failed is taken to have returned
    config.rewards.tolerated_failures = 0.5  # share of a step's responses; with more the run ends
    config.rewards.sandbox = "required"  # code runs contained or not at all; or "best_effort"

    config.warmup = ConfigDict()  # supervised, before reinforcement learning
    config.warmup.max_updates = 250  # of the skill phase; 0 skips the warm-up
    config.warmup.target_loss = 0.13  # nats per token (moving average) that ends the skill phase
    config.warmup.habit_updates = 32  # then these set the habit of guessing
    config.warmup.worked_fraction = 0.75  # of worked answers in the skill phase
    config.warmup.habit_worked_fraction = 0.12  # same, habit phase
    config.warmup.learning_rate = 6e-3  # highest, skill phase
    config.warmup.habit_learning_rate = 3e-3  # highest, habit phase

    # A name of rlboost_jax/config/presets.py stands for the choices of its paper. What is set here
    # or on the command line takes the place of the preset's; `config.json` in the workdir has what
    # came out of it. docs/algorithms.md says what each choice computes.
    config.algorithm = ConfigDict()
    config.algorithm.name = "grpo"  # or "dapo", "gspo", "ppo", …
    config.algorithm.group_size = placeholder(int)  # responses per prompt
    config.algorithm.advantage = placeholder(str)  # "group_std", "group_mean", "return", …
    config.algorithm.deviation = placeholder(str)  # of group_std: "population" or "sample"
    config.algorithm.whiten = placeholder(bool)  # over all tokens of the batch
    config.algorithm.discount = placeholder(float)  # γ per token, of "return" and "gae"
    config.algorithm.gae_lambda = placeholder(float)  # λ of "gae"
    config.algorithm.old_policy = placeholder(str)  # "behaviour" (engine's) or "recomputed"
    config.algorithm.ratio_level = placeholder(str)  # "token", "sequence", "sequence_token"
    config.algorithm.surrogate = placeholder(str)  # "clip", "cispo", "sapo", "reinforce"
    config.algorithm.clip_low = placeholder(float)  # ratio range is [1 - clip_low, 1 + clip_high]
    config.algorithm.clip_high = placeholder(float)  # an offset from 1, not the bound itself
    config.algorithm.dual_clip = placeholder(float)  # most ratio of a negative advantage; 0: off
    config.algorithm.sapo_temperature_positive = placeholder(float)  # τ where advantages are > 0
    config.algorithm.sapo_temperature_negative = placeholder(float)  # τ elsewhere
    config.algorithm.loss_aggregation = placeholder(str)  # "token_mean", "sequence_mean", …
    config.algorithm.kl_coefficient = placeholder(float)  # β; 0 keeps no starting model
    config.algorithm.kl_estimator = placeholder(str)  # "k1", "k2", "k3"
    config.algorithm.kl_placement = placeholder(str)  # "loss" or "reward"
    config.algorithm.kl_gradient = placeholder(str)  # "own", "straight_through", "importance"
    config.algorithm.correction = placeholder(str)  # "none", "truncate", "mask", "reject"
    config.algorithm.correction_level = placeholder(str)  # "token", "sequence", "geometric"
    config.algorithm.correction_low = placeholder(float)  # least ratio learner / engine kept
    config.algorithm.correction_high = placeholder(float)  # most ratio kept, or cut to
    config.algorithm.overlong_penalty = placeholder(float)  # off the reward of the longest; 0: off
    config.algorithm.overlong_band = placeholder(float)  # share of max_response_tokens it rises in
    config.algorithm.overlong_filter = placeholder(bool)  # what is cut off is not trained on
    config.algorithm.dynamic_sampling = placeholder(bool)  # only groups whose rewards differ
    config.algorithm.dynamic_sampling_factor = placeholder(float)  # most, x prompts_per_step
    config.algorithm.mini_batches = placeholder(int)  # updates that a batch is divided into
    config.algorithm.epochs = placeholder(int)  # passes over the batch
    config.algorithm.critic_learning_rate = placeholder(float)  # AdamW's, of the critic
    config.algorithm.value_clip = placeholder(float)  # most a value moves in a batch; 0: freely
    config.algorithm.routing_replay = placeholder(bool)  # train on the experts sampled with

    config.sampling = ConfigDict()
    config.sampling.temperature = 1.0  # divides the logits; above 0
    config.sampling.top_p = 1.0  # 1 keeps all
    config.sampling.top_k = 0  # 0 keeps all
    config.sampling.max_response_tokens = 200  # a longer response is cut off here

    config.learner = ConfigDict()
    config.learner.prompts_per_step = 24  # prompts of an update; a multiple of micro_batch_prompts
    config.learner.micro_batch_prompts = 6  # groups per micro-batch
    config.learner.pack_rows = 4  # rows of a packed batch; divisible by data * fsdp
    config.learner.row_tokens = 0  # tokens per row; 0 takes the longest prompt plus response
    # With 3, short trajectories go to packed batches with rows of half and a quarter of row_tokens
    # and two and four times as many of them; the gradient is compiled for each.
    config.learner.row_lengths = 1  # to choose from; at most 8
    # In place of pack_rows: a micro-batch becomes as many packed batches of this size as it needs.
    config.learner.pack_tokens = 0  # of a packed batch on each device, at least row_tokens; 0: off
    config.learner.learning_rate = 3e-4  # AdamW's, highest of the schedule
    config.learner.schedule = "constant"  # or "linear", "cosine": to 0 at num_steps
    config.learner.schedule_warmup_steps = 0  # updates
    config.learner.weight_decay = 0.0  # AdamW's, per update at learning rate 1
    config.learner.beta1 = 0.9  # AdamW's decay of the mean gradient
    config.learner.beta2 = 0.98  # … and of the mean squared gradient
    config.learner.max_gradient_norm = 1.0  # global norm to which gradients are clipped
    # A server is quarantined, and its work done again, if its log-probability of some token is
    # further than this from the learner's own; infinity tolerates everything.
    config.learner.tolerated_gap = 0.0  # nats; 0: by precision, see learner/doubts.py
    # Guards: an update beyond one is not applied. The run ends with a report, the last checkpoint
    # is as it was, and the same command with a higher guard goes on from it. 0 is off.
    config.learner.guard_gradient_norm = 0.0  # most before clipping, the policy's and the critic's
    config.learner.guard_kl = 0.0  # most of the mean KL to the starting model, nats per token
    config.learner.mesh = (1, 1, 1)  # devices along (data, fsdp, tensor)
    # What --dry_run takes for the memory of each of them, 10^9 bytes: that of the device which JAX
    # may use. A start asks the device instead.
    config.learner.device_gb = 0.0  # 0: unknown, and --dry_run refuses nothing
    # What the backward pass computes again: "none" nothing, "dots" all but what products with
    # matrices return and fused attention does, "attention" all but one residual stream per layer
    # and what fused attention returns, "full" all but the residual stream.
    config.learner.remat = "none"  # or "dots", "attention", "full", from most memory to least
    config.learner.moment_dtype = "float32"  # or "bfloat16": AdamW's moments in half the memory
    config.learner.moment_memory = "device"  # or "host": they come over for the update only
    # "paged": log-probabilities as the engine's; "dense": all scores of a row at once; "chunked":
    # block by block, for rows of any length; "triton", "cudnn": fused kernels for GPUs.
    # On a GPU "auto" is the fastest that passes its check at the start (docs/qualification.md).
    config.learner.attention = "auto"  # chooses by the size of batches and rows, and the platform
    # How products of experts are computed: "mosaic_gpu" by a kernel for Hopper, "blocks" for any
    # GPU, "xla" by jax.lax.ragged_dot.
    config.learner.experts = "auto"  # on a GPU as above, elsewhere "xla"

    config.engine = ConfigDict()
    config.engine.slots = 64  # rollouts decoded together
    config.engine.page_size = 16  # tokens per page
    config.engine.num_pages = 0  # in the pool; 0: every slot's longest rollout, if that fits
    # Weights, pool and working space may take this share of the device's memory, less what the
    # learner takes there. A limit, not a claim: several servers on a CPU host share its memory,
    # and each takes what its slots need.
    config.engine.memory_fraction = 0.9  # above 0, at most 1
    config.engine.max_prompt_tokens = 8  # longest prompt; with the longest response it fills a slot
    # In deterministic runs 64, 80, 96, …; on a GPU their decode steps then have as many rows, those
    # of other runs only as many as there are slots.
    config.engine.token_rows = 64  # of a step with prefill
    config.engine.steps_per_dispatch = 8  # decode steps per program call
    # "auto": on a GPU the fastest that passes its check at the start (docs/qualification.md).
    config.engine.attention = "auto"  # or an implementation of rlboost_kernels
    # float8_e4m3fn takes half of bfloat16's memory and widens the gap to the learner's
    # log-probabilities: keys and values are stored with scale 1 and cut off at 448.
    config.engine.kv_dtype = "float32"  # of cached keys and values
    config.engine.tensor_parallel = 1  # devices that weights and pages are split over

    config.manager = ConfigDict()
    config.manager.host = "127.0.0.1"  # address to listen on; beyond loopback with fleet.tls only
    config.manager.port = 0  # 0 takes a free one
    # A lost server is to be known as such within 2 s. A lease runs from the last renewal, so
    # it ends 1.2 to 1.5 s after a fault, which leaves 0.5 s to a busy manager. An honest server
    # may be late by 0.9 s: renewals echo the manager's answer to the one before.
    config.manager.lease_seconds = 1.5  # a server silent for longer, or deaf, is lost; at most 2
    config.manager.renew_seconds = 0.3  # between renewals of a lease; less than a third of it
    # A server that renews its lease but gives no token of the work that it holds is lost, too.
    # More than the longest dispatch takes, the prefill of all slots included; one that was seen
    # to be slow gets ten times its own longest.
    config.manager.progress_seconds = 30.0  # at least lease_seconds
    config.manager.drain_seconds = 120.0  # a machine that goes later than this works on until then
    config.manager.max_pending = 8  # requests waiting at an instance beyond its slots (Θ)
    config.manager.balance = True  # move work from busy to idle instances
    config.manager.migration = True  # what moves keeps its tokens; False: it begins anew
    config.manager.seeding = True  # reserved engines generate first
    config.manager.window = "paper"  # Algorithm 1; "model": foreseen from lengths and speeds
    config.manager.window_initial_seconds = 1.0  # T_init of Algorithm 1
    config.manager.window_eta = 3.0  # η of Algorithm 1
    config.manager.window_memory = True  # remember the window of each fleet size
    config.manager.routing = "pending"  # to who has fewest; "speed": to where it would end first
    # Begin with whole groups and one response of each other, then with those that are expected to
    # be longest, where that is foreseen to end a step sooner.
    config.manager.longest_first = False  # in the order of prompts

    config.weights = ConfigDict()
    config.weights.rollout_dtype = "float32"  # of snapshots and engines
    config.weights.keep_versions = 2  # snapshots kept besides those in use
    config.weights.source = "auto"  # "directory" | "http"; auto takes the directory where visible

    config.checkpoint = ConfigDict()
    config.checkpoint.every_steps = 1  # updates between checkpoints
    config.checkpoint.keep = 2  # newest checkpoints kept

    config.fleet = ConfigDict()
    config.fleet.provider = "local"  # child processes; "none": servers are started by hand
    # On loopback nobody listens in; beyond it, a run does not start without.
    config.fleet.tls = False  # encrypt, and certify both sides by an authority of the run's own
    config.fleet.max_instances = 2  # preemptible instances the provider may start
    # How many of these are wanted: "paper", N_prem of Algorithm 1; "marginal", as many as make
    # tokens cheapest, with an hour of the run worth so much besides what it is paid for.
    config.fleet.sizing = "fixed"  # all
    config.fleet.worth_per_hour = 0.0  # dollars; 0: most tokens per dollar, more: sooner
    # Towards a step's end put what is left on fewer instances, let those go that have no work for
    # longer than they take to start, and start others in time for the next step.
    config.fleet.merge_tail = False  # all stay
    config.fleet.trace = ""  # CSV of milliseconds,add|remove,name; or "synthetic"
    config.fleet.trace_speed = 60.0  # trace seconds per wall second
    config.fleet.synthetic_lifetime_seconds = 1200.0  # mean, in trace time
    config.fleet.synthetic_gap_seconds = 300.0  # mean until lost capacity returns, in trace time
    config.fleet.price_per_hour = 2.66  # dollars, one preemptible instance
    config.fleet.reserved_price_per_hour = 10.47  # dollars, all reserved devices
    config.fleet.egress_dollars_per_gb = 0.0  # of 1e9 bytes of weights that an instance pulls
    config.fleet.orphan_seconds = 60.0  # servers and manager wait this long for a lost trainer
    # A server started by hand asks its cloud's metadata server whether its machine is to go.
    config.fleet.notices = "auto"  # asks once who answers; or "aws", "gcp", "azure", "none"
    config.fleet.notice_signal = "SIGTERM"  # or "SIGUSR1", "SIGUSR2": the machine goes in
    config.fleet.notice_seconds = 0.0  # … so many seconds; 0: SIGTERM asks to leave at once
    config.fleet.chaos = ConfigDict()
    config.fleet.chaos.enabled = False  # take servers away and give them back at random times
    config.fleet.chaos.seed = 0  # of those times
    config.fleet.chaos.kills_per_minute = 8.0  # SIGKILL of a working server
    config.fleet.chaos.terms_per_minute = 2.0  # SIGTERM of a server
    config.fleet.chaos.joins_per_minute = 20.0  # return of lost capacity

    config.evaluation = ConfigDict()
    # Held-out prompts ride on a step whose version they measure, at the fleet and behind its own.
    config.evaluation.every_steps = 10  # and before the last update and after it; 0: never
    config.evaluation.num_prompts = 128  # a time; of a generated task at most task.num_heldout
    config.evaluation.samples = 1  # responses to each prompt; with k of them mean@k and pass@k
    config.evaluation.temperature = 0.0  # 0 is greedy
    config.evaluation.keep_best = False  # True: the checkpoint of the highest accuracy stays

    config.observe = ConfigDict()
    config.observe.live = True  # redraw a view when standard output is a terminal
    # Beside metrics.jsonl, samples.jsonl and the console: "tensorboard" (<workdir>/tensorboard),
    # "wandb" (needs the extra of that name; its files are in <workdir>/wandb).
    config.observe.trackers = ("tensorboard",)  # see above; () for none of them
    config.observe.wandb = ConfigDict()
    config.observe.wandb.project = "rlboost-jax"  # made there where it does not exist
    config.observe.wandb.entity = ""  # team or user; "" is the account's own
    config.observe.wandb.name = ""  # of the run; "" is the workdir's
    config.observe.wandb.mode = "online"  # "offline": no network; `wandb sync` uploads later
    config.observe.samples_every_steps = 10  # prompts and responses to samples.jsonl; 0: never
    config.observe.samples_prompts = 2  # most of such a step, each with its whole group
    # One step of every process on one time axis, in <workdir>/profile, for ui.perfetto.dev.
    config.observe.profile_step = 0  # that step; 0: none
    config.observe.profile_jax = False  # the learner's process by jax.profiler in that step, too
    return config

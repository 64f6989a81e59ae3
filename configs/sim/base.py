"""Every field of a simulation, with its unit, value and source.

The values are those of the evaluation of RLBoost (NSDI '26): one 8xH100 node that is reserved,
preemptible instances of 2xH100, Qwen3-14B, 128 prompts x 8 responses of at most 14k tokens.
`experiments/paper_evaluation/README.md` says where each free parameter comes from. Any value
can be set from the command line: `--config.workload.mean_tokens=5000`. The fields are those of
`rlboost_jax/simulator/sim_config.py`.
"""

from ml_collections import ConfigDict

MODELS = {  # Qwen3's published configurations: parameters, layers, query heads
    "8b": (8.19e9, 36, 32),
    "14b": (14.77e9, 40, 40),
    "32b": (32.76e9, 64, 64),
}
PUBLIC_TABLES = {  # of windows by instances, in the public code: 14B's is commented out there
    "8b": ((1, 190), (2, 160), (3, 105), (4, 70)),
    "14b": ((1, 346), (2, 212), (3, 145), (4, 60), (5, 8), (6, 5)),
    "32b": (),
}


def get_config(model: str = "14b") -> ConfigDict:
    config = ConfigDict()
    config.seed = 0  # names every random choice
    config.calibration = ""  # of `rlboost calibrate`: its settings replace those below
    config.num_seeds = 1  # repetitions with seeds that follow, for confidence intervals
    config.num_steps = 10  # 0: as many as fit the segment
    config.settling_steps = 4  # at the beginning, left out of all means: the window is found
    config.systems = ("rlboost",)  # see rlboost_jax/simulator/systems.py

    config.chip = ConfigDict()  # H100 SXM data sheet
    config.chip.flops_per_second = 989e12  # dense bfloat16
    config.chip.memory_bytes_per_second = 3.35e12
    config.chip.memory_bytes = 80e9

    params, layers, heads = MODELS[model]
    config.model = ConfigDict()
    config.model.num_params = params
    config.model.num_layers = layers
    config.model.num_query_heads = heads
    config.model.num_key_heads = 8
    config.model.head_dim = 128
    config.model.bytes_per_param = 2.0  # bfloat16
    config.model.bytes_per_kv = 2.0

    config.engine = ConfigDict()
    config.engine.chips = 2  # tensor parallelism 2, reserved and preemptible
    config.engine.slots = 256  # rollouts decoded together, at most
    # Free: of the longest response, what of the cache is set aside for each; 0: nothing. SGLang's
    # new_token_ratio, which goes between 0.7 and 0.1 as responses turn out.
    config.engine.reserve_ratio = 0.65
    config.engine.memory_fraction = 0.6  # of the chips' memory, weights and cache: the artifact's
    # Shares of the data sheet, by experiments/paper_evaluation/rates.py: those of the table of an
    # H100's programs, at three quarters of the speed of its bounds, which is assumed.
    config.engine.memory_efficiency = 0.75  # of the bandwidth, when decoding
    config.engine.compute_efficiency = 0.575  # of the FLOPs, in prefill
    config.engine.step_overhead_seconds = 0.0085  # of a decode step: 3.2 ms by the table, rest free
    config.engine.dispatch_tokens = 8  # decode steps per program call
    config.engine.message_tokens = 512  # decode steps after which tokens are reported
    config.engine.table = ()  # measured (batch, mean context, seconds per step); (): roofline
    config.engine.prefill_token_seconds = 0.0  # measured; 0: roofline
    config.engine.most_drafts = 0  # of a rollout in a decode step; 0: none, as in RLBoost
    config.engine.draft_acceptance = 0.65  # chance of each to be what is sampled, see
    # experiments/speculation: where the text of a sibling in the same engine goes on, else none
    config.engine.draft_acceptances = ()  # by version, the last for all later ones; (): that
    config.engine.draft_beyond = 1.0  # share of it beyond all texts of the prompt
    config.engine.draft_earlier = 1.0  # share of it where a text of an earlier epoch alone goes on
    config.engine.draft_recent = 0.0  # share of it from responses to other prompts, drafter recent
    config.engine.earlier_tokens = 0  # of earlier epochs that are kept; 0: no drafter epochs
    config.engine.draft_seconds = 0.0  # that a step with drafts takes more
    config.engine.token_rows = 256  # of a decode step; what sequences leave of them, drafts take
    config.engine.reserved_slots = 0  # of a reserved engine; 0: as many as others have
    config.engine.reserved_table = ()  # of a reserved engine; (): as others

    config.reserved = ConfigDict()
    config.reserved.nodes = 2 if model == "32b" else 1
    config.reserved.chips_per_node = 8
    config.reserved.price_per_node_hour = 83.79  # dollars

    config.trainer = ConfigDict()
    # Policy forward, backward (2) and recomputation, old and reference log-probabilities.
    config.trainer.forward_passes = 6.0
    config.trainer.compute_efficiency = 0.59  # of the FLOPs of these passes, as above
    config.trainer.token_seconds = 0.0  # of a token, as known; 0: by FLOPs
    config.trainer.pair_seconds = 0.0  # besides, of a token and one before it in its sequence
    config.trainer.deterministic = False  # whether prompt indices fix micro-batches
    config.trainer.micro_batch_prompts = 2  # 16 responses
    config.trainer.micro_batch_seconds = 0.1  # of each micro-batch besides its tokens
    config.trainer.apply_seconds = 5.0  # the optimizer's update
    config.trainer.begin_seconds = 2.0  # until a step asks for tokens: weights into the engines
    config.trainer.switch_seconds = 2.0  # from generating to training
    config.trainer.lag = 0  # versions between the one that samples a batch and the batch

    config.workload = ConfigDict()
    config.workload.prompts_per_step = 128
    config.workload.epoch_prompts = 0  # after which they come again; 0: never
    config.workload.group_size = 8
    config.workload.prompt_tokens = 200
    config.workload.max_response_tokens = 14_336
    config.workload.mean_tokens = 4200.0  # free: of a response, were nothing cut off
    config.workload.sigma = 0.85  # free: of the logarithm of a length
    config.workload.group_correlation = 0.75  # free: of those logarithms within a group
    config.workload.growth_per_step = 0.0  # relative growth of the mean
    config.workload.groups = ()  # measured lengths, by group; (): log-normal
    config.workload.turn_tokens = 0  # sampled before an environment is asked what follows; 0: none
    config.workload.turn_seconds = 1.0  # until it answers, on average: half to one and a half
    config.workload.turn_given_tokens = 32  # that it answers with

    config.links = ConfigDict()
    config.links.host_bytes_per_second = 100e9  # device to host, all chips of a node
    config.links.sender_bytes_per_second = 25e9  # 200 Gbps of a reserved node, shared
    config.links.receiver_bytes_per_second = 6.25e9  # 50 Gbps of an instance
    config.links.peer_bytes_per_second = 0.0  # what an instance sends to others of a version
    config.links.load_bytes_per_second = 25e9  # host to device
    config.links.latency_seconds = 0.5
    config.links.in_step = (
        True  # a server that joins in mid-step pulls at once, not with the next step
    )

    config.instance = ConfigDict()
    config.instance.start_seconds = 60.0  # from the order to the first message; billed
    config.instance.detect_seconds = 1.5  # from a loss to its being known
    config.instance.price_per_hour = 5.32  # dollars, 2xH100
    config.instance.slow_every = 0  # of a mixed fleet: every so manieth is slow; 0: none
    config.instance.slow_factor = 2.0  # times the others' seconds
    config.instance.egress_dollars_per_gb = 0.0  # the published prices leave it out

    config.market = ConfigDict()
    config.market.kind = "static"  # or "trace", "hazard"
    config.market.instances = (0, 1, 2, 3, 4, 5, 6, 7, 8)  # static fleets to compare
    config.market.path = ""  # of a trace
    config.market.format = "auto"  # or "bamboo", "skypilot", "gcp", "parcae"
    config.market.keep_fraction = 1.0  # of a trace's machines
    config.market.keep_seed = 0  # which
    config.market.segments = ()  # of a trace or hazard: (from, to) in hours
    config.market.notice_seconds = 0.0  # before a loss
    config.market.hazard = ConfigDict()
    config.market.hazard.machines = 12.0  # mean on loan
    config.market.hazard.lifetime_hours = 1.5  # mean, of a machine
    config.market.hazard.batch_size = 2.0  # mean number that goes at once
    config.market.hazard.drought_hours = 0.0  # mean time without arrivals; 0: none
    config.market.hazard.drought_gap_hours = 0.0  # mean time between two droughts

    config.policy = ConfigDict()
    config.policy.max_pending = 8  # Θ
    config.policy.balance = True
    config.policy.migration = True
    config.policy.seeding = True
    config.policy.window = "paper"  # Algorithm 1; "model": predicted from lengths and speeds
    config.policy.window_initial_seconds = 150.0  # T_init of the public code
    config.policy.window_eta = 3.0  # η of the public code
    config.policy.window_memory = True
    config.policy.public_table = PUBLIC_TABLES[model]  # of the system "public_code" only
    config.policy.routing = "auto"  # "speed": to where a rollout would end first
    config.policy.longest_first = False  # where that is predicted to be faster
    config.policy.sizing = "fixed"  # "paper": to N_prem of Algorithm 1; "marginal": by dollars
    config.policy.worth_per_hour = 0.0  # dollars that an hour sooner is worth, for "marginal"
    config.policy.merge_tail = False  # let instances rest that have no work left in a step
    config.policy.max_dollars = 0.0  # of a run, as fleet.max_dollars; 0: no limit
    config.policy.max_dollars_per_hour = 0.0  # of all instances together; 0: no limit
    config.policy.max_instances = 100_000
    config.policy.siblings_follow = False  # the order for drafts, without what they save
    config.policy.kept_tokens = 0  # of responses, that the manager keeps for the next epoch
    return config

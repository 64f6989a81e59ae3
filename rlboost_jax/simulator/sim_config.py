"""The settings of a simulation as frozen records, one per section of its configuration file.

`configs/sim/base.py` lists the same fields with their units, values and sources.
"""

from dataclasses import dataclass

from rlboost_jax.settings.fleet_config import Sizing
from rlboost_jax.settings.manager_config import Routing, Window


@dataclass(frozen=True, kw_only=True)
class ChipConfig:
    """One accelerator, by its data sheet."""

    flops_per_second: float  # dense, of the dtype that is computed in
    memory_bytes_per_second: float
    memory_bytes: float


@dataclass(frozen=True, kw_only=True)
class SimModelConfig:
    """A decoder, as far as time and memory depend on it."""

    num_params: float
    num_layers: int
    num_query_heads: int
    num_key_heads: int
    head_dim: int
    bytes_per_param: float  # in an engine and on the wire
    bytes_per_kv: float  # of one cached number


@dataclass(frozen=True, kw_only=True)
class SimEngineConfig:
    """One rollout engine, reserved or preemptible."""

    chips: int
    slots: int  # rollouts decoded together, at most
    reserve_ratio: float  # of the longest response, what of the cache is set aside for each beside
    # its prompt; 0: nothing
    memory_fraction: float  # of the chips' memory for weights and cache
    memory_efficiency: float  # of the chips' bandwidth that decoding reaches
    compute_efficiency: float  # of the chips' FLOPs that prefill and large batches reach
    step_overhead_seconds: float  # of each decode step, whatever the batch
    dispatch_tokens: int  # decode steps per program call: what a loss costs at most, per rollout
    message_tokens: int  # decode steps after which tokens are reported at the latest
    table: tuple[tuple[float, float, float], ...]  # (batch, mean context, seconds per step), a
    # whole grid; empty: the roofline
    prefill_token_seconds: float  # measured; 0: the roofline
    most_drafts: int  # of a rollout in a decode step; 0: none
    draft_acceptance: float  # chance of each to be the token that is sampled
    draft_acceptances: tuple[float, ...]  # by version, the last for all later ones; empty: that
    draft_beyond: float  # share of it where the rollout is longer than all texts of its prompt
    draft_earlier: float  # share of it where a text of an earlier epoch alone goes on
    draft_recent: float  # share of it where there are responses to other prompts only
    earlier_tokens: int  # of earlier epochs that are kept; 0: none, nor does the manager send any
    draft_seconds: float  # that a decode step with drafts takes more
    token_rows: int  # of a decode step: what sequences leave of them is free for drafts
    reserved_slots: int  # of a reserved engine; 0: as many as others have
    reserved_table: tuple[tuple[float, float, float], ...]  # of a reserved engine; empty: the same


@dataclass(frozen=True, kw_only=True)
class ReservedConfig:
    nodes: int
    chips_per_node: int
    price_per_node_hour: float  # dollars


@dataclass(frozen=True, kw_only=True)
class SimTrainerConfig:
    forward_passes: float  # that training one token costs, in forward passes of it
    compute_efficiency: float  # of the reserved chips' FLOPs (MFU)
    token_seconds: float  # of a token of prompt or response, as known; 0: by FLOPs
    pair_seconds: float  # besides, of a token and one before it in the same sequence
    deterministic: bool  # micro-batches are fixed by prompt index
    micro_batch_prompts: int
    micro_batch_seconds: float  # of each micro-batch, whatever its tokens
    apply_seconds: float  # the optimizer's update
    begin_seconds: float  # from the end of a step until its successor asks for tokens
    switch_seconds: float  # from generating to training
    lag: int  # versions between the one that samples a batch and the batch; see docs/how-to/lag.md


@dataclass(frozen=True, kw_only=True)
class WorkloadConfig:
    """Generated responses: log-normal lengths, cut off at the longest allowed."""

    prompts_per_step: int
    epoch_prompts: int  # after which they come again, in another order; 0: never
    group_size: int
    prompt_tokens: int
    max_response_tokens: int
    mean_tokens: float  # of a response in the first step, were nothing cut off
    sigma: float  # of the logarithm of a length
    group_correlation: float  # of these logarithms within a group
    growth_per_step: float  # relative growth of the mean
    groups: tuple[tuple[int, ...], ...]  # measured response lengths, drawn from by whole groups in
    # place of the log-normal law; empty: that
    turn_tokens: int  # sampled before an environment is asked what follows; 0: there is none
    turn_seconds: float  # until it answers, on average: from half to one and a half of it
    turn_given_tokens: int  # that it answers with

    @property
    def turns(self) -> int:
        """Most turns of a response."""
        return -(-self.max_response_tokens // self.turn_tokens) if self.turn_tokens else 1

    @property
    def slot_tokens(self) -> int:
        """Tokens of the longest sequence."""
        given = self.turn_given_tokens * (self.turns - 1)
        return self.prompt_tokens + self.max_response_tokens + given


@dataclass(frozen=True, kw_only=True)
class LinkConfig:
    """Links that carry weights from the learner to the instances."""

    host_bytes_per_second: float  # device to host, in the learner: what blocks it
    sender_bytes_per_second: float  # shared by all that pull; of one reserved node
    receiver_bytes_per_second: float  # of one instance
    peer_bytes_per_second: (
        float  # that an instance sends to others; 0: all is the learner's to send
    )
    load_bytes_per_second: float  # host to device, in the instance
    latency_seconds: float  # from an announcement to the first byte
    in_step: bool  # an instance that joins in mid-step pulls at once; else with the next version


@dataclass(frozen=True, kw_only=True)
class InstanceConfig:
    start_seconds: float  # from the order to the first message; billed
    detect_seconds: float  # from a loss to its being known
    price_per_hour: float  # dollars
    slow_every: int  # every so manieth instance is slow; 0: none is
    slow_factor: float  # times the seconds of the others
    egress_dollars_per_gb: float  # of 1e9 bytes that leave the learner


@dataclass(frozen=True, kw_only=True)
class HazardConfig:
    """A synthetic market; see `hazard.py`."""

    machines: float  # mean number on loan
    lifetime_hours: float  # mean, of one machine
    batch_size: float  # mean number that goes at once
    drought_hours: float  # mean length of a time without arrivals; 0: none
    drought_gap_hours: float  # mean time between two droughts


@dataclass(frozen=True, kw_only=True)
class MarketConfig:
    kind: str  # "static" | "trace" | "hazard"
    instances: tuple[int, ...]  # static: fleets to compare, each a whole simulation
    path: str  # trace: its file
    format: str  # "auto" | "bamboo" | "skypilot" | "gcp" | "parcae"
    keep_fraction: float  # trace: share of its machines that are kept
    keep_seed: int  # which ones
    segments: tuple[tuple[float, float], ...]  # trace, hazard: (from, to) in hours; empty: all
    notice_seconds: float  # before a loss; 0: none
    hazard: HazardConfig


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """Settings of the manager; meanings and ranges are those of a run
    (`settings/manager_config.py`, `settings/fleet_config.py`).
    """

    max_pending: int
    balance: bool
    migration: bool
    seeding: bool
    window: Window
    window_initial_seconds: float
    window_eta: float
    window_memory: bool
    public_table: tuple[tuple[int, int], ...]  # of `public_code`: (instances, seconds), shipped
    routing: Routing
    longest_first: bool
    sizing: Sizing  # how many instances are wanted
    worth_per_hour: float
    merge_tail: bool
    max_instances: int
    max_dollars: float = 0.0  # that a run may cost, as `fleet.max_dollars`; 0: no limit
    max_dollars_per_hour: float = 0.0  # for all instances together; 0: no limit
    siblings_follow: bool = False  # in the order of a run that drafts; steps are not made shorter
    kept_tokens: int = 0  # of responses, for when prompts come again, as `speculation.kept_tokens`


@dataclass(frozen=True, kw_only=True)
class SimConfig:
    """One question to the simulator. `sim_config_loading.py` makes and checks these."""

    seed: int
    calibration: str  # a calibration.json, whose settings replace the ones here; "": none
    num_seeds: int  # repetitions, with seeds that follow
    num_steps: int  # 0: as many as fit the segment
    settling_steps: int  # at the beginning, left out of all means
    systems: tuple[str, ...]  # see `systems.py`
    chip: ChipConfig
    model: SimModelConfig
    engine: SimEngineConfig
    reserved: ReservedConfig
    trainer: SimTrainerConfig
    workload: WorkloadConfig
    links: LinkConfig
    instance: InstanceConfig
    market: MarketConfig
    policy: PolicyConfig

    @property
    def weight_bytes(self) -> float:
        return self.model.num_params * self.model.bytes_per_param

    @property
    def num_engines(self) -> int:
        """Number of reserved engines, N_resv."""
        return self.reserved.nodes * self.reserved.chips_per_node // self.engine.chips

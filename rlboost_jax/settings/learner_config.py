"""Settings of the learner: how an update is made, and where it is computed."""

from dataclasses import dataclass
from typing import Literal

from rlboost_jax.settings.setting import setting

Schedule = Literal["constant", "linear", "cosine"]
Remat = Literal["none", "dots", "attention", "full"]
MomentDtype = Literal["float32", "bfloat16"]
MomentMemory = Literal["device", "host"]
LearnerAttention = Literal["auto", "paged", "dense", "chunked", "triton", "cudnn"]
LearnerExperts = Literal["auto", "xla", "blocks", "mosaic_gpu"]


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """How updates are made; see docs/explanation/learner.md."""

    prompts_per_step: int = setting(
        24, "prompts of an update; a multiple of micro_batch_prompts", unit="prompts", at_least=1
    )
    micro_batch_prompts: int = setting(
        6,
        "prompts of a micro-batch, each with its whole group; divides prompts_per_step",
        unit="prompts",
        at_least=1,
        note="Fewer, larger micro-batches need less memory for sums of gradients; that of "
        "activations is limited by pack_rows or pack_tokens.",
    )
    pack_rows: int = setting(
        4,
        "rows of a packed batch; divisible by data * fsdp",
        unit="rows",
        at_least=1,
        may_change="from its step",
    )
    row_tokens: int = setting(
        0, "tokens of a packed row; 0: the longest prompt plus response", at_least=0
    )
    row_lengths: int = setting(
        1,
        "lengths of rows to choose from: row_tokens, half of it, …",
        note="With 3, short trajectories go to packed batches with rows of half and a quarter of "
        "row_tokens and two and four times as many of them; the gradient is compiled for each.",
        at_least=1,
        at_most=8,
        may_change="from its step",
    )
    pack_tokens: int = setting(
        0,
        "tokens of a packed batch on a device, at least row_tokens, in place of pack_rows; 0: off",
        note="A micro-batch becomes as many packed batches of this size as it needs.",
        at_least=0,
        may_change="from its step",
    )
    learning_rate: float = setting(
        3e-4, "peak learning rate of AdamW", above=0, may_change="from its step"
    )
    schedule: Schedule = setting(
        "constant",
        "shape of the learning rate over the steps; the others end with 0",
        may_change="from its step",
    )
    schedule_warmup_steps: int = setting(
        0,
        "steps over which the learning rate rises",
        unit="updates",
        at_least=0,
        may_change="from its step",
    )
    weight_decay: float = setting(
        0.0,
        "weight decay of AdamW, per update at learning rate 1",
        at_least=0,
        may_change="from its step",
    )
    beta1: float = setting(
        0.9,
        "AdamW's decay of the mean gradient",
        at_least=0,
        at_most=0.99999,
        may_change="from its step",
    )
    beta2: float = setting(
        0.98,
        "AdamW's decay of the mean squared gradient",
        at_least=0,
        at_most=0.99999,
        may_change="from its step",
    )
    max_gradient_norm: float = setting(
        1.0, "global norm to which gradients are clipped", above=0, may_change="from its step"
    )
    tolerated_gap: float = setting(
        0.0,
        "most a server's log-probability may differ from the learner's; 0: by precision",
        unit="nats",
        note="A server that differs by more is quarantined, and its work done again; see "
        "learner/tolerated_gaps.py.",
        at_least=0,
        may_change="at once",
    )
    tolerated_choice_gap: float = setting(
        0.0,
        "most that a noise may lie outside its token's interval; 0: by precision",
        note="Sampling divides 0 to 1 into one interval per token, as long as its probability; the "
        "token whose interval holds the noise is right. 1 lets any token pass.",
        at_least=0,
        at_most=1,
        may_change="at once",
    )
    guard_gradient_norm: float = setting(
        0.0,
        "largest gradient norm of policy and critic before clipping; 0: no guard",
        note="An update beyond a guard is not applied. The run ends with a report, the last "
        "checkpoint is as it was, and the same command with a higher guard goes on from it.",
        at_least=0,
        may_change="from its step",
    )
    guard_kl: float = setting(
        0.0,
        "most mean KL to the starting model; 0: no guard",
        unit="nats/token",
        at_least=0,
        may_change="from its step",
    )
    mesh: tuple[int, int, int] = setting(
        (1, 1, 1),
        "devices along (data, fsdp, tensor)",
        note="A checkpoint is read onto any mesh with the bits that were saved; sums over another "
        "mesh round otherwise.",
        may_change="from its step",
    )
    device_gb: float = setting(
        0.0,
        "memory of each device that JAX may use, for --dry_run; 0: unknown, nothing is refused",
        unit="1e9 bytes",
        note="A start asks the device instead.",
        at_least=0,
        may_change="at once",
    )
    remat: Remat = setting(
        "none",
        "what the backward pass computes again, from most memory to least",
        note='"none": nothing. "dots": all but what products with matrices return and fused '
        'attention does. "attention": all but one residual stream per layer and what fused '
        'attention returns. "full": all but the residual stream.',
        may_change="from its step",
    )
    moment_dtype: MomentDtype = setting(
        "float32", "type of AdamW's moments in memory; arithmetic is float32"
    )
    moment_memory: MomentMemory = setting(
        "device",
        "where AdamW's moments are; the host's are read for the update only",
        may_change="from its step",
    )
    attention: LearnerAttention = setting(
        "auto",
        "how attention over packed rows is computed",
        note='"paged": log-probabilities as the engine\'s. "dense": all scores of a row at once. '
        '"chunked": block by block, for rows of any length. "triton", "cudnn": fused kernels for '
        'GPUs. "auto" chooses by the size of batches and rows; on a GPU it is the fastest that '
        "passes its check at the start (docs/explanation/qualification.md).",
    )
    experts: LearnerExperts = setting(
        "auto",
        "how products of experts are computed",
        note='"mosaic_gpu": a kernel for Hopper. "blocks": any GPU. "xla": jax.lax.ragged_dot. '
        '"auto": on a GPU the fastest that passes its check at the start, elsewhere "xla".',
    )

"""How an engine divides its share of a device's memory: weights, working space, pages.

`plan_memory` decides from sizes alone. A pool for all slots at their longest comes first: fewer
pages cost evictions all step long. What is left after it decides how weights are swapped: with
room for a second copy the old version stays until the new one is whole on the device, otherwise
it goes first. With less memory than that, the pool shrinks down to one longest rollout.

How many pages there are changes no bit of a token, so engines on unlike devices serve one run.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import jax

from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.settings.engine_config import EngineConfig
from rlboost_jax.settings.memory_estimates import (
    expert_parameters,
    page_bytes,
    pages_per_slot,
    share_of,
    size_text,
    weight_bytes,
)
from rlboost_jax.settings.model_config import ModelConfig

# Arrays of [rows, vocabulary] float32 that sampling has at once, at most, and how many
# more with top-k or top-p; as XLA reports it for CPU, with some to spare.
_LOGITS: Final = 5
_MORE_LOGITS_TRUNCATED: Final = 2
# XLA for CPU cuts an expert out of a stack of bfloat16 by making all of the stack float32 first.
_WIDENS_EXPERTS: Final = jax.__version_info__ < (0, 12)
_BLOCK: Final = 16, 64  # rows and tokens (or one page, if longer) that attention gathers at a time


class NotEnoughMemory(Mistake, ValueError):
    """The engine, or the pool that was asked for, does not fit the device."""


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """Memory of one device, in bytes."""

    limit: int | None  # all that this process may use; None: nobody tells
    taken: int = 0  # by others than the engine

    def with_taken(self, taken: int) -> "DeviceMemory":
        """Return a copy with at least `taken` bytes reserved for others."""
        return replace(self, taken=max(self.taken, taken))


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Bytes of the parts of an engine, and the pages that it asks for."""

    weights: int  # one copy
    working: int  # what a step holds at most besides weights and pool
    page: int
    slot_pages: int  # of the longest rollout
    slots: int
    num_pages: int  # asked for; 0: for all slots, or as many as fit


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    sizes: Sizes
    memory: DeviceMemory
    fraction: float
    num_pages: int
    double_buffered: bool  # a version stays until the next one is on the device

    @property
    def weights(self) -> int:
        """Bytes of all copies of the weights."""
        return self.sizes.weights * (2 if self.double_buffered else 1)

    @property
    def pool(self) -> int:
        """Bytes of the KV pool."""
        return self.sizes.page * self.num_pages

    @property
    def total(self) -> int:
        """Bytes of weights, working space and pool together."""
        return self.weights + self.sizes.working + self.pool

    def __str__(self) -> str:
        """Summarise the plan in one line for people."""
        sizes = self.sizes
        held = self.num_pages // sizes.slot_pages
        slots = "all" if held >= sizes.slots else f"{held} of"
        weights = f"weights {size_text(sizes.weights)} (swapped in place)"
        if self.double_buffered:
            weights = f"weights 2 x {size_text(sizes.weights)} (double-buffered)"
        return (
            f"memory: {_share_text(self.memory, self.fraction)}: {weights}, {self.num_pages:,} "
            f"pages {size_text(self.pool)} ({slots} {sizes.slots} slots at their longest), working "
            f"space {size_text(sizes.working)}; together {size_text(self.total)}"
        )


def plan_memory(sizes: Sizes, memory: DeviceMemory, fraction: float) -> MemoryPlan:
    """Divide `fraction` of the memory that others leave.

    Raises:
        NotEnoughMemory: the pages asked for do not fit, or not those of one longest rollout.
    """
    wanted = pages = sizes.num_pages or sizes.slots * sizes.slot_pages
    double_buffered = True
    if (share := _share(memory, fraction)) is not None:
        fixed = sizes.weights + sizes.working
        fit = (share - fixed) // sizes.page
        if fit < sizes.slot_pages:
            needed = fixed + sizes.slot_pages * sizes.page
            raise NotEnoughMemory(
                f"one rollout of full length needs {size_text(needed)} (weights "
                f"{size_text(sizes.weights)}, working space {size_text(sizes.working)}, "
                f"{sizes.slot_pages} pages {size_text(sizes.slot_pages * sizes.page)}) and there "
                f"are {size_text(share)} ({_share_text(memory, fraction)}); raise "
                "engine.memory_fraction, lower engine.token_rows or sampling.max_response_tokens, "
                "or choose smaller types for weights.rollout_dtype and engine.kv_dtype"
            )
        if fit < sizes.num_pages:
            needed = fixed + sizes.num_pages * sizes.page
            raise NotEnoughMemory(
                f"engine.num_pages is {sizes.num_pages}, which makes {size_text(needed)} with "
                f"weights and working space, and there are {size_text(share)} "
                f"({_share_text(memory, fraction)}); choose {fit} or less, or 0 for as many as fit"
            )
        pages = min(wanted, fit)
        double_buffered = sizes.weights + fixed + wanted * sizes.page <= share
    return MemoryPlan(
        sizes=sizes,
        memory=memory,
        fraction=fraction,
        num_pages=pages,
        double_buffered=double_buffered,
    )


def engine_sizes(
    model: ModelConfig,
    config: EngineConfig,
    *,
    slot_tokens: int,
    param_dtype: str,
    truncated_sampling: bool,
    sampled_rows: int,
    products: str,
    platform: str,
) -> Sizes:
    """Bytes that the parts of an engine take on each device; the arguments are those of `Engine`.

    Args:
        sampled_rows: that head and sampler run over, at most.
        products: implementation of `rlboost_kernels.matmul`.
        platform: of the device, as JAX names it.
    """
    logits = 4 * sampled_rows * model.vocab_size  # whole on every device
    model = share_of(model, config.tensor_parallel)
    page, slot_pages = page_bytes(model, config), pages_per_slot(config, slot_tokens)
    logits *= _LOGITS + (_MORE_LOGITS_TRUNCATED if truncated_sampling else 0)
    step = logits + _layer_bytes(model, config, slot_pages)
    if param_dtype != model.dtype:  # converted once, before the loop of a dispatch's steps
        step += weight_bytes(model, model.dtype)
    if platform == "cpu" and products != "cpu" and model.dtype != "float32":
        step += weight_bytes(model, "float32")  # XLA has no products of 16-bit numbers there
    elif platform == "cpu" and model.dtype == "bfloat16" and _WIDENS_EXPERTS:
        step += 4 * expert_parameters(model)
    return Sizes(
        weights=weight_bytes(model, param_dtype),
        working=max(step, config.slots * page),  # `copy_pages` holds a page for each slot
        page=page,
        slot_pages=slot_pages,
        slots=config.slots,
        num_pages=config.num_pages,
    )


def device_memory(device: jax.Device) -> DeviceMemory:
    """Memory of a device now, as its backend reports it.

    On GPU that is the part JAX keeps for itself, three quarters of the device unless
    XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise. On CPU it is the host's memory, or the limit
    of this process's control group, shared out among the CPU devices of the process. What other
    processes take of it is not known.
    """
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return DeviceMemory(limit=stats["bytes_limit"], taken=stats.get("bytes_in_use", 0))
    if device.platform == "cpu":
        return DeviceMemory(limit=host_memory() // device.client.device_count())
    return DeviceMemory(limit=None)


def host_memory(root: Path = Path("/")) -> int:
    """Bytes of memory of this host, or those its control group allows this process, if fewer."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            folder, file = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        elif not controllers:  # version 2 has one hierarchy for all
            folder, file = root / "sys/fs/cgroup", "memory.max"
        else:
            continue
        group = folder / path.lstrip("/")
        # In a container the path may be the host's, and the folder itself then is our group.
        for place in (group, *group.parents):
            if (limit := _read(place / file).strip()).isdecimal():
                limits.append(int(limit))
            if place == folder:
                break
    return min(limits)


def _read(path: Path) -> str:
    """The file's text, "" where there is none: not Linux, or no such controller."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _share(memory: DeviceMemory, fraction: float) -> int | None:
    if memory.limit is None:
        return None
    return int(max(0, memory.limit - memory.taken) * fraction)


def _share_text(memory: DeviceMemory, fraction: float) -> str:
    if memory.limit is None:
        return "of unknown size, no limit for the engine"
    if memory.taken == 0:
        return f"{fraction:g} of {size_text(memory.limit)} for the engine"
    free = size_text(max(0, memory.limit - memory.taken))
    return f"{fraction:g} of {free} for the engine, {size_text(memory.taken)} taken"


def _layer_bytes(model: ModelConfig, config: EngineConfig, slot_pages: int) -> int:
    """Upper bound of the temporary arrays of a step's layers, as if all of it were float32.

    A layer holds a few arrays of each width at once; the compiler reuses them for the next
    layer. Not in it: where the compiled kernels are missing, the wider numbers that XLA for CPU
    makes of a whole 8-bit pool, or with jax 0.10 of a bfloat16 one, and back.
    """
    T, E, F = config.token_rows, model.embed_dim, model.expert_dim or model.hidden_dim
    H, K, D = model.num_query_heads, model.num_key_heads, model.head_dim
    activations = T * 3 * (E + F + (H + 2 * K) * D)
    if model.num_experts:  # one expert's matrices are cut out of the stack, the next one's ahead
        activations += T * 3 * model.num_experts + 2 * 3 * E * F
    tables = T * 3 * slot_pages
    rows, tokens = _BLOCK[0], max(_BLOCK[1], config.page_size)
    if config.attention == "reference":  # gathers every page of every row
        rows, tokens = T, slot_pages * config.page_size
    gathered = rows * tokens * 3 * (H + 2 * K * D)
    return 4 * (activations + tables + gathered)

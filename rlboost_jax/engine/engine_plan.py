"""The sizes of an engine on its device: of its programs, and of its page pool."""

from dataclasses import replace

import jax
from rlboost_kernels.implementations import choose

from rlboost_jax.engine.device_memory import MemoryPlan, device_memory, engine_sizes, plan_memory
from rlboost_jax.engine.layouts import StepLayout, make_layout
from rlboost_jax.settings.engine_config import EngineConfig
from rlboost_jax.settings.model_config import ModelConfig


def plan_engine(
    model: ModelConfig,
    config: EngineConfig,
    device: jax.Device,
    *,
    slot_tokens: int,
    param_dtype: str,
    truncated_sampling: bool,
    exact: bool,
    drafts: bool,
    taken_bytes: int,
) -> tuple[StepLayout, MemoryPlan]:
    """Plan programs for this device and the memory they leave to pages.

    Args:
        device: the first of the engine's devices, which are alike.
        drafts: whether rows of decode steps may hold drafts.
        taken_bytes: that others have or will have on the device, in this process.

    Raises:
        ValueError: settings do not fit together; names them.
        NotEnoughMemory: the device is too small for them.
    """
    products, on_cpu = choose(None, device.platform), device.platform == "cpu"
    layout = make_layout(
        config,
        slot_tokens,
        any_rows=products == "cpu",
        on_cpu=on_cpu,
        exact=exact,
        drafts=drafts,
    )
    sizes = engine_sizes(
        model,
        config,
        slot_tokens=slot_tokens,
        param_dtype=param_dtype,
        truncated_sampling=truncated_sampling,
        sampled_rows=layout.sampled_rows,
        products=products,
        platform=device.platform,
    )
    memory = device_memory(device).with_taken(taken_bytes)
    plan = plan_memory(sizes, memory, config.memory_fraction)
    return replace(layout, num_pages=plan.num_pages), plan

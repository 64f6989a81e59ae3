"""Check, before anything is compiled, that a run fits its reserved devices by its plan.

A trainer asks its devices how much there is, the dry run takes `learner.device_gb`. What is planned
agrees with what an H100's compiler says within 13 % (`tests/benchmarks/test_fit.py`).
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import jax

from rlboost_jax.engine.device_memory import (
    DeviceMemory,
    NotEnoughMemory,
    device_memory,
    engine_sizes,
    host_memory,
)
from rlboost_jax.engine.layouts import make_layout
from rlboost_jax.settings.memory_estimates import (
    gradient_bytes_per_device,
    learner_bytes_per_device,
    moment_bytes,
    scoring_bytes_per_device,
    share_of,
    size_text,
    teacher_bytes_per_device,
    tokens_per_device,
    weight_bytes,
)
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.teacher_models import trainers_teachers

CLOSE: Final = 0.9  # of what there is: from here on a start says so
_FRACTION_VARIABLE: Final = "XLA_PYTHON_CLIENT_MEM_FRACTION"


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Bytes of a reserved device at its peak."""

    trees: int  # parameters, what training keeps beside them, and those of teachers
    working: int  # of the hungriest program: a gradient, a teacher's scores, or an update with
    # moments from the host
    engine: int  # the least: weights, working space, and pages asked for or one longest rollout's
    fraction: float  # of what the learner leaves that the engine may take

    @property
    def total(self) -> int:
        """Bytes that a device must have for the engine to start beside the learner."""
        return self.trees + self.working + math.ceil(self.engine / self.fraction)

    @property
    def parts(self) -> str:
        """Summary of the parts for people."""
        share = f" in {self.fraction:g} of what is left" if self.fraction < 1 else ""
        return (
            f"learner {size_text(self.trees)}, its working space {size_text(self.working)}, "
            f"engine at least {size_text(self.engine)}{share}"
        )


def needs(run: RunConfig) -> Needs:
    """Sum up the memory of an accelerator that holds an engine and its part of the learner.

    Raises ConfigError where there is no such teacher.
    """
    _, fsdp, tensor = run.learner.mesh
    on_host = run.learner.moment_memory == "host"
    arriving = math.ceil(moment_bytes(run) / (fsdp * tensor)) if on_host else 0
    sizes = engine_sizes(
        run.model,
        run.engine,
        slot_tokens=run.slot_tokens,
        param_dtype=run.weights.rollout_dtype,
        truncated_sampling=run.truncated_sampling,
        sampled_rows=make_layout(run.engine, run.slot_tokens, any_rows=False).sampled_rows,
        products="xla",
        platform="gpu",
    )
    teachers = trainers_teachers(run)
    scoring = [scoring_bytes_per_device(run, teacher) for teacher in teachers]
    pages = run.engine.num_pages or sizes.slot_pages
    return Needs(
        trees=learner_bytes_per_device(run) + teacher_bytes_per_device(run, teachers),
        working=max(gradient_bytes_per_device(run), arriving, *scoring),
        engine=sizes.weights + sizes.working + pages * sizes.page,
        fraction=run.engine.memory_fraction,
    )


def least_needs(run: RunConfig) -> Needs:
    """Memory of a CPU device between two programs. Working space is planned for GPUs only."""
    engine = share_of(run.model, run.engine.tensor_parallel)
    return Needs(
        trees=learner_bytes_per_device(run) + teacher_bytes_per_device(run, trainers_teachers(run)),
        working=0,
        engine=weight_bytes(engine, run.weights.rollout_dtype),
        fraction=1.0,
    )


def check(run: RunConfig, needed: Needs, limit: int, *, hint: str = "") -> None:
    """Refuse a run that does not fit.

    Args:
        limit: bytes of a reserved device.
        hint: what else can be done, besides other settings.

    Raises NotEnoughMemory.
    """
    if needed.total > limit:
        changes = [*_changes(run), hint] if hint else list(_changes(run))
        raise NotEnoughMemory(
            f"by its plan the run needs {size_text(needed.total)} of a reserved device, which has "
            f"{size_text(limit)}: {needed.parts}; {', or '.join(changes)}"
        )


def line(needed: Needs, limit: int) -> str:
    """Summary of the memory of a run that fits, with a warning if it is close."""
    share = needed.total / limit
    text = f"{100 * share:.0f} % of {size_text(limit)} by the plan: {needed.parts}"
    return f"{text}; the plan may be off by 13 %" if share >= CLOSE else text


def check_devices(
    run: RunConfig,
    devices: Iterable[jax.Device],
    say: Callable[[str], None],
    *,
    memory_of: Callable[[jax.Device], DeviceMemory] = device_memory,
    memory_here: Callable[[], int] = host_memory,
) -> None:
    """Refuse a run that does not fit the devices of this process; warn if it hardly does.

    Args:
        devices: of the mesh; those of other processes are taken to be alike.
        memory_of: a device.
        memory_here: bytes of this host.

    Raises NotEnoughMemory, and ConfigError where there is no such teacher.
    """
    here = [d for d in devices if d.process_index == jax.process_index()]
    if here[0].platform == "cpu":
        check(run, least_needs(run), memory_here() // len(here))
        return
    limits = [limit for d in here if (limit := memory_of(d).limit) is not None]
    if not limits:
        return
    needed, limit = needs(run), min(limits)
    check(run, needed, limit, hint=_hint())
    if needed.total >= CLOSE * limit:
        say(f"memory of a reserved device: {line(needed, limit)}")


def _hint() -> str:
    if _FRACTION_VARIABLE in os.environ:
        return ""
    return f"set {_FRACTION_VARIABLE}=0.92 in place of the 0.75 of a GPU that JAX keeps for itself"


def _changes(run: RunConfig) -> Iterator[str]:
    """Settings that would make it smaller and are not used yet, with their present values."""
    learner, engine = run.learner, run.engine
    yield f"give learner.mesh {learner.mesh} more devices along fsdp or tensor"
    if not run.model.lora.rank:
        yield "train adapters alone (model.lora.rank)"
    if learner.moment_memory == "device":
        yield "set learner.moment_memory to 'host'"
    if learner.micro_batch_prompts < learner.prompts_per_step:
        yield f"raise learner.micro_batch_prompts ({learner.micro_batch_prompts})"
    if run.algorithm.has_reference:
        yield f"set algorithm.kl_coefficient ({run.algorithm.kl_coefficient:g}) to 0"
    if learner.remat != "full":
        yield f"set learner.remat ({learner.remat!r}) to 'full'"
    if tokens_per_device(run) > run.row_tokens:
        name = "pack_tokens" if learner.pack_tokens else "pack_rows"
        yield f"lower learner.{name} ({getattr(learner, name)})"
    else:
        yield (
            f"lower sampling.max_response_tokens ({run.sampling.max_response_tokens}) "
            f"and learner.row_tokens ({learner.row_tokens})"
        )
    if engine.tensor_parallel < math.prod(learner.mesh[1:]):
        yield f"raise engine.tensor_parallel ({engine.tensor_parallel})"
    if engine.num_pages:
        yield f"lower engine.num_pages ({engine.num_pages})"
    if engine.memory_fraction < 1:
        yield f"raise engine.memory_fraction ({engine.memory_fraction:g})"

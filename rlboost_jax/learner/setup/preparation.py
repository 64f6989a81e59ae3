"""Preparation in every process of a trainer before the first step: programs, state, reference."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from rlboost_jax.data.demonstrations import demonstrations_of
from rlboost_jax.learner.checkpoints.base import kept_base
from rlboost_jax.learner.checkpoints.extra import checkpoint_extra
from rlboost_jax.learner.checkpoints.fallback import newest_sound
from rlboost_jax.learner.checkpoints.origin import keep_teachers
from rlboost_jax.learner.checkpoints.reading import CheckpointBroken
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.packing import batch_shapes
from rlboost_jax.learner.processes.process_group import ProcessGroup
from rlboost_jax.learner.programs.critic import CriticPrograms
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.learner.programs.teachers import Teachers, opened_teachers
from rlboost_jax.learner.setup.lessons import lessons_of
from rlboost_jax.learner.setup.sft import fine_tuned
from rlboost_jax.learner.setup.warmup import warm_up
from rlboost_jax.learner.state import TrainState, abstract_state, init_state
from rlboost_jax.learner.tolerated_gaps import tolerated_gaps
from rlboost_jax.models.adapters import base_model, is_adapter
from rlboost_jax.models.checkpoint_reader import read_checkpoint
from rlboost_jax.models.parameter_sharding import param_shardings
from rlboost_jax.models.params import Params, init_params
from rlboost_jax.models.peft_files import read_peft
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.platform.pulse import PULSE
from rlboost_jax.settings.gguf.stand_in import MODEL_SOURCE
from rlboost_jax.settings.huggingface.adapter_config import adapter_folder
from rlboost_jax.settings.huggingface.sources import WEIGHTS, source_folder
from rlboost_jax.settings.huggingface.tensor_files import named_by
from rlboost_jax.settings.run_config import RunConfig


class ReferenceGone(Mistake, RuntimeError):
    """The KL term's reference parameters are lost, and the run has moved on from them."""


@runtime_checkable
class Shows(Protocol):
    """Part of `rlboost_jax.observe.console.Console` that is needed here."""

    def phase(self, name: str, /) -> contextlib.AbstractContextManager[None]: ...
    def note(self, line: str, /) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What every process of a trainer has before the first step."""

    policy: PolicyPrograms  # over the base, where adapters are trained
    critic: CriticPrograms | None
    state: TrainState
    reference: Params | None  # the KL term's
    teachers: Teachers | None  # of distillation
    working_bytes: int  # that teachers and the hungriest program take on each device


def programs(run: RunConfig, mesh: Mesh) -> tuple[PolicyPrograms, CriticPrograms | None]:
    """Programs of the policy, and of the critic in a run that has one. Nothing is compiled yet."""
    num_updates = run.num_updates
    policy = PolicyPrograms(
        run.model,
        run.learner,
        run.algorithm,
        run.sampling,
        num_updates=num_updates,
        mesh=mesh,
        evaluation=run.evaluation if run.evaluation.every_steps else None,
        tolerated_choice=tolerated_gaps(run, mesh.devices.flat[0].platform).choice,
        teacher_weight=run.distillation.loss_weight,
    )
    if not run.algorithm.has_critic:
        return policy, None
    critic = CriticPrograms(
        run.model, run.learner, run.algorithm, num_updates=num_updates, mesh=mesh
    )
    return policy, critic


def prepared(
    run: RunConfig,
    path: Path,
    policy: PolicyPrograms,
    critic: CriticPrograms | None,
    checkpoints: Checkpoints,
    restored: tuple[TrainState, dict[str, Any]] | None,
    console: Shows,
    *,
    begins: int = 0,
) -> Prepared:
    """Build the state and the reference model, and compile the programs.

    Every process of a trainer does this, and in this order.

    Args:
        begins: the step that the run began with: that of its fork, or 0.
    """
    if run.model.lora.rank:
        base = kept_base(
            run.model,
            path,
            policy.mesh,
            lambda: _first_params(run, policy.mesh, console),
            resumed=restored is not None,
        )
        policy = policy.over(base)
    if restored:
        state = restored[0]
    else:
        state = _start(run, path, policy, console)
        if critic is not None:
            state = replace(state, critic=critic.init(policy.base or state.params))
        checkpoints.save(0, state, checkpoint_extra(None, 0))
    reference = _reference(run, path, policy, state, begins)
    teachers = None
    if run.distillation.teachers:
        with console.phase("reading the teachers"):
            if jax.process_index() == 0:
                keep_teachers(path, [each.source for each in run.distillation.teachers])
            teachers = opened_teachers(run, policy.mesh)
    shapes = batch_shapes(run.pack_rows, run.row_tokens, run.learner.row_lengths)
    with console.phase("compiling the learner's programs"):
        working_bytes = policy.compile(
            replace(state, critic=None),
            reference,
            shapes=shapes,
            sampler=_sampler(run, state.params),
        )
        if critic is not None:
            critic.compile(state.critic, shapes=shapes)
    return Prepared(
        policy=policy,
        critic=critic,
        state=state,
        reference=reference,
        teachers=teachers,
        working_bytes=working_bytes + (teachers.num_bytes if teachers else 0),
    )


def restore(
    run: RunConfig,
    policy: PolicyPrograms,
    critic: CriticPrograms | None,
    checkpoints: Checkpoints,
    world: ProcessGroup,
    note: Callable[[str], None],
) -> tuple[TrainState, dict[str, Any]] | None:
    """Restore the newest sound checkpoint; None at the first start.

    Every process of a trainer does this at the same point.

    Args:
        note: called for those that are not sound.

    Raises:
        CheckpointBroken: none is.
    """
    abstract = _abstract(run, policy)
    if critic is not None:
        abstract = replace(abstract, critic=critic.abstract())
    per_step = run.algorithm.updates_per_batch
    return newest_sound(
        checkpoints, abstract, world, note, step_of=lambda state: int(state.step) // per_step
    )


def lies_elsewhere(before: RunConfig, now: RunConfig) -> bool:
    """Whether a state read with one run's settings has to be read again for the other's."""
    return (before.learner.mesh, before.learner.moment_memory) != (
        now.learner.mesh,
        now.learner.moment_memory,
    )


def _abstract(run: RunConfig, policy: PolicyPrograms) -> TrainState:
    return abstract_state(
        run.model,
        policy.optimizer,
        policy.mesh,
        moment_memory=run.learner.moment_memory,
    )


def _start(run: RunConfig, path: Path, policy: PolicyPrograms, console: Shows) -> TrainState:
    """The state before the first update; adapters are drawn from the seed, or read."""
    if adapter := run.model.lora.source:
        with (
            console.phase(f"reading the adapters of {adapter}"),
            named_by("config.model.lora.source"),
        ):
            params = read_peft(
                run.model, adapter_folder(adapter), shardings=policy.shardings.params
            )
    elif run.model.lora.rank:
        params = init_params(run.model, run.seed, shardings=policy.shardings.params, of=is_adapter)
    else:
        params = _first_params(run, policy.mesh, console)
    if run.warmup.source:
        with console.phase(f"reading the rows of {run.warmup.source}"):
            demonstrations = demonstrations_of(run, beat=PULSE.beat)
        for line in demonstrations.lines:
            console.note(line)
        with console.phase(f"supervised updates on {run.warmup.source}"):
            params = fine_tuned(
                run,
                demonstrations,
                params,
                base=policy.base,
                mesh=policy.mesh,
                folder=path,
                note=console.note,
                beat=PULSE.beat,
            )
    return init_state(params, policy.optimizer, policy.shardings, consume=True)


def _first_params(run: RunConfig, mesh: Mesh, console: Shows) -> Params:
    """Fresh parameters, or those of the checkpoint to begin with, warmed up; without adapters."""
    frozen = run.model.lora.rank > 0 and not run.warmup.generated
    run = replace(run, model=base_model(run.model))
    source, shardings = run.model.source, param_shardings(run.model, mesh)
    if source:
        with console.phase(f"reading the parameters of {source}"), named_by(MODEL_SOURCE):
            params = read_checkpoint(
                run.model,
                source_folder(source, WEIGHTS),
                shardings=shardings,
                dtype=run.model.dtype if frozen else "float32",
            )
    else:
        params = init_params(run.model, run.seed, shardings=shardings)
    if run.warmup.generated:
        lessons = lessons_of(run)
        reports: list[tuple[int, float]] = []

        def report(updates: int, loss: float) -> None:
            reports.append((updates, loss))
            PULSE.beat()

        with console.phase(f"warming the model up on the {lessons.name} task"):
            params = warm_up(run, lessons, params, mesh=mesh, report=report)
        for updates, loss in reports[-1:]:
            console.note(f"  {updates} supervised updates, loss {loss:.3f} nats per token")
    return params


def _sampler(run: RunConfig, params: Params) -> Params | None:
    """Parameters as a batch's older version has them; None where none is sampled from one."""
    if not run.algorithm.lag:
        return None
    dtype = run.weights.rollout_dtype

    def rounded(leaf: jax.Array) -> jax.Array:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(rounded, params)


def _reference(
    run: RunConfig, path: Path, policy: PolicyPrograms, state: TrainState, begins: int = 0
) -> Params | None:
    """The starting parameters that the KL term is taken to; None without a KL term.

    With adapters, those that the run begins with: the base is not kept twice.
    """
    if not run.algorithm.has_reference:
        return None
    with Checkpoints(path / "reference", keep=1) as kept:
        if kept.latest() is None:
            if (
                int(state.step) > begins * run.algorithm.updates_per_batch
            ):  # which is no start to be taken for one
                raise ReferenceGone(
                    f"{path / 'reference'} is gone, which the run's KL term is taken to; bring "
                    "it back, or begin in a new --workdir"
                )
            kept.save(0, state.params, {})
            kept.wait()
        try:
            return kept.restore(0, _abstract(run, policy).params)[0]
        except CheckpointBroken as error:
            raise ReferenceGone(
                f"{path / 'reference'} is damaged, which the run's KL term is taken to: "
                f"{error.reason}; bring it back from a copy, or begin in a new --workdir"
            ) from None

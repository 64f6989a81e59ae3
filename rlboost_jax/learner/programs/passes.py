"""Forward and backward passes of the policy over a packed batch, to be compiled."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from rlboost_jax.learner.packing import PackedBatch
from rlboost_jax.learner.programs.choices import (
    choice_gaps,
    greedy_gaps,
    logprob_gaps,
    mean_choice_gaps,
)
from rlboost_jax.learner.programs.logprobs import (
    WHOLE_HEAD,
    HeadPlan,
    sampled_logprobs,
    whole_logprobs,
)
from rlboost_jax.learner.programs.objective import Sums, objective
from rlboost_jax.models.adapters import joined
from rlboost_jax.models.attention import MOST_PAGED_TOKENS
from rlboost_jax.models.forward import head_factors, hidden_states_and_experts
from rlboost_jax.models.params import Params
from rlboost_jax.settings.algorithm_config import AlgorithmConfig
from rlboost_jax.settings.learner_config import LearnerConfig
from rlboost_jax.settings.memory_estimates import has_large_head
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.sampling_config import SamplingConfig


def _factors(
    model: ModelConfig, learner: LearnerConfig, mesh: Mesh
) -> Callable[[Params, PackedBatch], tuple[Float[Array, "N E"], Float[Array, "E V"]]]:
    """Return a function that computes the two factors of the logits.

    Under the batch's routes if it has any. A large tied matrix is the table itself, as `_head_plan`
    says.
    """

    def factors_of(
        params: Params, batch: PackedBatch
    ) -> tuple[Float[Array, "N E"], Float[Array, "E V"]]:
        attention = _attention(learner, mesh, batch.tokens.size)
        x = hidden_states(
            model,
            params,
            batch,
            remat=learner.remat,
            mesh=mesh,
            attention=attention,
            experts=_experts(batch),
            grouped=grouped(learner),
        )
        as_stored = _applies_some_rows(model, mesh)
        return head_factors(model, params, x, by_row=attention == "paged", as_stored=as_stored)

    return factors_of


def hidden_states(
    model: ModelConfig,
    params: Params,
    batch: PackedBatch,
    *,
    remat: str,
    mesh: Mesh,
    attention: str,
    experts: Int[Array, "L N A"] | None = None,
    grouped: str | None = None,
) -> Float[Array, "N E"]:
    """Hidden states of all positions of a packed batch, see `hidden_states_and_experts`."""
    tokens, positions, segments = map(jnp.asarray, (batch.tokens, batch.positions, batch.segments))
    x, _ = hidden_states_and_experts(
        model,
        params,
        tokens,
        positions,
        segments,
        remat=remat,
        mesh=mesh,
        attention=attention,
        experts=experts,
        grouped=grouped,
    )
    return x


def grouped(learner: LearnerConfig) -> str | None:
    """The `grouped` argument of `hidden_states_and_experts`."""
    return None if learner.experts == "auto" else learner.experts


def _experts(batch: PackedBatch) -> Int[Array, "L N A"] | None:
    if batch.routes is None:
        return None
    routes = jnp.asarray(batch.routes).astype(jnp.int32)
    return routes.reshape(-1, *routes.shape[2:]).transpose(1, 0, 2)


def gaps_of(
    model: ModelConfig,
    learner: LearnerConfig,
    sampling: SamplingConfig,
    mesh: Mesh,
    *,
    greedy: bool = False,
    tolerated_choice: float = 0.0,
) -> Callable[[Params | None, Params, PackedBatch], dict[str, Float[Array, "R T"]]]:
    """Build `PolicyPrograms.gaps`; all functions here take the base of adapters first, or None.

    Args:
        greedy: the likeliest token is chosen, see `greedy_gaps`; `sampling` says nothing then.
        tolerated_choice: see `sampled_logprobs`.
    """
    if greedy:
        sampling = replace(sampling, temperature=1.0, top_p=1.0, top_k=1)
    factors_of = _factors(model, learner, mesh)

    def gaps(
        base: Params | None, params: Params, batch: PackedBatch
    ) -> dict[str, Float[Array, "R T"]]:
        by_row = _attention(learner, mesh, batch.tokens.size) == "paged"
        targets = jnp.ravel(batch.targets)
        logprobs, _, masses, unsure = sampled_logprobs(
            *factors_of(joined(base, params), batch),
            targets,
            sampling,
            plan=_head_plan(model, mesh, batch),
            mesh=mesh,
            soft_cap=model.final_soft_cap,
            by_row=by_row,
            tolerated_choice=0.0 if greedy else tolerated_choice,
        )
        if greedy:
            gap, choices = greedy_gaps(batch, logprobs)
        else:
            gap = logprob_gaps(batch, logprobs, unsure)
            choices = choice_gaps(batch, logprobs, masses, unsure)
        choices = jnp.where(jnp.ravel(batch.response_mask), choices, 0.0)
        found = {
            "logprob": gap,
            "choice": choices,
            "mean_choice": mean_choice_gaps(batch, choices),
        }
        shape, mask = batch.tokens.shape, batch.response_mask
        return {name: jnp.where(mask, gap.reshape(shape), 0.0) for name, gap in found.items()}

    return gaps


def logprobs_of(
    model: ModelConfig,
    learner: LearnerConfig,
    sampling: SamplingConfig,
    mesh: Mesh,
    *,
    tolerated_choice: float = 0.0,
) -> Callable[..., dict[str, Float[Array, "R T"]]]:
    """Build `PolicyPrograms.logprobs`."""
    factors_of = _factors(model, learner, mesh)

    def logprobs_by_policy(
        base: Params | None, params: Params, reference: Params | None, batch: PackedBatch
    ) -> dict[str, Float[Array, "R T"]]:
        by_row = _attention(learner, mesh, batch.tokens.size) == "paged"
        targets, factors = jnp.ravel(batch.targets), factors_of(joined(base, params), batch)
        soft_cap, plan = model.final_soft_cap, _head_plan(model, mesh, batch)
        logprobs, _, masses, unsure = sampled_logprobs(
            *factors,
            targets,
            sampling,
            plan=plan,
            mesh=mesh,
            soft_cap=soft_cap,
            by_row=by_row,
            tolerated_choice=tolerated_choice,
        )
        choices = choice_gaps(batch, logprobs, masses, unsure)
        found = {
            "policy": logprobs,
            "logprob": logprob_gaps(batch, logprobs, unsure),
            "choice": choices,
            "mean_choice": mean_choice_gaps(batch, choices),
        }
        if reference is not None:
            whole_of = partial(
                whole_logprobs,
                tokens=targets,
                sampling=sampling,
                plan=plan,
                mesh=mesh,
                soft_cap=soft_cap,
                by_row=by_row,
            )
            found["reference"], *_ = whole_of(*factors_of(joined(base, reference), batch))
            found["whole"] = whole_of(*factors)[0] if sampling.truncated else found["policy"]
        return {name: values.reshape(batch.tokens.shape) for name, values in found.items()}

    return logprobs_by_policy


def scores_of(
    model: ModelConfig, learner: LearnerConfig, sampling: SamplingConfig, mesh: Mesh
) -> Callable[[Params, PackedBatch], Float[Array, "R T"]]:
    """Build the program of a teacher's scores: (parameters, packed batch) → log-probabilities.

    Of each target under the whole softmax at the temperature of sampling.
    """
    factors_of = _factors(model, learner, mesh)

    def scores(params: Params, batch: PackedBatch) -> Float[Array, "R T"]:
        logprobs, *_ = whole_logprobs(
            *factors_of(params, batch),
            jnp.ravel(batch.targets),
            sampling,
            plan=_head_plan(model, mesh, batch),
            mesh=mesh,
            soft_cap=model.final_soft_cap,
            by_row=_attention(learner, mesh, batch.tokens.size) == "paged",
        )
        return logprobs.reshape(batch.tokens.shape)

    return scores


def gradients_of(
    model: ModelConfig,
    learner: LearnerConfig,
    algorithm: AlgorithmConfig,
    sampling: SamplingConfig,
    mesh: Mesh,
    *,
    tolerated_choice: float = 0.0,
    teacher_weight: float = 0.0,
) -> Callable[..., tuple[Params, Sums]]:
    """Build `PolicyPrograms.gradients`; see `objective` for the teachers' weight."""
    factors_of = _factors(model, learner, mesh)

    def loss(
        params: Params, base: Params | None, reference: Params | None, batch: PackedBatch
    ) -> tuple[Float[Array, ""], Sums]:
        targets = jnp.ravel(batch.targets)
        factors = factors_of(joined(base, params), batch)
        by_row = _attention(learner, mesh, batch.tokens.size) == "paged"
        constant = base is not None and not algorithm.entropy_coefficient
        plan = _head_plan(model, mesh, batch, constant=constant)
        logprobs, entropy, masses, unsure = sampled_logprobs(
            *factors,
            targets,
            sampling,
            plan=plan,
            mesh=mesh,
            soft_cap=model.final_soft_cap,
            by_row=by_row,
            tolerated_choice=tolerated_choice,
        )
        whole = frozen = None
        if reference is not None:
            # The whole softmax, since one policy's top-p may cut off what the other samples.
            whole_of = partial(
                whole_logprobs,
                tokens=targets,
                sampling=sampling,
                plan=plan,
                mesh=mesh,
                soft_cap=model.final_soft_cap,
                by_row=by_row,
            )
            frozen, *_ = whole_of(*factors_of(joined(base, reference), batch))
            whole = whole_of(*factors)[0] if sampling.truncated else logprobs
        return objective(
            algorithm,
            batch,
            logprobs,
            entropy,
            unsure=unsure if sampling.truncated else None,
            choice_gaps=choice_gaps(batch, jax.lax.stop_gradient(logprobs), masses, unsure),
            whole_logprobs=whole,
            reference_logprobs=frozen,
            teacher_weight=teacher_weight,
        )

    def gradients(
        base: Params | None, params: Params, reference: Params | None, batch: PackedBatch
    ) -> tuple[Params, Sums]:
        grads, sums = jax.grad(loss, has_aux=True)(params, base, reference, batch)
        return grads, sums

    return gradients


def _attention(learner: LearnerConfig, mesh: Mesh, num_tokens: int) -> str:
    """Attention implementation that the settings name.

    For "auto" it is the engine's order of sums where the kernel runs well: one device, rows that
    are not many.
    """
    if learner.attention != "auto":
        return learner.attention
    return "paged" if mesh.size == 1 and num_tokens <= MOST_PAGED_TOKENS else "auto"


def _applies_some_rows(model: ModelConfig, mesh: Mesh) -> bool:
    """Whether rows are gathered before the head, see `LARGE_HEAD`.

    On a GPU the host would have to read, for each block of rows, whether any is sampled; there all
    rows are computed.
    """
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    return has_large_head(model) and mesh.size == 1 and on_cpu


def _head_plan(
    model: ModelConfig, mesh: Mesh, batch: PackedBatch, *, constant: bool = False
) -> HeadPlan:
    """Plan logits of sampled targets alone if the head is large, else of all positions.

    Args:
        constant: whether no gradient passes through the matrix or an entropy.
    """
    if not _applies_some_rows(model, mesh):
        return WHOLE_HEAD
    where = jnp.ravel(jnp.asarray(batch.response_mask))
    return HeadPlan(where=where, transposed=model.tie_embeddings, frozen=constant)

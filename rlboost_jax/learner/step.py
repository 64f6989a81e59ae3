"""The learner's programs: what it looks at in a packed batch, its gradients, and the update."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from rlboost_jax.config.records import (
    AlgorithmConfig,
    LearnerConfig,
    ModelConfig,
    SamplingConfig,
)
from rlboost_jax.config.routing import routing_of
from rlboost_jax.learner.logprobs import sampled_logprobs, whole_logprobs
from rlboost_jax.learner.objective import Sums, objective
from rlboost_jax.learner.optimization import Part, add_up, update_programs
from rlboost_jax.learner.packing import TOKEN_MEAN, PackedBatch, fill
from rlboost_jax.learner.state import TrainState, make_optimizer, state_shardings
from rlboost_jax.models.adapters import joined
from rlboost_jax.models.attention import MOST_PAGED_TOKENS
from rlboost_jax.models.forward import head_factors, hidden_states_and_experts
from rlboost_jax.models.params import Params
from rlboost_jax.models.sharding import batch_sharding, program_on, replicated


class LearnerStep:
    """Programs of one run, each compiled at its first use and never again.

    Attributes:
        gradients: (params, reference params or None, packed batch) → (gradients, sums).
        combine, apply: see `update_programs`.
        evaluate: (params, reference params or None, packed batch) → log-probabilities of each
            target [R, T], without gradients: "policy", as sampled, and with a reference also
            "whole" and "reference", under the whole softmax of either.
        gaps: (params, packed batch) → |recomputed - behaviour| of each target, 0 outside
            responses; to find out whose they are where `max_logprob_gap` is too large.
        shardings: of a TrainState.
        base: what the parameters of the state are added to, where they are adapters: the first
            three programs take it along. To be set before their first use; None where everything
            is trained.
        routing: of the routes that batches have to bring; None: routers choose.

    The sums are those of `objective`.
    """

    def __init__(
        self,
        model: ModelConfig,
        learner: LearnerConfig,
        algorithm: AlgorithmConfig,
        sampling: SamplingConfig,
        *,
        num_steps: int,
        mesh: Mesh,
    ) -> None:
        self._algorithm, self.routing = algorithm, routing_of(model, algorithm)
        self.base: Params | None = None
        self.optimizer = make_optimizer(learner, num_steps)
        self.shardings = state_shardings(
            model, self.optimizer, mesh, moment_memory=learner.moment_memory
        )
        self.mesh = mesh
        params, whole = self.shardings.params, replicated(mesh)
        rows = batch_sharding(mesh)
        self.gradients = self._on_base(
            _gradients(model, learner, algorithm, sampling, mesh),
            in_shardings=(params, None, rows),
            out_shardings=(params, whole),
        )
        self.evaluate = self._on_base(
            _evaluate(model, learner, sampling, mesh),
            in_shardings=(params, None, rows),
            out_shardings=whole,
        )
        self.gaps = self._on_base(
            _gaps(model, learner, sampling, mesh),
            in_shardings=(params, rows),
            out_shardings=whole,
        )
        self.combine, self.apply = update_programs(
            learner, self.optimizer, self.shardings, mesh, num_steps=num_steps
        )

    def _on_base(
        self, function: Callable[..., Any], *, in_shardings: tuple[Any, ...], out_shardings: Any
    ) -> "_OnBase":
        program = program_on(
            self.mesh, function, in_shardings=(None, *in_shardings), out_shardings=out_shardings
        )
        return _OnBase(program, lambda: self.base)

    def compile(
        self,
        state: TrainState,
        reference: Params | None,
        *,
        shapes: Sequence[tuple[int, int]],
    ) -> int:
        """Compile everything before the first step, so that no step is slowed by it.

        `apply` would consume the state: its program goes to the compilation cache only.

        Args:
            reference: the KL term's, wherever that is placed.
            shapes: rows and tokens of a row of all packed batches there will be.

        Returns:
            Bytes that the hungriest program takes on each device besides its arguments and
            results: activations, for the most part.
        """
        in_loss = None if self._algorithm.kl_in_reward else reference
        in_reward = reference if self._algorithm.kl_in_reward else None
        programs = []
        for rows, row_tokens in shapes:
            batch, _ = fill(
                [],
                rows=rows,
                row_tokens=row_tokens,
                loss_aggregation=TOKEN_MEAN,
                routing=self.routing,
            )
            if self._algorithm.looks_first:
                self.evaluate(state.params, in_reward, batch)
            self.gaps(state.params, batch)
            part = self.gradients(state.params, in_loss, batch)
            programs.append(self.gradients.lower(state.params, in_loss, batch).compile())
        gradients, _ = self.combine(part, self.gradients(state.params, in_loss, batch))
        programs.append(self.apply.lower(state, gradients, np.float32(1)).compile())
        return max(map(_working_bytes, programs))

    def micro_batch(
        self, params: Params, reference: Params | None, batches: Sequence[PackedBatch]
    ) -> Part:
        """Gradients and sums over the packed batches of a micro-batch, in their order."""
        return add_up((self.gradients(params, reference, b) for b in batches), self.combine)


class _OnBase:
    """A program whose first argument is the base of that moment."""

    def __init__(self, program: Any, base: Callable[[], Params | None]) -> None:
        self._program, self._base = program, base

    def __call__(self, *args: Any) -> Any:
        return self._program(self._base(), *args)

    def lower(self, *args: Any) -> Any:
        return self._program.lower(self._base(), *args)


def _working_bytes(program: jax.stages.Compiled) -> int:
    """0 where the backend does not tell."""
    analysis = program.memory_analysis()
    return 0 if analysis is None else int(analysis.temp_size_in_bytes)


def _factors(
    model: ModelConfig, learner: LearnerConfig, mesh: Mesh
) -> Callable[[Params, PackedBatch], tuple[Float[Array, "N E"], Float[Array, "E V"]]]:
    """What logits are a product of: under the batch's routes, if it has any, whoever's they are."""

    def factors_of(
        params: Params, batch: PackedBatch
    ) -> tuple[Float[Array, "N E"], Float[Array, "E V"]]:
        tokens, positions, segments = map(
            jnp.asarray, (batch.tokens, batch.positions, batch.segments)
        )
        attention = _attention(learner, mesh, tokens.size)
        x, _ = hidden_states_and_experts(
            model,
            params,
            tokens,
            positions,
            segments,
            remat=learner.remat,
            mesh=mesh,
            attention=attention,
            experts=_experts(batch),
        )
        return head_factors(model, params, x, by_row=attention == "paged")

    return factors_of


def _experts(batch: PackedBatch) -> Int[Array, "L N A"] | None:
    if batch.routes is None:
        return None
    routes = jnp.asarray(batch.routes).astype(jnp.int32)
    return routes.reshape(-1, *routes.shape[2:]).transpose(1, 0, 2)


def _gaps(
    model: ModelConfig, learner: LearnerConfig, sampling: SamplingConfig, mesh: Mesh
) -> Callable[[Params | None, Params, PackedBatch], Float[Array, "R T"]]:
    factors_of = _factors(model, learner, mesh)

    def gaps(base: Params | None, params: Params, batch: PackedBatch) -> Float[Array, "R T"]:
        by_row = _attention(learner, mesh, batch.tokens.size) == "paged"
        targets = jnp.ravel(batch.targets)
        logprobs, _ = sampled_logprobs(
            *factors_of(joined(base, params), batch),
            targets,
            sampling,
            soft_cap=model.final_soft_cap,
            by_row=by_row,
        )
        gap = jnp.abs(logprobs.reshape(batch.tokens.shape) - batch.behaviour_logprobs)
        return jnp.where(batch.response_mask, gap, 0.0)

    return gaps


def _evaluate(
    model: ModelConfig, learner: LearnerConfig, sampling: SamplingConfig, mesh: Mesh
) -> Callable[..., dict[str, Float[Array, "R T"]]]:
    factors_of = _factors(model, learner, mesh)

    def evaluate(
        base: Params | None, params: Params, reference: Params | None, batch: PackedBatch
    ) -> dict[str, Float[Array, "R T"]]:
        by_row = _attention(learner, mesh, batch.tokens.size) == "paged"
        targets, factors = jnp.ravel(batch.targets), factors_of(joined(base, params), batch)
        soft_cap = model.final_soft_cap
        logprobs, _ = sampled_logprobs(
            *factors, targets, sampling, soft_cap=soft_cap, by_row=by_row
        )
        found = {"policy": logprobs}
        if reference is not None:
            whole_of = partial(
                whole_logprobs, tokens=targets, sampling=sampling, soft_cap=soft_cap, by_row=by_row
            )
            found["reference"], _ = whole_of(*factors_of(joined(base, reference), batch))
            found["whole"] = whole_of(*factors)[0] if sampling.truncated else found["policy"]
        return {name: values.reshape(batch.tokens.shape) for name, values in found.items()}

    return evaluate


def _gradients(
    model: ModelConfig,
    learner: LearnerConfig,
    algorithm: AlgorithmConfig,
    sampling: SamplingConfig,
    mesh: Mesh,
) -> Callable[..., tuple[Params, Sums]]:
    factors_of = _factors(model, learner, mesh)

    def loss(
        params: Params, base: Params | None, reference: Params | None, batch: PackedBatch
    ) -> tuple[Float[Array, ""], Sums]:
        targets = jnp.ravel(batch.targets)
        factors = factors_of(joined(base, params), batch)
        by_row = _attention(learner, mesh, batch.tokens.size) == "paged"
        logprobs, entropy = sampled_logprobs(
            *factors, targets, sampling, soft_cap=model.final_soft_cap, by_row=by_row
        )
        whole = frozen = None
        if reference is not None:
            # Of the whole softmax: what one policy's top-p leaves may be nothing of the other's.
            whole_of = partial(
                whole_logprobs,
                tokens=targets,
                sampling=sampling,
                soft_cap=model.final_soft_cap,
                by_row=by_row,
            )
            frozen, _ = whole_of(*factors_of(joined(base, reference), batch))
            whole = whole_of(*factors)[0] if sampling.truncated else logprobs
        return objective(
            algorithm,
            batch,
            logprobs,
            entropy,
            whole_logprobs=whole,
            reference_logprobs=frozen,
        )

    def gradients(
        base: Params | None, params: Params, reference: Params | None, batch: PackedBatch
    ) -> tuple[Params, Sums]:
        grads, sums = jax.grad(loss, has_aux=True)(params, base, reference, batch)
        return grads, sums

    return gradients


def _attention(learner: LearnerConfig, mesh: Mesh, num_tokens: int) -> str:
    """ "auto" takes the engine's order of sums where the kernel runs well: one device, rows
    that are not many."""
    if learner.attention != "auto":
        return learner.attention
    return "paged" if mesh.size == 1 and num_tokens <= MOST_PAGED_TOKENS else "auto"

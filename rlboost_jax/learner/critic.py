"""A critic: what reward is to be expected at each token, learnt beside the policy.

It is a decoder of the policy's shape with parameters and an optimizer of its own. It begins as a
copy of the policy whose head is a vector of zeros: every value is 0 before its first update.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from rlboost_jax.algorithms.values import value_losses
from rlboost_jax.config.records import AlgorithmConfig, LearnerConfig, ModelConfig
from rlboost_jax.config.routing import routing_of
from rlboost_jax.learner.objective import Sums
from rlboost_jax.learner.packing import TOKEN_MEAN, PackedBatch, fill
from rlboost_jax.learner.state import make_optimizer
from rlboost_jax.learner.step import combine
from rlboost_jax.models.forward import head_factors, hidden_states
from rlboost_jax.models.params import Params, abstract_params
from rlboost_jax.models.sharding import batch_sharding, param_shardings, program_on, replicated
from rlboost_jax.pytree import pytree


@pytree
class CriticState:
    """The part of a TrainState that a run with a critic has."""

    params: Params  # those of a decoder with tied embeddings, and "value": {"kernel": [E]}
    opt_state: Any


class CriticStep:
    """Programs of one run's critic, each compiled at its first use and never again.

    Attributes:
        values: (params, packed batch) → value of each position [R, T]: the reward that is
            expected before its target is sampled.
        gradients: (params, packed batch) → (gradients, sums), undivided. The sums are over
            response tokens that are trained on: `value_loss`, `value_stopped` (without a
            gradient) and `tokens`.
        combine: adds two of these; the first is consumed.
        apply: (state, gradients, divisor) → (state, metrics); the state is consumed.
        shardings: of a CriticState.
    """

    def __init__(
        self,
        model: ModelConfig,
        learner: LearnerConfig,
        algorithm: AlgorithmConfig,
        *,
        num_steps: int,
        mesh: Mesh,
    ) -> None:
        self._model = replace(model, tie_embeddings=True)  # no matrix of logits
        self._routing = routing_of(model, algorithm)  # batches bring it; the critic has routers
        learner = replace(learner, learning_rate=algorithm.critic_learning_rate)
        self.optimizer = make_optimizer(learner, num_steps)
        self.shardings = self._shardings(mesh)
        params, whole, rows = self.shardings.params, replicated(mesh), batch_sharding(mesh)
        values_of = _values(self._model, learner, mesh)
        program = partial(program_on, mesh)
        self.values = program(values_of, in_shardings=(params, rows), out_shardings=whole)
        self.gradients = program(
            _gradients(values_of, algorithm.value_clip),
            in_shardings=(params, rows),
            out_shardings=(params, whole),
        )
        self.combine = program(combine, donate_argnums=0, out_shardings=(params, whole))
        self.apply = program(
            self._apply,
            in_shardings=(self.shardings, params, whole),
            out_shardings=(self.shardings, whole),
            donate_argnums=0,
        )

    def init(self, policy: Params) -> CriticState:
        """The state before the first update, of copies of the policy's parameters."""

        def fresh(policy: Params) -> CriticState:
            params = jax.tree.map(jnp.copy, _trunk(policy))
            params["value"] = {"kernel": jnp.zeros(self._model.embed_dim, jnp.float32)}
            return CriticState(params=params, opt_state=self.optimizer.init(params))

        return jax.jit(fresh, out_shardings=self.shardings)(policy)

    def abstract(self) -> CriticState:
        """Shapes, dtypes and shardings: what a checkpoint is restored onto."""
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            self._shapes(),
            self.shardings,
        )

    def compile(self, state: CriticState, *, shapes: Iterable[tuple[int, int]]) -> None:
        """Compile everything before the first step, as `LearnerStep.compile` does."""
        for rows, row_tokens in shapes:
            batch, _ = fill(
                [],
                rows=rows,
                row_tokens=row_tokens,
                loss_aggregation=TOKEN_MEAN,
                routing=self._routing,
            )
            self.values(state.params, batch)
            part = self.gradients(state.params, batch)
        gradients, _ = self.combine(part, self.gradients(state.params, batch))
        self.apply.lower(state, gradients, np.float32(1)).compile()

    def micro_batch(self, params: Params, batches: Sequence[PackedBatch]) -> tuple[Params, Sums]:
        """Gradients and sums over the packed batches of a micro-batch, in their order."""
        first, *others = batches
        total = self.gradients(params, first)
        for batch in others:
            total = self.combine(total, self.gradients(params, batch))
        return total

    def _shapes(self) -> CriticState:
        params = abstract_params(self._model)
        params["value"] = {"kernel": jax.ShapeDtypeStruct((self._model.embed_dim,), jnp.float32)}
        return CriticState(params=params, opt_state=jax.eval_shape(self.optimizer.init, params))

    def _shardings(self, mesh: Mesh) -> CriticState:
        """The moments lie as the parameters do."""
        params = param_shardings(self._model, mesh)
        params["value"] = {"kernel": replicated(mesh)}
        opt_state = optax.tree_map_params(
            self.optimizer,
            lambda _, sharding: sharding,
            self._shapes().opt_state,
            params,
            transform_non_params=lambda _: replicated(mesh),
        )
        return CriticState(params=params, opt_state=opt_state)

    def _apply(
        self, state: CriticState, gradients: Params, divisor: Float[Array, ""]
    ) -> tuple[CriticState, dict[str, Array]]:
        gradients = jax.tree.map(lambda leaf: leaf / divisor, gradients)
        norm = optax.tree.norm(gradients)
        updates, opt_state = self.optimizer.update(gradients, state.opt_state, state.params)
        metrics = {
            "gradient_norm": norm,
            "finite": jnp.isfinite(norm) & jnp.isfinite(optax.tree.norm(updates)),
        }
        params = optax.apply_updates(state.params, updates)
        return CriticState(params=params, opt_state=opt_state), metrics


def _trunk(policy: Params) -> Params:
    """All but the matrix of logits, which a policy with tied embeddings does not have."""
    head = {name: part for name, part in policy["head"].items() if name != "kernel"}
    return {**policy, "head": head}


def _values(
    model: ModelConfig, learner: LearnerConfig, mesh: Mesh
) -> Callable[[Params, PackedBatch], Float[Array, "R T"]]:
    def values(params: Params, batch: PackedBatch) -> Float[Array, "R T"]:
        tokens, positions, segments = map(
            jnp.asarray, (batch.tokens, batch.positions, batch.segments)
        )
        decoder = {name: part for name, part in params.items() if name != "value"}
        x = hidden_states(
            model, decoder, tokens, positions, segments, remat=learner.remat, mesh=mesh
        )
        x, _ = head_factors(model, decoder, x)
        return (x.astype(jnp.float32) @ params["value"]["kernel"]).reshape(tokens.shape)

    return values


def _gradients(
    values_of: Callable[[Params, PackedBatch], Float[Array, "R T"]], value_clip: float
) -> Callable[[Params, PackedBatch], tuple[Params, Sums]]:
    def loss(params: Params, batch: PackedBatch) -> tuple[Float[Array, ""], Sums]:
        mask = jnp.asarray(batch.response_mask) & (jnp.asarray(batch.weights) > 0)
        losses, stopped = value_losses(
            values_of(params, batch),
            jnp.asarray(batch.old_values),
            jnp.asarray(batch.returns),
            mask,
            value_clip=value_clip,
        )
        total = losses.sum()
        sums = {"value_loss": total, "value_stopped": stopped.sum(), "tokens": mask.sum()}
        return total, {name: value.astype(jnp.float32) for name, value in sums.items()}

    return jax.grad(loss, has_aux=True)

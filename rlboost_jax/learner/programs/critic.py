"""Critic: a model of the expected reward at each token, trained beside the policy.

It is a decoder of the policy's shape with parameters and an optimizer of its own. It begins as a
copy of the policy whose head is a vector of zeros: every value is 0 before its first update.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float
from rlboost_kernels import product_precision

from rlboost_jax.algorithms.values import value_losses
from rlboost_jax.learner.packing import PackedBatch, empty
from rlboost_jax.learner.programs.apply import Part, add_up, apply_programs
from rlboost_jax.learner.programs.objective import Sums
from rlboost_jax.learner.programs.passes import grouped, hidden_states
from rlboost_jax.learner.state import (
    TrainState,
    abstract_of,
    init_state,
    make_optimizer,
    shardings_of,
)
from rlboost_jax.models.adapters import base_model
from rlboost_jax.models.forward import head_factors
from rlboost_jax.models.parameter_sharding import (
    batch_sharding,
    param_shardings,
    program_on,
    replicated,
)
from rlboost_jax.models.params import Params, abstract_params
from rlboost_jax.settings.algorithm_config import AlgorithmConfig
from rlboost_jax.settings.learner_config import LearnerConfig
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.routing import routing_of


class CriticPrograms:
    """Programs of one run's critic, each compiled at its first use and never again.

    Attributes:
        values: (params, packed batch) → value of each position [R, T]: the reward that is
            expected before its target is sampled.
        gradients: (params, packed batch) → (gradients, sums), undivided. The sums are over
            response tokens that are trained on: `loss` and `tokens`.
        combine, apply: see `apply_programs`.
        shardings: of a TrainState, whose parameters are those of a decoder with tied embeddings,
            and "value": {"kernel": [E]}.
    """

    def __init__(
        self,
        model: ModelConfig,
        learner: LearnerConfig,
        algorithm: AlgorithmConfig,
        *,
        num_updates: int,
        mesh: Mesh,
    ) -> None:
        # No matrix of logits; trained whole, whatever the policy's adapters are.
        self._model = replace(base_model(model), tie_embeddings=True)
        self._routing = routing_of(model, algorithm)  # batches bring it; the critic has routers
        learner = replace(learner, learning_rate=algorithm.critic_learning_rate)
        self.optimizer = make_optimizer(learner, num_updates)
        self.shardings = shardings_of(
            self._shapes(),
            {**param_shardings(self._model, mesh), "value": {"kernel": replicated(mesh)}},
            self.optimizer,
            mesh,
            moment_memory=learner.moment_memory,
        )
        params, whole, rows = self.shardings.params, replicated(mesh), batch_sharding(mesh)
        values_of = _values(self._model, learner, mesh)
        program = partial(program_on, mesh)
        self.values = program(values_of, in_shardings=(params, rows), out_shardings=whole)
        self.gradients = program(
            _gradients(values_of, algorithm.value_clip),
            in_shardings=(params, rows),
            out_shardings=(params, whole),
        )
        self.combine, self.apply = apply_programs(
            learner, self.optimizer, self.shardings, mesh, num_updates=num_updates
        )

    def init(self, policy: Params) -> TrainState:
        """The state before the first update, of float32 copies of the policy's parameters.

        Args:
            policy: without adapters: its base, where it has some.
        """
        value = {"kernel": np.zeros(self._model.embed_dim, np.float32)}
        trunk = jax.tree.map(lambda leaf: leaf.astype(np.float32), _trunk(policy))
        return init_state({**trunk, "value": value}, self.optimizer, self.shardings)

    def abstract(self) -> TrainState:
        """Shapes, dtypes and shardings that a checkpoint is restored onto."""
        return abstract_of(self._shapes(), self.optimizer, self.shardings)

    def compile(self, state: TrainState, *, shapes: Iterable[tuple[int, int]]) -> None:
        """Compile everything before the first step, as `PolicyPrograms.compile` does."""
        for rows, row_tokens in shapes:
            batch = empty(rows, row_tokens, self._routing)
            self.values(state.params, batch)
            part = self.gradients(state.params, batch)
        gradients, _ = self.combine(part, self.gradients(state.params, batch))
        self.apply.lower(state, gradients, np.float32(1)).compile()

    def accumulate(self, params: Params, batches: Sequence[PackedBatch]) -> Part:
        """Gradients and sums over the packed batches of a micro-batch, in their order."""
        return add_up((self.gradients(params, b) for b in batches), self.combine)

    def _shapes(self) -> Params:
        kernel = jax.ShapeDtypeStruct((self._model.embed_dim,), jnp.float32)
        return {**abstract_params(self._model), "value": {"kernel": kernel}}


def _trunk(policy: Params) -> Params:
    """Parameters without the matrix of logits, which a policy with tied embeddings lacks."""
    head = {name: part for name, part in policy["head"].items() if name != "kernel"}
    return {**policy, "head": head}


def _values(
    model: ModelConfig, learner: LearnerConfig, mesh: Mesh
) -> Callable[[Params, PackedBatch], Float[Array, "R T"]]:
    # No engine computes values: there is no order of sums to follow.
    attention = "auto" if learner.attention == "paged" else learner.attention

    def values(params: Params, batch: PackedBatch) -> Float[Array, "R T"]:
        decoder = {name: part for name, part in params.items() if name != "value"}
        x = hidden_states(
            model,
            decoder,
            batch,
            remat=learner.remat,
            mesh=mesh,
            attention=attention,
            grouped=grouped(learner),
        )
        x, _ = head_factors(model, decoder, x)
        kernel = params["value"]["kernel"]
        value = jnp.matmul(x.astype(jnp.float32), kernel, precision=product_precision(kernel.dtype))
        return value.reshape(batch.tokens.shape)

    return values


def _gradients(
    values_of: Callable[[Params, PackedBatch], Float[Array, "R T"]], value_clip: float
) -> Callable[[Params, PackedBatch], tuple[Params, Sums]]:
    def loss(params: Params, batch: PackedBatch) -> tuple[Float[Array, ""], Sums]:
        mask = jnp.asarray(batch.response_mask) & (jnp.asarray(batch.weights) > 0)
        losses = value_losses(
            values_of(params, batch),
            jnp.asarray(batch.old_values),
            jnp.asarray(batch.returns),
            mask,
            value_clip=value_clip,
        )
        total = losses.sum()
        sums = {"loss": total, "tokens": mask.sum()}
        return total, {name: value.astype(jnp.float32) for name, value in sums.items()}

    return jax.grad(loss, has_aux=True)

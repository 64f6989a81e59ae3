"""Supervised updates that give a from-scratch model behaviour to reinforce.

Two phases, which stand for pre-training. The *skill* phase trains mostly on worked answers
until the loss says that they can be continued; a fixed number of updates would leave some
seeds without the skill. The *habit* phase trains mostly on guesses, so that the policy
begins as one that could work problems out and rarely does. Everything follows from the
seed.
"""

import math
from collections.abc import Callable, Iterator
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float
from rlboost_kernels import selected_logprobs

from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.packing import PackedBatch, fill
from rlboost_jax.learner.programs.passes import grouped
from rlboost_jax.learner.setup.lessons import Lessons, lessons_seed
from rlboost_jax.learner.state import TrainState, init_state, state_shardings
from rlboost_jax.models.forward import head_factors, hidden_states_and_experts
from rlboost_jax.models.parameter_sharding import batch_sharding, program_on, replicated
from rlboost_jax.models.params import Params
from rlboost_jax.settings.learner_config import LearnerConfig
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.warmup_config import WarmupConfig

TOKENS_PER_UPDATE: Final = 2_496  # positions of a batch, rounded up to whole packed batches
LOOK_EVERY: Final = 4  # updates between looks at the loss; a look waits for the device
RISE_UPDATES: Final = 20  # to the full learning rate
MEMORY: Final = 0.6  # of the loss's moving average, per look
_SURPLUS: Final = 1.15  # positions' worth of answers to choose from when filling a batch

Report = Callable[[int, float], None]


def warm_up(
    config: RunConfig,
    lessons: Lessons,
    params: Params,
    *,
    mesh: Mesh,
    report: Report = lambda update, loss: None,
) -> Params:
    """Train both phases; with `warmup.max_updates` of 0 the parameters come back as they are.

    Args:
        lessons: that it learns from, see `lessons_of`.
        params: to begin with; they stay usable.
        report: called with (updates made, moving average of the loss in nats per token).

    Returns:
        Parameters, laid out over the mesh.
    """
    warmup = config.warmup
    if warmup.max_updates == 0:
        return params
    optimizer = _optimizer(config.learner.max_gradient_norm)
    shardings = state_shardings(config.model, optimizer, mesh)
    state = init_state(params, optimizer, shardings)
    update = program_on(
        mesh,
        _update(config.model, optimizer, mesh, config.learner),
        in_shardings=(shardings, batch_sharding(mesh), replicated(mesh)),
        out_shardings=(shardings, replicated(mesh)),
        donate_argnums=0,
    )
    drawn = _Drawn(config, lessons)

    average = math.log(config.model.vocab_size)  # the loss of knowing nothing
    updates = 0
    for rates, worked_fraction, target_loss in (
        (_skill_rates(warmup), warmup.worked_fraction, warmup.target_loss),
        (_habit_rates(warmup), warmup.habit_worked_fraction, -math.inf),
    ):
        for rate in rates:
            state, loss = update(state, drawn.batch(worked_fraction), rate)
            updates += 1
            if updates % LOOK_EVERY == 0:
                average = MEMORY * average + (1 - MEMORY) * float(loss)
                report(updates, average)
                if average < target_loss:
                    break
    return state.params


def _skill_rates(warmup: WarmupConfig) -> Iterator[np.float32]:
    for update in range(warmup.max_updates):
        yield np.float32(warmup.learning_rate * min(1.0, (update + 1) / RISE_UPDATES))


def _habit_rates(warmup: WarmupConfig) -> Iterator[np.float32]:
    """Learning rates of the habit phase: down to a tenth, in equal steps."""
    for update in range(warmup.habit_updates):
        left = 1 - update / warmup.habit_updates
        yield np.float32(warmup.habit_learning_rate * (0.1 + left))


class _Drawn:
    """Packed batches of worked answers and guesses; lessons without room come in the next one."""

    def __init__(self, config: RunConfig, lessons: Lessons) -> None:
        self._lessons = lessons
        self._rng = np.random.default_rng(lessons_seed(config))
        self._row_tokens = config.row_tokens
        packed = config.pack_rows * self._row_tokens
        self._rows = config.pack_rows * math.ceil(TOKENS_PER_UPDATE / packed)
        self._drawn = 0
        self._left: list[Trajectory] = []

    def batch(self, worked_fraction: float) -> PackedBatch:
        wanted = _SURPLUS * self._rows * self._row_tokens
        positions = sum(len(t.sequence.tokens) - 1 for t in self._left)
        while positions < wanted:
            lesson = self._draw(worked_fraction)
            positions += len(lesson.sequence.tokens) - 1
            self._left.append(lesson)
        batch, self._left = fill(
            self._left, rows=self._rows, row_tokens=self._row_tokens, loss_aggregation="token_mean"
        )
        return batch

    def _draw(self, worked_fraction: float) -> Trajectory:
        index, self._drawn = self._drawn, self._drawn + 1
        worked = self._rng.random() < worked_fraction
        return Trajectory(
            prompt=index,
            sample=0,
            sequence=self._lessons.lesson(index, self._rng, worked=worked),
            advantage=0.0,
        )


def _optimizer(max_gradient_norm: float) -> optax.GradientTransformation:
    """AdamW without its learning rate, which depends on when the skill phase ends."""
    return optax.chain(
        optax.clip_by_global_norm(max_gradient_norm),
        optax.scale_by_adam(b2=0.98),
        optax.add_decayed_weights(0.01),
    )


def _update(
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    learner: LearnerConfig,
) -> Callable[..., tuple[TrainState, Float[Array, ""]]]:
    # What was found right on a GPU. No engine takes part: there is no order of sums to follow.
    free = learner.attention == "paged" or jax.default_backend() == "cpu"
    attention = "auto" if free else learner.attention

    def mean_loss(params: Params, batch: PackedBatch) -> Float[Array, ""]:
        tokens, positions, segments = map(
            jnp.asarray, (batch.tokens, batch.positions, batch.segments)
        )
        x, _ = hidden_states_and_experts(
            model,
            params,
            tokens,
            positions,
            segments,
            remat=learner.remat,
            mesh=mesh,
            attention=attention,
            grouped=grouped(learner),
        )
        targets, weights = jnp.ravel(batch.targets), jnp.ravel(batch.weights)
        logprobs, _ = selected_logprobs(
            *head_factors(model, params, x), targets, soft_cap=model.final_soft_cap or None
        )
        return -(logprobs * weights).sum() / weights.sum()

    def update(
        state: TrainState, batch: PackedBatch, learning_rate: Float[Array, ""]
    ) -> tuple[TrainState, Float[Array, ""]]:
        loss, gradients = jax.value_and_grad(mean_loss)(state.params, batch)
        direction, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params = jax.tree.map(lambda p, d: p - learning_rate * d, state.params, direction)
        return TrainState(params=params, opt_state=opt_state, step=state.step + 1), loss

    return update

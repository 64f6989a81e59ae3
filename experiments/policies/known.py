"""A manager that knows lengths beforehand: what that could bring to the same policies in
the same simulation, and to the order in which rollouts are begun."""

import numpy as np

from rlboost_jax.manager.policies.length_prediction import Floats, Lengths, Responses
from rlboost_jax.manager.reducer.step_plans import StepPlans
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout
from rlboost_jax.simulator.world import World

DECODING = 0.02  # seconds of a token of one rollout; 20 % more or less makes no difference


class Known(Lengths):
    """Learns like any other, and then tells the truth."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._step = 0  # that it is asked about

    def learn(self, step: Responses) -> None:
        super().learn(step)
        self._step += 1

    def expected(self, step: Responses) -> Floats:
        return self.scenario(step)

    def scenario(self, step: Responses) -> Floats:
        lengths = _lengths(self._world, self._step, len(step.tokens))
        assert (lengths[step.ended] == step.tokens[step.ended]).all(), "lengths of another step"
        return lengths


def tell_lengths(world: World) -> None:
    """Before it runs: plans know every length, and rollouts are begun in the best order for it."""
    _plans(world).model.lengths = Known(world)
    _order(world, means=False)


def tell_means(world: World) -> None:
    """Before it runs: rollouts are begun in the best order as if each were as long as its group
    is in the geometric mean. More is not to be known of a prompt before it is answered."""
    _order(world, means=True)


def _order(world: World, *, means: bool) -> None:
    """The longest path to the step's end first (largest delivery time first: Jackson 1955): the
    longer it takes to generate a rollout and then to train its group and all that are complete
    later, the sooner is it begun."""
    plans = _plans(world)
    model, unknowing = plans.model, plans.ranks

    def ranks(step: BatchRecord, slots: int) -> dict[int, float]:
        if not model.ready:
            return unknowing(step, slots)
        rollouts = sorted(step.rollouts, key=_sample)
        tokens = _lengths(world, step.begin.batch, len(rollouts))
        tokens = tokens.reshape(-1, step.begin.group_size)
        if means:
            tokens[:] = np.exp(np.log(tokens).mean(axis=1, keepdims=True))
        first = np.argsort(tokens.max(axis=1), kind="stable")  # in which groups are complete
        prompts = np.array([len(r.transcript.prompt) // 4 for r in rollouts]).reshape(tokens.shape)
        training = model.seconds_per_token * (tokens + prompts).sum(axis=1)
        since = np.empty_like(training)
        since[first] = np.cumsum(training[first][::-1])[::-1]
        paths = (DECODING * tokens + since[:, None]).ravel()
        return {r.sample: -float(path) for r, path in zip(rollouts, paths, strict=True)}

    plans.ranks = ranks  # type: ignore[method-assign]
    plans.choose_order = lambda reserved, remote: None  # type: ignore[method-assign]


def _plans(world: World) -> StepPlans:
    plans = world.manager.components.plans
    assert plans is not None, "these policies predict nothing"
    return plans


def _lengths(world: World, step: int, count: int) -> Floats:
    return np.array([world.length(step, n) for n in range(count)], float)


def _sample(rollout: Rollout) -> int:
    return rollout.sample

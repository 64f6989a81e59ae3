from collections.abc import Callable
from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from configs import base
from rlboost_jax.learner.episodes.trajectory import Group, Trajectory
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.sequences.sequence import Sequence
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.run_config import RunConfig

GROUP_SIZE = 3


@pytest.fixture(scope="session")
def config() -> RunConfig:
    """The base configuration around a model of a few thousand parameters."""
    values = base.get_config()
    values.num_steps = 10
    values.model.num_layers = 1
    values.model.embed_dim = 16
    values.model.hidden_dim = 32
    values.model.head_dim = 8
    values.task.mean_length = 3.0
    values.task.max_length = 8
    values.sampling.max_response_tokens = 24
    values.learner.learning_rate = 1e-2
    return run_config(values)


@pytest.fixture(scope="session")
def learner_step(config: RunConfig) -> Callable[..., PolicyPrograms]:
    """`learner_step(kl_coefficient=0.1)`: the programs of `config` with other algorithm values,
    or with a weight of the KL to teachers.

    Each is made, and so compiled, once for all tests.
    """

    @cache
    def build(*, teacher_weight: float = 0.0, **algorithm: float | str) -> PolicyPrograms:
        return PolicyPrograms(
            config.model,
            config.learner,
            replace(config.algorithm, **algorithm),
            replace(config.sampling, temperature=0.8),
            num_updates=config.num_steps,
            mesh=make_mesh((1, 1, 1)),
            evaluation=config.evaluation,
            teacher_weight=teacher_weight,
        )

    return build


@pytest.fixture(scope="session")
def groups() -> tuple[Group, ...]:
    """Six prompts with three responses each, of 1 to 20 tokens, and random everything."""
    rng = np.random.default_rng(0)

    def trajectory(prompt: int, place: int) -> Trajectory:
        length = int(rng.integers(1, 21))
        return Trajectory(
            prompt=prompt,
            sample=prompt * GROUP_SIZE + place,
            sequence=Sequence.of_response(
                rng.integers(112, size=int(rng.integers(1, 7)), dtype=np.int32),
                rng.integers(112, size=length, dtype=np.int32),
                -rng.uniform(4.5, 5.0, length),
                version=3,
            ),
            verdict=Verdict(reward=float(rng.integers(2))),
            advantage=float(rng.normal()),
        )

    return tuple(
        Group(prompt=p, trajectories=tuple(trajectory(p, i) for i in range(GROUP_SIZE)))
        for p in range(6)
    )


@pytest.fixture
def count_compiles() -> Callable[[], int]:
    """How many programs were made since the test began, whether or not a cache had them."""
    made = []

    def listen(event: str, duration: float, **_: object) -> None:
        if event.endswith("jaxpr_to_mlir_module_duration"):
            made.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return lambda: len(made)

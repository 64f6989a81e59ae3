"""Programs for GPUs are made alike by every process; those for CPUs are as they were."""

from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from rlboost_jax.engine.devices import Devices
from rlboost_jax.models import adapters
from rlboost_jax.models.compiler_options import same_bits
from rlboost_jax.models.parameter_sharding import program_on
from tests.small import small_model

GPU = Mock(spec=jax.Device, platform="cuda", id=0, process_index=0)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Options of all that is compiled."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(jax, "jit", lambda _, **options: found.append(options))
    return found


def test_learners_and_engines_ask_for_it_on_gpus(asked: list[dict[str, Any]]) -> None:
    program_on(Mesh(np.array([GPU]), ("data",)), lambda x: x, donate_argnums=0)
    Devices(small_model(), 1, [GPU]).program(lambda x: x, (), ())
    adapters._program.__wrapped__(GPU)  # what merges them
    learner, engine, merging = (options["compiler_options"] for options in asked)
    assert learner == merging == {"xla_gpu_deterministic_ops": True}
    assert learner.items() < engine.items()
    assert "WHILE" in engine["xla_gpu_enable_command_buffer"].split(",")
    assert asked[0]["donate_argnums"] == 0


def test_nothing_is_asked_of_a_compiler_for_cpus(asked: list[dict[str, Any]]) -> None:
    assert same_bits(jax.devices()[0]) is None
    Devices(small_model(), 1).program(lambda x: x, (), ())
    assert asked[0]["compiler_options"] is None

"""The learner on eight simulated devices, and what of it lies where."""

import json
from dataclasses import replace

import pytest

from rlboost_jax.settings.memory_estimates import num_adapter_parameters, num_parameters
from rlboost_jax.settings.model_config import LoraConfig
from tests.learner.on_mesh import small_run
from tests.shared import measured_once


@pytest.fixture(scope="module")
def measured(run_with_devices, tmp_path_factory):
    source = "from tests.learner.on_mesh import main; main()"
    return measured_once(
        tmp_path_factory, "learner-on-mesh", lambda: json.loads(run_with_devices(source, 8))
    )


def test_gradients_depend_on_neither_micro_batches_nor_devices_nor_remat(measured):
    assert measured["largest gradient"] > 1e-3, "or there is nothing to compare"
    assert all(gap < 1e-6 for gap in measured["gradient gaps"].values()), measured


@pytest.mark.parametrize(("mesh", "shares"), [("(2, 2, 2)", 4), ("(1, 4, 2)", 8)])
def test_parameters_and_moments_are_split(measured, mesh, shares):
    """Over fsdp and tensor. All devices hold the norms, which are small."""
    count = num_parameters(small_run().model)
    norms = 3 * 16 + 2 * 8
    each = 4 * ((count - norms) // shares + norms)
    assert measured[f"bytes of params on {mesh}"] == [[each] * 8, 4 * count]
    on_each, whole = measured[f"bytes of moments on {mesh}"]
    counters = whole - 2 * 4 * count
    assert counters in (4, 8)
    assert on_each == [2 * each + counters] * 8


def test_an_update_gathers_nothing_and_is_compiled_once(measured):
    assert not measured["an update gathers"]
    assert measured["programs made by a second update"] == 0


@pytest.mark.parametrize("mesh", ["(1, 1, 1)", "(1, 4, 2)", "the host"])
def test_a_checkpoint_of_one_mesh_goes_on_on_another(measured, mesh):
    assert measured[f"restored on {mesh}"] == 0
    assert measured[f"resumed on {mesh}"] < 1e-5


def test_moments_on_the_host_stay_there(measured):
    assert measured["moments on the host"] == ["pinned_host"]
    assert measured["parameters beside them"] == ["device"]


def test_each_data_parallel_slice_has_an_engine_that_is_fed_from_all_devices(measured):
    assert measured["devices of slices"] == [[0, 1], [4, 5]]
    assert measured["an engine's parameters are equal"]


def test_adapters_lie_as_their_matrices_do(measured):
    """A factor is split along the axis that it shares with its matrix, over fsdp or tensor."""
    count = num_adapter_parameters(replace(small_run().model, lora=LoraConfig(rank=4)))
    assert measured["bytes of adapters"] == [[4 * count // 2] * 8, 4 * count]
    assert measured["bytes of their base"] == measured["bytes of params on (2, 2, 2)"]
    assert measured["adapters' gradient gap"] < 1e-6
    assert measured["an engine's merged parameters are equal"]

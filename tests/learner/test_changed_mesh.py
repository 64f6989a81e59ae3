"""A run goes on on another mesh: with the bits that were saved, and each step on its own."""

import json

import pytest

from tests.shared import measured_once

THERE = [[2, "learner.mesh", [1, 4, 1], [2, 1, 2]]]
AND_BACK = [*THERE, [4, "learner.mesh", [2, 1, 2], [1, 4, 1]]]


@pytest.fixture(scope="module")
def measured(run_with_devices, tmp_path_factory):
    source = "from tests.learner.changed_mesh import main; main()"
    return measured_once(
        tmp_path_factory,
        "changed-mesh",
        lambda: json.loads(run_with_devices(source, 4).splitlines()[-1]),
    )


@pytest.mark.parametrize(
    ("of", "leaves"),
    [("adapters", 45), ("a critic and rounded moments", 90), ("experts", 48)],
)
def test_a_state_is_read_onto_every_mesh_with_the_bits_that_were_saved(measured, of, leaves):
    """Around a circle of four meshes, parameters, moments and counters alike."""
    number, differing = measured[of]
    assert number >= leaves and not differing


def test_there_and_back_each_step_has_its_mesh(measured):
    """Steps add the same number to each parameter, which no mesh rounds otherwise."""
    found = measured["there and back"]
    assert found["meshes"] == [141, 141, 212, 212, 141, 141]
    assert found["changes"] == AND_BACK
    assert found["digests"] == measured["whole"]["digests"]
    assert measured["whole"]["changes"] == []


def test_a_change_is_said_with_what_becomes_of_the_bits(measured):
    bits = (
        "the state of step {} has the bits that were saved; updates from there on may differ by "
        "rounding from those of the layout before"
    )
    assert measured["lines"] == [
        "changed from step 2 on: learner.mesh (1, 4, 1) → (2, 1, 2)",
        bits.format(2),
        "changed from step 4 on: learner.mesh (2, 1, 2) → (1, 4, 1)",
        bits.format(4),
    ]


def test_steps_done_again_after_a_fallback_have_the_mesh_that_they_had(measured):
    assert measured["after a fallback"] == measured["there and back"]


def test_without_the_devices_of_then_they_have_the_mesh_of_now(measured):
    """The change is taken back: from checkpoint 2 on all is done as the run is laid out now."""
    found = measured["after a fallback without the devices of then"]
    assert found["meshes"] == [141] * 6 and found["changes"] == []
    assert measured["its lines"] == [
        "step 2 is done again as the run is laid out now, so that bits may differ by rounding: no "
        "room for (2, 1, 2)"
    ]
    assert measured["eight devices"].startswith("8 devices needed by learner.mesh=(1, 8, 1), 4 fo")


def test_a_trainer_that_dies_after_the_change_goes_on_with_either_mesh(measured):
    other, same = "with the other mesh", "with the same mesh"
    assert measured[f"{other}, dead"] == measured[f"{same}, dead"] == ["killed", THERE]
    assert measured[other]["changes"] == [] and measured[same]["changes"] == THERE
    assert (
        measured[other]["meshes"] == [141] * 4 and measured[same]["meshes"] == [141] * 2 + [212] * 2
    )
    whole = measured["whole"]["digests"][:4]
    assert measured[other]["digests"] == measured[same]["digests"] == whole


def test_a_run_without_a_warm_up_begins_with_the_same_bits_on_every_mesh(measured):
    assert len(set(measured["digests of fresh parameters"])) == 1

"""A budget in virtual time: the same decisions as a run's, and what they cost."""

import pytest

from rlboost_jax.simulator.market.simulated_market import static
from rlboost_jax.simulator.world import World
from tests.simulator.conftest import make_config

STEPS = 5


def rows_of(**policy: float) -> tuple[World, list[dict[str, float]]]:
    changes = {f"policy__{name}": value for name, value in policy.items()}
    config = make_config(num_steps=STEPS, instance__price_per_hour=3.0, **changes)
    world = World(config, static(4).changes, seed=1, seconds=1e6)
    return world, world.run()


@pytest.fixture(scope="module")
def free() -> list[dict[str, float]]:
    return rows_of()[1]


def test_an_hour_has_room_for_two(free: list[dict[str, float]]) -> None:
    _, rows = rows_of(max_dollars_per_hour=7.0)
    assert len(rows) == STEPS
    assert max(row["instances_mean"] for row in rows) <= 2 < max(r["instances_mean"] for r in free)


def test_a_run_that_has_spent_it_all_ends_its_steps_without_instances(
    free: list[dict[str, float]],
) -> None:
    """Half of what the same run costs without a limit."""
    cost = sum(row["cost_dollars"] for row in free)
    _, rows = rows_of(max_dollars=cost / 2)
    assert len(rows) == STEPS, "the run itself goes on"
    assert rows[-1]["instances_mean"] == 0 < rows[0]["instances_mean"]

"""What a version costs a fleet: closed forms beside the simulated link, and the kept results."""

import json
from dataclasses import replace

import pytest

from experiments.plots import FOLDER
from experiments.weight_transfer import fleets
from rlboost_jax.simulator.links import Link
from rlboost_jax.simulator.virtual_clock import VirtualClock


@pytest.mark.parametrize("count", [1, 3, 40])
def test_the_trainer_alone_is_as_its_simulated_link(count: int):
    version = fleets._version(count, "trainer, whole")
    clock = VirtualClock()
    link = Link(clock, sender=version.trainer_rate, receiver=version.server_rate)
    ends: list[float] = []
    for zone in version.zones:
        dollars = fleets.EGRESS_PER_GB if zone else 0.0
        link.pull(version.version_bytes, lambda: ends.append(clock.now), dollars_per_gb=dollars)
    clock.run(lambda: False, 1e6)
    seconds, crossing = fleets.trainer_alone(version)
    assert ends == pytest.approx([seconds] * count)
    assert link.sent_dollars == pytest.approx(crossing / 1e9 * fleets.EGRESS_PER_GB)


def test_a_small_variant_has_the_shape_of_the_kept_results(monkeypatch):
    monkeypatch.setattr(fleets, "VERSION", replace(fleets.VERSION, piece_bytes=1e9))
    kept = json.loads((FOLDER / "weight_transfer" / "fleets.json").read_text())
    rows = fleets.measure(sizes=(1, 6), faults_of=20)
    assert {row["case"] for row in rows} == {row["case"] for row in kept}
    runs = json.loads((FOLDER / "weight_transfer" / "runs.json").read_text())
    assert [row["case"] for row in runs] == [*fleets.WAYS] * 2  # of 8 and of 32 instances
    assert {frozenset(row) for row in rows} == {frozenset(row) for row in kept}
    assert all(panel.get_xlabel() and panel.get_ylabel() for panel in fleets.figure(rows).axes)


def test_the_table_and_the_figure_are_those_of_the_kept_results():
    folder = FOLDER / "weight_transfer"
    kept = json.loads((folder / "fleets.json").read_text())
    assert fleets.table(kept) in (folder / "README.md").read_text()
    assert (folder / "fleets.svg").read_text() == fleets.figure(kept)._repr_svg_()
    for row in kept:
        if row["case"].startswith("peers"):
            assert row["trainer_copies"] == pytest.approx(1.0)
            assert row["seconds"] <= 1.5 * row["pipeline_seconds"]

"""A small variant of every experiment runs, by its notebook's own code."""

import functools
import importlib
import inspect
import json
import re
from typing import Any

import pytest

from experiments import pictures, plots
from experiments.lag import trace
from experiments.policies import foresight, windows
from rlboost_jax.simulator.market.simulated_market import MachineChange, Market
from tests.notebooks import code_cells

NAMES = sorted(
    path.parent.name
    for path in plots.FOLDER.glob("*/experiment.py")
    if path.with_name("notebook.ipynb").exists()
)


@pytest.mark.parametrize("name", NAMES)
def test_a_small_variant(name, monkeypatch, tmp_path):
    """It writes the same shape of results as lies beside it, and a figure with named axes. What a
    reader may change has the values that the kept results were measured with."""
    experiment = importlib.import_module(f"experiments.{name}.experiment")
    measure = experiment.measure
    parameters = inspect.signature(measure).parameters
    few: dict[str, Any] = {"seeds": (0,)} if "seeds" in parameters else {}
    for swept in ("instances", "lifetimes"):
        if swept in parameters:
            few[swept] = parameters[swept].default[:2]

    def small(**given: Any) -> Any:
        assert given.get("small") or all(
            value == parameters[changeable].default for changeable, value in given.items()
        )
        assert given or parameters.keys() == {"small"}
        return measure(**{**given, "small": True, **few})

    monkeypatch.setattr(experiment, "measure", small)
    monkeypatch.setattr(plots, "save", functools.partial(plots.save, folder=tmp_path))
    namespace: dict[str, Any] = {}
    for code in code_cells(plots.FOLDER / name / "notebook.ipynb"):
        exec(code, namespace)
    assert all(panel.get_xlabel() and panel.get_ylabel() for panel in namespace["figure"].axes)
    assert (tmp_path / name / "figure.svg").read_text().startswith("<?xml")
    written = json.loads((tmp_path / name / "results.json").read_text())
    kept = json.loads((plots.FOLDER / name / "results.json").read_text())
    assert shape(written) == shape(kept)


@pytest.mark.parametrize("name", NAMES)
def test_the_figure_is_that_of_the_results(name, tmp_path):
    experiment = importlib.import_module(f"experiments.{name}.experiment")
    kept = json.loads((plots.FOLDER / name / "results.json").read_text())
    plots.save(name, kept, experiment.figure(kept), folder=tmp_path)
    drawn, stored = (folder / name / "figure.svg" for folder in (tmp_path, plots.FOLDER))
    assert drawn.read_text().count("<path") == stored.read_text().count("<path")


def test_pictures_of_a_simulation():
    """On the killed server's successor nothing is generated twice, and the window is drawn."""
    found = pictures.record(small=True, engine__slots=6)
    response = pictures.migrated(found)
    name, killed = found.killed
    before = sum(n for at, server, n in found.reports[response.work] if server == name)
    placed = [each[1:] for each in found.placed.values() if each[0] == response.work]
    assert [(known, at > killed) for _, at, known in placed] == [(0, False), (before, True)]
    reported = sum(n for *_, n in found.reports[response.work])
    assert reported == len(response.tokens) // 4 > before
    assert f"{before:,} tokens" in pictures.svg(pictures.resume(found))
    window = found.rows[pictures.STEP]["seeding_window_seconds"]
    assert f"seeding window, {window:.0f} s" in pictures.svg(pictures.step(found))


def test_the_picture_of_costs_is_that_of_the_figures():
    stored = (pictures.IMAGES / "cost.svg").read_text()
    assert pictures.svg(pictures.cost()).count("<path") == stored.count("<path")
    assert "servers at 75 % off" in stored


@pytest.mark.parametrize(
    ("name", "drawn", "said"),
    [
        ("step", r"seeding window, (\d+) s", "for the first {} of"),
        ("resume", r"prompt and ([\d,]+) tokens", "server 1 sends {} tokens"),
    ],
)
def test_alternative_texts_have_the_numbers_of_the_pictures(name, drawn, said):
    page = pictures.IMAGES.parent / "explanation" / "architecture.md"
    number = re.search(drawn, (pictures.IMAGES / f"{name}.svg").read_text())
    assert number and said.format(number[1]) in page.read_text()


def shape(value: Any) -> Any:
    """Names, of lists that they are lists, and one for all numbers that name something: what is
    measured here is of a few."""
    if isinstance(value, dict):
        return {"0" if _is_number(name) else name: shape(below) for name, below in value.items()}
    return list if isinstance(value, list) else None


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def test_windows_against_the_best_fixed_ones():
    """A few responses decide such a small step; a window that is far off loses half."""
    found = windows.over_seeds([windows.measure(0, (1, 3), small=True)])
    assert list(found) == ["1", "3", "1 to 3", "3 to 1"]
    for fleet in ("1", "3"):
        assert found[fleet]["model"]["regret"]["mean"] < 0.2


def test_a_window_is_found_once_no_later_step_is_much_longer_than_the_best():
    def steps(*seconds):
        return [{"step": step, "step_seconds": s} for step, s in enumerate(seconds)]

    best = steps(10.0, 10.0, 10.0, 20.0)
    rows = steps(9.0, 10.6, 10.4, 20.9)
    assert windows.found_after(rows, best, 0) == 2
    assert windows.found_after(rows, best, 2) == 0
    assert windows.found_after(steps(10.0, 10.0, 10.0, 21.1), best, 2) == 2


def test_who_knows_all_lengths_is_faster():
    """The lengths are of the current step: `Known` compares them with those that have ended."""
    found = foresight.over_seeds([foresight.measure(0, (1, 3), small=True)])
    for fleet in ("1", "3"):
        assert found[fleet]["all lengths known"]["mean"] < 1.0


def test_a_lag_where_instances_come_and_go():
    """On the very trace that lies beside it; nothing beats the bound."""
    kept = json.loads((plots.FOLDER / "lag" / "trace.json").read_text())
    on_loan = trace.counts()
    assert kept["trace"] == [list(point) for point in on_loan]
    alone = [count for _, count in on_loan]
    assert (min(alone), max(alone)) == (0, trace.LARGEST)
    found = trace.over_seeds({0: trace.measure(0, small=True)})
    assert shape(found) == shape(kept["lags"])
    for lag in (*found.values(), *kept["lags"].values()):
        assert 0.1 < lag["of_bound"]["mean"] < 1.0


def test_instance_seconds_are_those_of_present_instances():
    market = Market(
        name="",
        instances=None,
        seconds=9.0,
        changes=(
            MachineChange(0.0, True, "a"),
            MachineChange(2.0, True, "b"),
            MachineChange(5.0, False, "a"),
        ),
    )
    by = trace.instance_seconds(market)
    assert [by(seconds) for seconds in range(8)] == [0, 1, 2, 4, 6, 8, 9, 10]

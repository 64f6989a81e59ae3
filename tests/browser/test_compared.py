"""The comparison of runs, and reports of runs with every kind of departure, in a browser."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.cli import compare
from rlboost_jax.observe.html_report import write_report
from tests.browser.conftest import AXE, Tab, faults_of, until
from tests.observe.recorded import KINDS, STEPS, recorded
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.browser
MakeTab = Callable[..., Tab]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [recorded(kind, folder / kind) for kind in KINDS]


@pytest.fixture(scope="module")
def page(runs: list[Path]) -> Path:
    path = runs[0].parent / "compare.html"
    assert compare.main([*map(str, runs), f"--page={path}"]) == 0
    return path


def opened(tab: Tab, path: Path) -> Any:
    tab.page.goto(path.as_uri())
    tab.page.wait_for_selector("#learning .plot svg", timeout=1_000 * PATIENCE_SECONDS)
    return tab.page


@pytest.mark.parametrize("width", [1400, 390])
def test_nothing_is_wider_than_the_window_and_everybody_can_use_it(
    runs: list[Path], page: Path, tab: MakeTab, width: int
) -> None:
    for path in (page, *map(write_report, runs)):
        made = tab(width)
        shown = opened(made, path)
        for closed in shown.locator("details summary").all():
            closed.click()
        assert shown.evaluate("document.documentElement.scrollWidth") <= width, path
        if AXE.exists():
            assert faults_of(shown) == [], path
        made.shot(f"{path.parent.name}-{path.stem}-{width}")


def test_curves_have_the_numbers_of_the_rows(runs: list[Path], page: Path, tab: MakeTab) -> None:
    shown = opened(tab(), page)
    for _ in range(2):  # to the final evaluation, then to the last step
        shown.locator("#learning .plot >> nth=0").focus()
        shown.keyboard.press("ArrowLeft")
    until(shown, f"document.querySelector('#learning .entry.at').dataset.step === '{STEPS - 1}'")
    found = shown.evaluate(
        "[...document.querySelectorAll('#learning .field')][0].querySelectorAll('b').length"
    )
    assert found == len(runs)
    for place, run in enumerate(runs):
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        value = shown.get_attribute(f"#learning b[data-key='{place}/reward_mean']", "data-value")
        assert value is not None and float(value) == rows[-2]["reward_mean"]


def test_a_report_has_a_mark_for_each_departure_and_none_at_a_normal_end(
    runs: list[Path], tab: MakeTab
) -> None:
    for run in runs:
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        lost, left = (sum(row[f"instances_{key}"] for row in rows) for key in ("lost", "left"))
        shown = opened(tab(), write_report(run))
        shown.wait_for_selector("#fleet .plot svg", timeout=1_000 * PATIENCE_SECONDS)
        marks = {
            ending: shown.locator(f"#fleet .mark[data-ending='{ending}']").count()
            for ending in ("killed", "notice", "ended", "absent", "unknown")
        }
        assert marks == {
            "killed": lost - left, "notice": left, "ended": 0, "absent": 0, "unknown": 0
        }  # fmt: skip
        legend = shown.locator("#fleet .legend").inner_text()
        assert (f"lost without notice {lost - left}" in legend) == (lost > left), legend
        assert (f"lost with notice {left}" in legend) == (left > 0), legend

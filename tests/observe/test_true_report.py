"""Each number that a run's report, live page and counters show is that of its `metrics.jsonl`."""

import json
import math
import re
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.observe.html_report import write_report
from rlboost_jax.observe.metrics import SUMMED
from rlboost_jax.observe.page.page_stream import Cursor
from rlboost_jax.observe.page.points import SHOWN
from rlboost_jax.observe.page.prometheus import metrics_text
from rlboost_jax.observe.page.run_view import RunView
from rlboost_jax.observe.summary import headline, read_summary
from tests.observe.recorded import KINDS, STEPS, recorded
from tests.observe.test_html_report import values


@pytest.fixture(params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return recorded(request.param, tmp_path / request.param)


def table(run: Path) -> list[dict[str, Any]]:
    """The file, read by hand."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def added(rows: list[dict[str, Any]], key: str) -> Any:
    return sum(row[key] or 0 for row in rows)


def tiles(page: str) -> dict[str, tuple[str, str]]:
    pattern = (
        r"<div class='what'>(.*?)</div><div class='number'>(.*?)</div>"
        r"<div class='note'>(.*?)</div>"
    )
    return {what: (number, note) for what, number, note in re.findall(pattern, page)}


def near(drawn: list[Any], wanted: list[Any]) -> bool:
    """To the digits that are drawn; what is missing is missing in both."""
    return len(drawn) == len(wanted) and all(
        one is other is None or math.isclose(one, other, rel_tol=1e-6)
        for one, other in zip(drawn, wanted, strict=True)
    )


def test_headline_and_tiles(run: Path) -> None:
    page, rows = write_report(run).read_text(), table(run)
    steps, shown = [row for row in rows if not row["final"]], tiles(page)
    accuracies = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    lost, left, joined = (added(rows, f"instances_{key}") for key in ("lost", "left", "joined"))
    notice = f" ({left} with notice)" if left else ""
    fleet = (
        f"while {lost} server{'s were' if lost > 1 else ' was'} lost{notice} and {joined} joined."
        if lost
        else "while no server was lost."
    )
    sentence = f"from {accuracies[0]:.2f} to {accuracies[-1]:.2f}, {fleet}"
    assert f"<h1>{len(steps)} updates in" in page and sentence in page
    summary = read_summary(run)
    assert summary is not None and headline(summary) in page, "as the console says it"
    assert shown["updates"][0] == str(len(steps))
    assert shown["held-out accuracy"][0] == f"{accuracies[-1]:.3f}" == "0.812"
    note = f"{left} of them with notice; " if left else ""
    assert shown["servers lost"] == (str(lost), f"{note}{joined} joined")
    tokens = added(rows, "tokens_generated")
    share = f"{added(rows, 'tokens_lost') / tokens:.3%} of {tokens:,}"
    assert shown["tokens lost"] == (f"{added(rows, 'tokens_lost'):,}", share)
    assert shown["requests migrated"][0] == f"{added(rows, 'requests_migrated'):,}"
    paid = added(rows, "cost_dollars")
    assert shown["cost"][0] == (f"${paid:.4f}" if paid else "nothing")
    if drafted := added(rows, "tokens_drafted"):
        saved, dollars = (added(rows, f"{what}_saved") for what in ("decode_steps", "dollars"))
        about = f", about ${dollars:.4f}" if paid else ""
        note = f"of {drafted:,}; {saved:,} decode steps saved{about}"
        assert shown["drafts accepted"] == (f"{added(rows, 'drafts_accepted'):,}", note)
    assert ("drafts accepted" in shown) == (run.name != "forked")
    gap = max(row["max_logprob_gap"] for row in steps)
    assert shown["log-prob gap"][0] == f"{gap:.1e}"
    assert shown["final weights"][0] == steps[-1]["params_digest"][:8]
    assert ("pretended prices" in page) == (run.name == "killed")
    assert ("forked from step 5" in page) == (run.name == "forked")


def test_curves(run: Path) -> None:
    """Each point is a row, the final evaluation one more."""
    drawn, rows = values(write_report(run).read_text()), table(run)
    points = drawn["points"]
    assert points["step"] == [row["step"] for row in rows] and points["step"][-1] == STEPS
    for key in SHOWN:
        found = points.get(key, [None] * len(rows))
        assert near(found, [row[key] for row in rows]), key
    spent = accumulate(row["cost_dollars"] for row in rows)
    assert near(points["spent_dollars"], list(spent))
    for key in ("reserved", "preemptible"):
        rates = [
            row[f"tokens_{key}"] / row["step_seconds"] if row["step_seconds"] else None
            for row in rows
        ]
        assert near(points[f"{key}_per_second"], rates)
    forecasts = [row["cost_forecast_dollars"] for row in rows]
    assert forecasts[0] is None, "the first step has paid for the start"


def test_marks_and_the_legend(run: Path) -> None:
    """A cross for each server that was lost without notice, and none at a normal end."""
    drawn, rows = values(write_report(run).read_text()), table(run)
    lost, left, joined = (added(rows, f"instances_{key}") for key in ("lost", "left", "joined"))
    ends = Counter(life["ending"] for life in drawn["lives"])
    assert (ends["killed"], ends["notice"]) == (lost - left, left)
    assert {life["ending"] for life in drawn["lives"] if life["reserved"]} == {"ended"}
    assert drawn["tally"] == {"joined": joined, "lost": lost, "left": left}
    assert ends["turned_away"] == ends["absent"] == (run.name == "resumed")


def test_the_live_page_and_its_counters(run: Path) -> None:
    rows = table(run)
    with RunView(run) as view:
        view.poll()
        ((name, begin),) = Cursor(run.name).messages(view)
        text = metrics_text(view, name=run.name)
    assert name == "begin" and begin["points"]["step"] == [row["step"] for row in rows]
    counted = {f"instances_{key}": number for key, number in begin["tally"].items()}
    assert counted == {key: added(rows, key) for key in counted}
    for key in SUMMED:
        (found,) = re.findall(rf"^rlboost_run_{key}_total (.*)$", text, re.MULTILINE)
        assert float(found) == pytest.approx(added(rows, key)), key
    steps = [row for row in rows if not row["final"]]
    assert f"rlboost_run_steps_total {float(len(steps))}" in text
    assert f"rlboost_step {float(STEPS - 1)}" in text and "rlboost_accuracy 0.8125" in text


def test_a_report_of_a_run_that_goes_on_counts_those_since_the_newest_row(tmp_path: Path) -> None:
    run = recorded("killed", tmp_path / "killed")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:5]))
    (run / "summary.json").unlink()
    events = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(events[:-1]))
    page = write_report(run).read_text()
    tally = values(page)["tally"]
    assert tiles(page)["servers lost"][0] == str(tally["lost"])
    assert tally["lost"] > sum(json.loads(line)["instances_lost"] for line in lines[:5])


def test_files_of_an_earlier_release_are_read(tmp_path: Path) -> None:
    """Its rows know no notice and no final evaluation, which `summary.json` has."""
    run = recorded("killed", tmp_path / "killed")
    rows = [row for row in table(run) if not row["final"]]
    for row in rows:
        del row["instances_left"], row["final"]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write_report(run).read_text()
    assert tiles(page)["held-out accuracy"][0] == "0.812"
    assert tiles(page)["servers lost"][1].startswith("2 of them with notice; ")

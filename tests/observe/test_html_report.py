import base64
import dataclasses
import hashlib
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs import tiny
from rlboost_jax.observe.events_file import EventsWriter
from rlboost_jax.observe.files_tracker import FilesTracker
from rlboost_jax.observe.html_report import write_report
from rlboost_jax.observe.metrics import read_metrics
from rlboost_jax.observe.page.chart_panels import panels
from rlboost_jax.observe.page.points import points_of
from rlboost_jax.observe.summary import summarize, write_summary
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.changes import Change
from rlboost_jax.settings.config_loading import (
    Origin,
    read_run_config,
    run_config,
    write_run_config,
)
from tests.observe.conftest import row, sample
from tests.patience import PATIENCE_SECONDS


def values(page: str) -> Any:
    """What the page draws."""
    (text,) = re.findall(
        r'<script type="application/json" id="run">(.*?)</script>', page, re.DOTALL
    )
    return json.loads(text)


def titles(page: str) -> set[str]:
    """Titles of panels with something to show, by the rule of `Points.known` in charts.js."""
    run = values(page)

    def known(series: dict[str, Any]) -> bool:
        if series["key"].endswith("/"):
            return any(key.startswith(series["key"]) for key in run["points"])
        column = run["points"].get(series["key"], [])
        return any(column) if series["unless_zero"] else any(v is not None for v in column)

    found = {p["title"] for p in run["panels"] if any(map(known, all_series(p)))}
    return found | ({"Fleet"} if run["lives"] else set())


def all_series(panel: dict[str, Any]) -> list[dict[str, Any]]:
    return [series for field in panel["fields"] for series in field["series"]]


def curves(page: str) -> dict[str, list[float | None]]:
    """What is drawn, by name."""
    run = values(page)
    return {
        series["name"]: run["points"].get(series["key"], [])
        for panel in run["panels"]
        for series in all_series(panel)
    }


def test_changes_and_origin_are_in_the_report(workdir: Path) -> None:
    config = read_run_config(workdir)
    change = Change(step=3, name="learner.learning_rate", before=1e-3, value=1e-4)
    origin = Origin(workdir="/runs/<a>", run_id="f00dcafe99", step=2)
    write_run_config(workdir, config, "abc123", changes=[change], fork=origin)
    page = write_report(workdir).read_text()
    assert "forked from step 2 of /runs/&lt;a&gt; (run f00dcafe)" in page
    assert "step 3: learner.learning_rate 0.001 → 0.0001" in page


def test_the_page_says_what_the_files_say(workdir: Path) -> None:
    page = write_report(workdir).read_text()
    assert "60 updates in" in page and "held-out accuracy from 0.15 to 0.97" in page
    assert titles(page) == {
        "Learning",
        "Responses",
        "Fleet",
        "Tokens per second",
        "Waits and the seeding window",
        "Cost",
    }
    assert "324,352 parameters" in page


def of_provider(workdir: Path, provider: str) -> None:
    run = read_run_config(workdir)
    config = replace(run, fleet=replace(run.fleet, provider=provider))
    write_run_config(workdir, config, "abc123")


def test_the_bill_is_compared_like_with_like(workdir: Path) -> None:
    """Not where all servers share the learner's host; start and warm-up are in neither side."""
    rows = read_metrics(workdir)
    with FilesTracker(workdir, step=0) as files:
        for row in rows:
            between = 0.25 if row["step"] == 0 else 0.0
            paid = row["cost_dollars"] + between
            files.step(row | {"cost_dollars": paid, "cost_between_dollars": between})
    local = write_report(workdir).read_text()
    assert "all of it ran on this host" in local and "steps of this run" not in curves(local)
    of_provider(workdir, "none")
    page = write_report(workdir).read_text()
    steps = sum(row["cost_dollars"] for row in rows)
    assert f"of it ${steps:.4f} for the steps themselves" in page
    assert curves(page)["steps, reserved alone (estimate)"][-1] > 0
    assert curves(page)["steps of this run"][-1] == pytest.approx(steps)
    assert curves(page)["this run"][-1] == pytest.approx(steps + 0.25)


def test_what_was_spent_and_its_forecast_have_one_axis() -> None:
    """On two a run of $17 is as high as its forecast of $100."""
    (cost,) = (each for each in panels(run_config(tiny.get_config())) if each["id"] == "cost")
    (field,) = cost["fields"]
    sides = {series["key"]: series.get("right", False) for series in field["series"]}
    assert sides == {"spent_dollars": False, "cost_forecast_dollars": False}


def test_samples_and_the_parts_of_a_reward_are_shown_where_there_are_any(workdir: Path) -> None:
    before = write_report(workdir).read_text()
    assert not values(before)["samples"] and "What the reward is made of" not in titles(before)
    rows = read_metrics(workdir)
    with FilesTracker(workdir, step=59) as files:
        files.samples([sample(step=59, response_text="<i>five</i>")])
        files.step(rows[59] | {"reward/format": 0.625})
    page = write_report(workdir).read_text()
    assert "<i>five" not in page, "nothing that a model says is read as HTML"
    (group,) = values(page)["samples"]
    assert [row["response_text"] for row in group["rows"]] == ["<i>five</i>"]
    assert "What the reward is made of" in titles(page)
    assert values(page)["points"]["reward/format"] == [None] * 59 + [0.625]


def test_curves_are_the_rows(workdir: Path) -> None:
    """Each number of the policy is drawn as it is in the file, and a missing one is a gap."""
    keys = {
        "entropy": "entropy",
        "KL to reference": "kl",
        "gradient norm": "gradient_norm",
        "clipped tokens": "clip_fraction",
        "learning rate": "learning_rate",
        "cut off": "truncated_fraction",
        "groups of equal rewards": "uniform_groups_fraction",
        "longest": "response_length_max",
    }
    rows = read_metrics(workdir)
    with FilesTracker(workdir, step=0) as files:
        for step, row in enumerate(rows):
            figures = {
                key: round(0.01 * step + place, 4) for place, key in enumerate(keys.values())
            }
            files.step(row | figures | {"entropy": None if step == 3 else 0.5})
    drawn, rows = curves(write_report(workdir).read_text()), read_metrics(workdir)
    for name, key in keys.items():
        assert drawn[name] == [row[key] for row in rows], name


def test_a_run_of_before_is_drawn_without_what_it_lacks(workdir: Path) -> None:
    new = ("gradient_norm", "learning_rate", "truncated_fraction", "uniform_groups_fraction")
    rows = [{k: v for k, v in row.items() if k not in new} for row in read_metrics(workdir)]
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write_report(workdir).read_text()
    assert "Learning" in titles(page) and not curves(page)["cut off"]


def test_signs_are_shown(workdir: Path) -> None:
    assert "class='warning'" not in write_report(workdir).read_text()
    rows = read_metrics(workdir)
    with FilesTracker(workdir, step=50) as files:
        for row in rows[50:]:
            files.step(row | {"reward_mean": 0.0, "reward_std": 0.0})
    assert "steps 50 to 52: every reward was 0" in write_report(workdir).read_text()


def test_a_lag_is_shown_where_there_is_one(workdir: Path) -> None:
    assert "Lag" not in titles(write_report(workdir).read_text())
    rows = read_metrics(workdir)
    with FilesTracker(workdir, step=59) as files:
        files.step(rows[59] | {"lag": 1, "ratio_mean": 1.01, "behaviour_kl": 0.0625})
    page = write_report(workdir).read_text()
    assert "Lag" in titles(page) and curves(page)["KL, nats per token"][-1] == 0.0625


def test_an_environment_is_shown_where_there_is_one(workdir: Path) -> None:
    page = write_report(workdir).read_text()
    assert "Environment" not in titles(page) and ">tool calls<" not in page
    rows = read_metrics(workdir)
    with FilesTracker(workdir, step=59) as files:
        files.step(rows[59] | {"turns_mean": 2.5, "tool_calls": 1_200, "episodes_left_out": 3})
    page = write_report(workdir).read_text()
    assert "Environment" in titles(page) and curves(page)["turns"][-1] == 2.5
    assert ">1,200<" in page and "episodes left out" in page


def test_the_page_and_the_summary_agree(workdir: Path) -> None:
    """Also when it is drawn again later; of a run that has gone further, the rows count."""
    rows = read_metrics(workdir)
    summary = dataclasses.replace(summarize(rows, reserved_price_per_hour=1.0), last_accuracy=0.99)
    write_summary(workdir, summary)
    page = write_report(workdir).read_text()
    assert "held-out accuracy from 0.15 to 0.99" in page and ">0.990<" in page
    write_summary(workdir, dataclasses.replace(summary, steps=59))
    assert "held-out accuracy from 0.15 to 0.97" in write_report(workdir).read_text()


def test_the_page_needs_no_network(workdir: Path) -> None:
    page = write_report(workdir).read_text()
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "http:" not in markup and "https:" not in markup
    assert not re.search(r"<script[^>]*\ssrc=|<link", page)
    assert "default-src 'none'" in page, "and a browser holds it to that"


def test_a_run_that_has_not_begun(workdir: Path) -> None:
    (workdir / "metrics.jsonl").unlink()
    (workdir / "events.jsonl").unlink()
    page = write_report(workdir).read_text()
    assert "No step is finished yet." in page and not titles(page)


def test_a_finished_run_whose_rows_were_deleted(workdir: Path) -> None:
    """It is evaluated again at each start, with nothing to compare that with."""
    (workdir / "metrics.jsonl").unlink()
    summary = summarize([], reserved_price_per_hour=1.0)
    write_summary(workdir, dataclasses.replace(summary, last_accuracy=0.25))
    page = write_report(workdir).read_text()
    assert ">0.250<" in page and "No step is finished; held-out accuracy is 0.25." in page


def test_what_a_server_says_is_text(workdir: Path) -> None:
    link = "</script><a href='https://elsewhere.example'>why</a>"
    with EventsWriter(workdir) as writer:
        for kind in ("lost", "drained"):
            writer.write(time=2e9, step=9, kind="joined", instance=kind, detail={})
            writer.write(time=2e9, step=9, kind=kind, instance=kind, detail={"reason": link})
    page = write_report(workdir).read_text()
    assert "<a href" not in page
    assert [life["reason"] for life in values(page)["lives"]].count(link) == 2


def test_the_scripts_are_those_that_the_page_allows(workdir: Path) -> None:
    page = write_report(workdir).read_text()
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert unsafe not in script, "text gets into the page as text"


def test_a_long_run_makes_a_small_page() -> None:
    points = points_of((row(step) for step in range(3_000)), most=1_000)
    steps = [point["step"] for point in points.all]
    assert len(steps) <= 1_000 and steps == sorted(set(steps)) and steps[0] == 0
    assert steps[-500:] == list(range(2_500, 3_000)), "the newest are all there"
    assert points.all[-1]["spent_dollars"] == pytest.approx(
        math.fsum(row(step)["cost_dollars"] for step in range(3_000))
    )


def test_names_are_escaped(workdir: Path) -> None:
    page = write_report(workdir.rename(workdir.parent / "<my&run>")).read_text()
    assert "&lt;my&amp;run&gt;" in page and "<my&run>" not in page


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="workdir"):
        write_report(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command(workdir: Path, tmp_path: Path) -> None:
    def report(folder: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rlboost_jax.cli.report", f"--workdir={folder}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)

    good, bad = report(workdir), report(tmp_path)
    assert good.returncode == 0 and Path(good.stdout.strip()) == workdir / "report.html"
    assert bad.returncode == 2 and bad.stdout == ""
    (line,) = bad.stderr.splitlines()
    assert line.startswith(f"error: cannot read {tmp_path}")

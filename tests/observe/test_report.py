import dataclasses
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rlboost_jax.observe import figures
from rlboost_jax.observe.events import EventsWriter, read_events
from rlboost_jax.observe.files import FilesTracker
from rlboost_jax.observe.metrics import read_metrics
from rlboost_jax.observe.report import write_report
from rlboost_jax.observe.summary import summarize, write_summary
from rlboost_jax.observe.timeline import lives
from rlboost_jax.settings.changes import Change
from rlboost_jax.settings.errors import ConfigError
from rlboost_jax.settings.load import Origin, read_run_config, write_run_config
from tests.observe.conftest import sample
from tests.patience import PATIENCE_SECONDS


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
    for title in (
        "Learning",
        "Updates",
        "Responses",
        "Fleet",
        "Tokens per second",
        "Waits",
        "Cost",
    ):
        assert f"<h2>{title}" in page
    assert "324,352 parameters" in page
    assert page.count("<section>") == 7


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
    assert "all of it ran on this host" in local and "reserved alone" not in local
    of_provider(workdir, "none")
    page = write_report(workdir).read_text()
    steps = sum(row["cost_dollars"] for row in rows)
    assert f"of it ${steps:.4f} for the steps themselves" in page
    assert "steps, reserved alone (estimate)" in page
    assert curves(page)["steps of this run"][-1] == pytest.approx(steps)
    assert curves(page)["this run"][-1] == pytest.approx(steps + 0.25)


def test_samples_and_the_parts_of_a_reward_are_shown_where_there_are_any(workdir: Path) -> None:
    before = write_report(workdir).read_text()
    assert "<h2>Samples" not in before and "What the reward is made of" not in before
    rows = read_metrics(workdir)
    with FilesTracker(workdir, step=59) as files:
        files.samples([sample(step=59, response_text="<i>five</i>")])
        files.step(rows[59] | {"reward/format": 0.625})
    page = write_report(workdir).read_text()
    assert "<h2>Samples" in page and "&lt;i&gt;five&lt;/i&gt;" in page
    assert "<h2>What the reward is made of" in page and '"name":"format"' in page


def curves(page: str) -> dict[str, list[float | None]]:
    """What is drawn, by name."""
    found = re.findall(r'"name":"([^"]*)","x":\[[^]]*\],"y":\[([^]]*)\]', page)
    return {name: json.loads(f"[{values}]") for name, values in found}


def test_curves_are_the_rows(workdir: Path) -> None:
    """Each number of the policy is drawn as it is in the file, and a missing one is a gap."""
    keys = {
        "entropy": "entropy",
        "KL to the reference": "kl",
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
    assert "<h2>Updates" in page and '"name":"cut off"' not in page


def test_signs_are_shown(workdir: Path) -> None:
    assert "class='warning'" not in write_report(workdir).read_text()
    rows = read_metrics(workdir)
    with FilesTracker(workdir, step=50) as files:
        for row in rows[50:]:
            files.step(row | {"reward_mean": 0.0, "reward_std": 0.0})
    assert "steps 50 to 52: every reward was 0" in write_report(workdir).read_text()


def test_a_lag_is_shown_where_there_is_one(workdir: Path) -> None:
    assert "<h2>Lag" not in write_report(workdir).read_text()
    rows = read_metrics(workdir)
    with FilesTracker(workdir, step=59) as files:
        files.step(rows[59] | {"lag": 1, "ratio_mean": 1.01, "behaviour_kl": 0.0625})
    page = write_report(workdir).read_text()
    assert "<h2>Lag" in page and "KL, nats per token" in page and "0.0625" in page


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
    assert "http" not in markup
    assert not re.search(r"<script[^>]*\ssrc=|<link", page)
    assert "Plotly.newPlot" in page and page.count("plotly.js v") >= 1


def test_a_run_that_has_not_begun(workdir: Path) -> None:
    (workdir / "metrics.jsonl").unlink()
    (workdir / "events.jsonl").unlink()
    page = write_report(workdir).read_text()
    assert "No step is finished yet." in page and "<section>" not in page


def test_a_finished_run_whose_rows_were_deleted(workdir: Path) -> None:
    """It is evaluated again at each start, with nothing to compare that with."""
    (workdir / "metrics.jsonl").unlink()
    summary = summarize([], reserved_price_per_hour=1.0)
    write_summary(workdir, dataclasses.replace(summary, last_accuracy=0.25))
    page = write_report(workdir).read_text()
    assert ">0.250<" in page and "No step is finished yet." in page


def test_what_a_server_says_is_no_link(workdir: Path) -> None:
    """plotly makes elements of some tags in texts that are shown on hovering."""
    link = "<a href='https://elsewhere.example'>why</a> <b>%{x}</b>"
    with EventsWriter(workdir) as writer:
        for kind in ("lost", "drained"):
            writer.write(time=2e9, step=9, kind="joined", instance=kind, detail={})
            writer.write(time=2e9, step=9, kind=kind, instance=kind, detail={"reason": link})
    everyone = lives(read_events(workdir))
    page = figures.fleet(everyone).to_json()
    said = [
        text
        for trace in json.loads(page)["data"]
        for entry in trace.get("customdata", ())
        for text in entry
        if isinstance(text, str)
    ]
    assert len([text for text in said if "elsewhere.example" in text]) == 2
    assert not any("<" in text or ">" in text for text in said)


def test_names_are_escaped(workdir: Path) -> None:
    page = write_report(workdir.rename(workdir.parent / "<my&run>")).read_text()
    assert "&lt;my&amp;run&gt;" in page and "<my&run>" not in page


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="workdir"):
        write_report(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command(workdir: Path, tmp_path: Path) -> None:
    def report(folder: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rlboost_jax.report", f"--workdir={folder}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)

    good, bad = report(workdir), report(tmp_path)
    assert good.returncode == 0 and Path(good.stdout.strip()) == workdir / "report.html"
    assert bad.returncode == 2 and bad.stdout == ""
    (line,) = bad.stderr.splitlines()
    assert line.startswith(f"error: cannot read {tmp_path}")

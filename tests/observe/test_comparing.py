"""Runs beside each other: where their weights part, and what is said of it."""

import json
import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.plots import FOLDER
from rlboost_jax.cli import compare
from rlboost_jax.observe.comparing.compared_run import compared_runs
from rlboost_jax.observe.comparing.divergence import divergence_of
from rlboost_jax.platform import at_rest
from rlboost_jax.settings.config_loading import read_run_config, write_run_config
from tests.notebooks import code_cells
from tests.observe.recorded import STEPS, other_digest, recorded

Changed = Callable[[dict[str, Any]], None]


@pytest.fixture
def calm(tmp_path: Path) -> Path:
    return recorded("calm", tmp_path / "calm")


def rewritten(run: Path, change: Changed) -> Path:
    """Change each row of a run."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        change(row)
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def parted(step: int, *, samples: bool) -> Changed:
    """Other weights from a step on, because of other samples or not."""

    def change(row: dict[str, Any]) -> None:
        if row["final"] or row["step"] < step:
            return
        row["params_digest"] = other_digest(row["step"])
        if samples or row["step"] > step:
            row["trajectories_digest"] = other_digest(row["step"])

    return change


def said(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    code = compare.main(list(map(str, arguments)))
    return code, capsys.readouterr().out


def test_servers_that_are_lost_change_no_weights(
    calm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [recorded(kind, tmp_path / kind) for kind in ("killed", "resumed")]
    code, text = said(capsys, calm, *others)
    first, *_ = text.splitlines()
    assert code == 0
    assert first == (
        f"Equal weights, bit for bit, after each of the {STEPS} steps; servers lost: 0, 6 and 3."
    )
    assert re.search(r"servers lost +0 +6 \(2 with notice\) +3 \(1 with notice\)\n", text)
    assert re.search(r"cost +nothing +\$0\.\d{4} +\$0\.\d{4}\n", text)
    assert "calm → killed, settings that reach no update:\n  fleet.bill_local: False → True" in text
    assert "resumed on its way:\n  step 6: fleet.max_instances 2 → 3" in text
    assert f"steps 2 to {STEPS - 3}  …  " in re.sub(" {3,}", "  ", text)
    _, text = said(capsys, calm, *others, "--every_step")
    assert all(f"step {step} " in text for step in range(STEPS))


def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded runs take the place of those that it trains."""

    def trained(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        workdir = Path(next(each for each in command if "workdir" in each).partition("=")[2])
        recorded("calm" if workdir.name == "calm" else "killed", workdir)
        changed = "--config.fleet.chaos.enabled=True" in command
        assert changed == (workdir.name != "calm")
        return subprocess.CompletedProcess(command, 0, "final weights: 0", "")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", trained)
    namespace: dict[str, Any] = {}
    for code in code_cells(FOLDER / "lost_servers" / "notebook.ipynb"):
        exec(code, namespace)
    assert namespace["code"] == 0
    assert ET.fromstring(namespace["drawn"].read_text()).get("aria-label", "").startswith("Equal")


@pytest.mark.parametrize("samples", [True, False])
def test_the_first_difference_and_what_is_another_thing_there(
    calm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], samples: bool
) -> None:
    other = rewritten(recorded("killed", tmp_path / "killed"), parted(7, samples=samples))
    config = read_run_config(other)
    learner = replace(config.learner, learning_rate=1e-5)
    write_run_config(other / "config.json", replace(config, learner=learner), "killed")
    at_rest.write_sealed(
        other / "fingerprints.json",
        {
            "engines": [
                {"step": 0, "fingerprint": "jax1-cpu-0"},
                {"step": 6, "fingerprint": "jax1-cpu-9"},
            ],
            "releases": [{"step": 0, "release": "0.2.0"}],
        },
    )
    for run, teacher, data in ((calm, "a", "c"), (other, "b", "d")):
        at_rest.write_sealed(run / "teachers.json", {"weights": ["e" * 64, teacher * 64]})
        at_rest.write_sealed(run / "data.json", {"digest": data * 64})
    code, text = said(capsys, calm, other)
    assert code == 1
    assert text.startswith("killed differs from calm from step 7 on: there ")
    assert ("what was sampled differs" in text) == samples
    _, _, lines = text.partition("calm → killed, what bits may depend on in step 7:\n")
    assert lines.splitlines()[:5] == [
        f"  learner.learning_rate: {read_run_config(calm).learner.learning_rate} → 1e-05",
        "  engine: jax1-cpu-0 → jax1-cpu-9",
        "  release: 0.1.0 → 0.2.0",
        f"  teacher 2: {'a' * 12} → {'b' * 12}",
        f"  data: {'c' * 12} → {'d' * 12}",
    ]
    assert f"{other_digest(7)[:12]}  differs" in text


def test_a_difference_that_nothing_explains_is_said(
    calm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = rewritten(recorded("calm", tmp_path / "again"), parted(0, samples=True))
    _, text = said(capsys, calm, other)
    assert "in step 0, the first that both have done" in text and "please report" in text


def test_a_fork_is_compared_from_its_step_on(
    calm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, calm, recorded("forked", tmp_path / "forked"))
    assert code == 0 and f"after each of the {STEPS - 5} steps that all have done" in text
    assert "forked from step 5 of /runs/calm (run calm)" in text
    assert re.search(rf"steps +{STEPS} \(0 to 11\) +{STEPS - 5} \(5 to 11\)\n", text)


def test_a_run_that_goes_on_is_compared_so_far(
    calm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its last line may be half a row."""
    other = recorded("killed", tmp_path / "killed")
    lines = (other / "metrics.jsonl").read_text().splitlines(keepends=True)
    (other / "metrics.jsonl").write_text("".join(lines[:4]) + lines[4][:40])
    code, text = said(capsys, calm, other)
    assert code == 0 and "each of the 4 steps that all have done" in text
    assert "4 (0 to 3, 8 to do)" in text and "cannot be read" not in text


def test_nothing_in_common(calm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = recorded("killed", tmp_path / "killed")
    (other / "metrics.jsonl").unlink()
    code, text = said(capsys, calm, other, f"--page={tmp_path / 'page.html'}")
    assert code == 1 and text.startswith("No step of killed can be compared with one of calm.")


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe\n",
        b"[1]\n",
        b"{}\n",
        b'{"step": "3"}\n',
        b'{"step": 3, "params_digest": 7}\n',
        b'{"step": 3, "reward_mean": "much"}\n',
    ],
)
def test_a_broken_row_is_one_line(
    calm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: bytes
) -> None:
    other = recorded("killed", tmp_path / "killed")
    path = other / "metrics.jsonl"
    path.write_bytes(line + path.read_bytes())
    code, text = said(capsys, calm, other)
    assert code == 0 and f"each of the {STEPS} steps" in text
    *_, last = text.splitlines()
    assert last == "killed: a line of metrics.jsonl cannot be read, and is passed over"


def test_records_of_hosts_that_are_damaged_are_one_line(
    calm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = recorded("killed", tmp_path / "killed")
    (other / "fingerprints.json").write_text('{"engines": [')
    code, text = said(capsys, calm, other)
    *_, last = text.splitlines()
    assert code == 0 and last.startswith("killed: ") and "fingerprints.json" in last


def test_what_is_no_run_is_one_line(
    calm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main([str(calm), str(tmp_path / "none")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: cannot read {tmp_path / 'none'}")


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = [recorded("calm", tmp_path / place / "run") for place in ("a", "b")]
    assert [run.name for run in compared_runs(paths)] == list(map(str, paths))


def test_the_page_and_the_picture_have_the_numbers_of_the_rows(
    calm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = rewritten(recorded("killed", tmp_path / "killed"), parted(9, samples=True))
    page, picture = tmp_path / "page.html", tmp_path / "picture.svg"
    said(capsys, calm, other, f"--page={page}", f"--picture={picture}")
    text = page.read_text()
    (found,) = re.findall(r'id="comparison">(.*?)</script>', text, re.DOTALL)
    points = json.loads(found)["points"]
    rows = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
    for key in ("reward_mean", "accuracy", "loss", "step_seconds", "version"):
        assert points[f"1/{key}"] == [row[key] for row in rows], key
    assert points["1/instances_lost"][-1] == sum(row["instances_lost"] for row in rows)
    assert points["step"] == [row["step"] for row in rows]
    assert "differs from calm from step 9 on" in text and "default-src 'none'" in text
    assert text.count(f"{other_digest(9)[:16]} differs") == 1
    tree = ET.fromstring(picture.read_text())
    cells = [e for e in tree.iter("{http://www.w3.org/2000/svg}rect") if e.get("fill-opacity")]
    assert len(cells) == 2 * STEPS
    assert sum(cell.get("fill") == "white" for cell in cells) == STEPS - 9
    paths = tree.iter("{http://www.w3.org/2000/svg}path")
    crosses = [each for each in paths if each.get("stroke-width") == "2"]
    assert len(crosses) == sum(row["instances_lost"] > 0 and not row["final"] for row in rows)


def test_names_of_runs_are_text(calm: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    other = recorded("calm", tmp_path / "<i>&run")
    compare.main([str(calm), str(other), f"--page={page}"])
    assert "<i>&run" not in page.read_text() and "&lt;i&gt;&amp;run" in page.read_text()


def test_a_divergence_is_of_the_settings_of_its_step(calm: Path, tmp_path: Path) -> None:
    """A setting that was changed later explains no earlier difference."""
    resumed = recorded("resumed", tmp_path / "resumed")
    runs = compared_runs([calm, rewritten(resumed, parted(3, samples=False))])
    found = divergence_of(*runs)
    assert found.parts_at == 3 and not found.samples_differ and not found.reaching

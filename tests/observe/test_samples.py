import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np

from rlboost_jax.observe.files import FilesTracker
from rlboost_jax.observe.sample_table import sample_groups
from rlboost_jax.observe.samples import part_names, read_samples, shortened
from tests.observe.conftest import sample


def test_rows_come_back(tmp_path: Path) -> None:
    rows = [sample(rewards={"format": 0.5}), sample(sample=1, response_text="\u2028 … \x1b[2J")]
    with FilesTracker(tmp_path) as files:
        files.samples(rows)
        files.written()
        assert read_samples(tmp_path) == [{**asdict(row), "turns": []} for row in rows]
    assert len((tmp_path / "samples.jsonl").read_text().split("\n")) == 3, "a line each"


def test_what_is_no_number_is_null(tmp_path: Path) -> None:
    with FilesTracker(tmp_path) as files:
        files.samples([sample(reward=np.float32(0.25), rewards={"judge": math.nan})])
    (row,) = read_samples(tmp_path)
    assert (row["reward"], row["rewards"]) == (0.25, {"judge": None})


def test_a_resumed_run_takes_out_what_it_does_again(tmp_path: Path) -> None:
    with FilesTracker(tmp_path) as files:
        for step in (0, 10, 20):
            files.samples([sample(step=step, response_text="before")])
    with FilesTracker(tmp_path, step=12) as files:
        files.samples([sample(step=20, response_text="again")])
    assert [(row["step"], row["response_text"]) for row in read_samples(tmp_path)] == [
        (0, "before"),
        (10, "before"),
        (20, "again"),
    ]


def test_shortened_keeps_both_ends() -> None:
    text = "".join(chr(ord("a") + i % 26) for i in range(1000))
    short = shortened(text, 100)
    assert short == f"{text[:50]}\n… 900 letters left out …\n{text[-50:]}"
    assert shortened(text, 1000) == text


def test_parts_are_named_once_in_order() -> None:
    rows = [sample(), sample(rewards={"b": 1.0}), sample(rewards={"a": 1.0, "b": 0.0})]
    assert part_names(rows) == ["b", "a"]


def test_a_report_has_the_ends_and_what_fits_between() -> None:
    texts = {0: "at the start", 10: "halfway", 20: "x" * 7_000, 30: "y" * 7_000}
    rows = [
        json.loads(json.dumps(asdict(sample(step=step, sample=i, response_text=text))))
        for step, text in texts.items()
        for i in range(2)
    ]
    groups, left_out = sample_groups(rows)
    assert [(g["step"], g["responses"], left_out) for g in groups] == [
        (step, 2, 0) for step in (30, 20, 10, 0)
    ]
    assert "1,000 letters left out" in groups[0]["rows"][0]["response_text"]
    many = [{**rows[0], "step": step, "response_text": "z" * 5_000} for step in range(1_000)]
    groups, left_out = sample_groups(many)
    assert 100 < len(groups) <= 200 and left_out == 1_000 - len(groups)
    assert (groups[0]["step"], groups[-1]["step"]) == (999, 0)
    assert sample_groups([]) == ([], 0)

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np

from rlboost_jax.observe.files_tracker import FilesTracker
from rlboost_jax.observe.sample_table import sample_groups
from rlboost_jax.observe.samples import (
    SampleCall,
    SamplePart,
    part_names,
    parts_read,
    read_samples,
    shortened,
)
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


def test_turns_are_read_as_they_were_written_or_as_an_older_release_wrote_them(
    tmp_path: Path,
) -> None:
    sampled = SamplePart(
        sampled=True,
        text="\u2028 <b>",
        turn=0,
        calls=(SampleCall(name="add", failed=True),),
        reward=0.5,
        advantage=math.nan,
    )
    with FilesTracker(tmp_path) as files:
        files.samples([sample(turns=(sampled, SamplePart(sampled=False, text="9", sequence=1)))])
    (row,) = read_samples(tmp_path)
    first, second = parts_read(row)
    calls = [{"name": "add", "failed": True}]
    assert first == {**asdict(sampled), "advantage": None, "calls": calls}
    nothing = {"turn": None, "reward": None, "advantage": None, "calls": []}
    assert second == {"sampled": False, "text": "9", "sequence": 1, **nothing}
    older = parts_read({"turns": [["sampled", "5"], ["given", "6"]]})
    assert [(part["sampled"], part["text"], part["turn"]) for part in older] == [
        (True, "5", None),
        (False, "6", None),
    ]
    assert parts_read({}) == []
    (group,), _ = sample_groups([row])
    assert group["rows"][0]["turns"] == [first, second]


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

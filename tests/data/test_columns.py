"""Columns within columns, as verl's and others' data sets have them, from every format."""

import json

import pytest

from rlboost_jax.data.columns import stored_columns, value_at
from rlboost_jax.data.dataset import Dataset
from rlboost_jax.data.row import BrokenRow
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.column_names import shown_as

pytestmark = pytest.mark.usefixtures("unjudged")

ROWS = [
    {
        "data_source": "own/sums",
        "question": {"text": f"{n} + {n}?", "hints": ["add", f"it is even {n}"]},
        "reward_model": {"style": "rule", "ground_truth": str(2 * n)},
        "unused": "x",
        "extra_info": {"split": "train", "index": n, "nested": {"level": n % 3}},
    }
    for n in range(12)
]
OPTIONS = {
    "template": "{question[text]} ({question.hints.1}, {data_source})",
    "answer_column": "reward_model.ground_truth",
    "reward_columns": ("extra_info.index", "question.hints.0", "data_source"),
    "filters": ({"column": "extra_info.nested.level", "at_least": 1},),
    "heldout_share": 0.0,
}
WANTED = {
    f"{n} + {n}? (it is even {n}, own/sums)": {
        "answer": str(2 * n),
        "index": n,
        "hints_0": "add",
        "data_source": "own/sums",
    }
    for n in range(12)
    if n % 3
}


def as_lines(folder):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder / "rows.jsonl"


def as_parquet(folder):
    pyarrow = pytest.importorskip("pyarrow")
    pyarrow.parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), folder / "rows.parquet")
    return folder / "rows.parquet"


def as_saved(folder):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS).save_to_disk(folder / "saved")
    return folder / "saved"


def as_text(folder):
    """Each nested column a text of JSON, in a table."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in row.items()
        }
        for row in ROWS
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "rows.parquet")
    return folder / "rows.parquet"


def as_csv(folder):
    import csv

    with open(folder / "rows.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(ROWS[0])
        writer.writerows(
            [v if isinstance(v, str) else json.dumps(v) for v in row.values()] for row in ROWS
        )
    return folder / "rows.csv"


@pytest.mark.parametrize("write", [as_lines, as_parquet, as_saved, as_text, as_csv])
def test_a_path_leads_into_columns_of_every_format(write, tmp_path, build):
    data = Dataset(build(write(tmp_path), **OPTIONS))
    data.close()
    train = data.train(0)
    found = {p.problem.prompt: p.problem.columns for p in (train[i] for i in range(len(train)))}
    assert found == WANTED
    assert data.record["left_out"]["filtered"]["rows"] == 4
    assert data.record["columns_unused"] == ["unused"]
    example = train[0].problem.example
    assert (example["text"], example["index"]) == ("1 + 1?", 1)


ODD = {
    "a.b": "whole name",
    "a": {"b": "path", "c.d": {"e": [10, {"f": None}]}, "g": '{"h": ["i", 2.5]}'},
    "none": None,
    "list": [["x", "y"], [], "z"],
    "text": "no JSON",
}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("a.b", "whole name"),
        ("a.c.d.e.0", 10),
        ("a.c.d.e.1.f", None),
        ("a.c.d.e.1.f.g.h", None),
        ("a.g.h.1", 2.5),
        ("none.whatever.0", None),
        ("list.0.1", "y"),
        ("list.2", "z"),
        ("list", [["x", "y"], [], "z"]),
    ],
)
def test_where_paths_lead(column, value):
    assert value_at(ODD, column) == value


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("b.a", "no column 'b.a' among 'a', 'a.b', "),
        ("a.x", "no field 'x' in 'a', which has 'b', 'c.d', 'g'"),
        ("a.c.d.x.0", "no field 'x' in 'a.c.d', which has 'e'"),
        ("list.3", "no entry '3' in 'list', a list of 3"),
        ("list.-1", "no entry '-1' in 'list'"),
        ("list.x", "no entry 'x' in 'list'"),
        ("list.1.0", "no entry '0' in 'list.1', a list of 0"),
        ("a.c.d.e.0.x", "no field 'x' in 'a.c.d.e.0', which is '10'"),
        ("text.x", "'text' is text and no JSON: 'no JSON'"),
    ],
)
def test_where_they_do_not(column, says):
    with pytest.raises(BrokenRow) as caught:
        value_at(ODD, column)
    assert says in str(caught.value)


def test_of_a_table_the_columns_are_read_that_paths_begin_with():
    present = ["a", "a.b", "b", "unused"]
    assert stored_columns(["a.b", "a.c.d", "b"], present) == ["a", "a.b", "b"]
    with pytest.raises(ConfigError, match=r"no column 'c', 'd.e'; it has 'a', 'a.b', "):
        stored_columns(["d.e", "c", "b.x"], present)


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("answer", "answer"),
        ("the answer", "the answer"),
        ("reward_model.ground_truth", "ground_truth"),
        ("choices.0", "choices_0"),
        ("a.b.0.12", "b_0_12"),
        ("a.0.c", "c"),
        ("0", "0"),
    ],
)
def test_names_that_rewards_know(column, name):
    assert shown_as(column) == name


def test_a_path_that_is_nowhere_is_an_error_with_what_there_is(tmp_path, build):
    for write in (as_lines, as_parquet):
        run = build(write(tmp_path), **{**OPTIONS, "answer_column": "reward_model.truth"})
        with pytest.raises(ConfigError, match=r"no row of 12 .* 'truth' in 'reward_model', which"):
            Dataset(run)

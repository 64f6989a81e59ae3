"""The same rows from every format."""

import json
import os
import resource
import sys
from pathlib import Path

import pytest

from rlboost_jax.data.dataset_rows import open_rows
from rlboost_jax.data.row import BrokenRow, DataChanged
from rlboost_jax.platform.mistakes import ConfigError

ROWS = [
    {"problem": f"What is {n} + {n}? é☃", "answer": str(2 * n), "level": n % 5, "nums": [n, n]}
    for n in range(50)
]
COLUMNS = ("problem", "answer", "nums")


def wanted(columns=COLUMNS):
    return [{name: row[name] for name in columns} for row in ROWS]


def seen(rows, columns=COLUMNS):
    return [{name: rows[index][name] for name in columns} for index in range(len(rows))]


def opened(source, format="auto", **options):
    return open_rows(
        str(source), format, **{"subset": "", "split": "", "columns": COLUMNS} | options
    )


def jsonl(folder: Path) -> Path:
    for part in range(2):  # blank lines and a last line without its end
        lines = [
            json.dumps(row, ensure_ascii=part == 0) for row in ROWS[part * 25 : part * 25 + 25]
        ]
        (folder / f"part-{part}.jsonl").write_text("\n\n".join(lines), encoding="utf-8")
    return folder / "part-*.jsonl"


def array(folder: Path) -> Path:
    (folder / "rows.json").write_text(json.dumps(ROWS, indent=2), encoding="utf-8")
    return folder / "rows.json"


def parquet(folder: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), folder / "rows.parquet", row_group_size=7)
    return folder / "rows.parquet"


def arrayrecord(folder: Path) -> Path:
    module = pytest.importorskip("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(folder / "rows.arrayrecord"), "group_size:1")
    for row in ROWS:
        writer.write(json.dumps(row).encode())
    writer.close()
    return folder / "rows.arrayrecord"


def huggingface(folder: Path) -> Path:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS).save_to_disk(folder / "saved")
    return folder / "saved"


def huggingface_splits(folder: Path) -> Path:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list(ROWS)
    splits = datasets.DatasetDict({"train": whole, "test": whole.select(range(3))})
    splits.save_to_disk(folder / "saved")
    return folder / "saved"


FORMATS = [jsonl, array, parquet, arrayrecord, huggingface, huggingface_splits]


@pytest.mark.parametrize("write", FORMATS)
def test_every_format_gives_the_same_rows_in_any_order(write, tmp_path):
    rows = opened(write(tmp_path))
    assert len(rows) == 50
    assert seen(rows) == wanted()
    assert rows[31]["problem"] == ROWS[31]["problem"], "after others were read"


def test_a_folder_is_its_files(tmp_path):
    jsonl(tmp_path)
    (tmp_path / "._part-0.jsonl").write_bytes(b"Mac OS X, resource fork")
    (tmp_path / ".cache.csv").touch()
    assert seen(opened(tmp_path)) == wanted()


def test_a_split_is_chosen_by_name(tmp_path):
    assert len(opened(huggingface_splits(tmp_path), split="test")) == 3


@pytest.mark.parametrize("write", [parquet, huggingface])
def test_a_column_that_no_row_has_is_named_with_those_there_are(write, tmp_path):
    with pytest.raises(ConfigError, match=r"no column 'question'; it has 'answer', 'level'"):
        opened(write(tmp_path), columns=("question", "answer"))


def test_a_broken_line_costs_itself_and_says_where_it_is(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(
        b'{"a": 1}\n\n{"a": \n["no object"]\n{"a": "\xff"}\n{"a": 5}\n' + b"[" * 100000
    )
    rows = open_rows(str(path), "auto", subset="", split="", columns=("a",))
    assert len(rows) == 6
    assert (rows[0], rows[4]) == ({"a": 1}, {"a": 5})
    for index, reason in ((1, "no JSON"), (2, "no JSON object"), (3, "no JSON"), (5, "no JSON")):
        with pytest.raises(BrokenRow, match=reason):
            rows[index]
    assert rows.place(1) == "rows.jsonl, line 3"


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("none.jsonl", {}, r"'none.jsonl': no such file of format jsonl; this folder has part-0.j"),
        ("sets/none.jsonl", {}, r"the folder sets has a.jsonl.gz, b.json; name another"),
        ("none/rows.jsonl", {}, r"there is no folder none here; name another"),
        ("./rows.txt", {}, r"ending says no format; set data.format"),
        ("rows-*.jsonl", {}, r"'rows-\*.jsonl': no such file of format jsonl"),
        ("parts*/rows.jsonl", {}, r"no such file of format jsonl; name another"),
        (
            "sets",
            {"format": "arrayrecord"},
            r"no such file of format arrayrecord; name another",
        ),
        ("~/none.jsonl", {}, r"home/none.jsonl': no such file"),
        ("empty.arrayrecord", {}, r"cannot read empty.arrayrecord: .*64KB"),
        ("part-*.jsonl", {"split": "test"}, r"data.split is 'test', and files of format jsonl"),
    ],
)
def test_what_is_not_there_is_named(source, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/no/home")
    jsonl(tmp_path)
    (tmp_path / "empty.arrayrecord").touch()
    (tmp_path / "sets").mkdir()
    for name in ("b.json", "a.jsonl.gz", ".c.jsonl", "d.csv"):
        (tmp_path / "sets" / name).touch()
    with pytest.raises(ConfigError, match=message):
        opened(source, **options)


def test_a_home_folder_and_a_star_for_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("b", "a"):
        (tmp_path / "sets" / name).mkdir(parents=True)
        (tmp_path / "sets" / name / "x.jsonl").write_text(json.dumps({"from": name}))
    for source in ("~/sets/*/x.jsonl", "~/sets/**/*.jsonl"):
        assert seen(opened(source), ["from"]) == [{"from": "a"}, {"from": "b"}]
    assert seen(opened("~/sets/a"), ["from"]) == [{"from": "a"}]
    with pytest.raises(ConfigError, match="folder of no known files"):
        opened("~")


@pytest.mark.parametrize("write", [huggingface, parquet])
def test_what_is_not_installed_is_named(write, tmp_path, monkeypatch):
    path = write(tmp_path)
    for name in ("datasets", "pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"pip install .* -e '\.\[hf\]'"):
        opened(path)


def test_there_may_be_more_files_than_a_process_may_have_open(tmp_path):
    for number in range(200):
        (tmp_path / f"{number:03}.jsonl").write_text(json.dumps({"n": number}))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 50, limits[1]))
    try:
        assert seen(opened(tmp_path), ["n"]) == [{"n": number} for number in range(200)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_parquet_files_of_other_types_are_an_error(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, value in (("a", 1), ("b", [1])):
        table = pyarrow.Table.from_pylist([{"x": value}])
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    with pytest.raises(ConfigError, match=r"columns of .*a.parquet differ elsewhere: .*x"):
        opened(tmp_path, columns=("x",))


def test_a_line_that_becomes_another_one_is_not_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    rows = opened(path)
    path.write_text('{"a": 1}\n{"a": 3}\n{"a": 4}\n')  # one as before, one not, one more
    assert (len(rows), rows[0]) == (2, {"a": 1})
    with pytest.raises(DataChanged, match=r"rows.jsonl, line 2 is not what it was"):
        rows[1]
    path.unlink()
    with pytest.raises(DataChanged, match=r"rows.jsonl cannot be read any more: No such file"):
        rows[0]


def test_a_split_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no split 'validation'; it has train, test"):
        opened(huggingface_splits(tmp_path), split="validation")


def test_a_damaged_parquet_file_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ConfigError, match=r"cannot read .*rows.parquet"):
        opened(tmp_path / "rows.parquet")

"""Text files as people publish them: arrays, CSV, compressed, with marks of other systems."""

import bz2
import csv
import gzip
import json
import lzma

import pytest

from rlboost_jax.data import json_rows, text_rows
from rlboost_jax.data.dataset_rows import open_rows
from rlboost_jax.data.row import BrokenRow, DataChanged
from rlboost_jax.platform.mistakes import ConfigError

ROWS = [
    {"question": f"What is {n},\n“{n}” + {n}?", "answer": str(2 * n), "nums": [n, {"a": n}]}
    for n in range(40)
]
TEXT = [{"question": row["question"], "answer": row["answer"]} for row in ROWS]


def opened(path, columns=("question", "answer"), format="auto"):
    return open_rows(str(path), format, subset="", split="", columns=columns)


def everything(rows):
    return [dict(rows[index]) for index in range(len(rows))]


def lines(rows, end="\n"):
    return "".join(json.dumps(row, ensure_ascii=False) + end for row in rows)


def csv_text(rows, **form):
    import io

    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]), **form)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


@pytest.fixture(params=[7, 2**24], ids=["read in pieces", "read at once"], autouse=True)
def chunks(request, monkeypatch):
    monkeypatch.setattr(json_rows, "CHUNK", request.param)


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("an array.json", json.dumps(ROWS).encode(), ROWS),
        ("indented.json", json.dumps(ROWS, indent=4, ensure_ascii=False).encode(), ROWS),
        ("array.jsonl", ("\n [" + ",\n".join(map(json.dumps, ROWS)) + "]\n\n").encode(), ROWS),
        ("empty.json", b"[ ]", []),
        ("lines.json", lines(ROWS).encode(), ROWS),
        ("dos.jsonl", lines(ROWS, "\r\n").encode(), ROWS),
        ("mark.jsonl", lines(ROWS).encode("utf-8-sig"), ROWS),
        ("mark.json", json.dumps(ROWS).encode("utf-8-sig"), ROWS),
        ("ROWS.JSONL", lines(ROWS).encode(), ROWS),
        ("rows.jsonl.gz", gzip.compress(lines(ROWS).encode()), ROWS),
        ("rows.json.gz", gzip.compress(json.dumps(ROWS).encode()), ROWS),
        (
            "two members.jsonl.gz",
            b"".join(map(gzip.compress, [lines(ROWS).encode()] * 2)),
            ROWS * 2,
        ),
        ("no ending says it.jsonl", gzip.compress(lines(ROWS).encode("utf-8-sig")), ROWS),
        ("rows.jsonl.bz2", bz2.compress(lines(ROWS).encode()), ROWS),
        ("rows.json.xz", lzma.compress(json.dumps(ROWS).encode()), ROWS),
        ("rows.csv", csv_text(TEXT).encode(), TEXT),
        ("unix.csv", csv_text(TEXT, lineterminator="\n").encode(), TEXT),
        ("quoted.csv", csv_text(TEXT, quoting=csv.QUOTE_ALL).encode("utf-8-sig"), TEXT),
        ("rows.tsv", csv_text(TEXT, delimiter="\t").encode(), TEXT),
        ("rows.csv.gz", gzip.compress(csv_text(TEXT).encode()), TEXT),
        ("rows.TSV.gz", gzip.compress(csv_text(TEXT, delimiter="\t").encode()), TEXT),
    ],
)
def test_what_was_written_is_read_by_random_access(name, content, rows, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    found = opened(path)
    assert everything(found) == rows
    if rows:
        assert dict(found[len(rows) - 2]) == rows[-2]


def test_zstandard_by_arrow(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    with pyarrow.output_stream(str(tmp_path / "rows.jsonl.zst"), compression="zstd") as file:
        file.write(lines(ROWS).encode())
    assert everything(opened(tmp_path / "rows.jsonl.zst")) == ROWS


def test_cells_are_text_as_it_is_written_and_empty_ones_no_value(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(
        'question,answer,,level\r\na,007,x,\r\n\r\n"b","1e-05",,2\r\n"NA",null,,nan\r\n'
    )
    assert everything(opened(path)) == [
        {"question": "a", "answer": "007", "level": None},
        {"question": "b", "answer": "1e-05", "level": "2"},
        {"question": "NA", "answer": "null", "level": "nan"},
    ]
    assert opened(path).place(1) == "rows.csv, line 4"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (
            "object.json",
            b'{\n "version": 1,\n "data": [{}]\n}',
            "one JSON object over several lines",
        ),
        ("cut.json", b'[{"a": 1}, {"a": ', "element 2, byte "),
        ("cut.json", b'[{"a": 1}, {"a": "b', "element 2, byte "),
        ("end.json", b'[{"a": 1}, {"a": 2}', "'its end' after element 2"),
        ("comma.json", b'[{"a": 1}, ]', "element 2, byte 11"),
        ("no comma.json", b'[{"a": 1} {"a": 2}]', "'{' after element 1"),
        ("two.json", b'[{"a": 1}]\n[{"a": 2}]', "more after its JSON array of 1 elements"),
        ("deep.json", b"[" * 100_000, "element 1 is nested too deeply"),
        ("wide.jsonl", lines(ROWS).encode("utf-16"), "it is UTF-16; save it as UTF-8"),
        ("wide.csv", csv_text(TEXT).encode("utf-16"), "it is UTF-16; save it as UTF-8"),
        ("archive.jsonl", b"PK\x03\x04 and so on", "a ZIP archive"),
        ("cut.jsonl.gz", gzip.compress(lines(ROWS).encode())[:-20], "cannot be unpacked"),
        ("bad.jsonl.gz", b"\x1f\x8b\x08 and no more of it", "bad.jsonl.gz"),
        (
            "other.csv",
            b"question;answer\na;b\n",
            "no column 'answer', 'question'; it has 'question;",
        ),
        ("other.csv", b"", "no column 'answer', 'question'; it has"),
        ("twice.csv", b"question,answer,answer\n", "its header has 'answer' twice"),
        (
            "open.csv",
            b'question,answer\na,b\n"c,d\ne,f\n',
            "line 3: no CSV: unexpected end of data",
        ),
        ("quote.csv", b'question,answer\n"say "no"",d\n', "line 2: no CSV: "),
        ("mac.csv", b"question,answer\ra,b\rc,d\r", "no CSV: "),
        ("latin.csv", "question,größe\n".encode("latin-1"), "its header: no CSV: "),
        ("rows.parquet.gz", b"", "its ending says no format"),
        ("rows.tar.gz", b"", "its ending says no format"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_name(name, content, says, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        opened(path)
    message = str(caught.value)
    assert says in message and str(path) in message and "\n" not in message


def test_a_broken_row_costs_itself(tmp_path):
    array, table = tmp_path / "rows.json", tmp_path / "rows.csv"
    array.write_bytes(b'[{"a": 1}, 7, null, {"a": "\xff"}, ["x"], {"a": 6}]')
    table.write_bytes(b"question,answer\na,b,c\nd\n\xff,e\nf,g\n")
    for path, good in ((array, [0, 5]), (table, [3])):
        rows = opened(path)
        for index in range(len(rows)):
            if index in good:
                assert rows[index]
                continue
            with pytest.raises(BrokenRow, match=r"no object|no JSON|cells, and the header|no CSV"):
                rows[index]
    assert opened(array).place(5) == "rows.json, element 6"


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("rows.json", '[{"a": 1}, {"a": 2}]', '[{"a": 1}, {"a": 3}]'),
        ("rows.csv", "question,answer\na,b\nc,d\n", "question,answer\na,b\nc,e\n"),
    ],
)
def test_a_row_that_becomes_another_one_is_not_read(name, before, after, tmp_path):
    path = tmp_path / name
    path.write_text(before)
    rows = opened(path)
    path.write_text(after)
    assert rows[0]
    with pytest.raises(DataChanged, match=r"is not what it was"):
        rows[1]


def test_what_was_unpacked_stays_as_it_was(tmp_path):
    """Several files are unpacked into one place without a name."""
    for part in (0, 1):
        content = gzip.compress(lines(ROWS[part * 20 : part * 20 + 20]).encode())
        (tmp_path / f"{part}.jsonl.gz").write_bytes(content)
    (tmp_path / "2.jsonl").write_text(lines(ROWS[:1]))
    rows = opened(tmp_path)
    (tmp_path / "0.jsonl.gz").write_bytes(gzip.compress(b"other"))
    assert everything(rows) == [*ROWS, ROWS[0]]
    assert rows.place(20) == "1.jsonl.gz, line 1"


def test_what_unpacks_to_more_than_there_is_room_for_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text_rows, "MAX_UNPACKED", 2**20)
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(gzip.compress(bytes(2**24)))
    with pytest.raises(ConfigError, match=r"bomb.jsonl.gz: .* may unpack to 1,048,576 bytes"):
        opened(path)

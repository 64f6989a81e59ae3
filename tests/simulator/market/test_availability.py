"""Loaders on small files of each format, against machines counted by hand."""

import pytest

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.traces import TraceRow
from rlboost_jax.simulator.market.availability import cut, keep, of_counts, read_availability

BAMBOO = "0,add,a\n0,add,b\n60000,remove,a\n120000,add,c\n120000,remove,b\n"
PARCAE = "0,2\n60000,1\n120000,1\n180000,3\n"
GCP = "2020-03-15, 00:01:00, 1\n2020-03-15, 00:00:00, 2\n2020-03-15, 00:03:00, 3\n"
SKYPILOT = '{"metadata": {"gap_seconds": 60}, "data": [2, 1, 1, 3]}'


def counts(rows: tuple[TraceRow, ...]) -> list[tuple[float, int]]:
    """(seconds, machines) after each moment at which something changes."""
    alive: set[str] = set()
    found: dict[float, int] = {}
    for row in rows:
        (alive.add if row.action == "add" else alive.remove)(row.name)
        found[row.milliseconds / 1000] = len(alive)
    return list(found.items())


@pytest.mark.parametrize("form", ["named", "auto"])
@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("bamboo", BAMBOO, [(0, 2), (60, 1), (120, 1)]),
        ("parcae", PARCAE, [(0, 2), (60, 1), (180, 3)]),
        ("gcp", GCP, [(0, 2), (60, 1), (180, 3)]),  # put in order
        ("skypilot", SKYPILOT, [(0, 2), (60, 1), (180, 3)]),
        # As spreadsheets and editors of Windows write them.
        ("bamboo", f"\ufeff{BAMBOO}", [(0, 2), (60, 1), (120, 1)]),
        ("parcae", f"\ufeff{PARCAE}", [(0, 2), (60, 1), (180, 3)]),
        ("skypilot", f"\ufeff{SKYPILOT}", [(0, 2), (60, 1), (180, 3)]),
    ],
)
def test_each_format(tmp_path, form, name, text, expected):
    path = tmp_path / "trace"
    path.write_text(text, encoding="utf-8")
    assert counts(read_availability(path, name if form == "named" else form)) == expected


@pytest.mark.parametrize(
    ("form", "text", "message"),
    [
        ("bamboo", "0,add\n", "line 1 of .* milliseconds,add|remove,name"),
        ("parcae", "0,2\n5,many\n", "line 2 of .*'5,many'.*milliseconds,count"),
        ("parcae", "0,-1\n", "line 1 of"),
        ("gcp", "2020-13-45, 00:00:00, 2\n", "line 1 of .*YYYY-MM-DD"),
        ("gcp", "", "has no rows"),
        ("skypilot", '{"data": [1]}', "no count trace .KeyError"),
        ("skypilot", '{"metadata": {"gap_seconds": 0}, "data": [1]}', "no count trace"),
        ("skypilot", "[1, 2]", "no count trace"),
        ("skypilot", '{"metadata": ' + "[" * 100_000, "no count trace .* is nested too deeply"),
        ("parcae", "0,0\n9,0\n", "no machine at any time"),
    ],
)
def test_bad_files_are_reported_in_one_line(tmp_path, form, text, message):
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        read_availability(path, form)
    assert "market.path" in str(error.value) and "\n" not in str(error.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*No such file"):
        read_availability(tmp_path / "none")


def test_who_came_first_goes_first():
    rows = of_counts([(0, 2), (1, 1), (2, 2)])
    assert [(r.action, r.name) for r in rows] == [
        ("add", "node1"),
        ("add", "node2"),
        ("remove", "node1"),
        ("add", "node3"),
    ]


def test_half_of_the_machines_with_their_whole_lives():
    rows = tuple(
        TraceRow(milliseconds=time, action=action, name=f"n{i}")
        for time, action in ((0.0, "add"), (9.0, "remove"))
        for i in range(10)
    )
    kept = keep(rows, 0.5, seed=4)
    names = {row.name for row in kept}
    assert len(names) == 5 and len(kept) == 10
    assert kept == keep(rows, 0.5, seed=4) != keep(rows, 0.5, seed=5)
    assert keep(rows, 1.0, seed=4) == rows


def test_a_segment_begins_with_those_that_are_there(tmp_path):
    path = tmp_path / "trace"
    path.write_text(BAMBOO)
    rows = cut(read_availability(path), 60_000, 121_000)
    assert [(r.milliseconds, r.action, r.name) for r in rows] == [
        (0.0, "add", "b"),
        (60_000.0, "add", "c"),
        (60_000.0, "remove", "b"),
    ]

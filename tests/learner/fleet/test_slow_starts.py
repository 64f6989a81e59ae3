"""Servers that compile for minutes are spoken of, seldom, by what they do."""

import itertools
from pathlib import Path

from rlboost_jax.learner.fleet.slow_starts import MOST_SECONDS, SlowStarts


def test_a_slow_start_is_named_by_the_last_line_of_its_log(tmp_path: Path) -> None:
    now = [0.0]
    starts = SlowStarts(tmp_path, clock=lambda: now[0])
    (tmp_path / "a.log").write_text("device cpu\ncompiling mixed\x1b[2J, which" + 300 * "!" + "\n")
    (tmp_path / "b.log").write_text("compiling decode\n")
    (tmp_path / "c.log").write_text("compiling decode\n")

    assert starts.look(["a", "b", "c"]) == ""
    now[0] = 19.0
    assert starts.look(["a", "b", "c"]) == "", "toys are ready by then"
    now[0] = 20.0
    line = starts.look(["a", "b", "c"])
    assert line.startswith("  fleet: 3 servers have been starting for up to 20 s: compiling mixed ")
    assert line.endswith("; 2 × compiling decode") and len(line) < 200 and line.isprintable()
    assert starts.look(["a", "b", "c"]) == "", "once"

    now[0] = 40.0
    (tmp_path / "b.log").unlink()
    expected = "  fleet: b has been starting for up to 40 s: no line from it here yet"
    assert starts.look(["b", "new"]) == expected
    now[0] = 60.0
    assert starts.look([]) == "", "all have joined, or are gone"


def test_lines_become_rare(tmp_path: Path) -> None:
    now = [0.0]
    starts = SlowStarts(tmp_path, clock=lambda: now[0])
    said = []
    for second in range(4 * 3600):
        now[0] = float(second)
        if starts.look([f"server-{number}" for number in range(1000)]):
            said.append(second)
    assert said[:4] == [20, 40, 80, 160]
    assert max(b - a for a, b in itertools.pairwise(said)) == MOST_SECONDS

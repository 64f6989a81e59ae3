"""The interpreter: what a cell says, what it leaves behind, and what it cannot do."""

import pytest

from rlboost_jax.environments.builtin import python_tool
from rlboost_jax.environments.builtin.python_tool import CellFailed, PythonTool, readable
from rlboost_jax.environments.protocol import ToolCall, ToolResult, Turn
from rlboost_jax.workers.sandbox import NotContained, NotStarted, run_contained
from tests.patience import PATIENCE_SECONDS

try:
    run_contained("", seconds=PATIENCE_SECONDS, memory_mb=400, required=True)
except NotContained as error:
    pytest.skip(str(error), allow_module_level=True)


def made(**options):
    return PythonTool(**{"seconds": PATIENCE_SECONDS, "memory_mb": 400, **options})


def say(python, *sources):
    """A turn with these cells: what each came to, after which the next turn may begin."""
    results = []
    for index, source in enumerate(sources):
        call = ToolCall(name="python", arguments={"code": source}, key=str(index))
        try:
            content, failed = python.tool.run(call.arguments, call.key), False
        except CellFailed as error:
            content, failed = str(error), True
        results.append(ToolResult(call=call, content=content, failed=failed))
    calls = tuple(result.call for result in results)
    python.remember(Turn(index=0, tokens=(), text="", calls=calls, results=tuple(results)))
    return [result.content for result in results]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("print(1)\nprint(2)", "1\n2"),
        ("6 * 7", "42"),
        ("x = 3\nx", "3"),
        ("None", "(no output)"),
        ("", "(no output)"),
        ("# a remark", "(no output)"),
        ("'a\\x1b[31m\\x00b'", "'a\\x1b[31m\\x00b'"),
        ("print('a\\x1b[31m\\x00b')", "a�[31m�b"),
        ("print('\\ud800')", None),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\xfe'); None", "��"),
        ("def f(): return __name__\nf()", "'__main__'"),
        ("[i for i in range(3)]", "[0, 1, 2]"),
        ("import sys; print('e', file=sys.stderr)", "(no output)"),
    ],
)
def test_what_a_cell_says(source, said):
    (found,) = say(made(), source)
    assert found == said or (said is None and "UnicodeEncodeError" in found)


def test_names_stay_and_what_was_printed_does_not_come_again():
    python = made()
    assert say(python, "x = 5\nprint('first')") == ["first"]
    assert say(python, "def double(y): return 2 * y") == ["(no output)"]
    assert say(python, "import os; os.write(1, b'raw'); None") == ["raw"]
    assert say(python, "double(x)") == ["10"]


def test_cells_of_one_turn_do_not_see_each_other():
    python = made()
    _, second = say(python, "x = 5", "x")
    assert "NameError" in second
    assert say(python, "x") == ["5"]


def test_a_cell_that_fails_leaves_nothing_behind():
    python = made()
    (found,) = say(python, "x = 1\nprint('so far')\n1 / 0")
    assert found.startswith("so far\nTraceback")
    assert found.endswith("ZeroDivisionError: division by zero")
    assert 'File "<cell>", line 3' in found and "cells.py" not in found
    assert "NameError" in say(python, "x")[0]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def", "SyntaxError"),
        ("x = '\\0", "SyntaxError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("import sys; sys.exit()", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def f(): f()\nf()", "RecursionError"),
        ("x = bytearray(2**40)", "MemoryError"),
        ("open('/etc/hostname').read()", "PermissionError"),
        ("import socket; socket.socket()", "PermissionError"),
        ("import os; os._exit(0)", "without a word"),
        ("import os; os.abort()", "without a word"),
        ("class E(Exception):\n  def __str__(self): 1/0\nraise E", ""),
        ("(" * 5000 + ")" * 5000, ""),
        ("while True: print('x' * 1000)", "File too large"),
        ("x" * 20_001, "20000 are possible"),
    ],
)
def test_a_cell_that_goes_wrong_is_something_to_read(source, why):
    python = made()
    (found,) = say(python, source)
    assert why in found and 0 < len(found) < 5000
    assert say(python, "1") == ["1"]


def test_a_cell_that_hangs():
    """The time is that of starting the process as well: the shortest that starts it on any host
    is not known, so it is tried with more until it starts."""
    for seconds in (0.5, 2.0, 8.0, PATIENCE_SECONDS):
        try:
            (found,) = say(
                made(seconds=seconds), "print('a', flush=True)\nimport time\ntime.sleep(1e6)"
            )
            break
        except NotStarted:
            continue
    assert found.endswith(f"TimeoutError: not over in {seconds:g} s")


@pytest.mark.parametrize("most", [10, 100])
def test_long_output_keeps_its_ends(most):
    shown = readable("a" * 500 + "b" * 500, most)
    half = most // 2
    assert shown == f"{'a' * half}\n… {1000 - most} characters …\n{'b' * half}"


def test_the_same_cells_say_the_same():
    """Sets, hashes and random numbers repeat."""
    source = "import random\n({'a', 'b', 'c'}, hash('a'), random.random())"
    assert say(made(), source) == say(made(), source)


def test_limits_are_checked():
    with pytest.raises(ValueError, match="not above 0"):
        PythonTool(seconds=0)


def test_a_host_that_cannot_contain_it_is_known_before_a_policy_reads_that(monkeypatch):
    def weak(program, **limits):
        raise NotContained("a program would reach the network")

    monkeypatch.setattr(python_tool, "run_contained", weak)
    python_tool._check_host.cache_clear()
    with pytest.raises(NotContained, match="the network"):
        made()
    monkeypatch.undo()
    python_tool._check_host.cache_clear()
    assert say(made(), "1") == ["1"]

"""Programs of the policy: what they can and cannot do, and how they are judged."""

import json
import os
import platform
import re
import socket
from pathlib import Path

import pytest

from rlboost_jax.workers import sandbox, sandbox_child
from rlboost_jax.workers.sandbox import NotContained, NotStarted, run_contained
from tests.patience import PATIENCE_SECONDS

try:
    from rlboost_jax.rewards import code as code_module
except NotContained as error:
    pytest.skip(str(error), allow_module_level=True)

SECONDS = PATIENCE_SECONDS  # for what ends by itself


def ran(program, *, seconds=SECONDS, memory_mb=400, required=True, **options):
    return run_contained(
        program, seconds=seconds, memory_mb=memory_mb, required=required, **options
    )


def test_it_computes_reads_and_prints():
    done = ran("import math, sys\nprint(math.comb(5, 2), input(), sys.stdin.read())", stdin="a\nb")
    assert (done.completed, done.output) == (True, "10 a b\n")


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no files in memory here")
def test_a_full_disk_is_no_fault_of_the_program():
    """All that it reads and writes, and all that is kept for it, is in memory, on no disk."""
    memory = os.memfd_create("another")
    device = os.fstat(memory).st_dev
    os.close(memory)
    with sandbox._file() as file:
        assert os.fstat(file.fileno()).st_dev == device
    program = """
import os
for number in range(100):
    try:
        print(number, os.fstat(number).st_dev)
    except OSError:
        pass
"""
    found = [line.split() for line in ran(program).output.splitlines()]
    assert {"0", "1", "2"} <= {number for number, _ in found}
    assert {on for _, on in found} == {str(device)}


def test_threads_are_no_processes():
    program = (
        "import threading\nt = threading.Thread(target=print, args=('x',))\nt.start()\nt.join()"
    )
    assert ran(program).output == "x\n"


BOMB = """
import ctypes, os, threading
{first}
threading.stack_size(32768)
over, started = threading.Event(), 0
try:
    while started < 200:
        threading.Thread(target=over.wait, daemon=True).start()
        started += 1
except RuntimeError:
    pass
over.set()
print(started)
"""


@pytest.mark.parametrize(
    "first",
    [
        "",
        "os.setreuid(0, -1)",
        "os.setresuid(0, 0, 0)",
        "ctypes.CDLL(None).setfsuid(0)",
        "import resource as r; r.setrlimit(r.RLIMIT_NPROC, (999, 999))",
        "ctypes.CDLL(None).unshare(0x10000000)",
    ],
)
def test_threads_are_bounded(first):
    """Whatever is tried before, under the limit of memory that lets 10,000 of them be."""
    try_first = f"try: {first}\nexcept (OSError, ValueError): pass" if first else ""
    done = ran(BOMB.format(first=try_first))
    assert done.completed and 0 < int(done.output) < sandbox_child.MAX_TASKS


def test_another_program_takes_none_of_them():
    """Each is counted by itself."""
    for _ in range(3):
        assert int(ran(BOMB.format(first="")).output) == sandbox_child.MAX_TASKS - 1


def test_threads_that_nobody_counts_are_not_made(tmp_path):
    """A container's root without the right to be somebody else."""
    source = Path(sandbox_child.__file__).read_text()
    weak = tmp_path / "sandbox_child.py"
    weak.write_text(source.replace("counted = _become_countable()", "counted = False"))
    done = ran(BOMB.format(first=""), script=weak)
    assert (done.completed, done.output) == (True, "0\n")


FORBIDDEN = {
    "a socket": "import socket; socket.socket()",
    "a pair of sockets": "import _socket; _socket.socketpair()",
    "a local socket": "import socket; socket.socket(socket.AF_UNIX)",
    "fork": "import os; os.fork()",
    "a program": "import subprocess; subprocess.run(['/bin/true'], check=True)",
    "exec": "import os; os.execv('/bin/true', ['true'])",
    "a signal to its parent": "import os; os.kill(os.getppid(), 0)",
    "the host's files": "open('/etc/hostname').read()",
    "a listing": "import os; os.listdir('/')",
    "the parent's environment": "import os; open(f'/proc/{os.getppid()}/environ').read()",
    "a new file": "open('/tmp/made-by-a-program', 'w')",
    "a higher limit": "import resource as r; r.setrlimit(r.RLIMIT_CPU, (99, 99))",
    "a namespace": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "a trace": "import ctypes; assert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0",
    "the rights of a file": "import os; os.fchmod(0, 0o600)",
    "the owner of a file": "import os; os.fchown(0, -1, -1)",
    "the times of a file": "import os; os.utime(0)",
    "an attribute of a file": "import os; os.setxattr(0, 'user.x', b'')",
    "its priority": "import os; os.setpriority(os.PRIO_PROCESS, 0, 19)",
    "its scheduling": "import os; os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
    "its scheduling parameters": "import os; os.sched_setparam(0, os.sched_param(0))",
    "its processors": "import os; os.sched_setaffinity(0, os.sched_getaffinity(0))",
    "a signal to its parent by way of a file": (
        "import fcntl, os; fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())"
    ),
    "the choice of that signal": "import fcntl; fcntl.fcntl(0, fcntl.F_SETSIG, 9)",
    "to outlive its parent": "import ctypes; assert ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) == 0",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_it_can_do_nothing_else(what):
    errors = "(OSError, ValueError, AssertionError)"
    program = f"try:\n    {FORBIDDEN[what]}\nexcept {errors}:\n    print('refused')"
    assert ran(program).output == "refused\n"


DENIED_CALLS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for name, arguments in CALLS:
    if libc.syscall(*arguments) != -1 or ctypes.get_errno() != 1:
        print(name, ctypes.get_errno())
"""


def test_every_call_of_the_list_is_refused():
    """By the filter: with these arguments most would fail for another reason without it."""
    column, _ = sandbox_child._MACHINES[platform.machine()]
    calls = [
        (name, (numbers[column], -1, 0, 0, 0, 0, 0))
        for name, numbers in sandbox_child.DENIED.items()
        if numbers[column] is not None
    ]
    for numbers, argument, values in sandbox_child.DENIED_WITH:
        for value in values:
            place = [-1] * argument + [value]
            calls.append((f"{numbers[column]} of {value}", (numbers[column], *place, 0, 0)))
    done = ran(DENIED_CALLS.replace("CALLS", repr(calls)))
    assert (done.completed, done.output) == (True, "")


def test_it_says_the_same_every_time():
    program = "import random\nprint(hash('a'), list({'x', 'y', 'z'}), random.random())"
    assert ran(program).output == ran(program).output


def test_it_imports_nothing_from_beside_the_script_that_contains_it():
    assert (
        ran("try:\n    import sandbox\nexcept ImportError:\n    print('none')").output == "none\n"
    )


CAPABILITIES = """
import ctypes, struct
sets = ctypes.create_string_buffer(b"x" * 24)
assert ctypes.CDLL(None).capget(struct.pack("=Ii", 0x20080522, 0), sets) == 0
print(sum(sets.raw))
"""


def test_it_has_no_rights_of_roots():
    assert ran(CAPABILITIES).output == "0\n"


HEADERS = (
    (0, "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    (1, "/usr/include/asm-generic/unistd.h"),  # which aarch64 takes
)


@pytest.mark.parametrize(("column", "header"), HEADERS)
def test_the_numbers_are_those_of_the_kernels_headers(column, header):
    if not Path(header).exists():
        pytest.skip("the kernel's headers are not installed")
    lines = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text())
    known = {name: int(number) for name, number in lines}
    for name, numbers in sandbox_child.DENIED.items():
        if name in known:
            assert numbers[column] == known[name], name
        elif max(known.values()) >= (numbers[column] or 0):  # else newer than the headers
            assert numbers[column] is None, name


OPEN_FILES = """
import os
for file in range(64):
    try:
        os.fstat(file)
        print(file, end=" ")
    except OSError:
        pass
"""


def test_no_environment_and_no_files_of_ours_are_open(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "x")
    assert "TOKEN" not in ran("import os\nprint(sorted(os.environ))").output
    held = os.open("/etc/hostname", os.O_RDONLY)
    os.set_inheritable(held, True)
    try:
        assert ran(OPEN_FILES).output == "0 1 2 "
    finally:
        os.close(held)


@pytest.mark.parametrize(
    "program",
    [
        "raise ValueError",
        "import sys; sys.exit(3)",
        "import os; os._exit(0)",
        "x = bytearray(2**30)",
        "x = [0]\nwhile True: x += x",
        "def f(): f()\nf()",
        "import ctypes; ctypes.string_at(0)",
        "print('y' * 10**7)",
        "syntax error",
        "print(1); import os; os.close(1)",
    ],
)
def test_what_does_not_come_to_its_end_has_failed(program):
    done = ran(program)
    assert not done.completed
    assert len(done.output) <= sandbox.OUTPUT_BYTES


@pytest.mark.parametrize("program", ["while True: pass", "import time\ntime.sleep(3600)"])
def test_a_hang_is_over_in_time(program):
    """However long its process takes to start on this machine."""
    seconds = 0.5
    while True:
        try:
            assert not ran(program, seconds=seconds).completed
            return
        except NotStarted:
            seconds *= 2
            assert seconds < PATIENCE_SECONDS


def test_a_service_on_this_host_is_out_of_reach():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        program = f"import socket\nsocket.create_connection({address!r}, 1)\nprint('reached')"
        assert ran(program).output == ""
        server.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_where_it_cannot_be_contained_it_does_not_run(tmp_path):
    """The very script, on a host whose kernel has none of it."""
    source = Path(sandbox_child.__file__).read_text()
    weak = tmp_path / "sandbox_child.py"
    weak.write_text(source.replace("def main()", "contain = lambda limits: None\n\ndef main()"))
    with pytest.raises(NotContained, match=r"the network and other processes and the host's files"):
        ran("print('ran')", script=weak)
    done = ran("print('ran')", required=False, script=weak)
    assert (done.completed, done.output) == (True, "ran\n")


@pytest.mark.parametrize("name", ["kill", "socket", "clone"])
def test_the_filter_of_system_calls_does_not_lean_on_landlock(name, tmp_path):
    """Whose older versions know nothing of signals and sockets."""
    source = Path(sandbox_child.__file__).read_text()
    source = source.replace("    _landlock(", "    (lambda places: None)(")
    weak = tmp_path / "sandbox_child.py"
    weak.write_text(source)
    with pytest.raises(NotContained, match=r"would reach the host's files on this host"):
        ran("pass", script=weak)
    holes = {
        "kill": ('"kill": (62, 129),', ""),
        "socket": ('"socket": (41, 198),', ""),
        "clone": ("(jump_equal, 0, 3, _CLONE[column])", "(jump_equal, 0, 3, 9999)"),
    }
    assert holes[name][0] in source
    weak.write_text(source.replace(*holes[name]))
    with pytest.raises(NotContained, match=r"(the network|other processes) and the host's files"):
        ran("pass", script=weak)


def test_each_guard_stands_alone(tmp_path):
    """Without Landlock, or without the filter of system calls, the rest is reported."""
    source = Path(sandbox_child.__file__).read_text()
    weak = tmp_path / "sandbox_child.py"
    weak.write_text(source.replace("    _landlock(", "    (lambda places: None)("))
    with pytest.raises(NotContained, match=r"would reach the host's files on this host"):
        ran("pass", script=weak)
    weak.write_text(source.replace("    _seccomp(threads=counted)\n\n\ndef gaps", "\n\ndef gaps"))
    with pytest.raises(NotContained, match=r"would reach the network and other processes on"):
        ran("pass", script=weak)


@pytest.mark.parametrize(
    ("script", "seconds", "why"),
    [
        ("raise OSError('x')", SECONDS, r"exit code 1, .*OSError: x"),
        ("import threading; threading.Event().wait()", 0.0, "no start in 0 s"),
    ],
)
def test_a_process_that_does_not_come_to_run_it_says_nothing_of_the_program(
    script, seconds, why, tmp_path
):
    """It is the host's fault or the configuration's, and must not be taken for a wrong answer."""
    path = tmp_path / "sandbox_child.py"
    path.write_text(script)
    with pytest.raises(NotStarted, match=f"did not come to run it: {why}"):
        ran("pass", seconds=seconds, script=path)


def test_a_program_cannot_have_more_memory_than_who_judges_it():
    with pytest.raises(NotStarted, match=r"400 MiB \(memory_mb\), its caller 256"):
        ran("pass", most_bytes=lambda: 2**28)


WRITE_ALL = """
import os
for file in range(64):
    for text in TEXTS:
        try:
            os.lseek(file, 0, 0)
            os.ftruncate(file, 0)
            os.write(file, text)
        except OSError:
            pass
"""


@pytest.mark.parametrize("texts", [[b"network"], [b"started"], [b""]])
@pytest.mark.parametrize("code", [sandbox_child.NOT_CONTAINED, 1])
def test_a_program_cannot_say_that_it_was_not_contained_or_not_started(texts, code):
    """Which would end the run."""
    program = WRITE_ALL.replace("TEXTS", repr(texts)) + f"os._exit({code})"
    assert not ran(program).completed


def test_only_the_report_says_that_it_started(tmp_path):
    (tmp_path / "sandbox_child.py").write_text("import os\nfor f in 1, 2: os.write(f, b'started')")
    with pytest.raises(NotStarted, match="exit code 0"):
        ran("pass", script=tmp_path / "sandbox_child.py")


DOUBLE = "Here it is:\n```python\ndef double(x):\n    return 2 * x\n```\nDone."
ECHO = "```python\nfor line in open(0):\n    print(int(line) * 2)\n```"


@pytest.mark.parametrize(
    ("completion", "tests", "reward"),
    [
        (DOUBLE, "assert double(2) == 4", 1.0),
        (DOUBLE, "assert double(2) == 5", 0.0),
        (DOUBLE, ["assert double(2) == 4", "assert double('a') == 'aa'"], 1.0),
        (DOUBLE, json.dumps(["assert double(2) == 4"]), 1.0),
        ("def double(x): return 2 * x", "assert double(2) == 4", 1.0),
        ("```python\nx = 1\n```\nno:\n" + DOUBLE, "assert double(2) == 4", 1.0),
        ("I cannot.", "assert double(2) == 4", 0.0),
        (ECHO, [{"input": "1\n2\n", "output": "2\n4"}], 1.0),
        (ECHO, {"inputs": ["1\n", "5\n"], "outputs": ["2\n", "11\n"]}, 0.0),
        ("```python\nimport os; os._exit(0)\n```", "assert False", 0.0),
    ],
)
def test_the_reward_is_for_passing_all_tests(completion, tests, reward):
    assert code_module.code(["p"], [completion], tests=[tests], seconds=SECONDS) == [reward]


def test_or_for_a_share_of_them():
    tests = ["assert double(2) == 4", "assert double(3) == 7", "while True: pass", "assert True"]
    got = code_module.code(["p"], [DOUBLE], tests=[tests[:2]], seconds=SECONDS, partial=True)
    assert got == [0.5]


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("x = 1", "x = 1"),
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```Python3 title\nx = 1```", "x = 1"),
        ("  ``` py\n  x = 1\n  ```", "  x = 1\n  "),
        ("```py\nx = 1\n```\nor\n```py\nx = 2\n```", "x = 2\n"),
        ("```py\nx = 1\n```\nprints\n```\n5\n```", "x = 1\n"),
        ("```bash\nrun\n```\nthen\n```py\nx = 1\n```", "x = 1\n"),
        ("```json\n{}\n```\nthen\n```\nx = 1\n```\nso", "x = 1\n"),
        ("```json\n{}\n```", "```json\n{}\n```"),
        ("```python\nx = 1", "```python\nx = 1"),
    ],
)
def test_the_program_in_a_completion(completion, program):
    assert code_module.program_in(completion) == program


def slow_tests(*happening, partial):
    """`slow_tests((2.0, None), (1.0, NotStarted()))`: a test that passes after 2 s, and one that is
    not started; the reward."""
    now, happening = 100.0, iter(happening)

    def passes(program, test, *, seconds, memory_mb):
        nonlocal now
        taken, error = next(happening)
        now += taken
        if error is not None:
            raise error
        return True

    return code_module.judged(
        "x",
        ["a", "b"],
        seconds=6.0,
        memory_mb=400,
        partial=partial,
        passes=passes,
        clock=lambda: now,
    )


@pytest.mark.parametrize(("partial", "reward"), [(False, 0.0), (True, 0.5)])
def test_a_test_for_which_no_time_is_left_has_failed(partial, reward):
    assert slow_tests((5.9, None), (0.1, NotStarted("late")), partial=partial) == reward
    assert slow_tests((6.1, None), partial=partial) == reward


@pytest.mark.parametrize(
    "happening",
    [
        [(6.0, NotStarted("the host is too slow"))],
        [(1.0, None), (1.0, NotStarted("the host is too slow"))],
    ],
)
def test_a_program_that_could_have_started_and_did_not_is_a_fault(happening):
    with pytest.raises(NotStarted, match="too slow"):
        slow_tests(*happening, partial=True)


@pytest.mark.parametrize("tests", [7, [7], {"inputs": []}, [{"input": "1"}], [""]])
def test_tests_in_no_known_form_are_a_fault(tests):
    with pytest.raises(ValueError, match=r"docs/how-to/rewards.md"):
        code_module.cases(tests)


@pytest.mark.parametrize(
    "none", [None, float("nan"), "", " \n", [], "[]", "null", {"inputs": [], "outputs": []}]
)
def test_without_tests_nothing_is_said(none):
    assert code_module.cases(none) == []
    assert code_module.code(["p"], ["print(1)"], tests=[none]) == [None]


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        ([{"input": None, "output": 5}], [("", "5")]),
        ([{"input": ["3", "1 2 3"], "output": ["6"]}], [("3\n1 2 3", "6")]),
        ({"inputs": [1, 2], "outputs": [2.5, True]}, [("1", "2.5"), ("2", "True")]),
        (b'[{"input": "1", "output": "2"}]', [("1", "2")]),
        pytest.param("[" * 100_000, ["[" * 100_000], id="deep"),
        ([{"type": "stdin_stdout", "input": "1", "output": "2"}], [("1", "2")]),
        ([{"testtype": "stdin", "input": "1", "output": "2", "fn_name": None}], [("1", "2")]),
    ],
)
def test_tests_as_data_sets_have_them(tests, expected):
    assert code_module.cases(tests) == expected


@pytest.mark.parametrize(
    ("tests", "named"),
    [
        ({"inputs": [[1]], "outputs": [2], "fn_name": "double"}, "fn_name is 'double'"),
        ([{"input": "1", "output": "2", "weight": 0}], "weight is 0"),
        ([{"type": "function_call", "input": "1", "output": "2"}], "has type 'function_call'"),
        ([{"testtype": "functional", "input": "1", "output": "2"}], "has testtype 'functional'"),
        ('{"inputs": ["1"], "outputs": ["2"], "language": "cpp"}', "language is 'cpp'"),
        ([{"input": "1", "output": None}], "a test is"),
    ],
)
def test_what_a_test_says_and_nothing_does_is_named(tests, named):
    with pytest.raises(ValueError, match=named):
        code_module.cases(tests)

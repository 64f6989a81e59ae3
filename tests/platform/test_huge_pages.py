"""A process that becomes itself anew, once, and children that do not notice."""

import os
import subprocess
import sys

import pytest

from rlboost_jax.platform.huge_pages import ASKED, TUNABLES, WANTED, asks, forget

MADVISE = "always [madvise] never\n"

# What `python -m` gives, with a kernel that waits to be asked wherever this runs.
SOURCE = """
import os, subprocess, sys
from pathlib import Path

from rlboost_jax.platform import huge_pages

huge_pages.POLICY = Path(sys.argv[1])
at_start = os.environ.get("GLIBC_TUNABLES")
print(os.getpid(), at_start, flush=True)
huge_pages.start_with_huge_pages()
print("done", sys.argv[2:], flush=True)
names = "GLIBC_TUNABLES", "RLBOOST_HUGE_PAGES_ASKED"
child = f"import os; print(*map(os.environ.get, {names}))"
subprocess.run([sys.executable, "-c", child], check=True)
"""


def run(tmp_path, policy, **environment):
    (tmp_path / "policy").write_text(policy)
    (tmp_path / "program.py").write_text(SOURCE)
    inherited = {k: v for k, v in os.environ.items() if k not in (TUNABLES, ASKED)}
    process = subprocess.Popen(
        [sys.executable, "-X", "utf8", tmp_path / "program.py", tmp_path / "policy", "--a=b c"],
        env={**inherited, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = process.communicate()
    assert process.returncode == 0
    return process.pid, out.splitlines()


glibc = pytest.mark.skipif(sys.platform != "linux", reason="another C library")


@glibc
def test_the_same_process_starts_once_more_and_its_children_inherit_nothing(tmp_path):
    pid, lines = run(tmp_path, MADVISE)
    assert lines == [f"{pid} None", f"{pid} {WANTED}", "done ['--a=b c']", "None None"]


@glibc
def test_what_a_person_asks_for_stays(tmp_path):
    own = "glibc.malloc.hugetlb=0"
    pid, lines = run(tmp_path, MADVISE, **{TUNABLES: own})
    assert lines == [f"{pid} {own}", "done ['--a=b c']", f"{own} None"]


def test_nothing_happens_where_nobody_waits_to_be_asked(tmp_path):
    pid, lines = run(tmp_path, "always madvise [never]\n")
    assert lines == [f"{pid} None", "done ['--a=b c']", "None None"]


@pytest.mark.parametrize(
    "environment, glibc, policy, expected",
    [
        ({}, True, MADVISE, True),
        ({}, False, MADVISE, False),
        ({}, True, "[always] madvise never\n", False),
        ({}, True, "", False),
        ({ASKED: "1", TUNABLES: WANTED}, True, MADVISE, False),
        ({TUNABLES: ""}, True, MADVISE, False),
    ],
)
def test_it_asks_once_and_where_it_helps(environment, glibc, policy, expected):
    assert asks(environment, glibc=glibc, policy=policy) == expected


def test_what_was_there_before_is_not_forgotten():
    environment = {TUNABLES: "mine", "HOME": "/"}
    forget(environment)
    assert environment == {TUNABLES: "mine", "HOME": "/"}

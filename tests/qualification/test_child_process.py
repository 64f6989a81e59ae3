"""Candidates in real child processes: whatever one does, those after it are tried."""

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlboost_jax.platform.process_liveness import start_time
from rlboost_jax.qualification.checks import row_error
from rlboost_jax.qualification.child_process import verdict_of
from rlboost_jax.qualification.kernel_choice import choose, described
from rlboost_jax.qualification.trial_records import KernelVerdict, Spec, Trial
from tests.patience import PATIENCE_SECONDS

FAULTY = (sys.executable, "-m", "tests.qualification.faulty")
HANGING_SECONDS = 7.0  # in virtual time
STARTING_SECONDS = 5.0


def tried(
    *candidates: str, invariant: bool = True, seconds: float = PATIENCE_SECONDS
) -> KernelVerdict:
    spec = spec_of(*candidates, invariant=invariant, seconds=seconds)
    return verdict_of(spec, command=FAULTY, start_seconds=PATIENCE_SECONDS)


def spec_of(*candidates: str, seconds: float, invariant: bool = True) -> Spec:
    return Spec(
        problem="doubling",
        shape={},
        invariant=invariant,
        candidates=candidates,
        seconds=seconds,
        on_cpu=True,
    )


def outcomes(verdict: KernelVerdict) -> dict[str, str]:
    return {trial.candidate: trial.outcome for trial in verdict.trials}


def reason(verdict: KernelVerdict, candidate: str) -> str:
    return next(trial.reason for trial in verdict.trials if trial.candidate == candidate)


def test_whatever_breaks_is_passed_over_and_said() -> None:
    broken = ("unavailable", "wrong", "not_finite", "dependent", "raises", "crashes", "exits")
    verdict = tried(*broken, "right")
    assert outcomes(verdict) == {
        "unavailable": "unavailable",
        "wrong": "wrong",
        "not_finite": "wrong",
        "dependent": "dependent",
        "raises": "raised",
        "crashes": "crashed",
        "exits": "crashed",
        "right": "right",
    }
    assert (verdict.platform, verdict.device) == ("cpu", "cpu")
    choice = choose(verdict, plain="xla")
    assert (choice.candidate, choice.checked) == ("right", True)
    line = described(choice, "engine.attention")
    assert "\n" not in line
    for clue in (
        "engine.attention on cpu: right, ",
        "unavailable cannot run this (it takes pages of 64)",
        "a row is off by 0.001 of its norm, allowed are 1e-05",
        "a row is off by not finite",
        "other bits beside another last row",
        "NotImplementedError: no such instruction on this device",
        "crashes ended its process (SIGSEGV",
        "exits ended its process (exit code 7)",
    ):
        assert clue in line, line


def test_what_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still until one hangs, and then all of what was left is over at once."""
    report, waited = tmp_path / "pid", list[float]()

    class Selector(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> Any:
            assert timeout is not None
            while not (ready := super().select(0.02)):
                if report.exists():  # all that it says before, it has said
                    if not (ready := super().select(0)):
                        report.unlink()
                    break
            waited.append(timeout)
            return ready

    monkeypatch.setenv("RLBOOST_HANGING_PID", str(report))
    spec = spec_of("hangs", "right", seconds=HANGING_SECONDS)
    verdict = verdict_of(
        spec,
        command=FAULTY,
        start_seconds=STARTING_SECONDS,
        selector=Selector,
        clock=lambda: 0.0,
    )
    assert outcomes(verdict) == {"hangs": "hung", "right": "right"}
    assert reason(verdict, "hangs") == f"no result after {HANGING_SECONDS:g} s"
    assert waited[0] == STARTING_SECONDS and HANGING_SECONDS in waited
    assert set(waited) == {STARTING_SECONDS, HANGING_SECONDS}


def test_an_exception_does_not_reach_the_next_candidate() -> None:
    """What runs after it on a GPU fails too, unless it has a process of its own."""
    assert outcomes(tried("poisons", "right")) == {"poisons": "raised", "right": "right"}


def test_rows_may_depend_on_each_other_where_nobody_asked() -> None:
    assert outcomes(tried("dependent", invariant=False)) == {"dependent": "right"}


def test_all_that_fail_leave_the_plain_path_and_their_reasons() -> None:
    choice = choose(tried("crashes", "wrong"), plain="right")
    assert (choice.candidate, choice.checked) == ("right", False)
    line = described(choice, "engine.attention")
    assert "right, the plain path, since no candidate passed its check" in line
    assert "SIGSEGV" in line and "wrong is wrong" in line


@pytest.mark.parametrize(
    ("command", "clue"),
    [
        (["/nowhere/python"], "No such file or directory"),
        ([sys.executable, "-c", "import sys; sys.exit('no CUDA driver')"], "no CUDA driver"),
        ([sys.executable, "-c", "print('{}'); print('nonsense')"], "exit code 0"),
    ],
)
def test_a_child_that_does_not_start_is_asked_once(
    command: list[str], clue: str, tmp_path: Path
) -> None:
    spec = Spec(problem="p", shape={}, invariant=True, candidates=("a", "b"), seconds=1.0)
    verdict = verdict_of(spec, command=command, start_seconds=PATIENCE_SECONDS)
    assert [trial.outcome for trial in verdict.trials] == ["crashed", "crashed"]
    assert all("no process to try it in" in t.reason and clue in t.reason for t in verdict.trials)


def test_a_child_that_finds_no_accelerator_tries_nothing() -> None:
    spec = Spec(problem="p", shape={}, invariant=True, candidates=("right",), seconds=1.0)
    verdict = verdict_of(spec, command=FAULTY, start_seconds=PATIENCE_SECONDS)
    assert verdict.platform == "cpu"
    assert [trial.outcome for trial in verdict.trials] == ["crashed"]


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    """Also with one that was killed, and while a candidate hangs."""
    report = tmp_path / "pid"
    program = (
        "from tests.qualification.test_child_process import tried\n"
        f"tried('hangs', seconds={PATIENCE_SECONDS})"
    )
    environment = {**os.environ, "RLBOOST_HANGING_PID": str(report)}
    parent = subprocess.Popen([sys.executable, "-c", program], env=environment)
    try:
        child = int(eventually(lambda: report.exists() and report.read_text()))
        assert start_time(child)
    finally:
        parent.kill()
        parent.wait()
    eventually(lambda: not start_time(child))


def eventually(look: Callable[[], Any]) -> Any:
    """What `look` sees, once it sees something."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (seen := look()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return seen


@pytest.mark.parametrize(
    ("rows", "factor", "error"), [(512, 1.05, 0.05), (1, 1.05, 0.05), (512, float("nan"), None)]
)
def test_a_single_wrong_row_shows(rows: int, factor: float, error: float | None) -> None:
    expected = np.random.default_rng(0).standard_normal((rows, 4, 8))
    result = expected.copy()
    result[-1] *= factor
    found = row_error(result, expected)
    assert np.isnan(found) if error is None else found == pytest.approx(error)
    expected[0], result[0] = 0.0, 1e-9  # rows of nobody have to be nothing
    assert rows == 1 or not row_error(result, expected) < 1e9


def right(candidate: str, seconds: float) -> Trial:
    return Trial(candidate=candidate, outcome="right", seconds=seconds)


@pytest.mark.parametrize(("first", "steady", "expected"), [
    (4.9, True, "a"), (5.1, True, "b"), (4.9, False, "b"), (1.9, False, "a"),
])  # fmt: skip
def test_noise_does_not_choose_the_bits_of_a_deterministic_run(
    first: float, steady: bool, expected: str
) -> None:
    trials = (Trial(candidate="w", outcome="wrong"), right("a", first), right("b", 2.0))
    verdict = KernelVerdict(platform="gpu", device="H100", trials=trials)
    assert choose(verdict, plain="b", steady=steady).candidate == expected


def test_the_fastest_of_the_right_ones_is_taken_the_earlier_of_two_as_fast() -> None:
    wrong = Trial(candidate="w", outcome="wrong", reason="off", seconds=0.1)
    trials = (right("a", 3.0), wrong, right("b", 2.0), right("c", 2.0))
    choice = choose(KernelVerdict(platform="gpu", device="H100", trials=trials), plain="c")
    assert choice.candidate == "b"
    line = described(choice, "engine.attention")
    assert line == (
        "engine.attention on H100: b, 2e+03 ms (a 3e+03 ms, c 2e+03 ms); passed over: w is wrong "
        "(off)"
    )

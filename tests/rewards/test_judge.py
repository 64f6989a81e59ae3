"""Whatever a reward function does costs the response that it did it for, visibly."""

import functools
import os
import signal
import threading
import time
from concurrent.futures import CancelledError, Future
from pathlib import Path

import pytest

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.rewards.judge import Judge
from rlboost_jax.rewards.reward_frames import RewardJob, RewardOutcome, RewardResponse
from rlboost_jax.settings.rewards_config import RewardConfig, RewardsConfig
from rlboost_jax.workers.futures import when_all
from rlboost_jax.workers.local_workers import WorkersLost
from rlboost_jax.workers.worker_process import START_SECONDS
from tests.patience import PATIENCE_SECONDS
from tests.processes import marked
from tests.rewards.functions_for_tests import raised_in, raises, raises_half_a_character

MODULE = "tests.rewards.functions_for_tests"
BUILT_IN_COLUMNS = ("answer", "tests")
TESTED_BY = ("RLBOOST_TESTED_BY", str(os.getpid()))
WAIT = PATIENCE_SECONDS  # for what comes sooner or not at all

os.environ.update([TESTED_BY])


def settings(**changes):
    values = {
        "functions": (),
        "workers": 1,
        "time_limit_seconds": 20.0,
        "memory_mb": 200,
        "fallback": -0.5,
        "tolerated_failures": 0.5,
        "sandbox": "required",
    }
    return RewardsConfig(**values | changes)


def own(name, **options):
    return RewardConfig(name=f"{MODULE}:{name}", **options)


def built_in(name, *, label="", weight=1.0, **options):
    return RewardConfig(name=name, label=label, weight=weight, options=options)


def answered(completion="four", **columns):
    response = RewardResponse(completion=completion, completion_ids=(1, 2, 3), finished=True)
    return RewardJob(prompt="2 + 2?", responses=(response,), columns=columns)


@pytest.fixture
def judge():
    """`judge(own("good"), …, workers=2)`"""
    made = []

    def build(*functions, columns=(), seed=0, start_seconds=START_SECONDS, **changes):
        how = {"columns": columns, "seed": seed, "start_seconds": start_seconds}
        made.append(Judge(functions, settings(**changes), **how))
        return made[-1]

    yield build
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def every():
    """All functions that fail at once, with one before, between and after that do not."""
    names = [
        *("good", "raises", "crashes", "leaves", "ends", "plain", "not_a_number", "endless"),
        "closes_its_pipe",
        *(
            "raises_half_a_character",
            "too_many",
            "none_at_all",
            "no_list",
            "text",
            "words",
            "allocates",
            "array",
        ),
    ]
    functions = [own(name, weight=2.0 if name == "good" else 1.0) for name in names]
    judge = Judge(functions, settings(), columns=(), seed=0)
    yield judge.ask(answered()).result(WAIT)
    judge.close()


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("raises", "KeyError: 'no such thing'" + raised_in(raises)),
        ("raises_half_a_character", "ValueError: \\ud83d" + raised_in(raises_half_a_character)),
        ("crashes", "was ended by SIGSEGV"),
        ("leaves", "ended its process"),
        ("closes_its_pipe", "closed its pipe and went on"),
        ("ends", "ended its process"),
        ("not_a_number", "returned nan"),
        ("endless", "returned inf"),
        ("too_many", "returned 2 values for 1 completion"),
        ("none_at_all", "returned 0 values for 1 completion"),
        ("no_list", "returned float '1.0', no list"),
        ("text", "returned str '1', no list"),
        ("words", "ValueError: could not convert string to float: 'one'"),
        ("allocates", "MemoryError: more than rewards.memory_mb"),
    ],
)
def test_each_failure_is_named_and_counts_as_the_fallback(every, name, fault):
    assert every.faults[f"{MODULE}:{name}"] == fault
    assert every.components[f"{MODULE}:{name}"] == -0.5


def test_a_call_imports_nothing(judge):
    """Each call has a process of its own, which would import it again."""
    name = "tests.rewards.imports_counted:late"
    verdict = judge(RewardConfig(name=name)).ask(answered()).result(WAIT)
    assert (verdict.components[name], dict(verdict.faults)) == (1.0, {})


def test_the_others_are_not_touched(every):
    sound = {name: every.components[f"{MODULE}:{name}"] for name in ("good", "plain", "array")}
    assert sound == {"good": 4.0, "plain": 0.25, "array": 0.5}
    assert len(every.faults) == 14 and not every.faults.keys() & {f"{MODULE}:{n}" for n in sound}
    assert every.reward == 2 * 4.0 + 0.25 + 0.5 - 14 * 0.5
    assert every.accuracy == 4.0, "of the first function, without its weight"


def pids(judge):
    """Process ids of its workers."""
    return [pid for pool in judge._open for pid in pool.pids]


def alive(processes):
    return [pid for pid in processes if Path(f"/proc/{pid}").exists()]


def sleepers():
    """Processes that our workers' calls have started, not those of other test processes."""
    ours = marked("=".join(TESTED_BY))
    return {pid for pid, command in ours.items() if command == "sleep 3600"}


def test_a_hang_ends_after_its_own_limit_with_all_it_started(judge):
    before = sleepers()
    functions = (
        own("hangs", time_limit_seconds=0.3),
        own("hangs_with_children", time_limit_seconds=1.0),
        own("good"),
    )
    verdict = judge(*functions).ask(answered()).result(WAIT)
    assert dict(verdict.faults) == {
        f"{MODULE}:hangs": "took longer than 0.3 s",
        f"{MODULE}:hangs_with_children": "took longer than 1 s",
    }
    assert verdict.components[f"{MODULE}:good"] == 4.0
    assert sleepers() <= before


@pytest.mark.parametrize(("memory_mb", "enough"), [(80, False), (120, True)])
def test_memory_is_what_a_call_takes_besides_its_modules(memory_mb, enough, judge):
    asked = judge(own("takes", options={"megabytes": 100}), memory_mb=memory_mb)
    assert bool(asked.ask(answered()).result(WAIT).faults) is not enough


def test_a_failure_is_of_one_response_only(judge):
    asked = judge(own("picky"), workers=2)
    completions = ["raise", "fine", "nan", "crash", "fine", "many", "fine"]
    verdicts = [f.result(WAIT) for f in [asked.ask(answered(c)) for c in completions]]
    assert [bool(v.faults) for v in verdicts] == [c != "fine" for c in completions]
    assert [v.reward for v in verdicts] == [0.25 if c == "fine" else -0.5 for c in completions]


def test_nothing_depends_on_the_order_or_the_number_of_workers(judge):
    """Random numbers are the response's own; no call sees what another left behind."""
    completions = [f"response {n}" for n in range(12)]
    functions = (own("draws"), own("remembers"))

    def rewards(order, **options):
        asked = judge(*functions, **options)
        futures = {c: asked.ask(answered(c)) for c in order}
        return {c: futures[c].result(WAIT).components for c in completions}

    first = rewards(completions)
    assert rewards(completions[::-1], workers=3) == first
    assert len({c[f"{MODULE}:draws"] for c in first.values()}) == 12
    assert {c[f"{MODULE}:remembers"] for c in first.values()} == {1.0}
    assert rewards(completions, seed=1) != first


def test_columns_and_options_go_by_name(judge):
    asked = judge(own("columns_of", options={"scale": 2.0}), columns=("answer", "other"))
    verdict = asked.ask(answered(answer="21", other=[1])).result(WAIT)
    assert (verdict.reward, dict(verdict.faults)) == (43.0, {})


@pytest.mark.parametrize("name", ["of_completions", "the_other_way_round"])
def test_functions_take_what_they_name(name, judge):
    assert judge(own(name)).ask(answered("four")).result(WAIT).reward == 4 + 100 * len("2 + 2?")


def test_none_says_nothing_about_a_response(judge):
    verdict = judge(own("says_nothing"), own("plain")).ask(answered()).result(WAIT)
    assert dict(verdict.components) == {f"{MODULE}:plain": 0.25}
    assert (verdict.reward, dict(verdict.faults)) == (0.25, {})


def test_what_a_function_prints_and_reads_is_nobodys(judge):
    assert judge(own("talks")).ask(answered()).result(WAIT).reward == 1.0


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (RewardConfig(name="no.such.module:x"), r"'no.such.module:x' cannot be imported: Module"),
        (own("missing"), r"missing' cannot be imported: no 'missing' in tests"),
        (own("not_callable"), r"not_callable' is no function"),
        (own("columns_of"), r"columns_of' needs 'answer', which is no option and no column"),
        (own("plain", options={"scale": 1}), r"plain' takes no option 'scale'"),
        (own("coroutine"), r"coroutine' is a coroutine function"),
        (own("by_place"), r"by_place' cannot be called by names: missing .*'prompts'"),
        (
            own("by_other_names"),
            r"by_other_names' needs 'questions', .* nor one of prompts, com",
        ),
        (own("good", options={"prompts": "x"}), r"good' takes no option 'prompts'"),
        (RewardConfig(name="builtins:dict"), r"dict' cannot be asked what it takes"),
        (RewardConfig(name="regex"), r"'regex' needs 'pattern'"),
        (built_in("regex", pattern="(", label="code"), r"'code' .*'\(' is no regular expression"),
        (built_in("regex", pattern=7), r"'regex' has option 'pattern' of 7: Expected `str`"),
        (built_in("regex", pattern="x", hole=True), r"no option 'hole'; it takes pattern, whole"),
        (
            built_in("exact", extract="box"),
            r"'exact' .*extract is 'box'; choose one of '', 'boxed'",
        ),
        (built_in("exact", ignore_case=1), r"option 'ignore_case' of 1: Expected `bool`"),
        (built_in("exact", answer="4"), r"'exact' takes no option 'answer'"),
        (built_in("format", tags="a,,b"), r"'format' .*tags is 'a,,b'"),
        (built_in("format", tags="a,a"), r"'format' .*tags is 'a,a'"),
        (built_in("length", free_tokens=9, limit_tokens=9), r"free_tokens 9 is not below"),
        (built_in("length", free_tokens=9), r"'length' needs 'limit_tokens'"),
        (built_in("code", seconds=0.0), r"'code' .*seconds is 0.0 and memory_mb 512"),
        (built_in("code", seconds=30.0, label="x"), r"'x': .* 30 s .* 20 \(time_limit_seconds\)"),
        (built_in("code", memory_mb=999), r"'code': .* 999 MiB .* 600 \(rewards.memory_mb\)"),
    ],
)
def test_a_function_that_cannot_be_used_is_known_before_the_first_response(judge, reward, message):
    with pytest.raises(ConfigError, match=message):
        judge(
            reward, columns=() if "needs 'answer'" in message else BUILT_IN_COLUMNS, memory_mb=600
        )


def test_a_judge_that_cannot_be_made_leaves_nothing_behind(judge):
    service = RewardConfig(name="http", options={"url": "http://127.0.0.1:1/"})
    wrong = RewardConfig(name="http", label="other", options={"url": "nowhere"})
    before = threading.enumerate()
    for functions in ((service, wrong), (service, own("missing"))):
        with pytest.raises(ConfigError):
            judge(*functions)
    assert set(threading.enumerate()) <= set(before)


def test_two_of_one_name_have_a_label_each(judge):
    functions = (
        built_in("regex", pattern="fo", label="first"),
        built_in("regex", pattern="x", label="second", weight=9.0),
        built_in("regex", pattern="ur$", weight=0.5),
    )
    verdict = judge(*functions).ask(answered("four")).result(WAIT)
    assert dict(verdict.components) == {"first": 1.0, "second": 0.0, "regex": 1.0}
    assert (verdict.reward, verdict.accuracy, dict(verdict.faults)) == (1.5, 1.0, {})


def test_closing_does_not_wait_for_imports(judge, monkeypatch, tmp_path):
    """A second worker is in the midst of them, and nothing else would end them here."""
    monkeypatch.setenv("REWARDS_IMPORT", str(tmp_path))
    asked = judge(
        RewardConfig(name="tests.rewards.slow_import:good"), workers=2, start_seconds=3600.0
    )
    (tmp_path / "slow").touch()
    pending, deadline = [], time.monotonic() + WAIT
    while not (tmp_path / "importing").exists():
        if all(future.done() for future in pending):  # by the first of them, so far
            pending += [asked.ask(answered()) for _ in range(2)]
        assert time.monotonic() < deadline
    closing = threading.Thread(target=asked.close, daemon=True)
    closing.start()
    closing.join(WAIT)
    assert not closing.is_alive()
    assert all(future.done() for future in pending)


def test_a_question_after_the_end_is_answered(judge):
    asked = judge(own("good"))
    asked.close()
    with pytest.raises(CancelledError):
        asked.ask(answered()).result(WAIT)


def test_a_worker_that_is_killed_is_replaced(judge):
    asked = judge(own("good"))
    for signal_number in (signal.SIGKILL, signal.SIGTERM):
        os.kill(pids(asked)[0], signal_number)
        assert asked.ask(answered()).result(WAIT).reward == 4.0


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (2**64, "can't serialize ints"),
        (object(), "object is no plain value"),
        ("\ud800", "surrogates not allowed"),
        (functools.reduce(lambda inner, _: [inner], range(5000), 0), "recursion"),
    ],
)
def test_columns_that_cannot_be_sent_cost_their_response_only(value, fault, judge):
    asked = judge(own("good"), columns=("x",))
    workers = pids(asked)
    verdict = asked.ask(answered(x=value)).result(WAIT)
    assert verdict.reward == -0.5
    assert fault in verdict.faults[f"{MODULE}:good"]
    assert asked.ask(answered(x=2**63)).result(WAIT).reward == 4.0
    assert pids(asked) == workers


@pytest.mark.parametrize("error", [None, WorkersLost("gone")])
def test_a_verdict_that_nobody_wants_any_more_is_no_trouble(error, caplog):
    asked: Future[tuple[RewardOutcome, ...]] = Future()
    asked.set_running_or_notify_cancel()
    verdict = when_all([asked], list)
    assert verdict.cancel()
    if error is None:
        asked.set_result((RewardOutcome(value=1.0),))
    else:
        asked.set_exception(error)
    assert verdict.cancelled()
    assert not caplog.records, "what a callback raises is logged, not raised"


def test_what_nobody_wants_any_more_is_not_asked_either():
    asked: list[Future[tuple[RewardOutcome, ...]]] = [Future(), Future()]
    asked[0].set_running_or_notify_cancel()
    verdict = when_all(asked, list)
    assert verdict.cancel()
    assert [future.cancelled() for future in asked] == [False, True]


def test_the_first_error_is_the_verdicts(caplog):
    asked: list[Future[tuple[RewardOutcome, ...]]] = [Future() for _ in range(3)]
    verdict = when_all(asked, list)
    asked[0].set_result((RewardOutcome(value=1.0),))
    asked[1].set_exception(WorkersLost("gone"))
    asked[2].cancel()
    with pytest.raises(WorkersLost, match="gone"):
        verdict.result(0)
    assert not caplog.records


def test_nobody_is_left_behind(judge, patient):
    before = sleepers()
    asked = judge(own("hangs_with_children", time_limit_seconds=600.0), own("good"), workers=2)
    pending = [asked.ask(answered()) for _ in range(4)]
    while len(sleepers() - before) < 4:  # two workers, two children each
        assert not any(future.done() for future in pending)
    workers = pids(asked)
    asked.close()
    assert all(future.done() for future in pending)
    assert not alive(workers)
    assert sleepers() <= before

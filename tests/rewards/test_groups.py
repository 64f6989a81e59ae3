"""Rewards that compare the responses to a prompt: one call, in sample order, one verdict each."""

import itertools
import os
import signal
from concurrent.futures import Future

import pytest

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.rewards.judge import Judge
from rlboost_jax.rewards.reward_frames import RewardJob, RewardResponse
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.settings.rewards_config import RewardConfig, RewardsConfig
from tests.patience import PATIENCE_SECONDS
from tests.rewards.functions_for_tests import raised_in, raises

MODULE = "tests.rewards.functions_for_tests"
WAIT = PATIENCE_SECONDS
FUNCTIONS = (
    RewardConfig(name=f"{MODULE}:shortest", per="group", weight=2.0, label="shortest"),
    RewardConfig(name="exact", weight=0.5),
    RewardConfig(name=f"{MODULE}:draws_for_groups", per="group", weight=0.25, label="draws"),
    RewardConfig(name=f"{MODULE}:fails_for_groups", per="group", label="x"),
)
TEXTS = ("the answer is 7", "7", "no idea", "8")


def judge(*functions: RewardConfig, workers: int = 1) -> Judge:
    settings = RewardsConfig(
        workers=workers, memory_mb=200, fallback=-0.5, time_limit_seconds=PATIENCE_SECONDS
    )
    return Judge(functions, settings, columns=("answer",), seed=0)


@pytest.fixture(scope="module")
def both():
    """The same functions in one worker and in two."""
    made = [judge(*FUNCTIONS), judge(*FUNCTIONS, workers=2)]
    yield made
    for each in made:
        each.close()


def answered(text: str) -> RewardJob:
    response = RewardResponse(completion=text, completion_ids=tuple(text.encode()), finished=True)
    return RewardJob(prompt="3 + 4?", responses=(response,), columns={"answer": "7"})


def begun(asked: Judge, *texts: str) -> Future[tuple[Verdict, ...]]:
    group = [answered(text) for text in texts]
    return asked.ask_group(group, [asked.ask(each) for each in group])


def verdicts(asked: Judge, *texts: str) -> tuple[Verdict, ...]:
    return begun(asked, *texts).result(WAIT)


def test_each_response_has_its_part_of_the_group_and_its_own(both):
    one, _ = both
    assert one.sees_groups
    found = verdicts(one, *TEXTS)
    assert [v.components["shortest"] for v in found] == [10.0, 12.0, 1.0, 2.0]
    assert [v.components["exact"] for v in found] == [0.0, 1.0, 0.0, 0.0]
    assert [v.accuracy for v in found] == [10.0, 12.0, 1.0, 2.0], "of the first function"
    for verdict in found:
        parts = verdict.components
        by_hand = 2.0 * parts["shortest"] + 0.5 * parts["exact"]
        by_hand = by_hand + 0.25 * parts["draws"] + parts["x"]
        assert verdict.reward == by_hand and list(parts) == ["shortest", "exact", "draws", "x"]
    assert not any(v.faults for v in found)


def test_nothing_depends_on_the_order_or_the_number_of_workers(both):
    groups = [(f"{n}", "seven", "7") for n in range(4)]
    seen = []
    for asked, order in itertools.product(both, (groups, groups[::-1])):
        futures = {texts: begun(asked, *texts) for texts in order}
        seen.append([[v.components for v in futures[texts].result(WAIT)] for texts in groups])
    assert seen[1:] == seen[:1] * 3
    assert len({parts["draws"] for group in seen[0] for parts in group}) == 12


def test_the_same_responses_in_another_order_are_another_group(both):
    """What is given in the order of samples is not sorted by anybody."""
    one, _ = both
    first, second = (verdicts(one, *texts) for texts in (TEXTS, TEXTS[::-1]))
    assert [v.components["shortest"] for v in second] == [2.0, 1.0, 12.0, 10.0]
    assert [v.components["draws"] for v in first] != [v.components["draws"] for v in second][::-1]


@pytest.mark.parametrize(
    ("first", "fault"),
    [
        ("raise", "KeyError: 'no such thing'" + raised_in(raises)),
        ("crash", "was ended by SIGSEGV"),
        ("few", 'returned 1 value for 3 completions (per="group" gives it all at once)'),
    ],
)
def test_a_failure_costs_the_whole_group_and_no_other_function(both, first, fault):
    one, _ = both
    found = verdicts(one, first, "7", "8")
    assert [dict(v.faults) for v in found] == [{"x": fault}] * 3
    assert [v.components["x"] for v in found] == [-0.5] * 3
    assert [v.components["exact"] for v in found] == [0.0, 1.0, 0.0]


def test_a_time_limit_is_of_the_whole_group():
    late = RewardConfig(
        name=f"{MODULE}:fails_for_groups", per="group", time_limit_seconds=0.5, label="x"
    )
    asked = judge(late)
    found = verdicts(asked, "hang", "7", "8")
    asked.close()
    assert [dict(v.faults) for v in found] == [{"x": "took longer than 0.5 s for a group"}] * 3
    assert [v.reward for v in found] == [-0.5] * 3


def test_one_value_that_is_no_number_costs_its_response(both):
    one, _ = both
    found = verdicts(one, "fine", "nan", "none")
    assert [dict(v.faults) for v in found] == [{}, {"x": "returned nan"}, {}]
    assert [v.components.get("x") for v in found] == [1.0, -0.5, None]


def test_a_group_that_nobody_wants_any_more_leaves_its_responses(both):
    one, _ = both
    members = [one.ask(answered(text)) for text in TEXTS]
    one.ask_group([answered(text) for text in TEXTS], members).cancel()
    assert [m.result(WAIT).components["exact"] for m in members] == [0.0, 1.0, 0.0, 0.0]


def test_a_worker_that_is_killed_changes_no_value(both):
    one, two = both
    for pid in two._open[0].pids:
        os.kill(pid, signal.SIGKILL)
    assert [v.components for v in verdicts(two, *TEXTS)] == [
        v.components for v in verdicts(one, *TEXTS)
    ]


def test_a_coroutine_function_needs_a_number():
    with pytest.raises(
        ConfigError, match=r"both' is a coroutine function .*set its max_concurrent"
    ):
        judge(RewardConfig(name=f"{MODULE}:both", per="group"))

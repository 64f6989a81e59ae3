"""Responses about which reward functions say nothing: absence is no value."""

from concurrent.futures import Future

import numpy as np
import pytest

from rlboost_jax.learner.episodes.collector import StepCollector
from rlboost_jax.rewards.http_rewards import _found_in
from rlboost_jax.rewards.judge import SILENT, Judge
from rlboost_jax.rewards.reward_frames import RewardJob, RewardResponse
from rlboost_jax.rewards.verdict import Verdict, at_once
from rlboost_jax.settings.rewards_config import RewardConfig, RewardsConfig
from tests.learner.episodes.test_assembly import rollout
from tests.learner.episodes.test_raw_rewards import estimates
from tests.patience import PATIENCE_SECONDS
from tests.rewards.test_judge import answered

NAN = float("nan")
MODULE = "tests.rewards.functions_for_tests"
FIRST = RewardConfig(name="exact", label="first")
SECOND = RewardConfig(name="regex", options={"pattern": "4"}, weight=0.5, label="second")
OTHER = RewardConfig(name="exact", options={"extract": "boxed"}, label="other")
GROUP = RewardConfig(name=f"{MODULE}:nothing_for_wrong_groups", per="group", label="group")


@pytest.fixture(scope="module")
def judge():
    """`judge(function, …)`: equal ones are made once."""
    made = {}
    settings = RewardsConfig(
        workers=1, memory_mb=200, time_limit_seconds=PATIENCE_SECONDS, fallback=-0.5
    )

    def build(*functions):
        names = tuple(function.shown_as for function in functions)
        if names not in made:
            made[names] = Judge(functions, settings, columns=("answer",), seed=0)
        return made[names]

    yield build
    for each in made.values():
        each.close()


@pytest.mark.parametrize(
    ("functions", "answer", "reward", "accuracy", "left_out"),
    [
        ((FIRST, OTHER), None, 0.0, None, SILENT),
        ((FIRST, OTHER), NAN, 0.0, None, SILENT),
        ((FIRST, OTHER), [], 0.0, None, SILENT),
        ((FIRST, OTHER), [None, None], 0.0, None, SILENT),
        ((FIRST, OTHER), "4", 1.0, 1.0, ""),
        ((FIRST, OTHER), "5", 0.0, 0.0, ""),
        ((FIRST, SECOND), None, 0.5, None, ""),  # the second speaks, and is no accuracy
        ((FIRST, SECOND), "4", 1.5, 1.0, ""),
        ((FIRST, OTHER), {"a": 4}, -1.0, -0.5, ""),  # failed: the fallback counts, as ever
    ],
)
def test_what_no_function_speaks_of_is_left_out(
    judge, functions, answer, reward, accuracy, left_out
):
    verdict = judge(*functions).ask(answered("4", answer=answer)).result(PATIENCE_SECONDS)
    assert (verdict.reward, verdict.accuracy, verdict.left_out) == (reward, accuracy, left_out)
    assert verdict.outcome == accuracy
    assert bool(verdict.faults) == (reward < 0)


def test_of_a_group_only_those_that_no_function_speaks_of(judge):
    """Neither by themselves nor together: what is said of the group may come last."""
    asked = judge(FIRST, GROUP)
    members = [answered(text, answer=None) for text in ("wrong", "4", "wrong")]
    alone = [asked.ask(each) for each in members]
    found = asked.ask_group(members, alone).result(PATIENCE_SECONDS)
    assert [v.left_out for v in found] == [SILENT, "", SILENT]
    assert [v.reward for v in found] == [0.0, 1.0, 0.0]
    assert all(v.accuracy is None for v in found)
    assert not any(each.result().left_out for each in alone), "nobody knows yet"


@pytest.mark.parametrize(
    ("said", "value", "failed"),
    [
        ("null", None, False),
        ("0", 0.0, False),
        ("NaN", None, True),
        ("Infinity", None, True),
        ('"4"', None, True),
        ("true", None, True),
        ("[1]", None, True),
    ],
)
def test_a_service_says_nothing_by_null_alone(said, value, failed):
    job = RewardJob(
        prompt="p",
        responses=(RewardResponse(completion="c", completion_ids=(), finished=True),),
        columns={},
    )
    (outcome,) = _found_in(f'{{"rewards": [{said}]}}'.encode(), job)
    assert (outcome.value, bool(outcome.fault)) == (value, failed)
    (outcome,) = _found_in(b'{"rewards": []}', job)
    assert outcome.fault


def test_its_group_is_compared_without_it_and_a_line_says_so():
    """Rewards 1, nothing, 0 and 0: as if there were three."""
    verdicts = {
        sample: Verdict(reward=reward, accuracy=reward)
        for sample, reward in enumerate((1.0, 0.0, 0.0, 0.0))
    }
    verdicts[1] = Verdict(reward=0.0, accuracy=None, left_out=SILENT)

    def ask(episode) -> Future[Verdict]:
        return at_once(verdicts[episode.work.sample])

    collector = StepCollector(
        3,
        version=3,
        prompts=[np.array([1, 2], np.int32)],
        group_size=4,
        ask=ask,
        estimate=estimates("dr_grpo").of_group,
    )
    groups = [group for sample in range(4) for group in collector.add(rollout(sample))]
    (group,) = groups
    assert [t.advantage for t in group.trajectories] == pytest.approx([2 / 3, 0, -1 / 3, -1 / 3])
    assert [t.trained for t in group.trajectories] == [True, False, True, True]
    (line,) = collector.fault_lines()
    assert f"nobody knows the reward for 1 response: {SILENT} (first: prompt 0, sample 1)" in line

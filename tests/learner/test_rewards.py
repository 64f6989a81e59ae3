"""Responses that are judged later, in any order, while others are trained and rejected."""

import itertools
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlboost_jax import messages as m
from rlboost_jax.learner.episodes.assembly import DeliveredEpisode
from rlboost_jax.learner.episodes.collector import StepCollector
from rlboost_jax.learner.episodes.estimates import Estimates
from rlboost_jax.learner.guards import RewardsFailed, check_judged
from rlboost_jax.learner.stream.micro_batches import MicroBatches
from rlboost_jax.learner.stream.step_stream import DoubtedResponse, StepStream
from rlboost_jax.learner.stream.stream_driver import BatchIntake, drive
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.sequences.identities import Work
from rlboost_jax.settings.presets import PRESETS

GROUP, PROMPTS = 2, 3


def verdict(reward: float, **faults: str) -> Verdict:
    return Verdict(reward=reward, accuracy=reward, components={"own": reward}, faults=faults)


def rollout(sample: int, *, attempt: int = 0) -> m.FinishedRollout:
    return m.FinishedRollout(
        work=Work(seed=0, batch=0, prompt=sample // GROUP, sample=sample),
        tokens=m.pack_tokens([sample, attempt]),
        logprobs=m.pack_logprobs([-1.0, -2.0]),
        versions=((0, 2),),
        instances=("a",),
        attempt=attempt,
    )


class Desk:
    """Holds what was asked until the test answers."""

    def __init__(self) -> None:
        self.asked: dict[tuple[int, int], Future[Verdict]] = {}
        self.woken = 0

    def ask(self, episode: DeliveredEpisode) -> Future[Verdict]:
        sample, attempt = episode.response.tolist()
        assert episode.work.prompt == sample // GROUP
        self.asked[sample, attempt] = self.future(sample)
        return self.asked[sample, attempt]

    def future(self, sample: int) -> Future[Verdict]:
        return Future()

    def wake(self) -> None:
        self.woken += 1

    def collector(self, prompts: int = PROMPTS, **others: Any) -> StepCollector:
        return StepCollector(
            0,
            **others,
            version=0,
            prompts=[np.array([1, p], np.int32) for p in range(prompts)],
            group_size=GROUP,
            ask=self.ask,
            wake=self.wake,
            estimate=Estimates(
                algorithm=PRESETS["dr_grpo"], max_response_tokens=2, stop_ids=()
            ).of_group,
        )


def test_a_group_is_finished_when_all_of_it_is_judged():
    desk = Desk()
    collector = desk.collector(prompts=1)
    assert collector.add(rollout(0)) == collector.add(rollout(1)) == []
    assert not collector.groups
    desk.asked[1, 0].set_result(verdict(1.0))
    assert (desk.woken, collector.settle()) == (1, [])
    desk.asked[0, 0].set_result(verdict(0.0))
    assert desk.woken == 2 and not collector.groups, "before `settle`"
    (group,) = collector.settle()
    assert collector.groups == {0: group}
    assert [t.reward for t in group.trajectories] == [0.0, 1.0]
    assert [t.advantage for t in group.trajectories] == [-0.5, 0.5]
    assert [t.verdict.components for t in group.trajectories] == [{"own": 0.0}, {"own": 1.0}]
    assert collector.settle() == []


def test_a_group_waits_for_the_scores_of_its_teacher():
    """Whichever comes last; what was said of a rejected response is not taken for another's."""
    desk, scores = Desk(), list[Future[Any]]()

    def ask(trajectory):
        scores.append(Future())
        return scores[-1] if trajectory.sample else None  # the first has no teacher

    collector = desk.collector(prompts=1, ask_teacher=ask)
    collector.add(rollout(0))
    collector.add(rollout(1))
    for sample in (0, 1):
        desk.asked[sample, 0].set_result(verdict(1.0))
    assert collector.settle() == [] and collector.unscored == (1,)
    collector.reject([1])
    assert collector.unscored == ()
    scores[1].set_result(np.zeros(2, np.float32))
    collector.add(rollout(1, attempt=1))
    desk.asked[1, 1].set_result(verdict(0.0))
    assert collector.settle() == [] and collector.unscored == (1,)
    scores[2].set_result(found := np.array([-1.0, -2.0], np.float32))
    (group,) = collector.settle()
    assert [t.teacher_logprobs is found for t in group.trajectories] == [False, True]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_the_order_of_answers_leaves_no_trace(order):
    desk = Desk()
    collector = desk.collector(prompts=2)
    for sample in range(4):
        collector.add(rollout(sample))
    finished = []
    for sample in order:
        desk.asked[sample, 0].set_result(verdict(float(sample == 2)))
        finished += collector.settle()
    assert sorted(group.prompt for group in finished) == [0, 1]
    assert [t.reward for t in collector.trajectories()] == [0.0, 0.0, 1.0, 0.0]
    assert [t.advantage for t in collector.trajectories()] == [0.0, 0.0, 0.5, -0.5]


class Groups(Desk):
    """Rewards that compare: each response counts for what it has besides the other's."""

    def __init__(self) -> None:
        super().__init__()
        self.whole: list[tuple[list[list[int]], Future[tuple[Verdict, ...]]]] = []

    def ask_group(self, prompt: int, responses: Any, alone: Any) -> Future[tuple[Verdict, ...]]:
        ids = [response.tolist() for response in responses]
        assert alone == [self.asked[sample, attempt] for sample, attempt in ids]
        self.whole.append((ids, Future()))
        return self.whole[-1][1]

    def collector(self, prompts: int = PROMPTS, **others: Any) -> StepCollector:
        return super().collector(prompts, ask_group=self.ask_group, **others)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_group_is_asked_about_once_in_the_order_of_its_samples(order):
    desk, notes = Groups(), []
    collector = desk.collector(prompts=2, note=notes.append)
    for sample in (2, *order):
        assert not desk.whole
        collector.add(rollout(sample))
    ((ids, whole),) = desk.whole
    assert ids == [[0, 0], [1, 0]]
    for sample in order:
        desk.asked[sample, 0].set_result(verdict(7.0, own="it raised"))
        assert collector.settle() == [], "they are parts"
    assert notes == [f"step 0: reward 'own' fails: it raised (sample {order[0]})"]
    assert set(collector.unjudged) == {0, 1, 2}
    whole.set_result((verdict(0.0), verdict(1.0, own="it raised")))
    (group,) = collector.settle()
    assert [t.reward for t in group.trajectories] == [0.0, 1.0]
    assert [t.verdict.faults for t in group.trajectories] == [{}, {"own": "it raised"}]
    assert collector.unjudged == (2,) and len(notes) == 1 and len(desk.whole) == 1


class Late(Future[Verdict]):
    """An answer that is there before anybody hears of it: a thread stands still in between."""

    def add_done_callback(self, hear: Any) -> None:
        self.hear = hear


@pytest.mark.parametrize("late", [(0,), (1,), (1, 0)])
def test_a_group_is_finished_though_its_answer_is_heard_before_those_to_its_members(late):
    desk, notes = Groups(), []
    collector = desk.collector(prompts=1, note=notes.append)
    desk.future = lambda sample: Late() if sample in late else Future()
    for sample in range(2):
        collector.add(rollout(sample))
        desk.asked[sample, 0].set_result(verdict(7.0, own="it raised"))
    assert collector.settle() == []
    desk.whole[0][1].set_result((verdict(0.0), verdict(1.0)))
    (group,) = collector.settle()
    assert [t.reward for t in group.trajectories] == [0.0, 1.0] and collector.unjudged == ()
    for sample in late:
        desk.asked[sample, 0].hear(desk.asked[sample, 0])
    assert collector.settle() == [] and len(notes) == 1


@pytest.mark.parametrize("judged", [False, True])
def test_a_group_that_comes_again_in_part_is_asked_about_anew(judged):
    """Whether it was judged before; what is said of it as it was is forgotten."""
    desk = Groups()
    collector = desk.collector(prompts=1)
    for sample in range(2):
        collector.add(rollout(sample))
        desk.asked[sample, 0].set_result(verdict(0.0))
    ((_, first),) = desk.whole
    first.set_running_or_notify_cancel()
    if judged:
        first.set_result((verdict(1.0), verdict(1.0)))
        assert len(collector.settle()) == 1
    collector.reject([1])
    assert not collector.groups
    collector.add(rollout(1, attempt=1))
    if not judged:
        first.set_result((verdict(1.0), verdict(1.0)))
    desk.asked[1, 1].set_result(verdict(0.0))
    assert collector.settle() == []
    assert [ids for ids, _ in desk.whole] == [[[0, 0], [1, 0]], [[0, 0], [1, 1]]]
    desk.whole[1][1].set_result((verdict(0.25), verdict(0.75)))
    (group,) = collector.settle()
    assert [t.reward for t in group.trajectories] == [0.25, 0.75]


def test_a_group_that_cannot_be_asked_about_ends_the_run():
    desk = Groups()
    collector = desk.collector(prompts=1)
    for sample in range(2):
        collector.add(rollout(sample))
    desk.whole[0][1].set_exception(RuntimeError("no workers"))
    with pytest.raises(RuntimeError, match="no workers"):
        collector.settle()


def test_what_was_said_of_a_rejected_attempt_is_forgotten():
    """Its answer comes late, after the next attempt has been asked about, or never."""
    desk = Desk()
    collector = desk.collector(prompts=1)
    collector.add(rollout(0))
    collector.add(rollout(1))
    desk.asked[0, 0].set_running_or_notify_cancel()  # a worker has it: it cannot be cancelled
    collector.reject([0, 1])
    assert desk.asked[1, 0].cancelled()
    collector.add(rollout(0, attempt=1))
    collector.add(rollout(1, attempt=1))
    desk.asked[0, 0].set_result(verdict(100.0))
    assert collector.settle() == []
    desk.asked[1, 1].set_result(verdict(1.0))
    desk.asked[0, 1].set_result(verdict(0.0))
    (group,) = collector.settle()
    assert [t.reward for t in group.trajectories] == [0.0, 1.0]
    assert [t.attempts for t in group.trajectories] == [(1,), (1,)]


def test_a_finished_group_that_is_rejected_in_part_is_judged_in_part():
    desk = Desk()
    collector = desk.collector(prompts=1)
    for sample in range(2):
        collector.add(rollout(sample))
        desk.asked[sample, 0].set_result(verdict(1.0))
    collector.settle()
    collector.reject([1])
    assert not collector.groups
    collector.add(rollout(1, attempt=1))
    assert set(desk.asked) == {(0, 0), (1, 0), (1, 1)}
    desk.asked[1, 1].set_result(verdict(0.0))
    (group,) = collector.settle()
    assert [t.reward for t in group.trajectories] == [1.0, 0.0]


def test_when_nobody_can_be_asked_any_more_the_run_ends():
    desk = Desk()
    collector = desk.collector()
    collector.add(rollout(0))
    desk.asked[0, 0].set_exception(RuntimeError("no workers"))
    with pytest.raises(RuntimeError, match="no workers"):
        collector.settle()


def test_a_failure_is_reported_when_it_happens_and_once_a_kind():
    desk, notes = Desk(), []
    collector = desk.collector(note=notes.append)
    for sample, why in ((1, "took longer than 1 s"), (0, "took longer than 1 s"), (2, "nan")):
        collector.add(rollout(sample))
        assert collector.unjudged == (sample,)
        desk.asked[sample, 0].set_result(verdict(0.0, own=why))
        assert collector.unjudged == (), "the reward is there, though nobody took it yet"
        collector.settle()
    assert (collector.num_taken, collector.unjudged) == (3, ())
    assert notes == [
        "step 0: reward 'own' fails: took longer than 1 s (sample 1)",
        "step 0: reward 'own' fails: nan (sample 2)",
    ]


def test_failures_are_reported_once_a_kind():
    desk = Desk()
    collector = desk.collector()
    for sample in range(6):
        collector.add(rollout(sample))
        fault = {4: {"own": "returned nan"}, 0: {}}.get(sample, {"own": "took longer than 1 s"})
        desk.asked[sample, 0].set_result(verdict(0.0, **fault))
    collector.settle()
    assert collector.fault_lines() == [
        "step 0: reward 'own' failed for 4 responses: took longer than 1 s (first: prompt 0, "
        "sample 1)",
        "step 0: reward 'own' failed for 1 response: returned nan (first: prompt 2, sample 4)",
    ]
    trajectories = collector.trajectories()
    check_judged(trajectories, step=0, tolerated=0.9, checkpoint=lambda: 3)
    with pytest.raises(RewardsFailed, match=r"failed for 5 of 6 .* allows 0.5 .* sample 1: took"):
        check_judged(trajectories, step=0, tolerated=0.5, checkpoint=lambda: 3)
    sound = [replace(t, verdict=replace(t.verdict, faults={})) for t in trajectories]
    check_judged(sound, step=0, tolerated=0.0, checkpoint=lambda: 3)


class Link:
    """Messages of a script; after each, the desk gives some answers from another thread."""

    def __init__(self, desk: Desk, script: list[object]) -> None:
        self.desk, self.script = desk, script
        self.doubts: list[list[DoubtedResponse]] = []

    def receive(self, timeout: float | None = None) -> m.ToTrainer | None:
        if timeout == 0:
            return None
        entry = self.script.pop(0)
        if isinstance(entry, m.FinishedRollout | m.WindowClosed):
            return entry
        woken = self.desk.woken
        answers = threading.Thread(target=self._answer, args=(entry,))
        answers.start()
        answers.join()
        assert self.desk.woken == woken + len(entry)
        return None  # as `wake` makes it

    def _answer(self, rewards: dict[tuple[int, int], float]) -> None:
        for asked, reward in rewards.items():
            self.desk.asked[asked].set_result(verdict(reward))

    def doubt(self, step: int, doubts: list[DoubtedResponse]) -> None:
        self.doubts.append(list(doubts))


def driven(link: Link, collector: StepCollector, train, *, deterministic: bool = True) -> None:
    batches = MicroBatches(PROMPTS, 1, deterministic)
    stream = StepStream(0, group_size=GROUP, micro_batches=batches)
    stream.begin()
    drive(BatchIntake(stream, collector), link, train=train)


@pytest.mark.parametrize("deterministic", [True, False])
def test_groups_are_trained_as_they_are_judged(deterministic):
    """Prompt 2 is judged first; a lie in prompt 0 is found, and its second attempt judged anew."""
    desk = Desk()
    closed = m.WindowClosed(batch=0, seconds=1.0, reason="over")
    script = [
        closed,
        *(rollout(sample) for sample in range(6)),
        {(4, 0): 1.0, (5, 0): 0.0},
        {(0, 0): 100.0, (1, 0): 0.0},
        {(2, 0): 0.0, (3, 0): 1.0},
        rollout(0, attempt=1),
        {(0, 1): 0.5},
    ]
    link = Link(desk, script)
    trained = []

    def train(index, groups):
        liars = [t for g in groups for t in g.trajectories if t.reward == 100.0]
        if not liars:
            trained.extend(group.prompt for group in groups)
        return [
            DoubtedResponse(
                prompt=t.prompt,
                sample=t.sample,
                attempt=t.attempts[0],
                checksum=0,
                position=0,
                gap=9.0,
            )
            for t in liars
        ]

    collector = desk.collector()
    driven(link, collector, train, deterministic=deterministic)
    assert trained == [2, 1, 0]
    assert [[d.sample for d in doubts] for doubts in link.doubts] == [[0]]
    rewards = [t.reward for t in collector.trajectories()]
    assert rewards == [0.5, 0.0, 0.0, 1.0, 1.0, 0.0]
    assert not script


def test_the_window_of_a_step_without_servers_ends_with_its_last_rollout():
    """The devices are free then, though nothing is judged yet."""
    desk = Desk()
    everything = {(sample, 0): float(sample % 2) for sample in range(6)}
    first = {key: everything.pop(key) for key in [(0, 0), (1, 0)]}
    link = Link(desk, [*(rollout(sample) for sample in range(6)), first, everything])
    trained = []

    def train(index, groups):
        trained.append((index, len(link.script)))
        return []

    collector = desk.collector()
    driven(link, collector, train)
    assert trained == [(0, 1), (1, 0), (2, 0)], "prompt 0 while the others are being judged"

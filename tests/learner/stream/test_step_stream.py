"""What a learner does next, over generated schedules of arrivals, doubts and closed windows."""

import random
from collections import Counter

import pytest

from rlboost_jax import messages as m
from rlboost_jax.learner.episodes.trajectory import Group, Trajectory
from rlboost_jax.learner.stream.dynamic_sampling import DynamicSampling
from rlboost_jax.learner.stream.micro_batches import MicroBatches
from rlboost_jax.learner.stream.step_stream import (
    Check,
    CheckHeldout,
    DoubtedResponse,
    Extend,
    Resample,
    StepStream,
    TakeDevices,
    Train,
    Update,
    Wait,
)
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.sequences.identities import Work
from rlboost_jax.sequences.sequence import Sequence

STEP, GROUP, NUM_GROUPS, MOST_PROMPTS = 3, 2, 5, 11


def rollout(sample: int, *, step: int = STEP) -> m.FinishedRollout:
    return m.FinishedRollout(
        work=Work(seed=0, batch=step, prompt=sample // GROUP, sample=sample),
        tokens=b"",
        logprobs=b"",
        versions=((step, 0),),
        instances=("a",),
    )


def closed(step: int = STEP) -> m.WindowClosed:
    return m.WindowClosed(batch=step, seconds=1.0, reason="the window is over")


def group_of(prompt: int, *, differ: bool, attempt: int) -> Group:
    return Group(
        prompt=prompt,
        trajectories=tuple(
            Trajectory(
                prompt=prompt,
                sample=prompt * GROUP + place,
                sequence=Sequence.of_prompt([1]),
                verdict=Verdict(reward=float(differ and place)),
                advantage=0.0,
                attempts=(attempt,),
            )
            for place in range(GROUP)
        ),
    )


class Evaluation:
    """Held-out responses that arrive at some time, and are lies at first or not."""

    complete = check_due = believed = False


class Schedule:
    """One step whose responses arrive in an order of chance, some of them lies at first."""

    def __init__(self, seed: int, *, dynamic: bool, deterministic: bool) -> None:
        chance = self.chance = random.Random(seed)
        self.dynamic = dynamic
        self.differ = [chance.random() < 0.6 for _ in range(MOST_PROMPTS)]
        self.lies = {s for s in range(MOST_PROMPTS * GROUP) if chance.random() < 0.15}
        self.attempts: Counter[int] = Counter()  # by sample
        self.outstanding: list[int] = []  # samples that the manager was asked for
        self.here: set[int] = set()
        self.asked: list[int] = []  # prompts
        self.trained: dict[int, list[int]] = {}  # by micro-batch: prompts of the stream
        self.log: list[str] = []
        self.evaluation = Evaluation() if chance.random() < 0.5 else None
        self.window_closed = False
        self.batches = MicroBatches(NUM_GROUPS, 2, deterministic)
        self.stream = StepStream(
            STEP,
            group_size=GROUP,
            micro_batches=self.batches,
            sampling=DynamicSampling(num_groups=NUM_GROUPS, most_prompts=MOST_PROMPTS)
            if dynamic
            else None,
            awaited=self.evaluation,
        )
        self.ask(self.stream.begin())

    def ask(self, places: range) -> None:
        self.asked.extend(places)
        self.outstanding += [p * GROUP + place for p in places for place in range(GROUP)]

    def something_arrives(self) -> None:
        """A response, a closed window or what is measured; the first is always possible."""
        if not self.window_closed and self.chance.random() < 0.1:
            self.window_closed = True
            self.stream.window_closed(closed())
        if self.evaluation and not self.outstanding:
            self.evaluation.complete = self.evaluation.check_due = True
        if not self.outstanding:
            return
        sample = self.outstanding.pop(self.chance.randrange(len(self.outstanding)))
        assert self.stream.arrived(rollout(sample))
        assert not self.stream.arrived(rollout(sample)), "twice"
        self.here.add(sample)
        prompt = sample // GROUP
        if all(prompt * GROUP + place in self.here for place in range(GROUP)):
            attempt = max(self.attempts[prompt * GROUP + place] for place in range(GROUP))
            self.stream.finished(group_of(prompt, differ=self.differ[prompt], attempt=attempt))

    def doubts(self, groups: tuple[Group, ...]) -> list[DoubtedResponse]:
        """Doubts about lies among responses that have not come a second time."""
        return [
            DoubtedResponse(
                prompt=t.prompt, sample=t.sample, attempt=0, checksum=0, position=0, gap=9.0
            )
            for group in groups
            for t in group.trajectories
            if t.sample in self.lies and not self.attempts[t.sample]
        ]

    def say(self, asked: tuple[Extend | Resample, ...]) -> None:
        for each in asked:
            match each:
                case Extend(places):
                    assert self.dynamic and places.start == len(self.asked)
                    self.ask(places)
                case Resample(doubts):
                    for doubt in doubts:
                        self.attempts[doubt.sample] += 1
                        self.here.remove(doubt.sample)
                        self.outstanding.append(doubt.sample)

    def run(self) -> None:
        idle = 0
        while True:
            idle += 1
            assert idle < 10_000, "it waits for what has come"
            match self.stream.next():
                case Wait():
                    self.log.append("wait")
                    self.something_arrives()
                case TakeDevices():
                    assert self.window_closed or not self.outstanding
                    self.log.append("take")
                    self.stream.took_devices()
                case Check(group):
                    assert self.dynamic
                    self.log.append("check")
                    self.say(self.stream.checked(group, self.doubts((group,))))
                case CheckHeldout():
                    assert self.evaluation is not None and self.evaluation.check_due
                    self.log.append("look")
                    self.evaluation.check_due = False
                    self.evaluation.believed = self.chance.random() < 0.5
                    self.evaluation.complete = self.evaluation.believed
                case Train(index, groups):
                    assert index not in self.trained
                    self.log.append("train")
                    doubts = self.doubts(groups)
                    self.say(self.stream.trained(index, groups, doubts))
                    if not doubts:
                        prompts = [group.trajectories[0].prompt for group in groups]
                        self.trained[index] = prompts
                case Update():
                    assert self.evaluation is None or self.evaluation.believed
                    self.log.append("update")
                    return


def batch_of(schedule: Schedule) -> list[int]:
    """The prompts that make up the batch, by its definition."""
    if not schedule.dynamic:
        return list(range(NUM_GROUPS))
    differ = [p for p in range(MOST_PROMPTS) if schedule.differ[p]]
    others = [p for p in range(MOST_PROMPTS) if not schedule.differ[p]]
    return (differ + others)[:NUM_GROUPS]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
def test_whatever_arrives_when_each_group_is_trained_once_and_then_the_update_is_made(
    dynamic: bool, deterministic: bool
):
    for seed in range(200):
        schedule = Schedule(seed, dynamic=dynamic, deterministic=deterministic)
        schedule.run()
        log, batch = schedule.log, batch_of(schedule)
        assert log.count("take") == log.count("update") == 1
        worked = [at for at, what in enumerate(log) if what in ("check", "train", "look")]
        assert min(worked) > log.index("take"), "the devices were not free"
        assert sorted(p for prompts in schedule.trained.values() for p in prompts) == sorted(batch)
        assert list(schedule.stream.members) == batch
        assert sorted(schedule.trained) == list(range(schedule.batches.num_micro_batches))
        if deterministic:
            parts = [batch[first : first + 2] for first in range(0, NUM_GROUPS, 2)]
            assert [schedule.trained[index] for index in sorted(schedule.trained)] == parts
        counted = schedule.stream.trajectories()
        assert [t.sample for t in counted] == [p * GROUP + i for p in sorted(batch) for i in (0, 1)]
        for t in counted:
            lied = [s for s in (t.prompt * GROUP, t.prompt * GROUP + 1) if s in schedule.lies]
            assert t.attempts == (bool(lied),), "a lie counted"
        assert schedule.stream.prompts_used == len(schedule.asked)
        assert not schedule.outstanding, "something was asked for and not waited for"
        assert schedule.evaluation is None or schedule.evaluation.complete


def test_what_is_of_another_step_or_was_not_asked_for_does_not_count():
    stream = StepStream(STEP, group_size=GROUP, micro_batches=MicroBatches(2, 1, True))
    assert not stream.arrived(rollout(0)), "before anything was asked for"
    assert stream.begin() == range(2)
    assert not stream.arrived(rollout(0, step=STEP - 1))
    assert not stream.arrived(rollout(2 * GROUP))
    stream.window_closed(closed(STEP - 1))
    assert stream.next() == Wait()
    stream.window_closed(closed())
    assert stream.next() == TakeDevices()


def test_devices_that_are_given_back_by_others_are_not_taken():
    """The window alone decides for a learner that shares nothing with the engines."""
    stream = StepStream(
        STEP, group_size=1, micro_batches=MicroBatches(1, 1, True), takes_devices=False
    )
    stream.begin()
    assert stream.arrived(rollout(0))
    group = group_of(0, differ=True, attempt=0)
    stream.finished(group)
    assert stream.next() == Wait()
    stream.window_closed(closed())
    assert stream.next() == TakeDevices()
    stream.took_devices()
    assert stream.next() == Train(0, (group,))
    assert stream.trained(0, (group,)) == ()
    assert [stream.next(), stream.next()] == [Update(), Wait()], "the update is made once"

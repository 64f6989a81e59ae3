"""The learner's side of a step against a scripted manager."""

from collections import deque
from collections.abc import Iterable

import msgspec
import numpy as np
import pytest

from rlboost_jax import messages as m
from rlboost_jax.learner.episodes.collector import StepCollector, WrongVersion
from rlboost_jax.learner.episodes.estimates import Estimates
from rlboost_jax.learner.episodes.trajectory import Group
from rlboost_jax.learner.stream.dynamic_sampling import DynamicSampling
from rlboost_jax.learner.stream.micro_batches import MicroBatches
from rlboost_jax.learner.stream.step_stream import DoubtedResponse, StepStream, StreamTimes
from rlboost_jax.learner.stream.stream_driver import BatchIntake, drive, drive_measurement
from rlboost_jax.rewards.verdict import Verdict, at_once
from rlboost_jax.sequences.identities import Batch, Work
from rlboost_jax.settings.presets import PRESETS

GROUP = 2


def verdict(reward: float) -> Verdict:
    return Verdict(reward=reward, accuracy=reward)


def rollout(prompt: int, place: int, *, step: int = 0, version: int = 0) -> m.FinishedRollout:
    return m.FinishedRollout(
        work=Work(seed=0, batch=step, prompt=prompt, sample=prompt * GROUP + place),
        tokens=m.pack_tokens([5, place]),
        logprobs=m.pack_logprobs([-1.0, -2.0]),
        versions=((version, 2),),
        instances=("a",),
    )


def collector(prompts: int = 4) -> StepCollector:
    return StepCollector(
        0,
        version=0,
        prompts=[np.array([1, p], np.int32) for p in range(prompts)],
        group_size=GROUP,
        ask=lambda episode: at_once(verdict(float(episode.response[1]))),
        estimate=Estimates(
            algorithm=PRESETS["dr_grpo"], max_response_tokens=2, stop_ids=()
        ).of_group,
    )


class ScriptedLink:
    """Yields messages in order; a clock that moves by one at each."""

    def __init__(self, script: list[m.ToTrainer]) -> None:
        self.script, self.now = deque(script), 0.0

        self.doubts: list[tuple[int, list[DoubtedResponse]]] = []

    def receive(self, timeout: float | None = None) -> m.ToTrainer | None:
        if timeout == 0:
            return None
        self.now += 1.0
        return self.script.popleft()

    def doubt(self, step: int, doubts: list[DoubtedResponse]) -> None:
        self.doubts.append((step, list(doubts)))


def driven(
    link: ScriptedLink,
    step: StepCollector,
    batches: MicroBatches,
    train,
    *,
    sampling=None,
    measured=None,
    **more,
) -> tuple[StepStream, StreamTimes]:
    """A step from its begin to its update, on the link's clock."""
    stream = StepStream(
        0,
        group_size=GROUP,
        micro_batches=batches,
        sampling=sampling,
        awaited=measured,
    )
    stream.begin()
    batch = BatchIntake(stream, step, measured)
    return stream, drive(batch, link, train=train, clock=lambda: link.now, **more)


def closed(step: int = 0) -> m.WindowClosed:
    return m.WindowClosed(batch=step, seconds=1.0, reason="the window is over")


def whole_group(prompt: int) -> list[m.ToTrainer]:
    return [rollout(prompt, place) for place in range(GROUP)]


def run(link: ScriptedLink, micro_batch_prompts: int = 1) -> tuple[list[int], object]:
    trained: list[int] = []
    at: list[float] = []

    def train(index: int, groups: tuple) -> list[DoubtedResponse]:
        trained.append(index)
        at.append(link.now)
        link.now += 10.0
        return []

    _, times = driven(link, collector(), MicroBatches(4, micro_batch_prompts, True), train)
    return trained, (times, at)


def test_nothing_is_trained_before_the_devices_are_free():
    groups = [message for prompt in range(4) for message in whole_group(prompt)]
    trained, (times, at) = run(ScriptedLink([*groups[:4], closed(), *groups[4:]]))
    assert trained == [0, 1, 2, 3]
    assert at[0] == 5.0, "right after the window closed, the fifth message"
    assert times.training == 40.0
    assert times.waiting == 4.0, "one second for each message that was waited for"


def test_without_servers_training_begins_when_all_is_generated():
    groups = [message for prompt in range(4) for message in whole_group(prompt)]
    trained, (times, at) = run(ScriptedLink(groups))
    assert trained == [0, 1, 2, 3]
    assert at[0] == 8.0
    assert times.waiting == 0.0


def test_the_window_of_another_step_is_not_ours():
    groups = [message for prompt in range(4) for message in whole_group(prompt)]
    _, (_, at) = run(ScriptedLink([closed(step=7), *groups]))
    assert at[0] == 9.0, "when all is generated"


def test_micro_batches_are_trained_as_they_become_complete():
    script = [closed(), *whole_group(3), *whole_group(2), *whole_group(0), *whole_group(1)]
    trained, _ = run(ScriptedLink(script), micro_batch_prompts=2)
    assert trained == [1, 0]


@pytest.mark.parametrize("deterministic", [True, False])
def test_what_is_disputed_is_waited_for_again(deterministic: bool):
    """Prompt 1 comes with a made-up response; its micro-batch holds prompt 0 or 2 besides."""
    lie = msgspec.structs.replace(rollout(1, 0), tokens=m.pack_tokens([5, 9]))
    groups = {prompt: whole_group(prompt) for prompt in range(4)}
    groups[1] = [lie, rollout(1, 1)]
    script = [closed(), *groups[1], *groups[2], *groups[0], rollout(1, 0), *groups[3]]
    link = ScriptedLink(script)
    trained: list[tuple[int, list[int]]] = []

    def train(index: int, groups: tuple[Group, ...]) -> list[DoubtedResponse]:
        members = [t for group in groups for t in group.trajectories]
        wrong = [t for t in members if t.sequence.continuation[1] == 9]
        if not wrong:
            trained.append((index, [group.prompt for group in groups]))
        return [
            DoubtedResponse(
                prompt=t.prompt,
                sample=t.sample,
                attempt=t.attempts[0],
                checksum=0,
                position=1,
                gap=3.0,
            )
            for t in wrong
        ]

    step = collector()
    driven(link, step, MicroBatches(4, 2, deterministic), train)
    assert link.doubts == [
        (0, [DoubtedResponse(prompt=1, sample=2, attempt=0, checksum=0, position=1, gap=3.0)])
    ]
    assert sorted(index for index, _ in trained) == [0, 1]
    assert sorted(prompt for _, prompts in trained for prompt in prompts) == [0, 1, 2, 3]
    if deterministic:
        assert dict(trained) == {0: [0, 1], 1: [2, 3]}
    assert [t.sequence.continuation[1] for t in step.trajectories()] == [0, 1] * 4
    assert [t.advantage for t in step.trajectories()] == [-0.5, 0.5] * 4, "of the second responses"


class Aside:
    """Wants one response to prompt 9."""

    complete = check_due = False

    def take(self, rollout: m.FinishedRollout) -> bool:
        if rollout.work.prompt == 9:
            self.complete = self.check_due = True
        return rollout.work.prompt == 9

    def take_unchecked(self) -> Group:
        self.check_due = False
        return Group(prompt=9, trajectories=())

    def withdraw(self, withdrawn: m.ResponsesWithdrawn) -> None:
        self.complete = self.check_due = False

    def reject(self, samples: Iterable[int]) -> None:
        assert list(samples) == [18]
        self.complete = False


LIE = DoubtedResponse(prompt=9, sample=18, attempt=0, checksum=0, position=0, gap=3.0)


@pytest.mark.parametrize("last", [False, True])
def test_what_is_measured_is_looked_at_and_disputed_answers_are_waited_for_again(last: bool):
    """Beside a step once the devices are free, and in no one's time; or by itself in the end."""
    groups = [message for prompt in range(4) for message in whole_group(prompt)]
    script = [rollout(9, 0), rollout(9, 0)]
    link, aside, looked = ScriptedLink(script), Aside(), []

    def look(groups: tuple[Group, ...]) -> list[DoubtedResponse]:
        looked.append(link.now)
        link.now += 5.0
        return [LIE] if len(looked) == 1 else []

    if last:
        drive_measurement(aside, link, number=Batch(0), check=look)
        assert looked == [1.0, 7.0]
    else:
        link.script = deque([rollout(9, 0), *groups[:4], closed(), *groups[4:], rollout(9, 0)])
        _, times = driven(
            link,
            collector(),
            MicroBatches(4, 1, True),
            lambda index, groups: [],
            measured=aside,
            check_heldout=look,
        )
        assert looked == [6.0, 16.0], "after what can be trained on, and at the very end"
        assert (times.training, times.waiting) == (0.0, 4.0)
    assert link.doubts == [(0, [LIE])] and not link.script and aside.complete


def test_what_is_generated_beside_a_step_is_waited_for_in_no_ones_time():
    groups = [message for prompt in range(4) for message in whole_group(prompt)]
    link, step, trained = ScriptedLink([closed(), *groups, rollout(9, 0)]), collector(), []

    def train(index: int, groups: tuple) -> list[DoubtedResponse]:
        trained.append(link.now)
        return []

    aside = Aside()
    _, times = driven(link, step, MicroBatches(4, 1, True), train, measured=aside)
    assert aside.complete and not link.script
    assert trained[-1] == 9.0 and link.now == 10.0
    assert times.waiting == 8.0, "until the last micro-batch"


def test_what_is_withdrawn_beside_a_step_is_waited_for_again():
    groups = [message for prompt in range(4) for message in whole_group(prompt)]
    withdrawn = m.ResponsesWithdrawn(batch=0, samples=m.pack_ids([18]))
    link, step = ScriptedLink([rollout(9, 0), *groups[:4], withdrawn, *groups[4:]]), collector()
    link.script.append(rollout(9, 0))
    driven(link, step, MicroBatches(4, 1, True), lambda index, groups: [], measured=Aside())
    assert not link.script


class Pair(Aside):
    """Wants both responses to prompt 9."""

    def __init__(self) -> None:
        self.here: set[int] = set()

    @property
    def complete(self) -> bool:
        return self.here == {18, 19}

    def take(self, rollout: m.FinishedRollout) -> bool:
        self.here.add(rollout.work.sample)
        return True

    def withdraw(self, withdrawn: m.ResponsesWithdrawn) -> None:
        self.here -= set(m.unpack_ids(withdrawn.samples).tolist())


def test_the_last_measurement_waits_again_for_what_is_withdrawn():
    withdrawn = m.ResponsesWithdrawn(batch=0, samples=m.pack_ids([18]))
    script = [rollout(9, 0), withdrawn, rollout(9, 1), rollout(9, 0), closed()]
    link = ScriptedLink(script)
    drive_measurement(Pair(), link, number=Batch(0))
    assert list(link.script) == [closed()], "it is over when both are there"


def test_dynamic_sampling_trains_the_first_prompts_whose_rewards_differ():
    """Prompts 0 and 2 teach nothing, prompt 1 comes with a lie, prompt 3 before that is known."""
    dull = [msgspec.structs.replace(r, tokens=m.pack_tokens([5, 7])) for r in whole_group(0)]
    dull += [msgspec.structs.replace(r, tokens=m.pack_tokens([5, 7])) for r in whole_group(2)]
    lie = msgspec.structs.replace(rollout(1, 0), tokens=m.pack_tokens([5, 1]))
    asked: list[range] = []
    script = [closed(), *dull[:2], lie, rollout(1, 1), *whole_group(3), *dull[2:]]
    link, step = ScriptedLink([*script, rollout(1, 0), *whole_group(4)]), collector(prompts=2)
    trained: list[list[int]] = []

    def extend(places: range) -> None:
        asked.append(places)
        step.extend([np.array([1, p], np.int32) for p in places])
        link.script = deque(sorted(link.script, key=lambda r: r.work.prompt == 3))

    def check(groups: tuple[Group, ...]) -> list[DoubtedResponse]:
        """A group of equal rewards is looked at, too."""
        wrong = [t for t in groups[0].trajectories if groups[0].prompt == 1 and not t.sample % 2]
        wrong = [t for t in wrong if t.sequence.continuation[1] == 1]
        return [
            DoubtedResponse(prompt=1, sample=t.sample, attempt=0, checksum=0, position=1, gap=3.0)
            for t in wrong
        ]

    def train(index: int, groups: tuple[Group, ...]) -> list[DoubtedResponse]:
        trained.append([group.trajectories[0].prompt for group in groups])
        return []

    sampling = DynamicSampling(num_groups=2, most_prompts=8)
    batches = MicroBatches(2, 1, True)
    stream, _ = driven(link, step, batches, train, sampling=sampling, check=check, extend=extend)
    assert asked == [range(2, 3), range(3, 4)]
    assert trained == [[1], [3]]
    assert [t.sample for t in stream.trajectories()] == [2, 3, 6, 7]
    assert link.doubts == [
        (0, [DoubtedResponse(prompt=1, sample=2, attempt=0, checksum=0, position=1, gap=3.0)])
    ]
    assert stream.prompts_used == 4


def test_groups_are_checked_when_the_devices_are_free_and_that_is_no_waiting():
    """Two groups are there before the window closes, a third comes two seconds later."""
    script = [*whole_group(0), *whole_group(1), closed(), *whole_group(2)]
    link, step, looked = ScriptedLink(script), collector(prompts=3), []

    def check(groups: tuple[Group, ...]) -> list[DoubtedResponse]:
        looked.append((groups[0].prompt, link.now))
        link.now += 3.0
        return []

    def train(index: int, groups: tuple[Group, ...]) -> list[DoubtedResponse]:
        link.now += 10.0
        return []

    sampling = DynamicSampling(num_groups=3, most_prompts=3)
    _, times = driven(link, step, MicroBatches(3, 1, True), train, sampling=sampling, check=check)
    assert looked == [(0, 5.0), (1, 8.0), (2, 33.0)], "five messages first; then both, and train"
    assert times.training == 3 * 3.0 + 3 * 10.0
    assert times.waiting == 2.0


def test_each_rollout_is_taken_once():
    stream = StepStream(0, group_size=GROUP, micro_batches=MicroBatches(1, 1, True))
    stream.begin()
    intake = BatchIntake(stream, collector(prompts=1))
    for message in (
        rollout(0, 0),
        rollout(0, 0),  # repeated
        rollout(0, 1, step=3),  # of another step
        rollout(5, 1),  # of no prompt
    ):
        intake.take(message)
        assert not intake.collector.groups
    intake.take(rollout(0, 1))
    group = intake.collector.groups[0]
    assert [t.sample for t in group.trajectories] == [0, 1]
    assert [t.reward for t in group.trajectories] == [0.0, 1.0]
    assert [t.advantage for t in group.trajectories] == [-0.5, 0.5]


def test_a_token_of_another_version_ends_the_run():
    with pytest.raises(WrongVersion, match=r"versions \[4\], expected 0"):
        collector().add(rollout(0, 0, version=4))

"""Finished and judged episodes of one step, and their groups.

What of all that arrives is the step's, and is new, is for its stream to say (`stream/`).
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlboost_jax import messages
from rlboost_jax.data.exercises import Exercises, Prompt
from rlboost_jax.environments.episode_exercises import EpisodeExercises
from rlboost_jax.learner.episodes.assembly import DeliveredEpisode, Episodes
from rlboost_jax.learner.episodes.trajectory import Group, Trajectory
from rlboost_jax.rewards.verdict import Verdict, of_member
from rlboost_jax.sequences import sequence
from rlboost_jax.settings.routing import Routing

Done = TypeVar("Done", bound=Future[Any])
# What is said of an episode, then or later. An exception in it is no fault of the episode's.
Judge = Callable[[Prompt, DeliveredEpisode], Future[Verdict]]
Ask = Callable[[DeliveredEpisode], Future[Verdict]]
AskGroupAt = Callable[
    [int, Sequence[NDArray[np.int32]], Sequence[Future[Verdict]]], Future[tuple[Verdict, ...]]
]
Estimate = Callable[[Sequence[Trajectory]], tuple[Trajectory, ...]]
# A teacher's scores of the sampled tokens of an episode, then or later; None: it has no teacher.
AskTeacher = Callable[[Trajectory], Future[NDArray[np.float32]] | None]


class WrongVersion(RuntimeError):
    """A token was sampled by another policy version than the one being updated."""


class WrongTurns(RuntimeError):
    """An environment has rewards for other turns than its episode has."""


class StepCollector:
    """Collects and judges the episodes of one step.

    A group is finished once all of it is there, judged, and scored by its teacher if servers do.
    Where rewards compare responses, a group is asked about as a whole once all of it is there, and
    anew once what was rejected of it has come again.
    """

    def __init__(
        self,
        step: int,
        *,
        version: int,
        prompts: Sequence[NDArray[np.int32]],
        group_size: int,
        ask: Ask,
        ask_group: AskGroupAt | None = None,
        ask_teacher: AskTeacher = lambda trajectory: None,
        wake: Callable[[], None] = lambda: None,
        estimate: Estimate,
        routing: Routing | None = None,
        note: Callable[[str], None] = lambda line: None,
        data_of: Callable[[int], str] = lambda prompt: "",
    ):
        """A step whose groups are all open.

        Args:
            ask: what is said of an episode, then or later.
            ask_group: (prompt index, response of each sample in order, what `ask` gave for each) →
                the rewards of the group; None: they are what `ask` says.
            ask_teacher: what a teacher thinks of an episode, where servers say it.
            wake: called, in any thread, when `settle` has something to do.
            estimate: gives the trajectories of a whole group their advantages.
            routing: of the routes that come with tokens; None: none do.
            note: called for each way in which a reward function fails, the first time.
            data_of: prompt index → name of its data set, in a mixture.
        """
        self.step, self._version = step, version
        self._prompts, self._group_size = list(prompts), group_size
        self._ask, self._ask_group, self._ask_teacher = ask, ask_group, ask_teacher
        self._wake = wake
        self._estimate, self._routing = estimate, routing
        self._note, self._reported = note, set[tuple[str, str]]()
        self._data_of = data_of
        self._episodes = Episodes()
        self._taken: dict[int, Trajectory] = {}  # with a verdict only once judged
        self._asked: dict[int, Future[Verdict]] = {}  # those of `_taken` not judged yet
        self._alone: dict[int, Future[Verdict]] = {}  # the same of all, where groups are asked
        self._unscored: dict[int, Future[NDArray[np.float32]]] = {}  # those of `_taken`
        self._groups_asked: dict[int, Future[tuple[Verdict, ...]]] = {}  # by prompt, open ones
        # Filled by other threads, with samples and with prompts.
        self._answered: deque[tuple[int, Future[Verdict]]] = deque()
        self._groups_answered: deque[tuple[int, Future[tuple[Verdict, ...]]]] = deque()
        self._scored: deque[tuple[int, Future[NDArray[np.float32]]]] = deque()
        self.groups: dict[int, Group] = {}  # finished ones, by prompt

    @property
    def num_taken(self) -> int:
        """Number of episodes taken so far."""
        return len(self._taken)

    @property
    def num_expected(self) -> int:
        """Number of episodes expected."""
        return len(self._prompts) * self._group_size

    @property
    def unjudged(self) -> tuple[int, ...]:
        """Samples whose reward is still being computed, the longest-waiting first.

        A reward that is there and not yet taken (`settle`) waits for the trainer itself.
        """
        asked, groups = self._asked.copy(), self._groups_asked.copy()
        alone = (sample for sample, answer in asked.items() if not answer.done())
        of_groups = (
            sample
            for prompt, answer in groups.items()
            if not answer.done()
            for sample in self._samples(prompt)
        )
        return tuple(dict.fromkeys((*alone, *of_groups)))

    @property
    def unscored(self) -> tuple[int, ...]:
        """Samples that servers have not scored for their teacher yet, the longest wait first."""
        return tuple(sample for sample, each in self._unscored.copy().items() if not each.done())

    def extend(self, prompts: Iterable[NDArray[np.int32]]) -> None:
        """Expect responses to more prompts, numbered on from those before."""
        self._prompts.extend(prompts)

    def trajectories(self) -> tuple[Trajectory, ...]:
        """Trajectories of the finished groups in (prompt, sample) order."""
        return tuple(t for _, group in sorted(self.groups.items()) for t in group.trajectories)

    def add(self, rollout: messages.FinishedRollout) -> list[Group]:
        """Take a sequence and start judging its episode if complete; returns newly finished groups.

        Args:
            rollout: of the step, and not taken before or rejected since: see `StepStream.arrived`.

        Raises:
            WrongVersion: a token has another version than the step's.
        """
        work = rollout.work
        assert work.batch == self.step and work.sample not in self._taken
        check_version(rollout, self._version)
        made = sequence_of(rollout, self._prompts[work.prompt], self._routing)
        episode = self._episodes.take(rollout, made)
        if episode is None:
            return []
        self._taken[work.sample] = episode.trajectory(data=self._data_of(work.prompt))
        future = self._ask(episode)
        self._asked[work.sample] = future
        self._listen(self._answered, work.sample, future)
        scores = self._ask_teacher(self._taken[work.sample])
        if scores is not None:
            self._unscored[work.sample] = scores
            self._listen(self._scored, work.sample, scores)
        if self._ask_group is not None:
            self._alone[work.sample] = future
            self._ask_if_whole(self._ask_group, work.prompt)
        return self.settle()

    def settle(self) -> list[Group]:
        """Take the rewards that have arrived; returns the groups that are now finished.

        Raises:
            WrongTurns, and whatever keeps the rewards from being computed at all.
        """
        finished = []
        while self._answered:
            sample, future = self._answered.popleft()
            if self._asked.get(sample) is not future:
                continue  # of a rollout that was rejected meanwhile
            del self._asked[sample]
            verdict = future.result()
            self._tell(sample, verdict)
            if self._ask_group is None:
                self._judge(sample, verdict)
                finished += self._group_if_finished(self._taken[sample].prompt)
        while self._groups_answered:
            prompt, answer = self._groups_answered.popleft()
            if self._groups_asked.get(prompt) is not answer:
                continue  # a part of it was rejected meanwhile
            del self._groups_asked[prompt]
            for sample, verdict in zip(self._samples(prompt), answer.result(), strict=True):
                alone = self._alone[sample].result()
                if self._asked.pop(sample, None) is not None:  # given, and not yet put down
                    self._tell(sample, alone)
                self._tell(sample, verdict)
                self._judge(sample, of_member(verdict, alone))
            finished += self._group_if_finished(prompt)
        while self._scored:
            sample, scores = self._scored.popleft()
            if self._unscored.get(sample) is not scores:
                continue  # of a rollout that was rejected meanwhile
            del self._unscored[sample]
            taken = self._taken[sample]
            self._taken[sample] = replace(taken, teacher_logprobs=scores.result())
            finished += self._group_if_finished(taken.prompt)
        return finished

    def reject(self, samples: Iterable[int]) -> None:
        """Forget episodes whose tokens are not trusted, and their rewards.

        All their sequences will arrive once more, and be judged again.
        """
        for sample in samples:
            self._episodes.drop(sample)
            taken = self._taken.pop(sample, None)
            if taken is not None:
                self.groups.pop(taken.prompt, None)
                group = self._groups_asked.pop(taken.prompt, None)
                if group is not None:
                    group.cancel()
            self._alone.pop(sample, None)
            self._unscored.pop(sample, None)
            asked = self._asked.pop(sample, None)
            if asked is not None:
                asked.cancel()

    def fault_lines(self) -> list[str]:
        """Lines on each kind of reward or episode failure: how often, and where first."""
        times: Counter[tuple[str, str]] = Counter()
        first: dict[tuple[str, str], Trajectory] = {}
        for trajectory in self.trajectories():
            failed = trajectory.verdict.faults.items()
            faults = [(f"reward {name!r} failed", why) for name, why in failed]
            if trajectory.left_out:
                faults.append(("nobody knows the reward", trajectory.left_out))
            for fault in faults:
                times[fault] += 1
                first.setdefault(fault, trajectory)
        return [
            f"step {self.step}: {what} for {count} response{'s' * (count > 1)}: {why} (first: "
            f"prompt {first[what, why].prompt}, sample {first[what, why].sample})"
            for (what, why), count in times.most_common()
        ]

    def _listen(self, answered: deque[tuple[int, Done]], about: int, future: Done) -> None:
        """Record a reward when its future is done, which may be now."""

        def hear(done: Future[Any]) -> None:
            answered.append((about, future))
            self._wake()

        if future.done():
            answered.append((about, future))
        else:
            future.add_done_callback(hear)

    def _samples(self, prompt: int) -> range:
        return range(prompt * self._group_size, (prompt + 1) * self._group_size)

    def _ask_if_whole(self, ask_group: AskGroupAt, prompt: int) -> None:
        samples = self._samples(prompt)
        if any(sample not in self._taken for sample in samples):
            return
        responses = [self._taken[sample].response for sample in samples]
        future = ask_group(prompt, responses, [self._alone[sample] for sample in samples])
        self._groups_asked[prompt] = future
        self._listen(self._groups_answered, prompt, future)

    def _tell(self, sample: int, verdict: Verdict) -> None:
        """Report each way in which a reward function fails, once."""
        for name, why in verdict.faults.items():
            if (name, why) not in self._reported:
                self._reported.add((name, why))
                self._note(f"step {self.step}: reward {name!r} fails: {why} (sample {sample})")

    def _judge(self, sample: int, verdict: Verdict) -> None:
        taken = self._taken[sample]
        if verdict.left_out:
            verdict = replace(verdict, turn_rewards=())  # of as many turns as went well
        if verdict.turn_rewards and len(verdict.turn_rewards) != len(taken.turns):
            raise WrongTurns(
                f"step {self.step}, sample {sample}: {len(verdict.turn_rewards)} rewards for "
                f"{len(taken.turns)} turns"
            )
        self._taken[sample] = replace(taken, verdict=verdict)

    def _group_if_finished(self, prompt: int) -> list[Group]:
        samples = self._samples(prompt)
        if any(
            sample not in self._taken or sample in self._asked or sample in self._unscored
            for sample in samples
        ):
            return []
        if prompt in self._groups_asked:
            return []
        members = [self._taken[sample] for sample in samples]
        self.groups[prompt] = Group(prompt=prompt, trajectories=self._estimate(members))
        return [self.groups[prompt]]


def judge_of(exercises: Exercises) -> Judge:
    """Judge of a run: its reward functions see the response, and its environment adds its own."""
    if not isinstance(exercises, EpisodeExercises):
        return lambda prompt, episode: exercises.ask(prompt, episode.response)

    def judge(prompt: Prompt, episode: DeliveredEpisode) -> Future[Verdict]:
        work = msgspec.structs.replace(episode.work, sequence=len(episode.sequences) - 1)
        worth = exercises.service.judge(work, episode.attempts[-1], episode.sequences[-1])
        return exercises.judged(prompt, episode.response, worth)

    return judge


def sequence_of(
    rollout: messages.FinishedRollout, prompt: NDArray[np.int32], routing: Routing | None = None
) -> sequence.Sequence:
    """Build the sequence of a finished rollout from its parts.

    Args:
        prompt: of the batch; that of a later sequence comes with it.

    Raises:
        BadSequence: its parts contradict each other.
    """
    tokens, routes = messages.unpack_tokens(rollout.tokens), None
    if rollout.work.sequence:
        prompt = messages.unpack_tokens(rollout.prompt)
    if routing is not None:
        assert isinstance(rollout, messages.RoutedRollout), "the manager takes no others"
        routes = routing.unpack(rollout.routes)
    return sequence.Sequence(
        tokens=np.concatenate([prompt, tokens]),
        runs=(len(prompt), *sequence.runs_after_prompt(rollout.runs, len(tokens))),
        logprobs=messages.unpack_logprobs(rollout.logprobs),
        versions=rollout.versions,
        routes=routes,
    )


def check_version(rollout: messages.FinishedRollout, version: int) -> None:
    """Raise WrongVersion if another version sampled a token."""
    versions = {sampled for sampled, _ in rollout.versions}
    if versions - {version}:
        raise WrongVersion(
            f"step {rollout.work.batch}, sample {rollout.work.sample}: tokens of versions "
            f"{sorted(versions)}, expected {version} only"
        )

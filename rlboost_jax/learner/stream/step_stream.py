"""A learner's decisions in one step, without I/O: responses arrive, and the next action follows.

The trainer of a run drives it in real time (`stream_driver.py`), the simulator's in virtual time.
It has no clock, socket, device or thread: verbs say what happened, `next` says what to do.

    prompts = stream.begin()                      # the manager is asked for their responses
    stream.arrived(rollout), stream.finished(group), stream.window_closed(closed)
    match stream.next():
        case Wait():                              # until more arrives
        case TakeDevices(): …; stream.took_devices()
        case Check(group): asked = stream.checked(group, doubts)
        case CheckHeldout(): …                    # what is measured beside the step, if that is due
        case Train(index, groups): asked = stream.trained(index, groups, doubts)
        case Update():                            # the batch is whole

`asked` is what the manager is asked for because of it: more prompts, or responses again.

Invariants:
- nothing is checked or trained while the reserved devices generate: they are free once they have
  handed over (`WindowClosed`) or nothing is left to generate;
- a response counts once; one that is disputed counts no more until it has come again;
- every group of the batch is in exactly one micro-batch, and the update is made when all of them
  are trained and whatever is measured beside the step is there.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from rlboost_jax import messages
from rlboost_jax.learner.episodes.assembly import Arrivals
from rlboost_jax.learner.episodes.trajectory import Group, Trajectory
from rlboost_jax.learner.stream.dynamic_sampling import DynamicSampling
from rlboost_jax.learner.stream.micro_batches import MicroBatch, MicroBatches


@dataclass(frozen=True, kw_only=True)
class DoubtedResponse:
    """A response with at least one token that was not sampled as the server says."""

    prompt: int
    sample: int
    sequence: int = 0  # the first of the response's sequences that is in doubt
    attempt: int  # of that sequence
    checksum: int  # of that sequence as it was delivered, see `messages.Doubt`
    position: int  # of the first doubted token, among those after the prompt
    gap: float  # nats between the two log-probabilities, the largest in that sequence
    choice_gap: float = 0.0  # probability between a token's interval and its noise, the largest


@dataclass(frozen=True)
class Extend:
    """Ask for responses to more prompts, named by their places from the step's cursor."""

    places: range


@dataclass(frozen=True)
class Resample:
    """Ask for these responses again; what is known of them is forgotten."""

    doubts: tuple[DoubtedResponse, ...]


@dataclass(frozen=True)
class Wait:
    """Nothing to do before more arrives."""


@dataclass(frozen=True)
class TakeDevices:
    """The reserved devices are the learner's from now on."""


@dataclass(frozen=True)
class Check:
    """Check that the tokens of a group were sampled as reported, before it counts."""

    group: Group


@dataclass(frozen=True)
class CheckHeldout:
    """Check unchecked responses to held-out prompts, like a group."""


@dataclass(frozen=True)
class Train:
    """Train on a micro-batch, groups numbered by their places in the batch."""

    index: int
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Update:
    """Apply the update: every micro-batch has been trained on. Returned once."""


Asked = tuple[Extend | Resample, ...]  # of the manager
Next = Wait | TakeDevices | Check | CheckHeldout | Train | Update


@runtime_checkable
class Awaited(Protocol):
    """Responses that are generated with the step and not trained on: a `Measurement`."""

    @property
    def complete(self) -> bool: ...
    @property
    def check_due(self) -> bool: ...


class StreamTimes:
    """Times of one step, from the begin of its stream to its last update, in seconds."""

    def __init__(self) -> None:
        self.training = 0.0  # on micro-batches, and on groups that may make up the batch
        self.updating = 0.0  # on the updates, once all is there
        self._aside = self._aside_before_end = 0.0  # on what is measured beside the step
        self._taken_at: float | None = None
        self._end = 0.0

    def took_devices(self, now: float) -> None:
        self._taken_at = now

    def worked(self, seconds: float, now: float) -> None:
        """Add time the learner spent on the batch until now."""
        self.training += seconds
        self._end, self._aside_before_end = now, self._aside

    def worked_aside(self, seconds: float) -> None:
        """Add time the learner spent on what is evaluated beside the batch."""
        self._aside += seconds

    @property
    def busy(self) -> float:
        """Seconds that the learner worked on the batch."""
        return self.training + self.updating

    @property
    def waiting(self) -> float:
        """Seconds idle for want of a complete micro-batch, once the devices were free."""
        taken_at = self._end if self._taken_at is None else self._taken_at
        return max(0.0, self._end - taken_at - self.training - self._aside_before_end)


class StepStream:
    """One step, from its first prompt to its update."""

    def __init__(
        self,
        step: int,
        *,
        group_size: int,
        micro_batches: MicroBatches,
        sampling: DynamicSampling | None = None,
        awaited: Awaited | None = None,
        takes_devices: bool = True,
    ) -> None:
        """Start without requesting any response.

        Args:
            group_size: responses to each prompt.
            micro_batches: of as many groups as the batch has.
            sampling: chooses these groups; None: they are those of the first prompts.
            awaited: is waited for as well, in no one's time.
            takes_devices: also when all is generated; False: only when the window is closed.
        """
        self.step, self._group_size, self._micro_batches = step, group_size, micro_batches
        self._sampling, self._awaited, self._takes_devices = sampling, awaited, takes_devices
        self._num_prompts = 0  # asked for
        self._here = Arrivals()
        self._finished: deque[Group] = deque()  # not chosen from yet
        self._groups: dict[int, Group] = {}  # by prompt, those that were chosen from
        self._ready: deque[MicroBatch] = deque()
        self._window_closed = self._free = self._over = False

    @property
    def prompts_used(self) -> int:
        """Number of prompts of the stream that the batch has used."""
        return self._sampling.prompts_used if self._sampling else self._num_prompts

    @property
    def members(self) -> Sequence[int]:
        """Prompts of the batch, by their places from the step's cursor."""
        return self._sampling.members if self._sampling else range(self._num_prompts)

    def trajectories(self) -> tuple[Trajectory, ...]:
        """Trajectories of the batch, in (prompt, sample) order."""
        return tuple(
            trajectory
            for prompt in sorted(self.members)
            if prompt in self._groups
            for trajectory in self._groups[prompt].trajectories
        )

    def begin(self) -> range:
        """The prompts to begin the step with, by their places from its cursor."""
        sampling = self._sampling
        first = sampling.ask() if sampling else range(self._micro_batches.num_prompts)
        self._num_prompts = len(first)
        return first

    def arrived(self, rollout: messages.FinishedRollout) -> bool:
        """Record a sequence of a response of this step; return whether it counts.

        It does not if it was not asked for, or the response is here already.
        """
        work = rollout.work
        place = work.sample - work.prompt * self._group_size
        known = work.prompt < self._num_prompts and 0 <= place < self._group_size
        ours = work.purpose == "train" and work.batch == self.step
        return ours and known and self._here.take(rollout)

    def finished(self, group: Group) -> None:
        """Record a group whose responses are all here and judged."""
        self._finished.append(group)

    def window_closed(self, closed: messages.WindowClosed) -> None:
        """Record that the reserved engines have handed over their rollouts of a step."""
        self._window_closed |= closed.batch == self.step

    def took_devices(self) -> None:
        """Record that the learner has its devices back."""
        self._free = True

    def next(self) -> Next:
        """Decide what to do now. If the action has a result, it is due before the next call."""
        if not self._free:
            mine = self._takes_devices and self._generated and (self._finished or self._ready)
            return TakeDevices() if self._window_closed or mine else Wait()
        while self._finished and self._sampling is None:
            self._choose(self._finished.popleft())
        if self._finished:  # before training: it may want more prompts generated meanwhile
            return Check(self._finished.popleft())
        if self._ready:
            index, groups = self._ready.popleft()
            return Train(index, groups)
        if self._awaited is not None and self._awaited.check_due:
            return CheckHeldout()
        awaited = self._awaited is not None and not self._awaited.complete
        if self._over or awaited or not self._complete:
            return Wait()
        self._over = True
        return Update()

    def checked(self, group: Group, doubts: Sequence[DoubtedResponse] = ()) -> Asked:
        """Record the check of a group. If anything is disputed, the group comes again."""
        if doubts:
            return (self._reject(doubts),)
        self._choose(group)
        sampling = self._sampling
        more = sampling.ask() if sampling else range(0)
        if not more:
            return ()
        self._num_prompts = more.stop
        return (Extend(more),)

    def trained(
        self, index: int, groups: tuple[Group, ...], doubts: Sequence[DoubtedResponse] = ()
    ) -> Asked:
        """Record that a micro-batch was trained on, or dropped because of doubts."""
        if not doubts:
            return ()
        self._micro_batches.take_back(index, groups, {doubt.prompt for doubt in doubts})
        return (self._reject(doubts),)

    @property
    def _generated(self) -> bool:
        """Whether every response has arrived; some may not be judged yet."""
        return self._here.num_whole == self._num_prompts * self._group_size

    @property
    def _complete(self) -> bool:
        """Whether every group of the batch is known."""
        return self._sampling.complete if self._sampling else len(self._groups) == self._num_prompts

    def _choose(self, group: Group) -> None:
        """Count a group, and hand on the groups that are certain to be in the batch."""
        self._groups[group.prompt] = group
        members = [(group.prompt, group.prompt)]
        if self._sampling:
            counted = [t for t in group.trajectories if not t.left_out]
            informative = self._sampling.informative(counted)
            members = self._sampling.add(group.prompt, informative)
        for rank, prompt in members:
            if self._sampling and self._sampling.fills_up(prompt):
                self._groups[prompt] = _filler(self._groups[prompt])
            member = Group(prompt=rank, trajectories=self._groups[prompt].trajectories)
            self._ready.extend(self._micro_batches.add(member))

    def _reject(self, doubts: Sequence[DoubtedResponse]) -> Resample:
        for doubt in doubts:
            self._here.drop(doubt.sample)
            self._groups.pop(doubt.prompt, None)
        return Resample(tuple(doubts))


def _filler(group: Group) -> Group:
    """Copy of a group without any part in the update."""
    return replace(
        group,
        trajectories=tuple(
            replace(t, trained=False, fills_up=True, advantage=0.0, advantages=None)
            for t in group.trajectories
        ),
    )

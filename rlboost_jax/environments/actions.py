"""Questions about an episode, and the actions that follow."""

from dataclasses import dataclass
from typing import Final

from rlboost_jax import messages
from rlboost_jax.environments.episode_records import EpisodeRecord, Past, TurnAnswered
from rlboost_jax.rewards.verdict import Account, CallMade, Verdict
from rlboost_jax.sequences.identities import Work
from rlboost_jax.sequences.transcript import Transcript

COMPONENT: Final = "environment"  # of a reward
SOLVED: Final = "solved"  # the metric that is an episode's accuracy, if it has one


@dataclass(frozen=True, kw_only=True)
class EpisodeQuestion:
    """A sequence whose newest turn is over, to be answered.

    Attributes:
        work: names the sequence.
        transcript: of the sequence; its prompt is not looked at.
        finished: nothing more is sampled in the episode: what is it worth?
        stream: on which it is asked; the answer belongs there.
    """

    work: Work
    attempt: int
    transcript: Transcript
    finished: bool = False
    stream: int = 0


@dataclass(frozen=True)
class Open:
    """Make an environment and reset it."""

    alone: bool


@dataclass(frozen=True)
class Take:
    """Give the environment a turn.

    Attributes:
        index: of the turn in the episode.
        record: of the turn, to be filled in with the environment's answer.
    """

    index: int
    past: Past
    record: TurnAnswered


@dataclass(frozen=True)
class Keep:
    record: EpisodeRecord


@dataclass(frozen=True)
class WaitSeconds:
    seconds: float


@dataclass(frozen=True)
class Say:
    """Send the answer to a question.

    Attributes:
        answered: None: the sequence is over, and nothing is given.
        restart: all of the episode's tokens are discarded.
    """

    question: EpisodeQuestion
    answered: TurnAnswered | None = None
    restart: bool = False

    @property
    def answer(self) -> messages.Answer:
        """The message to the manager."""
        question, answered = self.question, self.answered
        return messages.Answer(
            work=question.work,
            attempt=question.attempt,
            turn=question.transcript.turn,
            tokens=answered.given if answered else b"",
            over=answered.over if answered else not self.restart,
            prompt=answered.prompt if answered else b"",
            restart=self.restart,
        )


@dataclass(frozen=True)
class JudgeEpisode:
    """Report the reward of a finished episode.

    Attributes:
        turns: all of them, in order.
        left_out: why the reward is not known; "": the turns have it.
    """

    turns: tuple[TurnAnswered, ...]
    left_out: str = ""

    @property
    def verdict(self) -> Verdict:
        """Verdict on the episode: its reward is the sum over its turns.

        Its accuracy is what it says of being solved, or the reward.
        """
        rewards = tuple(turn.reward for turn in self.turns)
        metrics = self.turns[-1].metrics if self.turns else {}
        reward = float(sum(rewards))
        calls = tuple(
            CallMade(turn=index, name=name, failed=failed)
            for index, turn in enumerate(self.turns)
            for name, failed in turn.calls
        )
        return Verdict(
            reward=reward,
            accuracy=metrics.get(SOLVED, reward),
            components={COMPONENT: reward},
            left_out=self.left_out,
            turn_rewards=() if self.left_out else rewards,
            account=Account(
                calls=calls,
                seconds=sum(turn.seconds for turn in self.turns),
                tokens_retokenised=sum(turn.retokenised for turn in self.turns),
                metrics=metrics,
            ),
        )


@dataclass(frozen=True)
class Drop:
    """Close the environment, if it is there."""


@dataclass(frozen=True)
class StopRun:
    """End the run, which cannot go on."""

    why: str


Action = Open | Take | Keep | WaitSeconds | Say | JudgeEpisode | Drop | StopRun
Actions = tuple[Action, ...]

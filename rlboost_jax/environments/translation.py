"""Conversion of messages to questions, and of decisions to answers and verdicts."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlboost_jax import messages
from rlboost_jax.environments.actions import EpisodeQuestion, JudgeEpisode, Say
from rlboost_jax.rewards.verdict import Account, CallMade, Verdict
from rlboost_jax.sequences.identities import Work

COMPONENT: Final = "environment"  # of a reward
SOLVED: Final = "solved"  # the metric that is an episode's accuracy, if it has one


def verdict_of(judged: JudgeEpisode) -> Verdict:
    """Verdict on an episode: its reward is the sum over its turns.

    Its accuracy is what it says of being solved, or the reward.
    """
    rewards = tuple(turn.reward for turn in judged.turns)
    metrics = judged.turns[-1].metrics if judged.turns else {}
    reward = float(sum(rewards))
    calls = tuple(
        CallMade(turn=index, name=name, failed=failed)
        for index, turn in enumerate(judged.turns)
        for name, failed in turn.calls
    )
    return Verdict(
        reward=reward,
        accuracy=metrics.get(SOLVED, reward),
        components={COMPONENT: reward},
        left_out=judged.left_out,
        turn_rewards=() if judged.left_out else rewards,
        account=Account(
            calls=calls,
            seconds=sum(turn.seconds for turn in judged.turns),
            tokens_retokenised=sum(turn.retokenised for turn in judged.turns),
            metrics=metrics,
        ),
    )


def question_of(
    attempt: int,
    sequence: int,
    tokens: NDArray[np.int32],
    runs: Sequence[int],
    *,
    logprobs: NDArray[np.float32] | None = None,
    finished: bool = False,
    stream: int = 0,
) -> EpisodeQuestion:
    """Question about a sequence, from its tokens after the prompt.

    Args:
        runs: of its tokens, in turn sampled and given.
        logprobs: of the sampled tokens; None: not known.
        stream: see `EpisodeQuestion`.
    """
    ends = np.cumsum(runs)
    parts = [part.astype("<i4").tobytes() for part in np.split(tokens, ends[:-1])]
    given = [*parts[1::2], None]
    return EpisodeQuestion(
        attempt=attempt,
        sequence=sequence,
        turns=tuple(zip(parts[::2], given, strict=False)),
        finished=finished,
        logprobs=() if logprobs is None else _by_turn(logprobs, runs[::2]),
        stream=stream,
    )


def _by_turn(logprobs: NDArray[np.float32], counts: Sequence[int]) -> tuple[bytes, ...]:
    parts = np.split(logprobs, np.cumsum(counts)[:-1])
    return tuple(part.astype("<f4").tobytes() for part in parts)


def answer_of(work: Work, say: Say) -> messages.Answer:
    """Convert a decision to the answer to a parked response.

    Args:
        work: of the episode.
    """
    question, answered = say.question, say.answered
    return messages.Answer(
        work=msgspec.structs.replace(work, sequence=question.sequence),
        attempt=question.attempt,
        turn=len(question.turns) - 1,
        tokens=answered.given if answered else b"",
        over=answered.over if answered else not say.restart,
        prompt=answered.prompt if answered else b"",
        restart=say.restart,
    )

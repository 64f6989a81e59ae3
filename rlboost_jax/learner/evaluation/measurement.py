"""Evaluation on held-out prompts by the fleet, beside the work of a step.

The prompts ride on the step whose version they measure. They wait behind the step's own, so they
fill slots that would be empty, on preemptible servers and reserved engines alike, and nothing of
them reaches a gradient. Their tokens are looked at like those that are trained on, since a score
decides which checkpoint is kept.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec
import numpy as np

from rlboost_jax import messages
from rlboost_jax.data.exercises import Exercises, MixtureSource, Prompt, Tokens, Verdicts
from rlboost_jax.learner.episodes.assembly import Episodes
from rlboost_jax.learner.episodes.collector import (
    Judge,
    check_version,
    judge_of,
    sequence_of,
)
from rlboost_jax.learner.episodes.trajectory import Group, Trajectory
from rlboost_jax.rewards.verdict import Verdict, of_member
from rlboost_jax.sequences.identities import Batch, sample_number
from rlboost_jax.settings.routing import Routing
from rlboost_jax.settings.sampling_config import EvaluationConfig

Part = tuple[tuple[messages.PromptRequest, ...], int]  # prompts, and responses to each


@dataclass(frozen=True, kw_only=True)
class Score:
    """Score of a policy. Each value lies in the range of the first reward function.

    Responses left out, or without a value of the first function, do not count. If that is all of
    them, the policy was not measured: both are NaN. In a mixture both are means over its data
    sets by weight.
    """

    accuracy: float  # mean over all responses: with several per prompt, mean@k
    best: float  # mean over prompts of their best response: pass@k where answers are right or wrong
    sources: dict[str, float] = field(
        default_factory=dict
    )  # accuracy of each data set of a mixture
    prompts: int
    samples: int  # k
    response_length_mean: float  # sampled tokens
    failures: int  # responses for which a reward function failed and its fallback counts
    left_out: int = 0  # responses whose environment failed, or about which no function says a word


class Measurement:
    """One evaluation of one version. Responses in, in any order, and a score out.

    Invariant: each response that was asked for counts once, as it was generated last.

    A response that was withdrawn is taken from its next delivery, whatever attempt that is: streams
    keep their order, so what comes after `Withdrawn` is what the manager believes now. A manager
    that lost its journal begins with attempt 0 again; if newer attempts alone counted, its
    responses would be waited for for ever.
    """

    def __init__(
        self,
        exercises: Exercises,
        prompts: Sequence[Prompt],
        config: EvaluationConfig,
        *,
        step: int,
        max_tokens: int,
        group_size: int,
        version: int | None = None,
        turn_tokens: int = 0,
        judge: Judge | None = None,
        check_size: int = 0,
        routing: Routing | None = None,
    ) -> None:
        """Set up without requesting any response.

        Args:
            step: that the prompts ride on.
            max_tokens: of a response.
            group_size: most responses that go under one prompt of the step; more are asked for
                under further indices.
            version: that samples the step, and is measured; None: the one with its number.
            turn_tokens: most tokens sampled in one turn of a response; 0: as many as are left.
            judge: says what a response is worth; None: that of the exercises.
            check_size: responses that are looked at together; 0: none is looked at.
            routing: of the routes that come with tokens; None: none do.
        """
        self._exercises, self._prompts, self._samples = exercises, prompts, config.samples
        self._step, self._group_size = step, group_size
        self.version = step if version is None else version
        self.sampling = messages.Sampling(
            temperature=config.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
            max_tokens=max_tokens,
            turn_tokens=turn_tokens,
            stop_ids=tuple(exercises.stop_ids),
            stops=exercises.stops,
        )
        self._judge = judge or judge_of(exercises)
        self._episodes = Episodes()
        self._expected = {
            sample_number(
                prompt.prompt, place, group_size=group_size, purpose="evaluate"
            ): prompt.prompt
            for prompts, samples in self.parts()
            for prompt in prompts
            for place in range(samples)
        }  # sample of the step → prompt of the step
        self._members: dict[int, list[int]] = {}  # of a held-out prompt: its samples, in order
        for sample, asked_for in sorted(self._expected.items()):
            self._members.setdefault(asked_for // self._chunks, []).append(sample)
        self._asked: dict[int, Future[Verdict]] = {}  # by sample
        self._groups: dict[int, Future[Verdicts]] = {}  # by place of the prompt, whole ones
        self._tokens: dict[int, Tokens] = {}  # of responses whose groups are asked about
        self._lengths: dict[int, int] = {}
        self._attempts: dict[int, int] = {}  # of the responses that are here
        self._check_size, self._routing = check_size, routing
        self._unchecked: dict[int, Trajectory] = {}  # of the responses that are here, by sample

    @property
    def complete(self) -> bool:
        """Whether all responses have arrived; some may still be judged."""
        return len(self._asked) == len(self._expected)

    @property
    def check_due(self) -> bool:
        """Whether enough responses for one check have arrived, or the last of them."""
        return bool(self._unchecked) and (self.complete or len(self._unchecked) >= self._check_size)

    def take_unchecked(self) -> Group:
        """Return the responses to compare next, each of them once."""
        samples = sorted(self._unchecked)[: self._check_size]
        return Group(
            prompt=0, trajectories=tuple(self._unchecked.pop(sample) for sample in samples)
        )

    def parts(self) -> tuple[Part, ...]:
        """Requests: full groups, and the remainder of each prompt."""
        full, rest = divmod(self._samples, self._group_size)
        places = range(len(self._prompts))
        groups = tuple(self._request(p, c) for p in places for c in range(full))
        rests = tuple(self._request(p, full) for p in places) if rest else ()
        return tuple(part for part in ((groups, self._group_size), (rests, rest)) if part[0])

    def prompt_of(self, number: int) -> Prompt | None:
        """The held-out prompt of that number; None if there is none."""
        place = number // self._chunks
        return self._prompts[place] if place < len(self._prompts) else None

    def extensions(self) -> tuple[messages.ExtendBatch, ...]:
        """Messages that request the responses, once the step has begun."""
        return tuple(
            messages.ExtendBatch(
                batch=Batch(self._step), prompts=prompts, samples=samples, sampling=self.sampling
            )
            for prompts, samples in self.parts()
        )

    def take(self, rollout: messages.FinishedRollout) -> bool:
        """Start judging a response if it belongs to this evaluation; return whether it does.

        Raises:
            WrongVersion: another version sampled a token of it.
        """
        work, sample = rollout.work, rollout.work.sample
        if work.purpose != "evaluate" or work.batch != self._step:
            return False
        if self._expected.get(sample) != work.prompt:
            return False
        check_version(rollout, self.version)
        place = work.prompt // self._chunks
        prompt = self._prompts[place]
        made = sequence_of(_with_logprobs(rollout), prompt.tokens, self._routing)
        episode = self._episodes.take(rollout, made)
        if episode is None:
            return True
        self._episodes.drop(sample)
        if (attempt := max(episode.attempts)) > self._attempts.get(sample, -1):
            self._attempts[sample] = attempt
            self._lengths[sample] = episode.num_sampled
            self._forget_group(place)
            self._asked[sample] = self._judge(prompt, episode)
            self._ask_if_whole(place, sample, episode.response)
            if self._check_size:
                # The learner's checks do not use its reward.
                self._unchecked[sample] = episode.trajectory(trained=False)
        return True

    def withdraw(self, withdrawn: messages.ResponsesWithdrawn) -> None:
        """Forget responses that are not trusted: they are generated again."""
        if withdrawn.batch == self._step:
            self.reject(messages.unpack_ids(withdrawn.samples).tolist())

    def reject(self, samples: Iterable[int]) -> None:
        """Forget these responses: they will be delivered again."""
        for sample in samples:
            self._episodes.drop(sample)
            if sample in self._expected:
                self._forget_group(self._expected[sample] // self._chunks)
            asked = self._asked.pop(sample, None)
            if asked is not None:
                asked.cancel()
            for known in (self._lengths, self._attempts, self._unchecked):
                known.pop(sample, None)

    def score(self) -> Score:
        """Wait for pending rewards and return the score.

        Raises ValueError if responses are missing.
        """
        if not self.complete:
            raise ValueError(f"{len(self._asked)} of {len(self._expected)} responses are here")
        verdicts = self._verdicts()
        groups = [
            [
                verdict.accuracy
                for verdict in verdicts[first : first + self._samples]
                if not verdict.left_out and verdict.accuracy is not None
            ]
            for first in range(0, len(verdicts), self._samples)
        ]
        counted: dict[MixtureSource | None, list[list[float]]] = {}
        for prompt, group in zip(self._prompts, groups, strict=True):
            if group:
                counted.setdefault(prompt.source, []).append(group)
        accuracies = {
            source: _mean([accuracy for group in of_source for accuracy in group])
            for source, of_source in counted.items()
        }
        best = {source: _mean([max(g) for g in of_source]) for source, of_source in counted.items()}
        return Score(
            accuracy=_weighted(accuracies),
            best=_weighted(best),
            sources={source.name: value for source, value in accuracies.items() if source},
            prompts=len(self._prompts),
            samples=self._samples,
            response_length_mean=float(np.mean(list(self._lengths.values()))),
            failures=sum(bool(verdict.faults) for verdict in verdicts),
            left_out=sum(bool(verdict.left_out) for verdict in verdicts),
        )

    def _verdicts(self) -> list[Verdict]:
        """Verdicts by prompt, and for each prompt by sample."""
        if self._exercises.ask_group is None:
            return [verdict.result() for _, verdict in sorted(self._asked.items())]
        groups = (group.result() for _, group in sorted(self._groups.items()))
        together = [verdict for group in groups for verdict in group]
        alone = [
            self._asked[sample].result()
            for _, samples in sorted(self._members.items())
            for sample in samples
        ]
        return list(map(of_member, together, alone))

    def _ask_if_whole(self, place: int, sample: int, tokens: Tokens) -> None:
        """Judge the responses to a held-out prompt as a group, once all have arrived.

        Only where rewards compare responses.
        """
        ask_group = self._exercises.ask_group
        if ask_group is None:
            return
        self._tokens[sample] = tokens
        samples = self._members[place]
        if all(sample in self._asked for sample in samples):
            self._groups[place] = ask_group(
                self._prompts[place],
                [self._tokens[sample] for sample in samples],
                [self._asked[sample] for sample in samples],
            )

    def _forget_group(self, place: int) -> None:
        group = self._groups.pop(place, None)
        if group is not None:
            group.cancel()

    @property
    def _chunks(self) -> int:
        """Number of prompt indices of each held-out prompt: one for each of its groups."""
        return -(-self._samples // self._group_size)

    def _request(self, place: int, chunk: int) -> messages.PromptRequest:
        return messages.PromptRequest(
            purpose="evaluate",
            prompt=place * self._chunks + chunk,
            tokens=messages.pack_tokens(self._prompts[place].tokens),
        )


def _with_logprobs(rollout: messages.FinishedRollout) -> messages.FinishedRollout:
    """Fill in log-probabilities, which a run without a manager leaves out and does not check."""
    if rollout.logprobs:
        return rollout
    count = sum(count for _, count in rollout.versions)
    return msgspec.structs.replace(rollout, logprobs=messages.pack_logprobs(np.zeros(count)))


def _weighted(means: Mapping[MixtureSource | None, float]) -> float:
    """Mean over data sets by weight; a single data set's own mean."""
    weights = [source.weight if source else 1.0 for source in means]
    if not weights:
        return math.nan
    return math.fsum(w * mean for w, mean in zip(weights, means.values(), strict=True)) / math.fsum(
        weights
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan

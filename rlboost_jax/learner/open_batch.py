"""One open batch: the requests to the manager and the responses so far.

With a lag several are open, and the oldest is trained on; see `stream/lag.py`.
"""

from collections.abc import Sequence

from rlboost_jax import messages
from rlboost_jax.data.exercises import AskGroup, Prompt
from rlboost_jax.data.prompt_stream import PromptStream
from rlboost_jax.learner.episodes.collector import AskGroupAt, StepCollector, judge_of
from rlboost_jax.learner.evaluation.measurement import Measurement
from rlboost_jax.learner.session import Session
from rlboost_jax.learner.stream.dynamic_sampling import dynamic_sampling
from rlboost_jax.learner.stream.micro_batches import micro_batches
from rlboost_jax.learner.stream.step_stream import StepStream
from rlboost_jax.learner.stream.stream_driver import BatchIntake
from rlboost_jax.sequences.identities import Batch, Version, Work


class OpenBatch:
    """A batch that has begun.

    Attributes:
        version: that samples it.
        intake: takes what arrives for it, whichever batch is trained on.
        measurement: what rides on it, if anything does.
    """

    def __init__(
        self,
        session: Session,
        prompts: PromptStream,
        batch: Batch,
        *,
        version: Version,
        params_digest: str,
        cursor: int,
        measurement: Measurement | None,
    ) -> None:
        """Have the manager begin the batch. Raises StepTooLarge.

        Args:
            params_digest: of the version.
            cursor: where it begins in the prompt stream.
        """
        run, judge = session.run, judge_of(session.exercises)
        self.batch, self.version, self.measurement = batch, version, measurement
        self._session, self._stream_of_prompts, self._cursor = session, prompts, cursor
        self.stream = StepStream(
            batch,
            group_size=run.algorithm.group_size,
            micro_batches=micro_batches(run),
            sampling=dynamic_sampling(run),
            awaited=measurement,
        )
        self._prompts = self._prompts_at(self.stream.begin())
        if session.episodes is not None:
            session.episodes.begin(batch, self._prompt_of)
        session.link.begin_batch(
            messages.BeginBatch(
                batch=batch,
                version=version,
                params_digest=params_digest,
                seed=run.seed,
                group_size=run.algorithm.group_size,
                sampling=sampling_of(session),
                prompts=_requests(self._prompts, 0),
                turns=session.turns,
            )
        )
        for extension in measurement.extensions() if measurement else ():
            session.link.extend_batch(extension)
        self.collector = StepCollector(
            batch,
            version=version,
            prompts=[prompt.tokens for prompt in self._prompts],
            group_size=run.algorithm.group_size,
            ask=lambda episode: judge(self._prompts[episode.work.prompt], episode),
            ask_group=self._ask_group(session.exercises.ask_group),
            ask_teacher=session.scores.ask
            if session.scores is not None
            else lambda trajectory: None,
            wake=session.link.wake,
            estimate=session.learner.estimates.of_group,
            routing=session.learner.policy.routing,
            note=session.note,
            data_of=self._data_of,
        )
        self.intake = BatchIntake(self.stream, self.collector, measurement)

    def extend(self, places: range) -> None:
        """Request more prompts, named by their places from the cursor."""
        more = self._prompts_at(places)
        self._prompts.extend(more)
        self.collector.extend(prompt.tokens for prompt in more)
        requests = _requests(more, places.start)
        self._session.link.extend_batch(messages.ExtendBatch(batch=self.batch, prompts=requests))

    def trained(self, *, wait_seconds: float, seconds: float) -> messages.BatchReport:
        """End the batch, which was trained on; return the manager's report."""
        session = self._session
        report = session.link.trained(
            messages.BatchTrained(
                batch=self.batch, train_wait_seconds=wait_seconds, train_seconds=seconds
            )
        )
        if session.episodes is not None:
            session.episodes.over(self.batch)
        return report

    def _prompt_of(self, work: Work) -> Prompt | None:
        """Prompt of an episode; callable in any thread."""
        if work.purpose == "evaluate":
            return self.measurement.prompt_of(work.prompt) if self.measurement else None
        return self._prompts[work.prompt] if work.prompt < len(self._prompts) else None

    def _data_of(self, place: int) -> str:
        source = self._prompts[place].source
        return source.name if source else ""

    def _ask_group(self, ask: AskGroup | None) -> AskGroupAt | None:
        """Adapt `ask` to take the prompt's place in the batch."""
        if ask is None:
            return None
        return lambda prompt, responses, alone: ask(self._prompts[prompt], responses, alone)

    def _prompts_at(self, places: range) -> list[Prompt]:
        return list(self._stream_of_prompts.slice(self._cursor + places.start, len(places)))


def sampling_of(session: Session) -> messages.Sampling:
    """How responses that are trained on are sampled."""
    run, exercises = session.run, session.exercises
    return messages.Sampling(
        temperature=run.sampling.temperature,
        top_p=run.sampling.top_p,
        top_k=run.sampling.top_k,
        max_tokens=run.sampling.max_response_tokens,
        turn_tokens=run.environment.turn_tokens,
        stop_ids=tuple(exercises.stop_ids),
        stops=exercises.stops,
    )


def _requests(prompts: Sequence[Prompt], first: int) -> tuple[messages.PromptRequest, ...]:
    return tuple(
        messages.PromptRequest(prompt=place, tokens=messages.pack_tokens(prompt.tokens))
        for place, prompt in enumerate(prompts, start=first)
    )

"""Episodes of one batch, begun as questions about them arrive."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from rlboost_jax.data.exercises import Prompt
from rlboost_jax.environments.actions import EpisodeQuestion, JudgeEpisode, Say
from rlboost_jax.environments.call_journal import CallJournal
from rlboost_jax.environments.environment_journal import EnvironmentJournal
from rlboost_jax.environments.episode import Episode
from rlboost_jax.environments.episode_records import identity
from rlboost_jax.environments.hosted import EpisodeContext, EpisodeStart, Hosted, SendAnswer
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.sequences.identities import Work
from rlboost_jax.settings.environment_config import EnvironmentConfig

# The prompt of an episode, in any thread; None: the batch does not have it.
PromptOf = Callable[[Work], Prompt | None]


class EpisodesOfBatch:
    """Episodes of a batch, each begun by the first question about it, after `open`."""

    def __init__(
        self,
        context: EpisodeContext,
        settings: EnvironmentConfig,
        journal: EnvironmentJournal,
        prompt_of: PromptOf,
        *,
        room: int,
        send: SendAnswer,
    ) -> None:
        """
        Args:
            prompt_of: an episode.
            room: tokens that the prompt of a later sequence may have.
            send: an answer.
        """
        self._context, self._settings, self._journal = context, settings, journal
        self._prompt_of, self._room, self._send = prompt_of, room, send
        self._ledger = CallJournal(journal.keep, ())
        self._records: dict[int, list[Any]] = {}  # that were kept before, by sample
        self._episodes: dict[int, Hosted] = {}
        self._verdicts: dict[int, Future[Verdict]] = {}
        self._waiting: list[EpisodeQuestion] | None = []  # None: it is open

    async def open(self) -> None:
        """Read the journal. Raises JournalNotWritten."""
        records = await asyncio.to_thread(self._journal.open)
        self._ledger = CallJournal(self._journal.keep, records)
        for record in records:
            if hasattr(record, "sample"):
                self._records.setdefault(record.sample, []).append(record)
        waiting, self._waiting = self._waiting or [], None
        for question in waiting:
            self.ask(question)

    def ask(self, question: EpisodeQuestion, verdict: Future[Verdict] | None = None) -> None:
        """Ask a question about an episode.

        Args:
            verdict: is done with what a finished episode is worth.
        """
        sample = question.work.sample
        if verdict is not None:
            self._verdicts[sample] = verdict
        if self._waiting is not None:
            self._waiting.append(question)
            return
        hosted = self._episodes.get(sample)
        if hosted is None:
            first = msgspec.structs.replace(question.work, sequence=0)
            prompt = self._prompt_of(first)
            if prompt is None:  # of a batch that was begun otherwise
                return
            problem: EpisodeStart = prompt.problem
            if problem.failed:
                self._leave_out(question, problem.failed)
                return
            hosted = self._episodes[sample] = self._hosted(first, problem)
        hosted.ask(question)

    async def close(self) -> None:
        for hosted in self._episodes.values():
            hosted.close()
        await self._journal.close()

    def _hosted(self, work: Work, problem: EpisodeStart) -> Hosted:
        opened, sample = problem.opened, work.sample
        prompt = self._context.renderer.first(opened.said.observation, opened.tools)
        data = prompt.astype("<i4").tobytes()
        example = msgspec.json.encode(problem.example, enc_hook=str, order="sorted")
        records: Sequence[Any] = self._records.pop(sample, [])
        episode = Episode(
            self._settings,
            sample=sample,
            name=identity(self._journal.run_id, work.batch, sample, problem.seed, example),
            prompt=data,
            room=self._room,
            records=records,
        )
        return Hosted(
            self._context,
            episode,
            problem,
            prompt=data,
            ledger=self._ledger,
            keep=self._journal.keep,
            send=self._send,
            judged=lambda judged: self._judged(sample, judged),
        )

    def _leave_out(self, question: EpisodeQuestion, why: str) -> None:
        """End an episode that no environment could begin, with its first turn."""
        if question.finished:
            self._judged(question.work.sample, JudgeEpisode((), why))
        else:
            self._send(Say(question).answer, question.stream)

    def _judged(self, sample: int, judged: JudgeEpisode) -> None:
        verdict = self._verdicts.pop(sample, None)
        if verdict is not None and verdict.set_running_or_notify_cancel():
            verdict.set_result(judged.verdict)

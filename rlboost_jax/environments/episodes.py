"""Service of a run's episodes: questions in, answers and verdicts out.

Its own event loop, in a thread of its own: environments go on while the learner is in a gradient
for seconds. What an environment said is on disk before it is sent to anybody
(`environment_journal.py`); a trainer that comes back resumes from there.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlboost_jax import messages
from rlboost_jax.environments.actions import EpisodeQuestion
from rlboost_jax.environments.batches import EpisodesOfBatch, PromptOf
from rlboost_jax.environments.environment_frames import Opened, WireObservation
from rlboost_jax.environments.environment_journal import FOLDER, EnvironmentJournal
from rlboost_jax.environments.environment_kind import FOLDER_OF_HOSTS, environment_kind
from rlboost_jax.environments.episode import FIRST_PAUSE_SECONDS, MOST_OUTSIDE
from rlboost_jax.environments.hosted import EpisodeFailed, EpisodeStart, Live, SendAnswer
from rlboost_jax.environments.observations import is_beyond
from rlboost_jax.environments.prompt_renderer import (
    PromptRenderer,
    UnencodableObservation,
    renderer_of,
)
from rlboost_jax.environments.runner import CallLedger, RememberedCalls
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.sequences.identities import Work
from rlboost_jax.sequences.sequence import Sequence, runs_after_prompt
from rlboost_jax.sequences.transcript import Transcript
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.workers.service_thread import ServiceThread
from rlboost_jax.workers.worker_pool import WorkerPool
from rlboost_jax.workers.worker_sessions import Lost

_NOTHING_SAID: Final = Opened(episode=0, said=WireObservation(tokens=b""), tools=())
_SHOWN: Final = 80  # characters of an example


class EpisodeService:
    """Runs the episodes. Raises ConfigError, when made, for an environment that cannot be used."""

    def __init__(
        self,
        run: RunConfig,
        *,
        example: Mapping[str, Any],
        seed: int,
        note: Callable[[str], None],
        folder: Path | None = None,
    ) -> None:
        """Start the workers and open an example, whose tools a chat template is proved with.

        Args:
            note: shows a line on the console.
            folder: of the run; None: no other hosts are let in.
        """
        self._run, self._note = run, note
        self._settings = run.environment
        required = run.rewards.sandbox == "required"
        self.pool = WorkerPool(
            environment_kind(self._settings, sandbox_required=required),
            chaos_kills_per_minute=self._settings.chaos_kills_per_minute,
            note=note,
        )
        self._thread = ServiceThread("episodes")
        self._batches: dict[int, EpisodesOfBatch] = {}
        # With their streams, of batches that are not begun.
        self._early: dict[int, dict[int, tuple[messages.Parked, int]]] = {}
        self._send: SendAnswer = lambda answer, stream: None
        self._fail: Callable[[Exception], None] = lambda error: None
        self._folder: Path | None = None
        self._run_id = ""
        self._said: set[str] = set()
        try:
            if folder is not None and (address := self._settings.listen):
                self._thread.run(self.pool.listen(address, folder / FOLDER_OF_HOSTS))
            self._thread.run(self.pool.start())
            try:
                opened = self._thread.run(self._first(example, seed))
            except EpisodeFailed as error:  # the very first: a mistake rather than a bad moment
                raise ConfigError(str(error)) from None
            self.renderer: PromptRenderer = renderer_of(run, opened.tools)
            for line in self.renderer.notes:
                note(f"  {line}")
        except BaseException:  # an interrupt, too: workers would outlive the command
            self.close()
            raise

    def connect(
        self,
        folder: Path,
        run_id: str,
        *,
        answer: SendAnswer,
        fail: Callable[[Exception], None],
    ) -> None:
        """Connect to journal, manager and training loop, before the first batch.

        Args:
            folder: of the run.
            answer: sends an answer to the manager, on the stream on which it was asked.
            fail: lets the training loop hear of what ends the run.
        """
        self._folder, self._run_id = folder / FOLDER, run_id
        self._send, self._fail = answer, fail

    def problem(
        self, example: Mapping[str, Any], seed: int
    ) -> tuple[EpisodeStart, NDArray[np.int32]]:
        """First observation of an example's episodes, and its prompt; callable in any thread.

        Where the environment cannot begin it, however often it is tried, its episodes are left out
        (`environment.on_failure`): their prompt is a single token then, and nothing of them counts.

        Raises:
            ConfigError: its observation makes no prompt of this run, or one that is too long.
            EpisodeFailed: it cannot begin it, and `environment.on_failure` is "stop".
        """
        try:
            opened = self._thread.run(self._first(example, seed))
        except EpisodeFailed as error:
            if self._settings.on_failure == "stop":
                raise
            self._note(f"{error}; its group is left out")
            problem = EpisodeStart(
                example=example, seed=seed, opened=_NOTHING_SAID, failed=str(error)
            )
            return problem, np.array(self.renderer.stop_ids[:1], np.int32)
        most, said = self._run.engine.max_prompt_tokens, opened.said.observation
        if is_beyond((said,), most):
            raise ConfigError(
                f"environment.name {self._settings.name!r}: an episode begins with more text than "
                f"{most} tokens can be (engine.max_prompt_tokens)"
            )
        try:
            tokens = self.renderer.first(said, opened.tools)
        except UnencodableObservation as error:
            raise ConfigError(f"environment.name {self._settings.name!r}: {error}") from None
        if not 0 < len(tokens) <= most:
            raise ConfigError(
                f"environment.name {self._settings.name!r}: an episode begins with {len(tokens)} "
                f"tokens, and 1 to {most} are possible (engine.max_prompt_tokens)"
            )
        return EpisodeStart(example=example, seed=seed, opened=opened), tokens

    def begin(self, batch: int, prompt_of: PromptOf) -> None:
        """Prepare for a batch, before it is sent to the manager.

        Args:
            prompt_of: an episode, in any thread; None: the batch does not have it.
        """
        assert self._folder is not None, "connect comes first"
        journal = EnvironmentJournal(self._folder, self._run_id, batch, note=self._note)
        begun = EpisodesOfBatch(
            self,
            self._settings,
            journal,
            prompt_of,
            room=self._run.engine.max_prompt_tokens + self._settings.max_given_tokens,
            send=self._send,
        )
        self._thread.call(self._begin, batch, begun, fail=self.fail)

    def take(self, parked: messages.Parked, stream: int = 0) -> None:
        """Take a finished turn; callable in any thread.

        Args:
            stream: on which the manager asks; the answer belongs there.
        """
        self._thread.call(self._take, parked, stream, fail=self.fail)

    def judge(self, work: Work, attempt: int, sequence: Sequence) -> Future[Verdict]:
        """Compute the verdict on a finished episode; callable in any thread.

        Args:
            work, attempt, sequence: of its last sequence.
        """
        verdict: Future[Verdict] = Future()
        transcript = Transcript.from_sequence(sequence)
        question = EpisodeQuestion(work=work, attempt=attempt, transcript=transcript, finished=True)
        self._thread.call(self._ask, question, verdict, fail=self.fail)
        return verdict

    def over(self, batch: int) -> None:
        """Forget a batch, of which nothing more arrives."""
        self._thread.call(self._over, batch, fail=self.fail)

    def close(self) -> None:
        """End the workers. Pending verdicts never arrive."""

        if not self._thread.lives:
            return

        async def end() -> None:
            for batch in list(self._batches.values()):
                await batch.close()
            await self.pool.close()

        with contextlib.suppress(TimeoutError):
            self._thread.run(end(), 20.0)
        self._thread.close()

    # Of the event loop -----------------------------------------------------------

    def spawn(self, coroutine: Any) -> None:
        self._thread.spawn(coroutine, self.fail)

    async def open(self, ledger: CallLedger, *, alone: bool) -> Live:
        """Make an environment that is not reset yet. Raises as `Live.open` does."""
        return await Live.open(self.pool, ledger, alone=alone)

    def fail(self, error: Exception) -> None:
        self._fail(error)

    def failed_once(self, why: str) -> None:
        """Report a kind of environment failure the first time it occurs."""
        if why not in self._said and len(self._said) < 100:
            self._said.add(why)
            self._note(f"environment: {why}; it is made again")

    async def _first(self, example: Mapping[str, Any], seed: int) -> Opened:
        failures = losses = 0
        while True:
            live = None
            try:
                live = await self.open(RememberedCalls(), alone=failures > 0)
                return await live.reset(example, seed)
            except Lost as lost:
                failures += lost.blame != "outside"
                losses += 1
                if failures >= self._settings.attempts or losses >= MOST_OUTSIDE:
                    name = self._settings.name
                    raise EpisodeFailed(
                        f"environment {name!r} cannot begin example {_short(example)}: {lost}"
                    ) from None
                self.failed_once(str(lost))
                await asyncio.sleep(FIRST_PAUSE_SECONDS * losses)
            finally:
                if live is not None:
                    live.close()

    def _take(self, parked: messages.Parked, stream: int) -> None:
        batch = self._batches.get(parked.work.batch)
        if batch is None:
            self._early.setdefault(parked.work.batch, {})[parked.work.sample] = parked, stream
            return
        runs = runs_after_prompt(parked.runs, len(parked.tokens) // 4)
        transcript = Transcript.from_runs(b"", parked.tokens, runs, parked.logprobs)
        question = EpisodeQuestion(
            work=parked.work, attempt=parked.attempt, transcript=transcript, stream=stream
        )
        batch.ask(question)

    def _begin(self, number: int, batch: EpisodesOfBatch) -> None:
        self._batches[number] = batch
        self.spawn(batch.open())
        for parked, stream in self._early.pop(number, {}).values():
            self._take(parked, stream)

    def _ask(self, question: EpisodeQuestion, verdict: Future[Verdict]) -> None:
        batch = self._batches.get(question.work.batch)
        if batch is not None:
            batch.ask(question, verdict)

    def _over(self, number: int) -> None:
        self._early = {n: parked for n, parked in self._early.items() if n > number}
        if (batch := self._batches.pop(number, None)) is not None:
            self.spawn(batch.close())


def _short(example: Mapping[str, Any]) -> str:
    text = repr(dict(example))
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"

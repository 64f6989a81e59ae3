"""The objects of a prepared run."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rlboost_jax.data.exercises import Exercises
from rlboost_jax.environments.episode_exercises import EpisodeExercises
from rlboost_jax.environments.episodes import EpisodeService
from rlboost_jax.learner.checkpoints.base import Base
from rlboost_jax.learner.checkpoints.best import BestCheckpoint
from rlboost_jax.learner.checkpoints.run_copies import NoCopies, RunCopies
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.fleet.engine_weights import Load
from rlboost_jax.learner.fleet.link import ManagerLink
from rlboost_jax.learner.fleet.score_requests import ScoreRequests
from rlboost_jax.learner.kept_versions import KeptVersions, NoKeptVersions
from rlboost_jax.learner.processes.leader import Followers, NoFollowers
from rlboost_jax.learner.publisher import Publisher
from rlboost_jax.learner.state import TrainState
from rlboost_jax.learner.update.learner import Learner
from rlboost_jax.observe.span_recorder import Recorder
from rlboost_jax.settings.run_config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Session:
    """Objects that a training loop works with. What changes from step to step is the loop's own."""

    run: RunConfig
    exercises: Exercises
    learner: Learner
    state: TrainState  # to begin with; the first update consumes it
    until: int | None = None  # the next step with other settings; None: there is none
    prompts_used: int = 0  # of the prompt stream, by the steps before
    kept: KeptVersions = field(default_factory=NoKeptVersions)  # older versions; with a lag
    base: Base | None = None  # of the adapters, where these are what is trained
    scores: ScoreRequests | None = None  # what servers are asked about teachers
    link: ManagerLink
    load: Load  # hands the newest version to the trainer's own engines
    publisher: Publisher
    checkpoints: Checkpoints
    copies: RunCopies | NoCopies = field(default_factory=NoCopies)  # of these, elsewhere
    best: BestCheckpoint | None = None  # is offered every checkpoint that is evaluated
    followers: Followers = field(default_factory=NoFollowers)
    note: Callable[[str], None] = lambda line: None  # shows a line on the console
    spans: Recorder = field(default_factory=Recorder)  # of this process
    clock: Callable[[], float] = time.perf_counter  # seconds

    @property
    def episodes(self) -> EpisodeService | None:
        """Service that runs the episodes; None: a response has one turn."""
        return self.exercises.service if isinstance(self.exercises, EpisodeExercises) else None

    @property
    def unscored(self) -> int:
        """Sequences that servers have yet to score for a teacher."""
        return 0 if self.scores is None else len(self.scores)

    @property
    def turns(self) -> int:
        """Most turns of a response."""
        return self.run.environment.max_turns if self.episodes else 1

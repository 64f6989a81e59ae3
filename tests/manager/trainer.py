"""The trainer of `world.World`: steps, checkpoints, crashes. It checks all it is given."""

from collections.abc import Callable

from rlboost_jax import messages as m
from rlboost_jax.manager.events import FromTrainer, TrainerGone
from tests.manager.fakes import RUN, begin_step, length, logprob, manifest, token
from tests.manager.world import Server, World


class Trainer:
    """Trains `num_steps` and ends the run.

    After a crash it begins again at the step after the last durable one, with the same
    parameters, or with others if `same_bits` is False.
    """

    def __init__(
        self, world: World, num_steps: int, *, seeding: bool = True, prompts: int = 3
    ) -> None:
        self.world = world
        self.num_steps, self.prompts = num_steps, prompts
        self.reports: list[m.StepReport] = []
        self.statuses: list[m.FleetStatus] = []
        self.windows: list[m.WindowClosed] = []
        self.alive = False
        self.done = False
        self.lives = 0
        self.seeding = seeding
        self._durable = -1
        self._written = 0.0
        self._flavour = 0
        world.trainer = self

    @property
    def begin(self) -> m.BeginStep:
        digest = f"parameters {self.step} of {self._flavour}"
        return begin_step(self.step, self.step, digest, prompts=self.prompts)

    def start(self) -> None:
        self.alive = True
        self.lives += 1
        self.step = self._durable + 1
        self.stream = self.world.open(self)
        self._say(m.TrainerHello(run_id=RUN, window=None))
        if self.seeding:
            self.engine = Server(self.world, reserved=True)
            self.engine.connect()
        self._begin()

    def crash(self, *, same_bits: bool) -> None:
        self.alive = False
        self._flavour += not same_bits
        self.world.up(self.stream, TrainerGone(self.stream, "killed"))
        if self.seeding:
            self.engine.kill()

    def hear(self, stream: int, message: m.ToTrainer) -> None:
        if not self.alive or stream != self.stream:
            return
        match message:
            case m.FinishedRollout():
                self._finished(message)
            case m.StepReport():
                self._reported(message)
            case m.FleetStatus():
                self.statuses.append(message)
            case m.WindowClosed():
                self.windows.append(message)

    def hung_up(self, stream: int) -> None:
        if self.alive and stream == self.stream:
            assert self.done, "the manager hung up on the trainer"

    def _say(self, message: m.TrainerMessage) -> None:
        self.world.up(self.stream, FromTrainer(self.stream, message))

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        """Unless this life of the trainer has ended by then."""
        life = self.lives
        self.world.later(seconds, lambda: what() if self.alive and life == self.lives else None)

    def _begin(self) -> None:
        self.results: dict[int, m.FinishedRollout] = {}
        begin, delay = self.begin, self.world.random.uniform
        snapshot = manifest(begin.version, begin.params_digest)
        # Snapshots are written beside the step, one after the other.
        self._written = max(self._written, self.world.now + delay(0.0, 0.3))
        publish = lambda: self._say(m.Publish(manifest=snapshot))  # noqa: E731
        self._later(self._written - self.world.now, publish)
        self._say(begin)
        if self.seeding:
            self._later(delay(0.0, 0.1), lambda: self._offer(begin))

    def _offer(self, begin: m.BeginStep) -> None:
        if begin.step == self.step:
            self.engine.offer(begin.version, begin.params_digest)

    def _finished(self, result: m.FinishedRollout) -> None:
        if result.step != self.step:
            raise AssertionError(f"a rollout of step {result.step} in step {self.step}")
        digest = self.begin.params_digest
        whole = length(digest, result.step, result.sample)
        tokens = [token(digest, result.step, result.sample, i) for i in range(whole)]
        assert m.unpack_tokens(result.tokens).tolist() == tokens
        assert m.unpack_logprobs(result.logprobs).tolist() == [logprob(t) for t in tokens]
        assert result.versions == ((self.step, whole),)
        assert result.sample not in self.results, "delivered twice"
        self.results[result.sample] = result
        if len(self.results) == self.prompts * 2:
            wait = self.world.random.uniform(0.0, 0.5)
            trained = m.StepTrained(
                step=self.step, train_wait_seconds=wait, train_seconds=wait + 0.1
            )
            self._later(wait, lambda: self._say(trained))

    def _reported(self, report: m.StepReport) -> None:
        assert report.step == self.step
        delivered = sum(len(r.tokens) // 4 for r in self.results.values())
        assert report.tokens_delivered == delivered
        assert report.tokens_generated == delivered + report.tokens_lost
        assert report.tokens_generated == report.tokens_reserved + report.tokens_preemptible
        self.reports.append(report)
        step = self.step
        self._later(self.world.random.uniform(0.0, 0.5), lambda: self._commit(step))
        self.step += 1
        if self.step < self.num_steps:
            self._begin()
        else:
            self.done = True

    def _commit(self, step: int) -> None:
        self._durable = step
        self._say(m.StepCommitted(step=step))
        if self.done and step == self.num_steps - 1:
            self._say(m.EndRun(reason="done"))

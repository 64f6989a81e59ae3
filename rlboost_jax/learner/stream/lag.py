"""Which version samples which batch, which batches begin ahead, and what is kept for them.

With `algorithm.lag = k` batch b is sampled from version max(0, b - k), which is known beforehand:
so the next k batches are open while one is trained on, and everything repeats as without lag.
With k = 0 a batch is begun when the one before it is trained, from the version that this made.

No clock, no I/O: the training loop and the simulator's learner ask the same record.

    lag=1   version      0        1        2
            samples   0, 1        2        3
            batch        0        1        2     is trained on, while the next one is generated
"""

from dataclasses import dataclass

from rlboost_jax.sequences.identities import Batch, Version
from rlboost_jax.settings.run_config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Lag:
    """Lag between versions and batches of one run.

    Attributes:
        versions: between the version that samples a batch and the batch; k.
        num_batches: of the run.
        stride: prompts of the stream that each batch has to itself, used or not; 0: a batch begins
            where the one before it ended.
    """

    versions: int
    num_batches: int
    stride: int = 0

    def version_of(self, batch: Batch) -> Version:
        """Version that samples the batch."""
        return Version(max(0, batch - self.versions))

    def open_at(self, oldest: Batch) -> tuple[Batch, ...]:
        """Batches that are open while `oldest` is trained on."""
        last = min(oldest + self.versions + 1, self.num_batches)
        return tuple(map(Batch, range(oldest, last)))

    def cursor(self, batch: Batch, *, oldest: Batch, used: int) -> int:
        """Place in the prompt stream where a batch begins.

        Args:
            used: prompts of the stream before `oldest`, the batch that is trained on.
        """
        return used + (batch - oldest) * self.stride

    def used(self, prompts: int) -> int:
        """Prompts of the stream that a batch uses up, `prompts` of which it asked for."""
        return self.stride or prompts

    def samples(self, version: Version) -> bool:
        """Whether any batch of the run is sampled from this version."""
        return version == 0 or version + self.versions < self.num_batches

    def kept_at(self, oldest: Batch) -> tuple[Version, ...]:
        """Versions older than the newest that open batches are sampled from, or will be.

        Also at the end of a run, which may be made longer.
        """
        return tuple(map(Version, range(self.version_of(oldest), oldest)))

    def measured_by(self, batch: Batch) -> Version | None:
        """Version that can be evaluated beside a batch.

        It is the one that samples the batch, if no batch before it was sampled from that too.
        """
        version = self.version_of(batch)
        return version if batch == 0 or version != self.version_of(Batch(batch - 1)) else None


def lag_of(run: RunConfig) -> Lag:
    """Lag of a run.

    With a lag the next batch begins before it is known how many prompts dynamic sampling takes of
    this one, so each batch has as many to itself as it may take at most.
    """
    algorithm, prompts = run.algorithm, run.learner.prompts_per_step
    stride = 0
    if algorithm.lag:
        factor = algorithm.dynamic_sampling_factor if algorithm.dynamic_sampling else 1.0
        stride = int(prompts * factor)
    return Lag(versions=algorithm.lag, num_batches=run.num_steps, stride=stride)

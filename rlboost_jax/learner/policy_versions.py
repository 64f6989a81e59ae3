"""A policy version's way: from the learner's state to the host, to disk, and to engines.

`publish` copies the parameters and names them by their digest; the followers write their shares
meanwhile. A run with a lag keeps them for later batches. Then the publisher writes a snapshot and
announces it, unless no batch and no evaluation is sampled from the version.
"""

from rlboost_jax.learner.session import Session
from rlboost_jax.learner.stream.lag import Lag
from rlboost_jax.models.params import Params
from rlboost_jax.observe.span_recorder import LEARNER_LANE, traced
from rlboost_jax.sequences.identities import Batch, Version


class PolicyVersions:
    """The newest version of a run, and the older ones that open batches are sampled from.

    Attributes:
        newest: its number.
        digest: of its parameters.
        whole: a copy of them on the host; None where no process has them all.
    """

    newest = Version(-1)
    digest = ""
    whole: Params | None = None

    def __init__(self, session: Session, lag: Lag) -> None:
        self._session, self._lag, self._kept = session, lag, session.kept
        self._spans, self._shardings = session.spans, session.learner.policy.shardings.params
        evaluated = session.run.evaluation.every_steps > 0
        self._evaluated_last = Version(session.run.num_steps) if evaluated else None

    @traced("copy parameters", LEARNER_LANE)
    def publish(self, version: Version, params: Params) -> float:
        """Make a version the newest, and publish it if anything is sampled from it.

        Returns:
            seconds that the copy took; the digest and the disk are beside the point.
        """
        session, followers = self._session, self._session.followers
        since = session.clock()
        host_params = followers.host_copy(params)
        seconds = session.clock() - since
        needed = self._lag.samples(version) or version == self._evaluated_last
        if needed:
            followers.write(str(version))
        base = session.base.digest if session.base else ""
        self.digest = followers.digest(params, host_params, str(version), base=base)
        self.newest, self.whole = version, followers.whole(host_params)
        older = self._lag.kept_at(Batch(version))
        followers.keep(version, self.digest, older)
        self._kept.forget(older)
        dtype = session.run.weights.rollout_dtype
        self._kept.keep(version, params, self.digest, dtype=dtype, host_copy=self.whole)
        if needed:
            self._submit(version, host_params, oldest_batch=Batch(version))
        return seconds

    def publish_kept(self, oldest: Batch) -> None:
        """Publish the kept versions again: a resumed run may find no snapshot of them."""
        followers = self._session.followers
        for version in filter(self._lag.samples, self._lag.kept_at(oldest)):
            followers.write(str(version))
            params = self._kept.on_devices(version, self._shardings)
            self._submit(version, followers.host_copy(params), oldest_batch=oldest)

    def load(self, params: Params) -> None:
        """Load the newest version into the trainer's own engines."""
        self._session.load(params, self.newest, self.digest)

    def sampler(self, version: Version) -> Params | None:
        """Parameters of a version on the devices; None: it is the newest, those of the state."""
        return self._kept.sampler(version, self.newest, self._shardings)

    def digest_of(self, version: Version) -> str:
        return self.digest if version == self.newest else self._kept.digest(version)

    def older_digests(self, oldest: Batch) -> dict[str, str]:
        """Digests of the older versions that a checkpoint before a batch takes along."""
        return self._kept.digests(self._lag.kept_at(oldest))

    def older_trees(self, oldest: Batch) -> dict[str, Params]:
        """Parameters of the same versions."""
        return self._kept.trees(self._lag.kept_at(oldest), self._shardings)

    def _submit(self, version: Version, host_params: Params, *, oldest_batch: Batch) -> None:
        self._session.publisher.submit(
            version,
            host_params,
            self.digest_of(version),
            oldest=self._lag.version_of(oldest_batch),
        )

"""Parameters a server holds, those announced to it, and its progress with them."""

import math

from rlboost_jax.messages import BeginBatch, Manifest
from rlboost_jax.sequences.identities import Version


class Parameters:
    """Parameters of a server: held, announced, and being loaded.

    Attributes:
        announced: the newest version that was announced to it; None: none was.
        version: that it holds; None: none yet.
        digest: of the parameters it holds; "" once others were announced.
        prefetched: that it was to fetch beforehand; None: none.
        progress_at: of its last sign of progress with what was announced, a byte or a rejection;
            inf: it holds that, or has not renewed its lease since. Another announcement is none.
    """

    __slots__ = ("_paid_version", "_pulled_bytes", "announced", "digest", "prefetched",
                 "progress_at", "version")  # fmt: skip

    def __init__(self) -> None:
        self.announced: Manifest | None = None
        self.version: Version | None = None
        self.digest = ""
        self.prefetched: Manifest | None = None
        self.progress_at = math.inf
        self._paid_version = -1  # the newest that it was charged for pulling
        self._pulled_bytes = 0

    def are(self, named: Manifest | BeginBatch) -> bool:
        """Whether the server holds exactly these parameters."""
        return self.version == named.version and self.digest == named.params_digest

    def announce(self, manifest: Manifest, *, held: bool, back: bool) -> None:
        """Record an announcement.

        The version counts as being loaded: which parameters the server holds is known again when it
        reports them.

        Args:
            held: it has just these, and says so already.
            back: to an older version, whatever was paid for since: it has to be pulled again.
        """
        self.announced = manifest
        if back:
            self._paid_version = min(self._paid_version, manifest.version - 1)
        if held:
            self.progress_at = math.inf
        else:
            self.digest = ""

    def prefetch(self, manifest: Manifest) -> None:
        """Record a version that the server fetches while it works."""
        self.prefetched = manifest

    def loaded(self, version: Version, digest: str) -> None:
        """Record that the engine has loaded these parameters."""
        self.version, self.digest, self.progress_at = version, digest, math.inf

    def renewed(self, pulled_bytes: int, now: float) -> None:
        """Record a renewal, with the bytes pulled in all."""
        more, self._pulled_bytes = pulled_bytes > self._pulled_bytes, pulled_bytes
        if self.announced is None or self.are(self.announced):
            self.progress_at = math.inf
        elif more or self.progress_at == math.inf:
            self.progress_at = now

    def rejected(self, now: float) -> None:
        """Record that the server rejected what was announced; it will try again."""
        if self.progress_at < math.inf:
            self.progress_at = now

    def forgive(self, seconds: float, now: float) -> None:
        """Move timestamps forward by a time in which this manager could not hear it."""
        if self.progress_at < math.inf:
            self.progress_at = min(now, self.progress_at + seconds)

    @property
    def staying(self) -> bool:
        """Whether the server is not switching to another version."""
        return self.announced is None or self.announced.version == self.version

    def awaits(self, version: Version) -> bool:
        """Whether the server holds this version or is switching to it."""
        return self.announced is not None and self.announced.version == version

    def pay(self, version: Version) -> bool:
        """Whether to charge for this version: each once, and none after a newer one."""
        if version <= self._paid_version:
            return False
        self._paid_version = version
        return True

"""Which parameters a server holds, and which were announced to it."""

from rlboost_jax.messages import BeginBatch, Manifest
from rlboost_jax.sequences.identities import Version


class Parameters:
    """
    Attributes:
        announced: the newest version that was announced to it; None: none was.
        version: that it holds; None: none yet.
        digest: of the parameters it holds; "" once others were announced.
        prefetched: that it was to fetch beforehand; None: none.
    """

    __slots__ = ("_paid_version", "announced", "digest", "prefetched", "version")

    def __init__(self) -> None:
        self.announced: Manifest | None = None
        self.version: Version | None = None
        self.digest = ""
        self.prefetched: Manifest | None = None
        self._paid_version = -1  # the newest that it was charged for pulling

    def are(self, named: Manifest | BeginBatch) -> bool:
        """Whether it holds just those."""
        return self.version == named.version and self.digest == named.params_digest

    def announce(self, manifest: Manifest, *, held: bool, back: bool) -> None:
        """Whatever was announced is taken for on its way into the engine: what the server holds
        is known again when it says so.

        Args:
            held: it has just these, and says so already.
            back: to an older version, whatever was paid for since: it has to be pulled again.
        """
        self.announced = manifest
        if back:
            self._paid_version = min(self._paid_version, manifest.version - 1)
        if not held:
            self.digest = ""

    def prefetch(self, manifest: Manifest) -> None:
        """It fetches this beside its work."""
        self.prefetched = manifest

    def loaded(self, version: Version, digest: str) -> None:
        """The engine has them."""
        self.version, self.digest = version, digest

    @property
    def staying(self) -> bool:
        """Whether it is not on its way to another version."""
        return self.announced is None or self.announced.version == self.version

    def awaits(self, version: Version) -> bool:
        """Whether it holds a version, or is on its way to it."""
        return self.announced is not None and self.announced.version == version

    def pay(self, version: Version) -> bool:
        """Whether a version is to be charged for: each once, and none after a newer one."""
        if version <= self._paid_version:
            return False
        self._paid_version = version
        return True

"""How a simulated server gets its weights: over the link, into its memory, into its engine."""

from collections.abc import Callable

from rlboost_jax.messages import Manifest
from rlboost_jax.simulator.surroundings import ServerSurroundings


class Pulls:
    """Transfers of weights, one at a time, and at most one version in memory."""

    def __init__(
        self,
        world: ServerSurroundings,
        load: Callable[[Manifest, float, int], None],
        *,
        dollars_per_gb: float = 0.0,
    ) -> None:
        """
        Args:
            load: (version, since when it was wanted, its bytes): into the engine.
            dollars_per_gb: of 1e9 bytes on their way here.
        """
        self._world, self._load, self._price = world, load, dollars_per_gb
        self._size = world.config.weight_bytes
        self._wanted: tuple[Manifest, float] | None = None  # to be loaded, and since when
        self._next: Manifest | None = None  # to be fetched after that
        self._coming: Manifest | None = None
        self._here: Manifest | None = None
        self._pull = 0  # over the link
        self._fetches = self._takes = 0  # begun so far: what is of an earlier one is void

    def take(self, manifest: Manifest) -> None:
        """Load a version once it has arrived, in place of any other."""
        self._takes += 1
        self._wanted = manifest, self._world.clock.now
        if manifest == self._here:
            self._load_it()
        elif manifest != self._coming:
            self._fetch(manifest)

    def prefetch(self, manifest: Manifest) -> None:
        """Fetch a version into memory during the work, after the wanted one has arrived."""
        self._next = manifest
        if self._wanted is None:
            self._fetch_next()

    def abandon(self) -> None:
        """Cancel all wanted versions."""
        self._takes += 1
        self._fetches += 1
        self._world.link.abandon(self._pull)

    def _fetch_next(self) -> None:
        manifest, self._next = self._next, None
        if manifest is not None and manifest not in (self._here, self._coming):
            self._fetch(manifest)

    def _fetch(self, manifest: Manifest) -> None:
        self._fetches += 1
        fetch, world = self._fetches, self._world
        world.link.abandon(self._pull)
        self._coming, self._here = manifest, None

        def begin() -> None:
            if fetch == self._fetches:
                self._pull = world.link.pull(self._size, arrived, dollars_per_gb=self._price)

        def arrived() -> None:
            self._coming, self._here = None, manifest
            if self._wanted is not None and self._wanted[0] == manifest:
                self._load_it()

        world.clock.after(world.config.links.latency_seconds, begin)

    def _load_it(self) -> None:
        assert self._wanted is not None
        take, (manifest, since) = self._takes, self._wanted

        def loaded() -> None:
            if take == self._takes:
                self._here = self._wanted = None
                self._load(manifest, since, int(self._size))
                self._fetch_next()

        seconds = self._size / self._world.config.links.load_bytes_per_second
        self._world.clock.after(seconds, loaded)

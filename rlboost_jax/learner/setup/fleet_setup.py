"""A trainer's side of its fleet: the manager's process, the link to it, engines and publisher."""

from collections.abc import Sequence
from contextlib import ExitStack

from rlboost_jax.learner.fleet.life import sending_home, showing_fleet
from rlboost_jax.learner.fleet.reserved import ReservedEngines, devices_of_slices
from rlboost_jax.learner.publisher import Publisher
from rlboost_jax.learner.setup.hosts import host_lines
from rlboost_jax.learner.setup.makers import Makers, SessionPlan
from rlboost_jax.learner.workdir import Workdir
from rlboost_jax.messages import TrainerHello
from rlboost_jax.observe.console import Console
from rlboost_jax.observe.profile import StepProfile
from rlboost_jax.platform import compile_cache
from rlboost_jax.platform.event_loop import EventLoopThread
from rlboost_jax.rollout.weight_updates import PullerLike
from rlboost_jax.settings.memory_estimates import learner_bytes_per_device
from rlboost_jax.trust.credentials import CredentialsUnusable
from rlboost_jax.trust.seal import sealed
from rlboost_jax.weights.compiled import FOLDER as COMPILED
from rlboost_jax.weights.compiled import offer
from rlboost_jax.weights.snapshots import SnapshotStore


class FleetSetup:
    """Set-up of what a session has of its fleet; `stack` takes down what was set up.

    Attributes:
        manager: its process; not started before `start`.
        link: to the manager.
    """

    def __init__(
        self, workdir: Workdir, stack: ExitStack, makers: Makers, console: Console, *, lag: int
    ) -> None:
        self._path, self._stack, self._makers, self._console = workdir.path, stack, makers, console
        self._thread = EventLoopThread()
        stack.callback(self._thread.close)
        self.manager = makers.manager(workdir.path, workdir.run_id)
        stack.callback(self.manager.close)
        if workdir.config_changed:
            self.manager.dismiss()  # it serves the configuration of before
        self.link = makers.link(self._thread, locate=self.manager.locate, versions=1 + lag)

    def start(self, hello: TrainerHello) -> None:
        """Start the manager and its servers, which leave when the session ends."""
        stack, link = self._stack, self.link
        stack.enter_context(sending_home(link, self.manager))
        stack.enter_context(showing_fleet(self._thread, link, self._console, self._path))
        with self._console.phase("starting the manager and its fleet"):
            link.connect(hello)

    def engines(
        self,
        plan: SessionPlan,
        profile: StepProfile,
        *,
        working_bytes: int,
        puller: PullerLike | None,
        first: int,
        num_processes: int,
    ) -> ReservedEngines:
        """Create the trainer's own engines, which begin to join the fleet.

        Args:
            working_bytes: that the learner takes on each device besides its state.
            first: the step to go on with.
        """
        with self._console.phase("compiling the engine's programs"):
            taken_bytes = learner_bytes_per_device(plan.run) + working_bytes
            with compile_cache.recorded() as programs:
                engines = [
                    self._makers.engine(plan.own, taken_bytes=taken_bytes, devices=devices)
                    for devices in devices_of_slices(plan.mesh, plan.run.engine.tensor_parallel)
                ]
        self._console.note(str(engines[0].memory))
        fingerprint = engines[0].fingerprint if plan.run.deterministic else ""
        for line in host_lines(self._path, first, fingerprint, processes=num_processes):
            self._console.note(line)
        reserved = self._makers.reserved(
            engines,
            self._thread,
            on_failure=self.link.fail,
            puller=puller,
            spans=profile.spans,
            clock=profile.clock,
        )
        self._stack.callback(reserved.close)
        reserved.connect(self.manager.locate)
        self._offer(programs)
        return reserved

    def publisher(
        self, store: SnapshotStore, profile: StepProfile, *, disk_seconds: float
    ) -> Publisher:
        """Start the writer of versions."""
        link, manager = self.link, self.manager
        publisher = Publisher(
            store,
            announce=lambda manifest: link.publish(sealed(manifest, manager.seal_key())),
            in_use=lambda: link.status.versions_in_use if link.status else (),
            report=self._console.note,
            spans=profile.spans,
            disk_seconds=disk_seconds,
        )
        self._stack.callback(publisher.close)
        return publisher

    def _offer(self, programs: Sequence[str]) -> None:
        """Offer the engine's programs to servers of the same kind; without them they compile."""
        if not programs or (cache := compile_cache.place()) is None:
            return
        try:
            folder, key = self._path / COMPILED, self.manager.seal_key()
            offer(folder, compile_cache.kind(), cache, programs, key)
        except (OSError, CredentialsUnusable) as error:
            self._console.note(f"servers compile by themselves: {error}")

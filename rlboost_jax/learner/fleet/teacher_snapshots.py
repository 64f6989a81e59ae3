"""Snapshots of teachers, for servers that are to score with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import jax
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rlboost_jax.learner.fleet.link import ManagerLink
from rlboost_jax.learner.fleet.score_requests import ScoreRequests
from rlboost_jax.messages import Manifest
from rlboost_jax.models.checkpoint_reader import read_checkpoint
from rlboost_jax.models.params import abstract_params, params_digest
from rlboost_jax.observe.console import Console
from rlboost_jax.platform.disk_thread import DiskThread
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.sequences.identities import Version
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.teacher_models import teacher_folder, teacher_model
from rlboost_jax.trust.seal import sealed
from rlboost_jax.weights.snapshots import SnapshotStore

FOLDER: Final = "teachers"  # among the snapshots of a run
FIRST: Final = 2**52  # number of the first teacher's snapshot, which no version of a policy gets to


def opened_scores(
    run: RunConfig,
    snapshots: Path,
    seal_key: Callable[[], Ed25519PrivateKey],
    link: ManagerLink,
    console: Console,
) -> ScoreRequests | None:
    """Publish the teachers, and return the questions about them; None if servers do not score.

    Args:
        snapshots: the run's folder of snapshots.
        seal_key: reads the key that manifests are sealed with.

    Raises:
        ConfigError, CheckpointUnusable, DiskStalled: see `published_teachers`.
    """
    if not run.distillation.on_servers:
        return None
    with console.phase("copying the teachers for servers"):
        manifests = published_teachers(run, snapshots, lambda each: sealed(each, seal_key()))
    link.teach(manifests)
    digests = [each.params_digest for each in manifests]
    return link.asks(run.distillation, digests, temperature=run.sampling.temperature)


def published_teachers(
    run: RunConfig, snapshots: Path, seal: Callable[[Manifest], Manifest]
) -> tuple[Manifest, ...]:
    """Write the teachers of a run to disk, in `model.dtype`, in the order of the settings.

    Each is read into the host's memory, one after the other; the trainer's devices hold none.

    Args:
        snapshots: the run's folder of snapshots.
        seal: adds the run's seal to a manifest.

    Raises:
        ConfigError, CheckpointUnusable: a checkpoint cannot be read, or not into the host's memory.
        DiskStalled: the disk gets nothing done.
    """
    teachers = run.distillation.teachers
    store = SnapshotStore(snapshots / FOLDER, dtype=run.model.dtype, keep=len(teachers))
    host = jax.sharding.SingleDeviceSharding(_host_device())
    manifests = []
    with DiskThread("teachers", stall_seconds=run.checkpoint.disk_seconds) as disk:
        for place, teacher in enumerate(teachers):
            model = teacher_model(run, teacher, weights=True)
            shardings = jax.tree.map(lambda leaf: host, abstract_params(model))
            params = read_checkpoint(
                model, teacher_folder(teacher.source), shardings=shardings, dtype=model.dtype
            )
            arrays = jax.device_get(params)
            digest = params_digest(arrays)
            size = sum(leaf.nbytes for leaf in jax.tree.leaves(arrays))
            version = Version(FIRST + place)
            writing = disk.submit(
                lambda: store.write(version, arrays, digest),  # noqa: B023  (waited for at once)
                f"teacher {place}",
                store.folder,
                size_bytes=size,
            )
            manifests.append(seal(writing.result()))
    return tuple(manifests)


def _host_device() -> jax.Device:
    """The host as a device of JAX, which has none where JAX_PLATFORMS names accelerators alone."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        asked = jax.config.values.get("jax_platforms")
        raise ConfigError(
            f"distillation.scored_by is 'servers': the trainer reads teachers into its host's "
            f"memory, and JAX_PLATFORMS is {asked!r}; set it to '{asked},cpu', or unset it"
        ) from None

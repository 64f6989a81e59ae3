"""Older versions that open batches are sampled from, kept on the host by a run with a lag.

A version is kept as servers have it, in the rollout dtype, from when it is made until no open batch
is sampled from it: for `algorithm.lag` k, k + 1 versions at most. The trainer's own engines and
checks of servers take it from here, checkpoints take the older ones along: a resumed run needs no
snapshot of before.

Of a trainer's several processes each keeps what its own devices hold, as `Share` in place of each
array. None has a version whole, so that engines pull it from its snapshot.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from rlboost_jax.learner.checkpoints.reading import CheckpointBroken
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.state import HOST_MEMORY
from rlboost_jax.learner.stream.lag import lag_of
from rlboost_jax.models.params import Params
from rlboost_jax.sequences.identities import Batch, Version
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.weights.shares import Share, as_share, from_local_parts, local_parts, stored

DIGESTS = "versions"  # in what a checkpoint holds besides arrays: digest by version


@dataclass(frozen=True, kw_only=True)
class KeptVersion:
    """An older version, kept in host memory.

    Attributes:
        params: on the host, floating-point leaves in the rollout dtype; arrays, or `local_parts`
            where other processes have the rest.
        digest: of the learner's parameters before that cast.
    """

    params: Params
    digest: str


class KeptVersions:
    """Kept versions by number. Nothing is kept before `keep`, or after `forget`.

    Large trees take a while to round, so a thread does it; a caller that wants one waits for it.
    """

    def __init__(self, kept: Mapping[Version, KeptVersion] | None = None) -> None:
        self._digests: dict[Version, str] = {}
        self._trees: dict[Version, Future[Params]] = {}
        self._placed: tuple[Version, Params] | None = None  # on the devices
        self._rounding = ThreadPoolExecutor(1, thread_name_prefix="round")
        for version, each in (kept or {}).items():
            self._digests[version], self._trees[version] = each.digest, Future()
            self._trees[version].set_result(each.params)

    def __len__(self) -> int:
        return len(self._trees)

    def __iter__(self) -> Iterator[Version]:
        return iter(sorted(self._trees))

    def keep(
        self,
        version: Version,
        params: Params,
        digest: str,
        *,
        dtype: str,
        host_copy: Params | None = None,
    ) -> None:
        """Keep a version.

        Args:
            params: on the devices.
            dtype: the rollout dtype.
            host_copy: of all of them, where this process has made one; nobody changes it.
        """
        here = held_here(params) if host_copy is None else host_copy
        self._digests[version] = digest
        self._trees[version] = self._rounding.submit(rounded, here, dtype)

    def forget(self, needed: Collection[Version]) -> None:
        """Drop all versions but these."""
        for version in self._trees.keys() - set(needed):
            del self._trees[version], self._digests[version]

    def params(self, version: Version) -> Params:
        """Parameters of a version, as in `KeptVersion`."""
        return self._trees[version].result()

    def digest(self, version: Version) -> str:
        return self._digests[version]

    def digests(self, versions: Iterable[Version]) -> dict[str, str]:
        """Digests by version number as a string, for JSON."""
        return {str(version): self._digests[version] for version in versions}

    def on_devices(self, version: Version, shardings: Params) -> Params:
        """Copy a version to the devices, replacing the one requested before."""
        if self._placed is None or self._placed[0] != version:
            self._placed = None  # room for the next
            self._placed = version, jax.tree.map(_placed, self.params(version), shardings)
        return self._placed[1]

    def sampler(self, version: Version, newest: Version, shardings: Params) -> Params | None:
        """A version on the devices; None: it is the newest, which is there already."""
        if version != newest:
            return self.on_devices(version, shardings)
        self._placed = None
        return None

    def trees(self, versions: Iterable[Version], shardings: Params) -> dict[str, Params]:
        """Arrays for a checkpoint, by version; empty where there are none.

        All are in host memory. Where other processes have the rest of them, every one of these
        calls this, and saves what it returns.

        Args:
            shardings: of the parameters on the devices.
        """

        def array(leaf: Any, sharding: Any) -> Any:
            if not isinstance(leaf, Share):
                return leaf
            return from_local_parts(leaf, sharding.with_memory_kind(HOST_MEMORY))

        return {
            str(version): jax.tree.map(array, self.params(version), shardings)
            for version in versions
        }


class NoKeptVersions(KeptVersions):
    """The older versions of a run without a lag, whose batches are of the newest: none."""

    def keep(self, *_: Any, **__: Any) -> None:
        """Keep nothing."""


def held_here(params: Params) -> Params:
    """Copy parameters from the devices in the form of `KeptVersion`, not rounded yet."""
    if all(leaf.is_fully_addressable for leaf in jax.tree.leaves(params)):
        copy: Params = jax.device_get(params)
        return copy
    return local_parts(params)


def rounded(host_params: Params, dtype: str) -> Params:
    """Cast floating-point leaves to `dtype`, as a snapshot has them."""
    floats = np.dtype(dtype)

    def cast(leaf: Any) -> Any:
        kind = stored(as_share(leaf), floats)
        if not isinstance(leaf, Share):
            return np.asarray(leaf).astype(kind, copy=False)
        parts = {place: part.astype(kind, copy=False) for place, part in leaf.parts.items()}
        return replace(leaf, dtype=kind, parts=parts)

    return jax.tree.map(cast, host_params)


def _placed(leaf: Any, sharding: Any) -> jax.Array:
    if isinstance(leaf, Share):
        return from_local_parts(leaf, sharding)
    return jax.device_put(leaf, sharding)


def restored_versions(
    checkpoints: Checkpoints,
    step: int,
    extra: Mapping[str, Any],
    params: Params,
    run: RunConfig,
) -> KeptVersions:
    """Read the older versions of a checkpoint. Every process of a trainer calls this.

    Args:
        extra: what the checkpoint holds besides arrays.
        params: the learner's, of the same shapes and shardings.

    Raises:
        CheckpointBroken: they cannot be read, or are not those that open batches are sampled from.
    """
    digests = extra.get(DIGESTS) or {}
    needed = lag_of(run).kept_at(Batch(step))
    if sorted(digests) != sorted(map(str, needed)):
        raise CheckpointBroken(
            f"checkpoint {step} in {checkpoints.folder} has the older versions "
            f"{', '.join(sorted(digests)) or 'none'}, and its open batches are sampled from "
            f"{', '.join(map(str, needed)) or 'none'}; take another, or remove this one"
        )
    if not run.algorithm.lag:
        return NoKeptVersions()
    if not digests:
        return KeptVersions()
    floats = np.dtype(run.weights.rollout_dtype)

    def as_kept(leaf: Any) -> Any:
        kept = stored(as_share(np.empty(0, leaf.dtype)), floats)
        return jax.ShapeDtypeStruct(leaf.shape, kept, sharding=leaf.sharding)

    one = jax.tree.map(as_kept, params)
    trees = checkpoints.restore_versions(step, dict.fromkeys(digests, one))
    return KeptVersions(
        {
            Version(int(name)): KeptVersion(params=held_here(trees[name]), digest=digest)
            for name, digest in digests.items()
        }
    )

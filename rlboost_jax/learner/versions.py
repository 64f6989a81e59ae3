"""Older versions that open batches are sampled from: what a run with a lag keeps on the host.

A version is kept as servers have it, in the rollout dtype, from when it is made until no open batch
is sampled from it: for `algorithm.lag` k, k + 1 versions at most. The trainer's own engines and
checks of servers take it from here, checkpoints take the older ones along: a resumed run needs no
snapshot of before.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from rlboost_jax.learner.checkpoints import Checkpoints
from rlboost_jax.messages import Manifest
from rlboost_jax.models.adapters import joined
from rlboost_jax.models.params import Params
from rlboost_jax.sequences.identities import Version
from rlboost_jax.weights.names import WeightsError
from rlboost_jax.weights.pull import Pulled
from rlboost_jax.weights.shares import as_share, stored

DIGESTS = "versions"  # in what a checkpoint holds besides arrays: digest by version


@dataclass(frozen=True, kw_only=True)
class KeptVersion:
    """
    Attributes:
        params: on the host, floating-point leaves in the rollout dtype.
        digest: of the learner's parameters before that cast.
    """

    params: Params
    digest: str


class Versions:
    """By number. Nothing is kept before `keep`, or after `forget`.

    Large trees take a while to round, so a thread does it; whoever wants one waits for it.
    """

    def __init__(self, kept: Mapping[Version, KeptVersion] | None = None) -> None:
        self._digests: dict[Version, str] = {}
        self._trees: dict[Version, Future[Params]] = {}
        self._rounding = ThreadPoolExecutor(1, thread_name_prefix="round")
        for version, each in (kept or {}).items():
            self._digests[version], self._trees[version] = each.digest, Future()
            self._trees[version].set_result(each.params)

    def __len__(self) -> int:
        return len(self._trees)

    def __iter__(self) -> Iterator[Version]:
        return iter(sorted(self._trees))

    def keep(self, version: Version, host_params: Params, digest: str, *, dtype: str) -> None:
        """Keep a version.

        Args:
            host_params: arrays in host memory, which nobody changes.
            dtype: the rollout dtype.
        """
        self._digests[version] = digest
        self._trees[version] = self._rounding.submit(rounded, host_params, dtype)

    def forget(self, needed: Collection[Version]) -> None:
        """All but these."""
        for version in self._trees.keys() - set(needed):
            del self._trees[version], self._digests[version]

    def params(self, version: Version) -> Params:
        return self._trees[version].result()

    def digest(self, version: Version) -> str:
        return self._digests[version]

    def digests(self, versions: Iterable[Version]) -> dict[str, str]:
        """As JSON has them."""
        return {str(version): self._digests[version] for version in versions}

    def trees(self, versions: Iterable[Version]) -> dict[str, Params]:
        """A tree of arrays for a checkpoint; empty where there are none."""
        return {str(version): self.params(version) for version in versions}


class AtHand:
    """What the trainer's own engines pull from in place of snapshots."""

    def __init__(self, versions: Versions, base: Params | None) -> None:
        """
        Args:
            base: of the adapters, where these are what a version has.
        """
        self._versions, self._base = versions, base

    async def pull(self, manifest: Manifest) -> Pulled:
        """Raises WeightsError: these parameters are not kept, or not any more."""
        version = manifest.version
        try:
            digest = self._versions.digest(version)
            params = await asyncio.to_thread(self._versions.params, version)
        except KeyError:
            raise WeightsError(f"version {version} is kept no longer") from None
        if digest != manifest.params_digest:
            raise WeightsError(f"version {version} is kept with other parameters")
        return Pulled(params=joined(self._base, params), fetched_bytes=0)


def rounded(host_params: Params, dtype: str) -> Params:
    """Floating-point leaves in `dtype`, as a snapshot has them."""
    floats = np.dtype(dtype)
    return jax.tree.map(
        lambda leaf: np.asarray(leaf).astype(stored(as_share(leaf), floats), copy=False),
        host_params,
    )


def restored_versions(
    checkpoints: Checkpoints, step: int, extra: Mapping[str, Any], params: Params, *, dtype: str
) -> dict[Version, KeptVersion]:
    """Those of a checkpoint; none where it has none.

    Args:
        extra: what the checkpoint holds besides arrays.
        params: the learner's, of the same shapes and shardings.
        dtype: the rollout dtype.

    Raises:
        CheckpointBroken: they cannot be read.
    """
    digests = extra.get(DIGESTS) or {}
    if not digests:
        return {}
    floats = np.dtype(dtype)

    def as_kept(leaf: Any) -> Any:
        kept = stored(as_share(np.empty(0, leaf.dtype)), floats)
        return jax.ShapeDtypeStruct(leaf.shape, kept, sharding=leaf.sharding)

    one = jax.tree.map(as_kept, params)
    trees = checkpoints.restore_versions(step, dict.fromkeys(digests, one))
    return {
        Version(int(name)): KeptVersion(params=jax.device_get(trees[name]), digest=digest)
        for name, digest in digests.items()
    }

"""The trainer's own engines and their parameters: which way a version reaches them.

without a lag, one process   `load` hands the newest version from device to device
without a lag, several       `load` reads the newest version from its snapshot: nobody has it whole
with a lag, one process      they pull what the manager announces from the kept versions
with a lag, several          they pull what it announces from snapshots
"""

import asyncio
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from rlboost_jax.learner.checkpoints.base import Base
from rlboost_jax.learner.fleet.reserved import ReservedEngines
from rlboost_jax.learner.kept_versions import KeptVersions
from rlboost_jax.learner.publisher import Publisher
from rlboost_jax.messages import Manifest
from rlboost_jax.models.adapters import joined
from rlboost_jax.models.params import Params
from rlboost_jax.rollout.weight_updates import PullerLike
from rlboost_jax.sequences.identities import Version
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.arrivals import ByteCounter
from rlboost_jax.weights.layer_feed import Begin
from rlboost_jax.weights.pull import Pulled, Puller

Load = Callable[[Params, Version, str], None]  # parameters on the devices, their version and digest


def puller_of(
    lag: int, num_processes: int, kept: KeptVersions, base: Base | None
) -> PullerLike | None:
    """Return what engines pull announced versions from; None: `load_of` hands them each."""
    if not lag:
        return None
    if num_processes > 1:
        return SharedPull(Puller(source="directory", manager=None))
    return KeptVersionSource(kept, base.params if base else None)


def load_of(
    lag: int,
    num_processes: int,
    reserved: ReservedEngines,
    publisher: Publisher,
    base: Base | None,
) -> Load:
    """Return the function that loads the newest version into the engines."""
    if lag:
        return pulled_as_announced
    if num_processes > 1:
        return lambda _, version, digest: reserved.load(publisher.open(version), version, digest)
    return from_devices(reserved, base)


def pulled_as_announced(params: Params, version: Version, digest: str) -> None:
    """Do nothing: with a lag, engines take what the manager announces to each."""


def from_devices(reserved: ReservedEngines, base: Base | None = None) -> Load:
    """Return the function that hands parameters from device to device."""
    frozen = base.params if base else None
    return lambda params, version, digest: reserved.load(joined(frozen, params), version, digest)


class KeptVersionSource:
    """Source of kept versions, which the trainer's own engines pull in place of snapshots."""

    def __init__(self, versions: KeptVersions, base: Params | None) -> None:
        """
        Args:
            base: of the adapters, where these are what a version has.
        """
        self._versions, self._base = versions, base
        self.pulled = ByteCounter()  # nothing comes over a line

    async def pull(self, manifest: Manifest, begin: Begin | None = None) -> Pulled:
        """Return a kept version, whole. Raises WeightsError if it is not kept, or no longer."""
        version = manifest.version
        try:
            digest = self._versions.digest(version)
            params = await asyncio.to_thread(self._versions.params, version)
        except KeyError:
            raise WeightsError(f"version {version} is kept no longer") from None
        if digest != manifest.params_digest:
            raise WeightsError(f"version {version} is kept with other parameters")
        return Pulled(params=joined(self._base, params), fetched_bytes=0)


class SharedPull:
    """Source of snapshots for several engines, which have in memory once what all want at once."""

    def __init__(self, puller: PullerLike) -> None:
        self._puller, self._one, self.pulled = puller, asyncio.Lock(), puller.pulled
        self._pulled: WeakValueDictionary[tuple[Version, str], Any] = WeakValueDictionary()

    async def pull(self, manifest: Manifest, begin: Begin | None = None) -> Any:
        """Pull a version, or join a pull of it, whole. Raises WeightsError."""
        key = (manifest.version, manifest.params_digest)
        async with self._one:
            pulled = self._pulled.get(key)
            if pulled is None:
                pulled = self._pulled[key] = await self._puller.pull(manifest)
            return pulled

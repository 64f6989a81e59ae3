"""A mixture of data sets: each entry of `data.mixture` is a data set of its own."""

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import PurePath
from typing import Final, NamedTuple

from rlboost_jax.settings.data_config import MixtureConfig
from rlboost_jax.settings.run_config import RunConfig

OF_ENTRIES: Final = tuple(  # what each entry says of its rows, by the names that `data` has
    field.name
    for field in fields(MixtureConfig)
    if field.name not in ("name", "weight", "heldout_weight")
)


class MixturePart(NamedTuple):
    """A data set of a mixture.

    Attributes:
        name: by which metrics, records and rewards (`data_source`) know it.
        weight: its share of the prompts is this by the sum of all weights. 0: it is only evaluated.
        heldout_weight: the same of held-out prompts. 0: it is only trained on.
        run: the run as it would be on this data set alone.
    """

    name: str
    weight: float
    heldout_weight: float
    run: RunConfig


def parts_of(run: RunConfig) -> tuple[MixturePart, ...]:
    """The data sets of a run's mixture, in their order."""
    return tuple(_part(run, entry) for entry in run.data.mixture)


def allotted(count: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Split `count` into whole parts by weight, each positive weight getting one if possible."""
    whole = math.fsum(weights)
    if not whole:
        return (0,) * len(weights)
    exact = [count * weight / whole for weight in weights]
    found = [math.floor(share) for share in exact]
    by_rest = sorted(range(len(exact)), key=lambda k: (found[k] - exact[k], k))
    for place in by_rest[: count - sum(found)]:
        found[place] += 1
    for place, weight in enumerate(weights):
        if weight and not found[place] and max(found) > 1:
            found[found.index(max(found))] -= 1
            found[place] = 1
    return tuple(found)


def _part(run: RunConfig, entry: MixtureConfig) -> MixturePart:
    data = replace(run.data, mixture=(), **{name: getattr(entry, name) for name in OF_ENTRIES})
    heldout_weight = entry.heldout_weight
    if heldout_weight is None:
        heldout_weight = entry.weight or 1.0
    if not entry.weight:
        data = replace(data, heldout_share=1.0)
    if not heldout_weight:
        data = replace(data, heldout_share=0.0)
        run = replace(run, evaluation=replace(run.evaluation, every_steps=0))
    return MixturePart(_name(entry), entry.weight, heldout_weight, replace(run, data=data))


def _name(entry: MixtureConfig) -> str:
    """Name of a data set: its own, or the preset's, or the file's without endings."""
    return entry.name or entry.preset or PurePath(entry.source).name.partition(".")[0]

"""A mixture of data sets: each entry of `data.mixture` is a data set of its own."""

import dataclasses
import math
from pathlib import PurePath
from typing import Final, NamedTuple

from rlboost_jax.settings.data import DataConfig, MixtureConfig
from rlboost_jax.settings.run import RunConfig

OF_ENTRIES: Final = tuple(  # what each entry says of its rows, by the names that `data` has
    field.name
    for field in dataclasses.fields(MixtureConfig)
    if field.name not in ("name", "weight")
)


class Part(NamedTuple):
    """A data set of a mixture.

    Attributes:
        name: by which metrics, records and rewards (`data_source`) know it.
        weight: its share of the prompts is this by the sum of all weights.
        run: the run as it would be on this data set alone.
    """

    name: str
    weight: float
    run: RunConfig


def parts_of(run: RunConfig) -> tuple[Part, ...]:
    """The data sets of a run's mixture, in their order."""
    return tuple(
        Part(_name(entry), entry.weight, dataclasses.replace(run, data=_data(run.data, entry)))
        for entry in run.data.mixture
    )


def allotted(count: int, weights: tuple[float, ...]) -> tuple[int, ...]:
    """`count` in whole parts by weight: none is off by one, and each has one if there is enough."""
    whole = math.fsum(weights)
    exact = [count * weight / whole for weight in weights]
    found = [math.floor(share) for share in exact]
    by_rest = sorted(range(len(exact)), key=lambda k: (found[k] - exact[k], k))
    for place in by_rest[: count - sum(found)]:
        found[place] += 1
    for place, share in enumerate(found):
        if not share and max(found) > 1:
            found[found.index(max(found))] -= 1
            found[place] = 1
    return tuple(found)


def _data(data: DataConfig, entry: MixtureConfig) -> DataConfig:
    own = {name: getattr(entry, name) for name in OF_ENTRIES}
    return dataclasses.replace(data, mixture=(), **own)


def _name(entry: MixtureConfig) -> str:
    """Its own, or the preset's, or the file's without endings."""
    return entry.name or entry.preset or PurePath(entry.source).name.partition(".")[0]

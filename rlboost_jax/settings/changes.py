"""What of a run may change once it has begun, and the record of what was changed, step by step.

Which settings these are they say themselves (`may_change` in `setting.py`). A run's configuration
is the newest; each change in the record has the step from which on it holds and the value of
before, so that the settings of any step follow from both. Steps that are done again, after a
checkpoint was found broken, are done with the settings that they had.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.setting import settings_of

# Where the learner's arrays lie and how its rows are cut: another sum of gradients, of equal terms.
LAYOUT: Final = tuple(
    f"learner.{name}"
    for name in ("pack_rows", "row_lengths", "pack_tokens", "mesh", "remat", "moment_memory")
)


class Difference(NamedTuple):
    name: str  # dotted, as on the command line after `--config.`
    first: object
    second: object

    def __str__(self) -> str:
        return f"{self.name}: {_written(self.first)} → {_written(self.second)}"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of a run had another value from a step on. Values are JSON's."""

    step: int  # the first with the value
    name: str
    before: Any
    value: Any

    def __str__(self) -> str:
        return f"step {self.step}: {self.name} {shown(self.before)} → {shown(self.value)}"


def differences(first: RunConfig, second: RunConfig) -> tuple[Difference, ...]:
    """List the settings in which two configurations differ."""
    pairs = zip(_fields(first, ""), _fields(second, ""), strict=True)
    return tuple(Difference(name, one, other) for (name, one), (_, other) in pairs if one != other)


def foreign(before: RunConfig, now: RunConfig) -> tuple[Difference, ...]:
    """List the differences that a run which has begun cannot adopt."""
    changeable = {each.name for each in settings_of(RunConfig) if each.may_change != "never"}
    return tuple(each for each in differences(before, now) if each.name not in changeable)


def unlike_warmed(before: RunConfig, now: RunConfig) -> bool:
    """Whether the new settings would have given a warm-up that ended in other bits."""
    return now.warmup.any and any(d.name in LAYOUT for d in differences(before, now))


def recorded(
    changes: Iterable[Change],
    before: RunConfig,
    now: RunConfig,
    *,
    step: int,
    again: Collection[str] = (),
) -> tuple[Change, ...]:
    """Return the record of changes for a run that goes on from `step` with settings `now`.

    What is changed here holds from this step to the end: a change of the same setting that was
    recorded for a later step is of steps which are not there any more. Nothing is recorded of
    step 0, which the run begins with; but its layout, where a warm-up came before.

    Args:
        before: the newest settings that the record is of.
        again: names of settings that hold from this step as they are now, changed here or not.
    """
    old, new = (
        msgspec.json.decode(msgspec.json.encode(each))  # noqa: TID251  (text of our own)
        for each in (before, now)
    )
    names = {each.name for each in differences(before, now)} | set(again)
    known, warmed = list(changes), LAYOUT if now.warmup.any else ()
    kept = [each for each in known if each.name not in names or each.step < step]
    for name in names:
        later = (each.before for each in known if each.name == name and each.step >= step)
        was, value = next(later, _value(old, name)), _value(new, name)
        if (step or name in warmed) and was != value:
            kept.append(Change(step=step, name=name, before=was, value=value))
    order = {each.name: index for index, each in enumerate(settings_of(RunConfig))}
    return tuple(sorted(kept, key=lambda each: (each.step, order.get(each.name, -1))))


def settings_at(run: RunConfig, changes: Iterable[Change], step: int) -> RunConfig:
    """Return the settings that a step has. What takes effect at once has its newest value.

    Args:
        run: the newest settings.
    """
    values, known = msgspec.to_builtins(run), _from_their_step()
    for change in sorted(changes, key=lambda each: each.step, reverse=True):
        if change.step > step and change.name in known:
            section, name = _place(values, change.name)
            section[name] = change.before
    return msgspec.convert(values, RunConfig)


def next_change(changes: Iterable[Change], step: int) -> int | None:
    """Return the first step after `step` whose settings differ from those of the step before."""
    known = _from_their_step()
    return min((e.step for e in changes if e.step > step and e.name in known), default=None)


def lines(changes: Sequence[Change], *, step: int) -> Iterator[str]:
    """What takes effect at a step, for a person."""
    here = [each for each in changes if each.step == step]
    for change in here:
        yield f"changed from step {step} on: {change.name} {shown(change.before)} → " + shown(
            change.value
        )
    if any(each.name in LAYOUT for each in here):
        yield (
            f"the state of step {step} has the bits that were saved; updates from there on may "
            "differ by rounding from those of the layout before"
        )


def shown(value: Any) -> str:
    """Format a JSON value as one would write it in a configuration."""
    return repr(tuple(value) if isinstance(value, list) else value)


def _written(value: object) -> str:
    """Format a setting as a configuration has it: records as dictionaries, without defaults."""
    if isinstance(value, tuple):
        inner = ", ".join(map(_written, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if not dataclasses.is_dataclass(value):
        return repr(value)
    every = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
    return repr({field.name: one for field, one in every if one != _default(field)})


def _default(field: dataclasses.Field[Any]) -> object:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def _from_their_step() -> frozenset[str]:
    every = settings_of(RunConfig)
    return frozenset(each.name for each in every if each.may_change == "from its step")


def _fields(record: Any, prefix: str) -> Iterator[tuple[str, object]]:
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if dataclasses.is_dataclass(value):
            yield from _fields(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value


def _place(values: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    *sections, last = name.split(".")
    for section in sections:
        values = values[section]
    return values, last


def _value(values: Mapping[str, Any], name: str) -> Any:
    section, last = _place(dict(values), name)
    return section[last]

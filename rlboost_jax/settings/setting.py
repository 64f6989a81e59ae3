"""What a setting is. Each stands once, as a field of a record, and all else is made from it.

The field says name, type, default, range, unit and meaning; a choice is a `Literal` type, or a key
of a table. Made from it: the configuration that a run begins with (`configs/base.py`), checks of
ranges (`ranges.py`), what may change in a run that has begun (`changes.py`),
`docs/reference/settings.md` and `--explain` (`explain.py`).
"""

import dataclasses
import functools
import typing
from collections.abc import Iterator
from typing import Any, Final, Literal

_KEY: Final = "setting"
_SECTION: Final = "section"
_UNITS: Final = {  # by the end of a name
    "_seconds": "s",
    "_tokens": "tokens",
    "_mb": "MiB",
    "_steps": "steps",
    "_per_minute": "1/min",
    "_per_hour": "$/h",
    "_per_gb": "$/GB",
}


# Whether a run that has begun may go on with another value. What reaches no update takes effect at
# once; all else from the step on that the run goes on with, also when steps are done again.
MayChange = Literal["never", "at once", "from its step"]


class FromPreset:
    """The default of a setting that `algorithm.name` decides on."""

    def __repr__(self) -> str:
        return "the preset's"


FROM_PRESET: Final = FromPreset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting, as its field says.

    Attributes:
        name: dotted, as on the command line after `--config.`.
        kind: its type.
        default: a value of that type, or FROM_PRESET.
        meaning: one line.
        note: what else is to be known, sentences.
        at_least, above, at_most: limits that hold by themselves; None: no such limit.
        choices: all values there are; () for any.
        outside: "package.module:function" is a value, too.
        entry_points: group of entry points whose names are values, too; "": none.
        may_change: in a run that has begun.
    """

    name: str
    kind: Any
    default: Any
    meaning: str
    unit: str = ""
    note: str = ""
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    outside: bool = False
    entry_points: str = ""
    may_change: MayChange = "never"


def setting(
    default: Any,
    meaning: str,
    *,
    unit: str = "",
    note: str = "",
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
    outside: bool = False,
    entry_points: str = "",
    may_change: MayChange | None = None,
) -> Any:
    """Define a field of a record of settings; the arguments are those of `Setting`.

    Args:
        unit: where the end of the name does not say it.
        choices: where a table has them; a `Literal` type has its own.
        may_change: None: as its section says.
    """
    values = {
        "default": default,
        "meaning": meaning,
        "unit": unit,
        "note": note,
        "at_least": at_least,
        "above": above,
        "at_most": at_most,
        "choices": choices,
        "outside": outside,
        "entry_points": entry_points,
        "may_change": may_change,
    }
    if default is FROM_PRESET:
        return dataclasses.field(metadata={_KEY: values})
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata={_KEY: values})
    return dataclasses.field(default=default, metadata={_KEY: values})


def section(*, may_change: MayChange) -> Any:
    """Define a field that is a record; its settings may change when `may_change` says."""
    return dataclasses.field(metadata={_SECTION: may_change})


@functools.cache
def settings_of(record: type) -> tuple[Setting, ...]:
    """List all settings of a record's class and of the records inside it, in their order."""
    return tuple(_settings(record, "", "never"))


def _settings(record: Any, section: str, may_change: MayChange) -> Iterator[Setting]:
    for field in dataclasses.fields(record):
        name = f"{section}.{field.name}" if section else field.name
        if is_section(field.type):
            inside = field.metadata.get(_SECTION, may_change)
            yield from _settings(field.type, name, inside)
            continue
        values = dict(field.metadata[_KEY])
        values["unit"] = values["unit"] or next(
            (unit for end, unit in _UNITS.items() if field.name.endswith(end)), ""
        )
        values["may_change"] = values["may_change"] or may_change
        if typing.get_origin(field.type) is Literal:
            values["choices"] = typing.get_args(field.type)
        yield Setting(name=name, kind=field.type, **values)


def is_section(kind: Any) -> bool:
    """Whether a field of that type is a section of its own, and no setting."""
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def is_required(field: dataclasses.Field[Any]) -> bool:
    """Whether a field has no default."""
    preset = field.metadata.get(_KEY, {}).get("default") is FROM_PRESET
    return not preset and field.default is field.default_factory is dataclasses.MISSING

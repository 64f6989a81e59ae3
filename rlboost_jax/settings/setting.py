"""What a setting is. Each stands once, as a field of a record, and all else is made from it.

The field says name, type, default, range, unit and meaning; a choice is a `Literal` type, or a key
of a table. Made from it: the configuration that a run begins with (`configs/base.py`), checks of
ranges (`ranges.py`), `docs/reference/settings.md` and `--explain` (`explain.py`).
"""

import dataclasses
import functools
import typing
from collections.abc import Iterator
from typing import Any, Final, Literal

_KEY: Final = "setting"
_UNITS: Final = {  # by the end of a name
    "_seconds": "s",
    "_tokens": "tokens",
    "_mb": "MiB",
    "_steps": "steps",
    "_per_minute": "1/min",
    "_per_hour": "$/h",
    "_per_gb": "$/GB",
}


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
) -> Any:
    """A field of a record of settings; the arguments are those of `Setting`.

    Args:
        unit: where the end of the name does not say it.
        choices: where a table has them; a `Literal` type has its own.
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
    }
    if default is FROM_PRESET:
        return dataclasses.field(metadata={_KEY: values})
    return dataclasses.field(default=default, metadata={_KEY: values})


@functools.cache
def settings_of(record: type) -> tuple[Setting, ...]:
    """All settings of a record's class and of the records inside it, in their order."""
    return tuple(_settings(record, ""))


def _settings(record: Any, section: str) -> Iterator[Setting]:
    for field in dataclasses.fields(record):
        name = f"{section}.{field.name}" if section else field.name
        if is_section(field.type):
            yield from _settings(field.type, name)
            continue
        values = dict(field.metadata[_KEY])
        values["unit"] = values["unit"] or next(
            (unit for end, unit in _UNITS.items() if field.name.endswith(end)), ""
        )
        if typing.get_origin(field.type) is Literal:
            values["choices"] = typing.get_args(field.type)
        yield Setting(name=name, kind=field.type, **values)


def is_section(kind: Any) -> bool:
    """Whether a field of that type is a section of its own, and no setting."""
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def is_required(field: dataclasses.Field[Any]) -> bool:
    """Whether nothing says what the field is where it is not given."""
    preset = field.metadata.get(_KEY, {}).get("default") is FROM_PRESET
    return not preset and field.default is field.default_factory is dataclasses.MISSING

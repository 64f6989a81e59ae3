"""Settings in words: one of them (`--explain=NAME`), all of them (`docs/reference/settings.md`).

python -m rlboost_jax.settings.explain > docs/reference/settings.md
"""

import difflib
import json
import textwrap
from collections.abc import Iterator
from typing import Any, Final, assert_never

from rlboost_jax.platform import command_parser
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.platform.outside_code import OWN
from rlboost_jax.settings.renamed import successor
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.setting import FROM_PRESET, Setting, settings_of

WIDTH: Final = 118
_KINDS: Final = {
    int: "integer",
    float: "number",
    bool: "boolean",
    str: "text",
    dict[str, Any]: "dictionary",
}
_USUAL: Final = ("≥0", "≥1", ">0")  # as one expects of a count, or of a rate
_UNITS: Final = {"s": "seconds", "min": "minutes"}  # as names have them
_MARKS: Final = {"never": "", "at once": "↻", "from its step": "↷"}
HEADER: Final = """\
# Settings

Set one by `--config.NAME=VALUE` on the command line, or `config.NAME = VALUE` in a file. Each line
has the default, the meaning, and choices, or unit and range where they are not obvious.
`--explain=learner.attention` prints one setting in full, `--explain=learner` a section; "…" marks
settings with a note.

↻ may change when the run is started again, and ↷ from the step with which it resumes
([changing a run](../how-to/changing.md)); all others are fixed. Anchors:
`settings.md#learner.learning_rate`. See also
[names in TRL, verl and OpenRLHF](../how-to/from-trl-or-verl.md#settings-side-by-side).

<!-- Made by `python -m rlboost_jax.settings.explain > docs/reference/settings.md`. -->
"""


def explain(name: str) -> str:
    """Describe a setting, or each of a section.

    Raises ConfigError for a name that does not exist.
    """
    known = {setting.name: setting for setting in settings_of(RunConfig)}
    found = [s for n, s in known.items() if n == name or n.startswith(f"{name}.")]
    if not found:
        near = difflib.get_close_matches(name, known, n=1)
        nearest = f"did you mean {near[0]}?" if near else "docs/reference/settings.md lists all"
        hint = successor(name) or nearest
        raise ConfigError(f"no setting {name!r}; {hint}")
    return "\n\n".join("\n".join(_lines(setting)) for setting in found)


def _lines(setting: Setting) -> Iterator[str]:
    yield setting.name
    yield f"  {values_of(setting)}; default {shown(setting.default)}{_change(setting)}"
    yield textwrap.fill(_sentences(setting), 98, initial_indent="  ", subsequent_indent="  ")


def _sentences(setting: Setting) -> str:
    return f"{_capital(setting.meaning)}. {setting.note}".strip()


def _capital(text: str) -> str:
    return (text[:1].upper() if text[:1].isascii() else text[:1]) + text[1:]  # β stays β


def shown(value: Any) -> str:
    """Format a default as a command line would have it."""
    return "by algorithm.name" if value is FROM_PRESET else json.dumps(value)


def _change(setting: Setting) -> str:
    match setting.may_change:
        case "never":
            return ""
        case "at once":
            return "; may change at once"
        case "from its step":
            return "; may change from the next step"
        case _:
            assert_never(setting.may_change)


def values_of(setting: Setting) -> str:
    """Type, unit and range of a setting, or its choices."""
    if setting.choices:
        return " | ".join(map(json.dumps, (*setting.choices, *[OWN] * setting.outside)))
    kind = _KINDS.get(setting.kind, "tuple")
    return ", ".join(filter(None, (kind, setting.unit, *_ranges(setting))))


def _ranges(setting: Setting) -> list[str]:
    limits = (("≥", setting.at_least), (">", setting.above), ("≤", setting.at_most))
    return [f"{sign}{limit:.10g}" for sign, limit in limits if limit is not None]


def document() -> str:
    """Text of docs/reference/settings.md."""
    return "\n".join([HEADER, *_sections()]) + "\n"


def _sections() -> Iterator[str]:
    section = None
    for setting in settings_of(RunConfig):
        named = setting.name.rpartition(".")[0]
        if named != section:
            yield from ([""] if section is not None else [])
            yield f"## {named or 'The run'}\n"
            section = named
        line = f'- <a id="{setting.name}"></a>{_brief(setting)}'
        yield textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _brief(setting: Setting) -> str:
    """Name, default, meaning and limits in one line; "…" where `--explain` has more."""
    named = f"**`{setting.name}`** `{shown(setting.default)}`{_MARKS[setting.may_change]}"
    limits = _limits(setting)
    more = "…" if setting.note else ""
    return f"{named} {_capital(setting.meaning)}{more}{f' ({limits})' if limits else ''}"


def _limits(setting: Setting) -> str:
    """Choices; or the unit, unless the name has it, and an unusual range."""
    if setting.choices:
        return values_of(setting).replace(" | ", ", ")
    words = setting.name.rpartition(".")[2].split("_")
    unit = "" if _UNITS.get(setting.unit, setting.unit) in words else setting.unit
    ranges = ", ".join(_ranges(setting))
    return ", ".join(filter(None, (unit, "" if ranges in _USUAL else ranges)))


if __name__ == "__main__":
    command_parser.take_none("rlboost_jax.settings.explain", __doc__)
    print(document(), end="")

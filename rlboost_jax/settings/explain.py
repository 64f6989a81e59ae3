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
HEADER: Final = """\
# Settings

Set one by `--config.NAME=VALUE` on the command line, or `config.NAME = VALUE` in a file.
`--explain=learner.attention` prints one of them, `--explain=learner` a section. Anchors:
`settings.md#learner.learning_rate`. See also the [glossary](glossary.md) and
[names in TRL, verl and OpenRLHF](../how-to/from-trl-or-verl.md#settings-side-by-side).
"May change": start the run again with another value ([changing a run](../how-to/changing.md)); it
holds at once, or from the step with which the run resumes. All others are fixed.
Made by `python -m rlboost_jax.settings.explain` from `rlboost_jax/settings/`.
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
    first = setting.meaning[:1]
    meaning = (first.upper() if first.isascii() else first) + setting.meaning[1:]  # β stays β
    return f"{meaning}. {setting.note}".strip()


def shown(value: Any) -> str:
    """Format a default as a command line would have it."""
    return "that of algorithm.name" if value is FROM_PRESET else json.dumps(value)


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
        return " | ".join(map(json.dumps, setting.choices))
    limits = (("≥", setting.at_least), (">", setting.above), ("≤", setting.at_most))
    ranges = [f"{sign}{limit:.10g}" for sign, limit in limits if limit is not None]
    return ", ".join(filter(None, (_KINDS.get(setting.kind, "tuple"), setting.unit, *ranges)))


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
        default = f"default {shown(setting.default)}{_change(setting)}"
        yield f'- <a id="{setting.name}"></a>'
        line = f"**`{setting.name}`** ({values_of(setting)}; {default})"
        yield _indented(line, break_on_hyphens=False)
        yield _indented(_sentences(setting))


def _indented(text: str, *, break_on_hyphens: bool = True) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=break_on_hyphens,
    )


if __name__ == "__main__":
    command_parser.take_none("rlboost_jax.settings.explain", __doc__)
    print(document(), end="")

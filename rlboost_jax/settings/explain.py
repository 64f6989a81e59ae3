"""Settings in words: one of them (`--explain=NAME`), all of them (`docs/settings.md`).

python -m rlboost_jax.settings.explain > docs/settings.md
"""

import difflib
import typing
from collections.abc import Iterator
from typing import Any, Final

from rlboost_jax.settings.errors import ConfigError
from rlboost_jax.settings.run import RunConfig
from rlboost_jax.settings.setting import FROM_PRESET, Setting, settings_of

HEADER: Final = """\
# Settings

Every setting of a run: `--config.NAME=VALUE` on the command line, `config.NAME = VALUE` in a file.
`--explain=learner.attention` says the same of one setting, `--explain=learner` of a section.
Made by `python -m rlboost_jax.settings.explain` from `rlboost_jax/settings/`.
"""


def explain(name: str) -> str:
    """What there is to know about a setting, or about each of a section.

    Raises ConfigError for a name that does not exist.
    """
    known = {setting.name: setting for setting in settings_of(RunConfig)}
    found = [s for n, s in known.items() if n == name or n.startswith(f"{name}.")]
    if not found:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "docs/settings.md lists all"
        raise ConfigError(f"no setting {name!r}; {hint}")
    return "\n\n".join("\n".join(_lines(setting)) for setting in found)


def _lines(setting: Setting) -> Iterator[str]:
    yield setting.name
    yield f"  {setting.meaning}"
    yield f"  default {shown(setting.default)}; {values_of(setting)}"
    if setting.note:
        yield f"  {setting.note}"


def shown(value: Any) -> str:
    return repr(value) if value is not FROM_PRESET else "that of algorithm.name"


def values_of(setting: Setting) -> str:
    """Type, unit and range, or the choices."""
    if setting.choices:
        return " | ".join(map(repr, setting.choices))
    kind = setting.kind.__name__ if isinstance(setting.kind, type) else str(setting.kind)
    kind = "tuple" if typing.get_origin(setting.kind) is tuple else kind
    limits = (
        ("≥", setting.at_least),
        (">", setting.above),
        ("≤", setting.at_most),
    )
    ranges = ", ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)
    return " ".join(filter(None, (kind, ranges, f"[{setting.unit}]" if setting.unit else "")))


def document() -> str:
    """docs/settings.md."""
    return "\n".join([HEADER, *_sections()]) + "\n"


def _sections() -> Iterator[str]:
    section = None
    for setting in settings_of(RunConfig):
        named = setting.name.rpartition(".")[0]
        if named != section:
            section = named
            yield f"{'' if not section else chr(10)}## {section or 'The run'}\n"
        yield f"- **`{setting.name}`** = `{shown(setting.default)}` ({_plain(values_of(setting))})"
        yield f"  {setting.meaning}." + (f" {setting.note}" if setting.note else "")


def _plain(text: str) -> str:
    return text.replace("'", "`")


if __name__ == "__main__":
    print(document(), end="")

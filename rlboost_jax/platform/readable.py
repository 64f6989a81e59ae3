"""Names and settings that are no text: bytes of a folder's name that are no UTF-8.

Python carries such bytes as halves of surrogate pairs, which no file of ours, no wire and no
terminal takes. They are refused by name wherever they come in.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlboost_jax.platform.mistakes import ConfigError


def check_text(value: str | Path, what: str, *, error: type[Exception] = ConfigError) -> None:
    """Raise an error where a text cannot be encoded as UTF-8.

    Args:
        what: names it in the message, such as "--workdir".
        error: made of the message.
    """
    if not _is_text(str(value)):
        raise error(_mistake(str(value), what))


def check_texts(values: Mapping[str, Any]) -> None:
    """Raise ConfigError with a line per text that cannot be encoded as UTF-8."""
    found = ((place, text) for place, text in _texts(values, "config") if not _is_text(text))
    if mistakes := [_mistake(text, place) for place, text in found]:
        raise ConfigError("\n".join(mistakes))


def unreadable_places(values: Any) -> Iterator[str]:
    """Yield the places in decoded JSON whose texts are unreadable, such as
    `messages[1].content`.
    """
    for place, text in _texts(values, ""):
        if not _is_text(text) or not _is_text(place):
            yield place.removeprefix(".").encode(errors="backslashreplace").decode()


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Places and values of all texts within lists and mappings; keys are in the places."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not _is_text(str(name)):
                yield f"{place}.{name}", ""
            yield from _texts(inner, f"{place}.{name}")
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _texts(inner, f"{place}[{number}]")
    elif isinstance(value, str):
        yield place, value


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _mistake(value: str, what: str) -> str:
    try:
        shown = os.fsencode(value).decode(errors="backslashreplace")
    except UnicodeEncodeError:  # a half of another kind
        shown = value.encode(errors="backslashreplace").decode()
    return f"{what} is '{shown}', which is no text in UTF-8; rename it, or name a link to it"

"""The bytes that each token of a Hugging Face vocabulary stands for.

A token may be half a character, which decoded by itself is U+FFFD. Its bytes are in its name in the
vocabulary, spelt as the decoder of `tokenizer.json` says.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from rlboost_jax.platform import foreign_json

Spelling = Callable[[str], bytes | None]  # a token's name → its bytes; None: not of that spelling
_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def bytes_of_tokens(tokenizer: Any) -> Callable[[int], bytes | None]:
    """Build a function from a token to its own bytes, or None if they are unknown.

    Bytes of all tokens of a text, joined, are the text, but for a space that a decoder strips from
    its beginning.

    Args:
        tokenizer: as transformers has it.
    """
    added = {index: str(each.content) for index, each in tokenizer.added_tokens_decoder.items()}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = getattr(backend, "decoder", None)
    spelt = (
        None
        if decoder is None
        else _spelling(foreign_json.decode(decoder.__getstate__(), "the tokenizer's decoder", dict))
    )

    def found(token: int) -> bytes | None:
        if token in added:
            return added[token].encode()
        name = None
        if spelt is not None and 0 <= token < len(tokenizer):
            name = tokenizer.convert_ids_to_tokens(token)
        return None if spelt is None or not isinstance(name, str) else spelt(name)

    return found


def _spelling(decoder: Mapping[str, Any]) -> Spelling | None:
    """Spelling of tokens by a decoder of `tokenizers`; None: tokens depend on each other."""
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    replaced: list[tuple[str, str]] = []
    by_byte = False  # names like <0x0A>
    for step in steps:
        match step:
            case {"type": "ByteLevel"}:
                return _of_byte_level
            case {"type": "ByteFallback"}:
                by_byte = True
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                replaced.append((old, new))
            case {"type": "Metaspace", "replacement": str(old)}:
                replaced.append((old, " "))
            case {"type": "Fuse" | "Strip"}:
                pass  # of the whole text
            case _:
                return None

    def spelt(name: str) -> bytes:
        if by_byte and (byte := _BYTE.fullmatch(name)):
            return bytes([int(byte[1], 16)])
        for old, new in replaced:
            name = name.replace(old, new)
        return name.encode()

    return spelt


def _of_byte_level(name: str) -> bytes:
    if any(character not in _BYTE_OF for character in name):
        return name.encode()  # as the library has it
    return bytes(_BYTE_OF[character] for character in name)


def _byte_level() -> dict[str, int]:
    """Bytes by the characters that stand for them: printable ones as they are, others from 256 on.

    Source: GPT-2's `bytes_to_unicode` (Radford et al. 2019).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {chr(256 + place): byte for place, byte in enumerate(others)}
    return {**{chr(byte): byte for byte in printable}, **shifted}


_BYTE_OF: Final = _byte_level()

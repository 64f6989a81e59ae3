"""What files may be that others wrote: one table of contents and one of places, for every reader.

Made here, by name; nothing of it is stored.
"""

import bz2
import gzip
import json
import lzma
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

DEEP = 100_000
ODD = "two\nlines \x1b[31m" + "x" * 5_000  # that no line of an error may have in it


def _objects(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


# No reader can make sense of these, whatever it looks for.
NONSENSE: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n\t\n",
    "zeros": b"\0" * 4096,
    "binary": bytes(range(256)) * 16,
    "invalid UTF-8": b'{"a": "\xc3\x28"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "UTF-32": '{"a": 1}'.encode("utf-32-be"),
    "a deep list": b"[" * DEEP,
    "a deep list that ends": b"[" * DEEP + b"]" * DEEP,
    "a deep object": b'{"a":' * DEEP,
    "a number of a million digits": b'{"a": ' + b"9" * 10**6 + b"}",
    "two values": b'{"a": 1} {"a": 2}',
    "a page of HTML": b"<!doctype html>\n<title>404 Not Found</title>\n",
    "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n",
}
# JSON that a reader of objects has to refuse, and one of lists or texts may take.
NO_OBJECT: dict[str, bytes] = {
    "an object that ends too deep": _objects(500),
    "a list": b"[1, 2]",
    "a text": b'"text"',
    "a number": b"-7",
    "no number": b"NaN",
    "null": b"null",
    "true": b"true",
    "half a pair": b'{"a": "\\ud800"}',
    "two values of a key": b'{"a": 1, "a": 2}',
}
# In place of a value in an object that was right.
VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "negative": -1,
    "huge": 10**300,
    "a fraction": 0.5,
    "not finite": float("inf"),
    "a text": "x",
    "an odd text": ODD,
    "an empty list": [],
    "a list of everything": [None, -1, "x", {}, []],
    "an empty object": {},
    "an object with an odd key": {ODD: [ODD]},
}

PLACES: dict[str, Callable[[Path], object]] = {
    "a folder": os.mkdir,
    "a FIFO": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/null"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a file of a terabyte": lambda path: (path.touch(), os.truncate(path, 2**40)),
}


def changed(good: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of an object with one value of its first two levels replaced or missing."""
    for path in _paths(good):
        for name, value in VALUES.items():
            yield f"{'.'.join(path)}: {name}", json.dumps(_with(good, path, value)).encode()
        without = json.loads(json.dumps(good))
        inner = without
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]
        yield f"{'.'.join(path)}: missing", json.dumps(without).encode()


def _paths(good: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for key, value in good.items():
        yield (key,)
        if isinstance(value, dict):
            yield from ((key, inner) for inner in value)


def _with(good: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    if len(path) == 1:
        return {**good, path[0]: value}
    return {**good, path[0]: {**good[path[0]], path[1]: value}}


def safetensors(header: Mapping[str, Any] | bytes, data: bytes, length: int = -1) -> bytes:
    """A file of tensors with a header as given, which may say another length than it has."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length < 0 else length) + text + data


def of_tensors(whole: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    """(name, content) of files of tensors that are wrong about one tensor or about themselves."""
    (length,) = struct.unpack("<Q", whole[:8])
    header, data = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    entry, end = header[name], len(data)
    first, last = entry["data_offsets"]
    for what, change in {
        "shape [0]": {"shape": [0]},
        "no shape": {"shape": []},
        "a negative shape": {"shape": [-1, 16]},
        "a shape of fractions": {"shape": [1.5]},
        "a huge shape": {"shape": [2**62, 2**62]},
        "a negative offset": {"data_offsets": [-4, last]},
        "an offset beyond the end": {"data_offsets": [first, end + 4]},
        "an offset that overlaps": {"data_offsets": [first, last + 64]},
        "offsets in reverse": {"data_offsets": [last, first]},
        "an unknown type": {"dtype": "Q4"},
        "a type of another size": {"dtype": "F16"},
        "a type that is null": {"dtype": None},
    }.items():
        yield what, safetensors({**header, name: {**entry, **change}}, data)
    more = {"dtype": "F32", "shape": [0], "data_offsets": [end, end]}
    frequencies = "model.layers.0.self_attn.rotary_emb.inv_freq"
    for what, other, shape, tail in (
        ("an empty tensor more", "x", [0], b""),
        ("a tensor with an odd name", ODD, [0], b""),
        ("frequencies of shape [0]", frequencies, [0], b""),
        ("frequencies of shape [0, 4]", frequencies, [0, 4], b""),
        ("one frequency", frequencies, [], b"\0" * 4),
        ("a head of shape [0, 16]", "lm_head.weight", [0, 16], b""),
        ("a head that is one number", "lm_head.weight", [], b"\0" * 4),
    ):
        here = {**more, "shape": shape, "data_offsets": [end, end + len(tail)]}
        yield what, safetensors({**header, other: here}, data + tail)
    yield "a header of 2^60 bytes", safetensors(header, data, 2**60)
    yield "a header of no bytes", safetensors(header, data, 0)
    yield "a tensor that is null", safetensors({**header, name: None}, data)
    yield "metadata that is no text", safetensors({**header, "__metadata__": {"a": [1]}}, data)
    yield "a deep header", safetensors(b"[" * DEEP, b"")
    yield "a header that is a list", safetensors(b"[]", b"")
    yield "a header that is no UTF-8", safetensors(b'{"\xff": 1}', b"")
    yield "cut off", whole[:-8]
    yield "with something behind", whole + b"more"
    yield "its first bytes", whole[:5]


def packed(text: bytes) -> dict[str, bytes]:
    """A text in each kind of packing, by the ending of a file's name."""
    return {".gz": gzip.compress(text), ".bz2": bz2.compress(text), ".xz": lzma.compress(text)}

"""Frames are whole or refused, however they are cut, and bounded on both sides."""

import asyncio
import os
import struct

import msgspec
import numpy as np
import pytest

from rlboost_jax.platform.frames import (
    FrameDecoder,
    FrameTooLong,
    Unsendable,
    body_of,
    frame,
    framed,
    read_body,
    receive,
)


class Parcel(msgspec.Struct, frozen=True):
    content: object


def test_a_frame_is_its_length_and_messagepack() -> None:
    body = msgspec.msgpack.encode({"content": [1, 2.5]})
    assert frame(Parcel(content=np.array([1, 2.5], object))) == struct.pack("<I", len(body)) + body
    assert framed(body) == struct.pack("<I", len(body)) + body


@pytest.mark.parametrize("content", [object(), 2**64, "\ud800"])
def test_what_no_frame_can_carry_is_refused(content: object) -> None:
    with pytest.raises(Unsendable):
        body_of(Parcel(content=content))


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_frames_arrive_whole_however_they_are_cut(piece: int) -> None:
    sent = [Parcel(content=text) for text in ("", "a" * 20, "b")]
    data = b"".join(map(frame, sent))
    decoder = FrameDecoder(Parcel)
    pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
    assert [parcel for each in pieces for parcel in decoder.take(each)] == sent


def test_both_sides_bound_a_frame_before_they_take_memory_for_it() -> None:
    body = len(body_of(Parcel(content="a" * 20)))
    assert frame(Parcel(content="a" * 20), max_bytes=body)
    with pytest.raises(FrameTooLong):
        frame(Parcel(content="a" * 20), max_bytes=body - 1)
    header = struct.pack("<I", body)
    with pytest.raises(FrameTooLong):
        FrameDecoder(Parcel, max_bytes=body - 1).take(header)
    inlet, outlet = os.pipe()
    with open(inlet, "rb"), open(outlet, "wb", buffering=0) as out:
        out.write(header)
        with pytest.raises(FrameTooLong):
            receive(inlet, Parcel, max_bytes=body - 1)

    async def from_stream() -> bytes | None:
        stream = asyncio.StreamReader()
        stream.feed_data(header)
        return await read_body(stream, max_bytes=body - 1)

    with pytest.raises(FrameTooLong):
        asyncio.run(from_stream())

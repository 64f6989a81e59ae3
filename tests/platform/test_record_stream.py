"""What was written is read up to the first damaged byte, and nothing behind it is believed."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.platform.record_stream import (
    MAX_PAYLOAD_BYTES,
    RecordsRead,
    encode_records,
    read_records,
)


class Line(msgspec.Struct, frozen=True, tag=True, array_like=True):
    text: str


class Blob(msgspec.Struct, frozen=True, tag=True, array_like=True):
    data: bytes


some_records = st.lists(
    st.builds(Line, st.text(max_size=9)) | st.builds(Blob, st.binary(max_size=300)), max_size=6
)


def reread(data: bytes) -> RecordsRead[Line | Blob]:
    return read_records(data, msgspec.msgpack.Decoder(Line | Blob).decode)


def ends(records: list[Line | Blob]) -> list[int]:
    """Where each record ends, and where the first begins."""
    return [len(encode_records(records[:count])) for count in range(len(records) + 1)]


@given(some_records, st.data())
def test_all_before_a_cut_is_read(records: list[Line | Blob], data: st.DataObject) -> None:
    whole = encode_records(records)
    cut = data.draw(st.integers(0, len(whole)))
    found = reread(whole[:cut])
    count = max(i for i, end in enumerate(ends(records)) if end <= cut)
    assert found.records == records[:count] and found.good_bytes == ends(records)[count]
    assert bool(found.damage) == (cut != found.good_bytes)


@given(some_records.filter(bool), st.data())
def test_nothing_behind_a_flipped_bit_is_believed(
    records: list[Line | Blob], data: st.DataObject
) -> None:
    damaged = bytearray(encode_records(records))
    place = data.draw(st.integers(0, len(damaged) - 1))
    damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    found = reread(bytes(damaged))
    count = max(i for i, end in enumerate(ends(records)) if end <= place)
    assert found.records == records[:count] and found.good_bytes == ends(records)[count]
    assert found.damage


@pytest.mark.parametrize("tail", [bytes(64), b"\xff" * 64, b"\x05\x00\x00\x00"])
def test_a_tail_that_was_never_written_is_no_record(tail: bytes) -> None:
    """What a host that lost its power may show: zeros, or what was there before."""
    data = encode_records([Line("a")])
    found = reread(data + tail)
    assert found.records == [Line("a")] and found.good_bytes == len(data) and found.damage


def test_a_record_of_another_release_is_damage() -> None:
    class Other(msgspec.Struct, tag=True, array_like=True):
        pass

    found = reread(encode_records([Line("a"), Other(), Line("b")]))
    assert found.records == [Line("a")] and "an entry that is none" in found.damage


def test_no_memory_is_taken_for_an_impossible_length() -> None:
    header = (MAX_PAYLOAD_BYTES + 1).to_bytes(4, "little") + bytes(4)
    assert "impossible length" in reread(header).damage

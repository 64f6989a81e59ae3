"""A delta gives the very bits that it was made for, or an error and nothing else."""

import hashlib
import struct
import tracemalloc
from random import Random

import ml_dtypes
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.delta_codec import DeltaError, apply_delta, make_delta

DTYPES = [
    *(ml_dtypes.bfloat16, np.float32, np.float16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    *(np.int8, np.uint8, np.int32, np.int64),
]
HEADER = struct.Struct("<4sBBQQ")


def digest(array):
    return hashlib.sha256(array.tobytes()).hexdigest()


def bits(array):
    return array.reshape(-1).view(np.uint8)


def random_bits(rng, dtype, shape):
    """All bit patterns: NaN with every payload, infinities, both zeros, subnormal numbers."""
    dtype = np.dtype(dtype)
    octets = rng.integers(0, 256, int(np.prod(shape)) * dtype.itemsize, dtype=np.uint8)
    return octets.view(dtype).reshape(shape)


def updated(rng, base, share):
    """The base with that share of its entries replaced by any others, one by one."""
    new = base.copy()
    flat = new.reshape(-1)
    for place in np.flatnonzero(rng.random(flat.size) < share).tolist():
        flat[place] = random_bits(rng, base.dtype, (1,))[0]
    return new


def assert_same(found, expected):
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(bits(found), bits(expected))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.2])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_every_bit_of_every_dtype_comes_out_as_it_was_put_in(dtype, share):
    rng = np.random.default_rng(0)
    base = random_bits(rng, dtype, (37, 641))
    new = updated(rng, base, share)
    before = base.copy()
    delta = make_delta(base, new)
    assert delta is not None and len(delta) < new.nbytes
    assert_same(apply_delta(delta, base, digest(new)), new)
    assert_same(base, before)


def test_zeros_change_their_sign_and_nan_its_payload():
    base = np.zeros(1_000, np.uint16).view(ml_dtypes.bfloat16)
    new = base.copy()
    spelt = new.view(np.uint16)
    spelt[[0, 3, 999]] = 0x8000, 0x7FC1, 0xFFFF  # -0, and two NaN
    for one, other in ((base, new), (new, base)):
        delta = make_delta(one, other)
        assert delta is not None
        assert_same(apply_delta(delta, one, digest(other)), other)


def test_differences_go_round():
    """The largest integer and the smallest are neighbours."""
    base = np.tile(np.array([0, 0xFFFF, 0x7FFF, 0x8000], np.uint16), 500)
    new = base.copy()
    new[:4] = 0xFFFF, 0, 0x8000, 0x7FFF
    delta = make_delta(base, new)
    assert delta is not None
    assert_same(apply_delta(delta, base, digest(new)), new)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_update_of_any_array(data):
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    size = data.draw(st.integers(0, 3_000))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    base = random_bits(rng, dtype, (size,))
    new = base.copy()
    for place in data.draw(st.lists(st.integers(0, size - 1), max_size=20)) if size else []:
        new[place] = random_bits(rng, dtype, (1,))[0]
    delta = make_delta(base, new)
    if delta is None:
        assert size * dtype.itemsize < 2_000, "twenty changes take less than so many bytes"
    else:
        assert_same(apply_delta(memoryview(delta), base, digest(new)), new)


@pytest.mark.parametrize("gap", [254, 255, 256, 257, 2**16 - 1, 2**16, 2**16 + 1, 2**17 + 3, 2**24])
def test_gaps_of_any_length(gap):
    base = np.zeros(gap + 2, np.uint8)
    for first in (0, 1):
        new = base.copy()
        new[[first, gap + 1]] = 7, 9
        delta = make_delta(base, new)
        assert delta is not None and len(delta) < 200
        assert_same(apply_delta(delta, base, digest(new)), new)


def test_whole_is_cheaper_where_all_changes_at_random():
    rng = np.random.default_rng(1)
    base, new = (random_bits(rng, np.float32, (4_000,)) for _ in range(2))
    assert make_delta(base, new) is None
    assert make_delta(base[:1], new[:1]) is None
    assert make_delta(base[:0], new[:0]) is None


def test_a_small_update_of_bfloat16_takes_a_hundredth():
    rng = np.random.default_rng(2)
    base = rng.normal(0, 0.02, 2**20).astype(ml_dtypes.bfloat16)
    new = base.copy()
    places = np.flatnonzero(rng.random(base.size) < 0.01)
    new.view(np.uint16)[places] += rng.choice(np.array([1, 0xFFFF], np.uint16), places.size)
    delta = make_delta(base, new)
    assert delta is not None and len(delta) * 140 < new.nbytes
    assert_same(apply_delta(delta, base, digest(new)), new)


def test_arrays_that_do_not_belong_together_are_a_mistake():
    base = np.zeros((4, 8), np.float32)
    for new in (base.T, base.astype(np.float16), base.view(np.int32), base[:2]):
        with pytest.raises(ValueError, match="against a base"):
            make_delta(base, new)
    with pytest.raises(ValueError, match="not contiguous"):
        make_delta(base[:, ::2], base[:, ::2])


# Of hostile deltas


@pytest.fixture(scope="module")
def example():
    rng = np.random.default_rng(3)
    base = random_bits(rng, np.uint16, (4_000,))
    new = updated(rng, base, 0.02)
    delta = make_delta(base, new)
    assert delta is not None
    return base, new, delta


def crafted(planes, *, gaps=1, entries=4_000, changed=2, itemsize=2):
    """A delta of these compressed planes, whose header says these things of it."""
    sizes = struct.pack(f"<{len(planes)}I", *map(len, planes))
    return HEADER.pack(b"RLD1", itemsize, gaps, entries, changed) + sizes + b"".join(planes)


def packed(*numbers):
    return zstandard.compress(bytes(numbers))


ZEROS = packed(0, 0)
HOSTILE = {
    "empty": b"",
    "another format": b"RLD2" + bytes(18),
    "only a header": HEADER.pack(b"RLD1", 2, 1, 4_000, 2),
    "more changes than entries": crafted([ZEROS] * 3, changed=4_001),
    "huge counts": crafted([ZEROS] * 3, entries=2**64 - 1, changed=2**64 - 1),
    "a huge number of changes": crafted([ZEROS] * 3, changed=2**64 - 1),
    "entries of another piece": crafted([ZEROS] * 3, entries=4_001),
    "entries of another width": crafted([ZEROS] * 5, itemsize=4),
    "a plane too many": crafted([ZEROS] * 4),
    "a plane too few": crafted([ZEROS] * 2),
    "more planes than a gap can have": crafted([ZEROS] * 7, gaps=5),
    "255 planes": crafted([ZEROS] * 257, gaps=255),
    "a shorter plane": crafted([packed(0), ZEROS, ZEROS]),
    "a longer plane": crafted([packed(0, 0, 0), ZEROS, ZEROS]),
    "no frame": crafted([b"12345678", ZEROS, ZEROS]),
    "an empty frame": crafted([b"", ZEROS, ZEROS]),
    "a frame of unknown length": crafted(
        [zstandard.ZstdCompressor(write_content_size=False).compress(bytes(2)), ZEROS, ZEROS]
    ),
    "two frames in one plane": crafted([packed(0, 0) + packed(0, 0), ZEROS, ZEROS]),
    "a skippable frame": crafted([struct.pack("<II", 0x184D2A50, 2) + bytes(2), ZEROS, ZEROS]),
    "a position beyond the end": crafted([packed(0, 255)] * 4 + [ZEROS] * 2, gaps=4),
    "the position after the last": crafted(
        [packed(0, 4_000 % 256 - 1), packed(0, 4_000 // 256), ZEROS, ZEROS], gaps=2
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_no_encoder_makes_raises_one_error(example, name):
    base, new, _ = example
    before = base.copy()
    with pytest.raises(DeltaError):
        apply_delta(HOSTILE[name], base, digest(new))
    assert_same(base, before)
    assert issubclass(DeltaError, WeightsError)


def test_a_crafted_delta_would_be_taken_if_it_were_right(example):
    """What is wrong with the ones above is what their names say."""
    base, _, _ = example
    new = base.copy()
    new[[0, 201]] += np.array([1, 0xFFFF], np.uint16)
    delta = crafted([packed(0, 200), packed(2, 1), ZEROS])
    assert_same(apply_delta(delta, base, digest(new)), new)


@pytest.mark.parametrize("claimed", [2, 2**30, 2**62])
def test_a_bomb_takes_no_memory(example, claimed):
    base, new, _ = example
    bomb = zstandard.compress(bytes(2**26))  # 64 MiB in some kilobytes
    header = struct.pack("<IBQ", 0xFD2FB528, 0xC0 | 0x20, claimed)
    lying = header + bomb[len(header) :]
    tracemalloc.start()
    try:
        for plane in (bomb, lying):
            with pytest.raises(DeltaError):
                apply_delta(crafted([plane, ZEROS, ZEROS]), base, digest(new))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_another_base_or_another_digest_is_refused(example):
    base, new, delta = example
    other = base.copy()
    other[5] ^= 1
    for wrong, expected in ((other, digest(new)), (base, digest(base)), (base, "")):
        with pytest.raises(DeltaError, match="other weights, or for another base"):
            apply_delta(delta, wrong, expected)


def test_torn_and_reordered_deltas_are_refused(example):
    base, new, delta = example
    for cut in range(len(delta)):
        with pytest.raises(DeltaError):
            apply_delta(delta[:cut], base, digest(new))
    for place in range(0, len(delta) - 40, 7):
        swapped = (
            delta[:place] + delta[place + 20 : place + 40] + delta[place : place + 20]
        ) + delta[place + 40 :]
        if swapped != delta:
            with pytest.raises(DeltaError):
                apply_delta(swapped, base, digest(new))


def mutant(delta, random):
    """A delta that is nearly right."""
    data = bytearray(delta)
    for _ in range(random.randint(1, 3)):
        place = random.randrange(len(data))
        match random.randrange(7):
            case 0:
                data[place] ^= 1 << random.randrange(8)
            case 1:
                data[place] = random.choice((0, 1, 127, 128, 255))
            case 2:
                del data[place:]
            case 3:
                data[place:place] = random.randbytes(random.randint(1, 9))
            case 4:
                del data[place : place + random.randint(1, 9)]
            case 5:
                data[place : place + 8] = struct.pack(
                    "<Q", random.choice((2**63, 2**32, 2**64 - 1))
                )
            case _:
                other = random.randrange(len(data))
                data[place : place + 9], data[other : other + 9] = (
                    data[other : other + 9],
                    data[place : place + 9],
                )
        if not data:
            return b""
    return bytes(data)


def fuzz(rounds, seed):
    """Apply that many mutants; returns how many were refused. The others give the right bits."""
    random, rng, refused = Random(seed), np.random.default_rng(seed), 0
    examples = []
    for dtype, share in ((np.uint16, 0.05), (np.uint8, 0.3), (np.uint32, 0.01), (np.uint16, 0.0)):
        base = random_bits(rng, dtype, (300,))
        new = updated(rng, base, share)
        delta = make_delta(base, new)
        assert delta is not None
        base.flags.writeable = False  # not one byte of it is touched
        examples.append((base, new, digest(new), delta))
    for _ in range(rounds):
        base, new, expected, delta = random.choice(examples)
        try:
            found = apply_delta(mutant(delta, random), base, expected)
        except DeltaError:
            refused += 1
        else:
            assert_same(found, new)
    return refused


def test_mutants_are_refused_or_harmless():
    assert fuzz(5_000, seed=1) > 4_000


@pytest.mark.soak
def test_a_million_mutants():
    assert fuzz(1_000_000, seed=2) > 800_000


@given(st.binary(max_size=300))
def test_nonsense_is_refused(data):
    base = np.zeros(16, np.uint16)
    for delta in (data, HEADER.pack(b"RLD1", 2, 1, 16, 3) + data):
        with pytest.raises(DeltaError):
            apply_delta(delta, base, "never")

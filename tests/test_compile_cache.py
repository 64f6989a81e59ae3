"""A compiled program that is not as it was written is compiled again, whatever is installed."""

import random
import zlib
from types import SimpleNamespace

import pytest
from jax._src import compilation_cache

from rlboost_jax import compile_cache

PROGRAM = random.Random(0).randbytes(3_000) + bytes(3_000)


@pytest.mark.parametrize("name", ["zstd", "zstandard"])
def test_any_flipped_bit_of_a_program_is_seen(monkeypatch, name):
    unchecked = SimpleNamespace(compress=bytes, decompress=bytes)
    monkeypatch.setattr(compilation_cache, name, unchecked, raising=False)
    compile_cache.with_checksums()
    kept = compilation_cache.compress_executable(PROGRAM)
    assert compilation_cache.decompress_executable(kept) == PROGRAM
    draw = random.Random(1)
    for _ in range(200):
        data = bytearray(kept)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        with pytest.raises(zlib.error):
            compilation_cache.decompress_executable(bytes(data))

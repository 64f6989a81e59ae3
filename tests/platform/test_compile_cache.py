"""A compiled program that is not as it was written is compiled again, whatever is installed."""

import random
import threading
import zlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax._src import compilation_cache

from configs import tiny
from rlboost_jax.cli import precompile
from rlboost_jax.platform import compile_cache
from rlboost_jax.qualification.trial_host import Host
from rlboost_jax.settings.config_loading import run_config, write_run_config
from rlboost_jax.trust.seal import prepare_seal
from rlboost_jax.weights.compiled import read_index

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


@pytest.fixture
def place(tmp_path):
    """A cache of its own, for one test."""
    before = jax.config.jax_compilation_cache_dir
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    yield tmp_path / "cache"
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", before)


def compiled(number):
    """A program that is unlike those of other numbers; compiled or read from the cache."""
    return jax.jit(lambda x: x * number + 1).lower(jnp.zeros(3)).compile()


def names(place):
    return {path.name for path in place.glob("*-cache")}


def test_programs_that_are_made_or_read_are_known_by_their_files(place):
    compiled(7)
    before = names(place)
    with compile_cache.recorded() as made:
        compiled(8)
        thread = threading.Thread(target=compiled, args=(9,))  # as a learner's
        thread.start()
        thread.join()
    assert set(made) <= names(place) - before and len(set(made)) == 1
    jax.clear_caches()
    with compile_cache.recorded() as read:
        compiled(8)
    assert set(made) <= set(read), "it was read this time"


def test_a_program_has_the_same_name_wherever_the_cache_is(place, tmp_path):
    """Else a host would not find what another one has made."""
    found = []
    for name in ("of the trainer", "of a server"):
        compilation_cache.reset_cache()
        jax.clear_caches()
        compile_cache.enable(str(tmp_path / name))
        with compile_cache.recorded() as made:
            compiled(13)
        (folder,) = (tmp_path / name).iterdir()
        assert set(made) <= names(folder)
        found.append(set(made))
    assert found[0] == found[1]


class OneProgram:
    """An engine that has no other."""

    memory = "none that it keeps"
    layout = SimpleNamespace(text_tokens=0)

    def warm_up(self, announce):
        compiled(11)

    def assert_row_invariance(self):
        pass


def test_a_run_may_be_compiled_for_on_another_host_of_the_owners(place, tmp_path, monkeypatch):
    """What servers of its kind get then is sealed as the trainer's own."""
    workdir = tmp_path / "run"
    (workdir / "trainer").mkdir(parents=True)
    prepare_seal(workdir / "trainer", [])
    config = tiny.get_config()
    write_run_config(workdir / "config.json", run_config(config), "run")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(place))
    code = precompile.main(
        [f"--workdir={workdir}"],
        host=Host(gpu_expected=lambda: False),
        build=lambda *sizes, **options: OneProgram(),
    )
    assert code == 0
    public = bytes.fromhex((workdir / "trainer" / "seal.pub").read_text())
    index = read_index((workdir / "compiled" / "index").read_bytes(), public)
    (entries,) = index.kinds.values()
    assert {entry.path for entry in entries} <= names(place) and entries

"""The compiled library: threads, instruction sets, what it may read, and life without it."""

import os
import subprocess
import sys
import textwrap
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rlboost_kernels import (
    active,
    available_implementations,
    matmul,
    pack_panels,
    ragged_paged_attention,
)
from rlboost_kernels.cpu import build, library
from rlboost_kernels.cpu.build import FOLDER, interface_version, library_of, replaceable
from rlboost_kernels.implementations import choose
from rlboost_kernels.problems import CHECKED, Problem, random_arguments

# Long enough for several splits, and for threads: decoding, prefill, and both in company.
LONG = partial(Problem, num_query_heads=8, num_key_heads=4, head_dim=64)
DIGEST_PROBLEMS = (
    LONG(name="one long", q_lens=(1,), kv_lens=(2500,)),
    LONG(name="one short", q_lens=(1,), kv_lens=(500,)),
    LONG(name="one prefill", q_lens=(90,), kv_lens=(1100,), dtype="bfloat16"),
    LONG(name="mix", q_lens=(1, 40, 1, 1), kv_lens=(1030, 40, 700, 3), dtype="bfloat16"),
    LONG(name="many", q_lens=(1,) * 40, kv_lens=(300,) * 40, dtype="float16"),
    LONG(name="bytes", q_lens=(9, 1), kv_lens=(600, 1300), kv_dtype="float8_e4m3fn"),
    LONG(name="wide", q_lens=(9, 1), kv_lens=(600, 1300), kv_dtype="float8_e5m2", head_dim=80),
    LONG(name="odd", q_lens=(3, 1), kv_lens=(600, 77), num_key_heads=8, head_dim=40),
)
DIGEST_OPTIONS = ({}, {"sliding_window": 700, "soft_cap": 20.0, "sm_scale": 0.3})


def outputs() -> dict[str, np.ndarray]:
    """float32 results of all problems, by name; also run by other processes."""
    rng = np.random.default_rng(0)
    x, w = (
        jnp.asarray(rng.standard_normal(shape, np.float32)) for shape in ((30, 1100), (1100, 70))
    )
    rows, matrix = x.astype("bfloat16"), w[:, :64].astype("bfloat16")
    wide = partial(matmul, out_dtype="float32", implementation="cpu")
    products = {
        "product 0": matmul(x, w, implementation="cpu"),
        "product 1": matmul(x[:1], w.T, transposed=True, implementation="cpu"),
        "product 2": wide(rows, matrix),
        "product 3": wide(rows, pack_panels(matrix)),
        "product 4": wide(rows[:, 1:], matrix.T[:, 1:], transposed=True),
    }
    return {name: np.asarray(out) for name, out in products.items()} | {
        f"{problem.name} {len(options)}": np.asarray(
            ragged_paged_attention(
                *random_arguments(problem), **options, implementation="cpu"
            ).astype(jnp.float32)
        )
        for problem in DIGEST_PROBLEMS
        for options in DIGEST_OPTIONS
    }


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=1200,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
    )


@pytest.fixture(scope="module")
def here():
    return outputs()


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """Outputs of a process on one core, by the instruction set that it is given."""

    @cache
    def run(isa: str) -> dict[str, np.ndarray]:
        path = tmp_path_factory.mktemp("outputs") / "outputs.npz"
        program = f"""
            import importlib.util, os
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
            import numpy as np
            spec = importlib.util.spec_from_file_location("test_cpu", {__file__!r})
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            np.savez({str(path)!r}, **module.outputs())
        """
        done = run_python(program, **{library.ISA_VARIABLE: isa})
        if "which this machine does not have" in done.stderr:
            pytest.skip(f"this machine does not have {isa}")
        assert done.returncode == 0, done.stderr
        return dict(np.load(path))

    return run


def test_the_number_of_threads_cannot_show(cpu, here, elsewhere):
    alone = elsewhere(library.isa())
    for name, out in here.items():
        assert out.tobytes() == alone[name].tobytes(), name


@pytest.mark.parametrize("isa", library.ISAS)
def test_every_instruction_set_gives_the_same_to_rounding(cpu, here, elsewhere, isa):
    with_fma = isa != "portable" and library.isa() != "portable"
    tolerances = dict.fromkeys(("product", "one long", "one short", "bytes", "wide", "odd"), 2e-6)
    tolerances["many"] = 1e-3
    for name, out in elsewhere(isa).items():
        if with_fma:
            assert out.tobytes() == here[name].tobytes(), name
        error = np.linalg.norm(out - here[name]) / np.linalg.norm(here[name])
        assert error <= tolerances.get(name[:-2], 8e-3), name


def test_splits_and_company_cannot_show(cpu):
    """A row of a long sequence: alone it is cut for threads, among many it is not."""
    rng = np.random.default_rng(0)
    tokens, L = 1600, 16
    kv = jnp.asarray(rng.standard_normal((tokens // L, L, 4, 32), np.float32))
    q = jnp.asarray(rng.standard_normal((tokens, 4, 32), np.float32))
    pages = jnp.arange(tokens // L, dtype=jnp.int32)[None]
    attend = jax.jit(partial(ragged_paged_attention, implementation=cpu, sliding_window=900))

    def rows(start, stop):
        metadata = (jnp.array([stop]), pages, jnp.array([0, stop - start]), jnp.array([1]))
        return attend(q[start:stop], kv, *(m.astype(jnp.int32) for m in metadata))

    whole = np.asarray(rows(0, tokens))
    for start, stop in [(0, 1), (511, 512), (512, 513), (500, 530), (1023, 1025), (1599, 1600)]:
        assert np.asarray(rows(start, stop)).tobytes() == whole[start:stop].tobytes()
    at = [1599, 511, 512, 1023, 1024, 5] * 20
    together = attend(
        q[jnp.array(at)],
        kv,
        jnp.array(at, jnp.int32) + 1,
        jnp.tile(pages, (len(at), 1)),
        jnp.arange(len(at) + 1, dtype=jnp.int32),
        jnp.array([len(at)], jnp.int32),
    )
    assert np.asarray(together).tobytes() == whole[at].tobytes()


def test_nothing_outside_the_pool_is_read(cpu):
    """The pool lies between pages of memory whose reading kills the process."""
    done = run_python(
        """
        import ctypes, mmap
        import jax, jax.numpy as jnp, numpy as np
        from functools import partial
        from rlboost_kernels import ragged_paged_attention

        GUARD, SHAPE = 1 << 16, (16, 16, 4, 32)  # as many bytes as some pages of memory
        size = int(np.prod(SHAPE)) * 4
        memory = mmap.mmap(-1, size + 2 * GUARD)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert not protect(start, GUARD, 0) and not protect(start + GUARD + size, GUARD, 0)
        pool = np.frombuffer(memory, np.float32, size // 4, GUARD).reshape(SHAPE)
        pool[:] = np.random.default_rng(0).standard_normal(SHAPE)
        kv_pages = jax.dlpack.from_dlpack(pool, copy=False)
        assert kv_pages.unsafe_buffer_pointer() == start + GUARD

        rng = np.random.default_rng(1)
        extremes = np.array([-(2**31), -1, 0, 1, 15, 16, 17, 63, 64, 65, 1000, 2**31 - 1], np.int32)
        q = jnp.ones((64, 4, 32))
        for window in (None, 5):
            attend = jax.jit(partial(
                ragged_paged_attention, implementation="cpu", sliding_window=window,
                return_lse=True))
            for _ in range(300):
                out, lse = attend(
                    q, kv_pages, rng.choice(extremes, 8), rng.choice(extremes, (8, 4)),
                    rng.choice(extremes, 9), rng.choice(extremes, 1))
                assert np.isfinite(out).all() and not np.isnan(lse).any()
        print("alive")
        """
    )
    assert done.stdout == "alive\n", done.stderr


def test_sharded_over_heads(cpu):
    """Four devices with a key head each give the bits of one device with all heads."""
    done = run_python(
        """
        import jax, jax.numpy as jnp, numpy as np
        from functools import partial
        from jax.sharding import AxisType, PartitionSpec as P
        from rlboost_kernels import ragged_paged_attention, update_kv_pages
        from rlboost_kernels.problems import Problem, random_arguments

        problem = Problem(name="", q_lens=(1, 9, 1), kv_lens=(40, 30, 17), num_query_heads=8,
                          num_key_heads=4, head_dim=32)
        mesh = jax.make_mesh((4,), ("heads",), axis_types=(AxisType.Auto,))
        for name in ("xla", "cpu", None):
            attend = partial(ragged_paged_attention, implementation=name, return_lse=True)
            update = partial(update_kv_pages, implementation=name)

            def step(q, kv_pages, k, slots, *metadata):
                kv_pages = update(kv_pages, k, k, slots)
                return kv_pages, *attend(q, kv_pages, *metadata)

            rows, pool = P(None, "heads"), P(None, None, "heads")
            sharded = jax.shard_map(step, mesh=mesh, out_specs=(pool, rows, rows),
                                    in_specs=(rows, pool, rows, P(), P(), P(), P(), P()))
            q, kv_pages, *metadata = random_arguments(problem)
            arguments = (q, kv_pages, q[:, ::2], jnp.arange(11, dtype=jnp.int32), *metadata)
            for a, b in zip(jax.jit(step)(*arguments), jax.jit(sharded)(*arguments)):
                if name == "xla":
                    np.testing.assert_allclose(a, b, atol=3e-6)
                else:
                    np.testing.assert_array_equal(a, b)
        print("equal")
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=4",
    )
    assert done.stdout == "equal\n", done.stderr


def test_it_is_what_none_picks_here(cpu):
    assert available_implementations() == ("reference", "xla", "cpu")
    assert choose(None) == choose("auto") == "cpu"
    assert choose(None, "gpu") == "xla"
    with pytest.raises(NotImplementedError, match="'cpu' is for CPU and this is gpu"):
        choose("cpu", "gpu")
    assert active()["ragged_paged_attention"] == f"cpu[{library.isa()}]"
    arguments = random_arguments(CHECKED[1])
    by_name = ragged_paged_attention(*arguments, implementation="cpu")
    np.testing.assert_array_equal(ragged_paged_attention(*arguments), by_name)


def test_for_another_platform_it_is_refused_and_none_picks_another(cpu):
    arguments = random_arguments(CHECKED[1])
    named = jax.jit(partial(ragged_paged_attention, implementation="cpu")).trace(*arguments)
    with pytest.raises(NotImplementedError, match="'cpu' of rlboost_kernels cannot run on cuda"):
        named.lower(lowering_platforms=("cuda",))
    either = jax.jit(ragged_paged_attention).trace(*arguments)
    assert "rlboost" not in either.lower(lowering_platforms=("cuda",)).as_text()
    assert "rlboost" in either.lower().as_text()


@pytest.fixture
def no_library(monkeypatch, tmp_path):
    """An empty folder in place of that of libraries."""
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    library._load.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    library._load.cache_clear()


def test_without_the_library_everything_else_works(no_library):
    arguments = random_arguments(CHECKED[1], seed=3)
    assert available_implementations() == ("reference", "xla")
    assert active()["update_kv_pages"] == "xla"
    np.testing.assert_array_equal(
        ragged_paged_attention(*arguments),
        ragged_paged_attention(*arguments, implementation="xla"),
    )
    with pytest.raises(
        NotImplementedError, match=r"not been built.*python -m rlboost_kernels\.cpu"
    ):
        ragged_paged_attention(*arguments, implementation="cpu")


def test_a_library_that_others_may_write_is_not_loaded(cpu, no_library):
    """Loading it would run it."""
    name = library_of(interface_version())
    (no_library / name).write_bytes((FOLDER / name).read_bytes())
    (no_library / name).chmod(0o666)
    assert "anybody's" in library.why_missing() and "(mode 666)" in library.why_missing()
    (no_library / name).chmod(0o600)
    assert replaceable(no_library / name) == ""


def test_a_file_that_is_no_library(no_library):
    (no_library / library_of(interface_version())).write_bytes(b"not a library")
    assert "cannot be loaded" in library.why_missing()
    assert choose(None) == "xla"


def test_a_library_for_a_newer_jaxlib_is_passed_over(no_library):
    """To register its calls would be the end of JAX's whole CPU backend."""
    major, minor = interface_version()
    for version in ((major, minor + 1), (major + 1, 0)):
        (no_library / library_of(version)).touch()
    reason = library.why_missing()
    assert f"another jaxlib (version {major}.{minor + 1}, {major + 1}.0 of" in reason
    assert f"here it is {major}.{minor}" in reason and library.BUILD_COMMAND in reason
    assert choose(None) == "xla"


def test_of_several_libraries_the_newest_that_fits_is_loaded(no_library):
    major, minor = interface_version()
    for version in ((major, minor - 1), (major, minor), (major, minor + 1)):
        (no_library / library_of(version)).touch()
    path, reason = library._newest_that_fits()
    assert reason is None and path.name == library_of((major, minor))


@pytest.mark.parametrize("name", ["mmx", "AVX2"])
def test_an_instruction_set_nobody_knows(cpu, name):
    done = run_python(
        "import rlboost_kernels; rlboost_kernels.active()", **{library.ISA_VARIABLE: name}
    )
    assert f"{library.ISA_VARIABLE} is '{name}'; it must be one of portable" in done.stderr


def test_a_compiler_that_does_not_know_a_set_compiles_the_rest(monkeypatch):
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    source = build.SOURCES / "matmul_avx512_bf16.cpp"
    known, unknown = (build._machine_flags([name], source) for name in ("true", "false"))
    assert set(known) - set(unknown) == {"-mavx512bf16"}


def test_the_compiler_is_named_when_it_is_missing():
    program = "import runpy; runpy.run_module('rlboost_kernels.cpu', run_name='__main__')"
    done = run_python(program, CXX="/nowhere/g++")
    assert "CXX names /nowhere/g++, which is not there" in done.stderr
    assert done.returncode == 1

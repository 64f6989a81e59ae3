"""JAX's global switches: refused in one line by every process, of the fingerprint, or harmless."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from configs import tiny
from rlboost_jax import export
from rlboost_jax.cli import evaluate, logits, precompile
from rlboost_jax.engine.fingerprint import fingerprint
from rlboost_jax.gateway.__main__ import main as gateway
from rlboost_jax.learner.processes.follower import follow_training
from rlboost_jax.learner.processes.process_group import ALONE, join
from rlboost_jax.main import train
from rlboost_jax.platform import compile_cache
from rlboost_jax.platform.jax_switches import check_switches, devices_found, switches_of_bits
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.rollout import server
from rlboost_jax.settings.config_loading import run_config, write_run_config
from rlboost_jax.trust.run_files import trainer_folder
from rlboost_jax.trust.seal import prepare_seal

REFUSED = [
    ("jax_enable_x64", True),
    ("jax_numpy_dtype_promotion", "strict"),
    ("jax_default_prng_impl", "rbg"),
    ("jax_default_prng_impl", "unsafe_rbg"),
    ("jax_threefry_partitionable", False),
    ("jax_random_seed_offset", 1),
    ("jax_enable_custom_prng", True),
    ("jax_legacy_prng_key", "error"),
    ("jax_disable_jit", True),
    ("jax_debug_nans", True),
    ("jax_debug_infs", True),
    ("jax_no_tracing", True),
    ("jax_transfer_guard", "disallow"),
    ("jax_transfer_guard_device_to_host", "disallow_explicit"),
]
OF_BITS = [
    ("jax_optimization_level", "O1"),
    ("jax_exec_time_optimization_effort", -1.0),
    ("jax_allow_f16_reductions", False),
    ("jax_compiler_enable_remat_pass", False),
    ("jax_explicit_x64_dtypes", "allow"),
    ("jax_high_dynamic_range_gumbel", True),
    ("jax_softmax_custom_jvp", True),
    ("jax_use_direct_linearize", False),
    ("jax_remat3", True),
    ("jax_use_simplified_jaxpr_constants", True),
    ("jax_ragged_dot_use_ragged_dot_instruction", False),
    ("jax_cpu_collectives_implementation", "mpi"),
    ("eager_constant_folding", True),
]
HARMLESS = [
    ("jax_numpy_rank_promotion", "raise"),  # as in all of these tests
    ("jax_enable_checks", True),
    ("jax_check_tracer_leaks", True),
    ("jax_log_compiles", True),
    ("jax_legacy_prng_key", "warn"),
    ("jax_transfer_guard", "log"),
    ("jax_traceback_filtering", "off"),
]


@contextlib.contextmanager
def switched(name: str, value: Any) -> Iterator[None]:
    """As a notebook does it."""
    if name not in jax.config.values:
        pytest.skip(f"jax {jax.__version__} has no switch {name}")
    before = jax.config.values[name]
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_what_no_run_is_right_with_is_refused_in_one_line(name: str, value: Any) -> None:
    check_switches()
    with switched(name, value), pytest.raises(ConfigError) as caught:
        check_switches()
    said = str(caught.value)
    assert said.startswith(f"{name} is {value!r}, which ") and "\n" not in said
    assert f"unset {name.upper()} in the environment" in said
    check_switches()


@pytest.mark.parametrize(("name", "value"), OF_BITS)
def test_what_changes_programs_is_part_of_the_fingerprint(name: str, value: Any) -> None:
    device, before = jax.devices()[0], switches_of_bits()
    here = fingerprint(device)
    with switched(name, value):
        check_switches()
        assert fingerprint(device) != here and f"{name}=" in switches_of_bits()
    assert fingerprint(device) == here and switches_of_bits() == before


@pytest.mark.parametrize(("name", "value"), HARMLESS)
def test_what_changes_no_bit_is_taken(name: str, value: Any) -> None:
    def program(key: jax.Array) -> jax.Array:
        return jax.nn.softmax(jax.random.normal(key, (4, 32)) @ jax.random.normal(key, (32, 8)))

    here = fingerprint(jax.devices()[0])
    expected = np.asarray(jax.jit(program)(jax.random.key(3)))
    with switched(name, value):
        check_switches()
        assert fingerprint(jax.devices()[0]) == here
        found = np.asarray(jax.jit(program)(jax.random.key(3)))
    np.testing.assert_array_equal(found, expected)


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """Folder of a run that has begun."""
    folder = tmp_path / "run"
    folder.mkdir()
    trainer_folder(folder).mkdir()
    prepare_seal(trainer_folder(folder), [])
    write_run_config(folder / "config.json", run_config(tiny.get_config()), "run")
    return folder


def _server(workdir: Path) -> Any:
    return server.main(["--manager=127.0.0.1:9", f"--join={workdir}"])


def _logits(workdir: Path) -> Any:
    np.save(workdir / "tokens.npy", np.zeros((1, 1), np.int32))
    tokens, out = workdir / "tokens.npy", workdir / "out.npz"
    return logits.main([f"--model={workdir}", f"--tokens={tokens}", f"--out={out}"])


PROCESSES: dict[str, Callable[[Path], Any]] = {
    "trainer, notebook": lambda workdir: train(tiny.get_config(), str(workdir.parent / "new")),
    "follower": lambda workdir: follow_training(run_config(tiny.get_config()), str(workdir), ALONE),
    "one of several": lambda workdir: join("127.0.0.1:9", 2, 1),
    "rollout server": _server,
    "gateway": lambda workdir: gateway([f"--workdir={workdir}"]),
    "evaluate": lambda workdir: evaluate.main([f"--workdir={workdir}"]),
    "export": lambda workdir: export.main([f"--workdir={workdir}", f"--to={workdir / 'new'}"]),
    "precompile": lambda workdir: precompile.main([f"--workdir={workdir}"]),
    "logits": _logits,
    "whatever compiles": lambda workdir: compile_cache.enable(str(workdir / "new")),
}


@pytest.mark.parametrize("process", PROCESSES)
def test_each_process_says_so_before_it_does_anything(
    process: str, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with switched("jax_enable_x64", True):
        try:
            code = PROCESSES[process](workdir)
            said = capfd.readouterr().err
        except ConfigError as error:
            code, said = 2, str(error)
        except SystemExit as exit:
            code, said = exit.code, capfd.readouterr().err
    assert code and said.count("\n") <= 1, said
    assert "jax_enable_x64 is True, which makes 64 bits of numbers" in said, said
    assert not (workdir / "new").exists() and not (workdir.parent / "new").exists()


def test_a_variable_is_a_switch(tmp_path: Path) -> None:
    """The environment's, of a process: the trainer's command and a line, not a traceback."""
    command = [sys.executable, "-m", "rlboost_jax.main", "--config=tiny", f"--workdir={tmp_path}"]
    environment = {**os.environ, "JAX_NUMPY_DTYPE_PROMOTION": "strict"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "error: jax_numpy_dtype_promotion is 'strict', which refuses sums" in done.stderr


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (AssertionError(), "no plugin for it is installed"),  # JAX_PLATFORMS=cuda without its extra
        (RuntimeError("Unable to initialize backend 'tpu'\nmore"), "backend 'tpu'"),
    ],
)
def test_devices_that_are_not_there_are_said_in_one_line(
    error: Exception, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert devices_found() == jax.devices()
    monkeypatch.setattr(jax, "devices", Mock(side_effect=error))
    with pytest.raises(
        ConfigError, match=r"^JAX finds no device of .*; unset JAX_PLATFORMS"
    ) as said:
        devices_found()
    assert why in str(said.value) and "\n" not in str(said.value)

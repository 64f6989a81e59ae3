"""What was proved of rows is not proved again, and nothing but that is spared."""

import json
import multiprocessing
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src import compilation_cache

from configs import base
from rlboost_jax.engine import row_sampling
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.invariance import RowsNotInvariant
from rlboost_jax.platform import compile_cache
from rlboost_jax.rollout.instance import engine_of
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.run_config import RunConfig
from tests.patience import PATIENCE_SECONDS
from tests.planted import Plant


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The place of a cache of this test's own."""
    before = jax.config.values["jax_compilation_cache_dir"]
    compilation_cache.reset_cache()
    yield compile_cache.enable(str(tmp_path / "cache"))
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.fixture
def run() -> RunConfig:
    found = run_config(base.get_config())
    model = replace(found.model, num_layers=1)
    return replace(found, model=model, engine=replace(found.engine, slots=8))


class Counting(Engine):
    """Notes how often it is checked."""

    checks = 0

    def assert_row_invariance(self) -> str:
        type(self).checks += 1
        return super().assert_row_invariance()


@pytest.fixture
def started(run: RunConfig, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, int, str]]:
    def start() -> tuple[str, int, str]:
        """Fingerprint, number of checks, and what was said of rows."""
        monkeypatch.setattr(Counting, "checks", 0)
        lines: list[str] = []
        engine = engine_of(run, lines.append, build=Counting)
        (line,) = [line for line in lines if line.startswith("rows are")]
        return engine.fingerprint, Counting.checks, line

    return start


def test_a_verdict_is_used_again_and_nothing_else_is_taken_for_one(
    folder: Path,
    started: Callable[..., Any],
    plant: Plant,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with compile_cache.recorded() as names:
        fingerprint, checks, line = started()
    (kept,) = folder.glob("rows-*.json")
    assert checks == 1 and str(kept) in line
    compilation_cache.reset_cache()
    another = compile_cache.enable(str(tmp_path / "host"))  # that fetches what the run offers
    for name in set(names):
        shutil.copy(folder / name, another / name)
    assert started()[:2] == (fingerprint, 0)
    compilation_cache.reset_cache()
    compile_cache.enable(str(folder.parent))
    assert started() == (fingerprint, 0, f"rows are independent, as kept in {kept}")

    values = json.loads(kept.read_text())
    forged = {**values, "verdict": {"bits": "0" * 64}}
    for damage in (
        "",
        kept.read_text()[:-9],
        json.dumps(forged),
        json.dumps({**values, "key": {}}),
    ):
        kept.write_text(damage)
        assert started()[:2] == (fingerprint, 1)
    assert started()[:2] == (fingerprint, 0), "it was written anew"

    monkeypatch.setenv("NPROC", "7")  # sums may be divided among more threads
    assert started()[1] == 1
    monkeypatch.undo()

    sound = row_sampling.head

    def leaky(config: Any, params: Any, x: Any, **options: Any) -> Any:
        return sound(config, params, x + 1e-6 * x.mean(0, keepdims=True), **options)

    plant(row_sampling, "head", leaky)  # programs of another text
    for _ in range(2):
        with pytest.raises(RowsNotInvariant):
            started()


def _hold(folder: str, held: Any) -> None:
    jax.config.update("jax_compilation_cache_dir", folder)
    with compile_cache.turn("name"), compile_cache.turn("other"):
        held.set()
        signal.pause()


def test_a_turn_ends_with_its_process_and_nobody_waits_for_ever(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_cache, "_in_vain", set())
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    process = context.Process(target=_hold, args=(str(folder), held))
    process.start()
    assert held.wait(PATIENCE_SECONDS)
    waits = []
    with compile_cache.turn("name", lambda: waits.append("for a while"), seconds=0.0):
        assert waits == ["for a while"] and process.is_alive()
    with compile_cache.turn("other", lambda: waits.append("again")):  # in vain once is enough
        assert waits == ["for a while"] and process.is_alive()
    compile_cache._in_vain.clear()
    with compile_cache.turn("name", process.kill, seconds=PATIENCE_SECONDS):
        process.join()
    assert process.exitcode == -signal.SIGKILL


def _compile(folder: str, barrier: Any, results: Any) -> None:
    compile_cache.enable(folder)
    lines: list[str] = []
    missed = []
    write = compilation_cache.put_executable_and_time

    def noted(key: str, *args: Any) -> None:
        missed.append(key)
        write(key, *args)

    compilation_cache.put_executable_and_time = noted
    barrier.wait()
    with compile_cache.recorded(lines.append):
        for number in range(8):
            jax.jit(lambda x, n=number: jnp.sin(x) * n + 1).lower(jnp.zeros(3)).compile()
    results.put(missed)


def test_processes_that_start_together_compile_each_program_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    arguments = (str(tmp_path / "cache"), barrier, results)
    processes = [context.Process(target=_compile, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    made = [*results.get(timeout=PATIENCE_SECONDS), *results.get(timeout=PATIENCE_SECONDS)]
    for process in processes:
        process.join()
    assert len(made) == len(set(made)) >= 8

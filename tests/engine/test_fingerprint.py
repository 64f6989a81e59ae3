"""Engines that may differ in bits differ in their fingerprints."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import pytest
import rlboost_kernels
from rlboost_kernels.cpu import library
from rlboost_kernels.cpu.library import ISA_VARIABLE

from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.fingerprint import fingerprint
from rlboost_jax.settings.engine_config import EngineConfig
from rlboost_jax.settings.model_config import ModelConfig


@pytest.fixture
def fingerprint_of(model: ModelConfig, engine_config: EngineConfig) -> Callable[..., str]:
    def make(
        *,
        slot_tokens: int = 44,
        hidden_dim: int = 24,
        source: str = "",
        truncated: bool = False,
        **settings: Any,
    ) -> str:
        return Engine(
            replace(model, hidden_dim=hidden_dim, source=source),
            replace(engine_config, **settings),
            slot_tokens=slot_tokens,
            truncated_sampling=truncated,
        ).fingerprint

    return make


@pytest.mark.parametrize(
    "change",
    [
        {"token_rows": 128},
        {"slots": 7},
        {"page_size": 8},
        {"kv_dtype": "bfloat16"},
        {"attention": "reference"},
        {"hidden_dim": 32},
        {"truncated": True},
    ],
)
def test_changes_with(fingerprint_of: Callable[..., str], change: dict[str, Any]) -> None:
    assert fingerprint_of(**change) != fingerprint_of()


@pytest.mark.parametrize(
    "change", [{}, {"num_pages": 30}, {"steps_per_dispatch": 1}, {"source": "moved"}]
)
def test_stays_with(fingerprint_of: Callable[..., str], change: dict[str, Any]) -> None:
    assert fingerprint_of(**change) == fingerprint_of()


def test_says_version_and_device(fingerprint_of: Callable[..., str]) -> None:
    text = fingerprint_of()
    assert text.startswith(f"jax{jax.__version__}-cpu-") and len(text) < 60


@pytest.mark.parametrize(
    ("platform", "start"), [("gpu", "-NVIDIA_H100-mosaic_gpu-"), ("cpu", "-NVIDIA_H100-")]
)
def test_says_which_attention_was_chosen_for_a_gpu(platform: str, start: str) -> None:
    device: Any = Mock(spec=jax.Device, platform=platform, device_kind="NVIDIA H100")
    text = fingerprint(device, attention="mosaic_gpu", slots=8)
    head, digest = text.rsplit("-", 1)
    assert f"{head}-" == f"jax{jax.__version__}{start}" and len(digest) == 16
    assert fingerprint(device, attention="triton", slots=8).rsplit("-", 1)[1] != digest


def test_libraries_of_a_gpu_count(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu: Any = Mock(spec=jax.Device, platform="gpu", device_kind="NVIDIA H100")
    cpu: Any = Mock(spec=jax.Device, platform="cpu", device_kind="cpu")
    before, after = ({"nvidia-cublas-cu12": version} for version in ("12.9.1", "12.9.2"))
    assert fingerprint(gpu, libraries=before) != fingerprint(gpu, libraries=after)
    assert fingerprint(cpu, libraries=before) == fingerprint(cpu, libraries=after)
    here = fingerprint(gpu), fingerprint(cpu)
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_impure_oom_fast_exit_threshold=1")
    assert (fingerprint(gpu) == here[0], fingerprint(cpu) == here[1]) == (False, True)
    monkeypatch.delenv("LIBTPU_INIT_ARGS")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    assert (fingerprint(gpu) == here[0], fingerprint(cpu) == here[1]) == (False, True)


def test_kernels_count() -> None:
    (device, *_), active = jax.devices(), rlboost_kernels.active()
    here = fingerprint(device, slots=8)
    assert fingerprint(device, slots=8, kernels=active) == here
    other = active | {"matmul": "cpu[another instruction set]"}
    assert fingerprint(device, slots=8, kernels=other) != here


def test_flags_that_change_programs_count(
    fingerprint_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    plain = fingerprint_of()
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    assert fingerprint_of() == plain
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert fingerprint_of() != plain


def test_flags_count_as_xla_reads_them(
    fingerprint_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The last of a name wins, and what begins with no dash names a file of flags."""

    def of(flags: str) -> str:
        monkeypatch.setenv("XLA_FLAGS", flags)
        return fingerprint_of()

    on, off = "--xla_cpu_enable_fast_math=true", "--xla_cpu_enable_fast_math=false"
    assert of(f"{off} {on}") == of(on) != of(f"{on} {off}") == of(off)
    assert of(f" {on}\n") == of(on)
    file = tmp_path / "flags"
    file.write_text(f"{off}\n{on}\n")
    assert of(str(file)) == of(on)
    file.write_text(off)
    assert of(str(file)) == of(off)
    file.write_text("--xla_force_host_platform_device_count=8")
    assert of(str(file)) == of("")


def test_instruction_sets_count() -> None:
    """One of the two multiplies bfloat16 in its own way; the processor is the same."""

    def of(isa: str) -> str:
        program = (
            "import jax; from rlboost_jax.engine.fingerprint import fingerprint; "
            "print(fingerprint(jax.devices()[0]))"
        )
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", ISA_VARIABLE: isa}
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=300,
            env=environment,
        )
        if "which this machine does not have" in done.stderr:
            pytest.skip(f"this machine does not have {isa}")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    if library.why_missing():
        pytest.skip("needs the compiled kernels")
    widened, pairs = of("avx512"), of("avx512_bf16")
    assert widened.rsplit("-", 1)[0] == pairs.rsplit("-", 1)[0]
    assert widened != pairs

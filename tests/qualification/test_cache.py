"""Verdicts on disk: used again as long as nothing has changed, and never when damaged."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.qualification import cache, machine
from rlboost_jax.qualification.kernel_choice import worth_keeping
from rlboost_jax.qualification.trial_records import KernelVerdict, Outcome, Trial

KEY = {"facts": {"device": "H100", "jaxlib": "0.12.0"}, "spec": {"shape": {"slots": 64}}}
RIGHT = Trial(candidate="triton", outcome="right", seconds=1e-4, error=0.003)
VERDICT = KernelVerdict(
    platform="gpu",
    device="NVIDIA H100 80GB HBM3",
    trials=(Trial(candidate="mosaic_gpu", outcome="crashed", reason="SIGSEGV"), RIGHT),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = cache.place_of(tmp_path, "engine_attention", KEY)
    assert cache.keep(path, KEY, VERDICT) == ""
    return path


def test_is_used_again(path: Path) -> None:
    assert cache.kept(path, KEY, KernelVerdict) == VERDICT
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # nothing half-written


@pytest.mark.parametrize(
    "changed",
    [
        {**KEY, "facts": {"device": "H100", "jaxlib": "0.12.1"}},
        {**KEY, "facts": {"device": "A100", "jaxlib": "0.12.0"}},
        {**KEY, "spec": {"shape": {"slots": 128}}},
    ],
)
def test_is_of_its_own_key_alone(path: Path, tmp_path: Path, changed: dict[str, Any]) -> None:
    assert cache.place_of(tmp_path, "engine_attention", changed) != path
    assert cache.kept(path, changed, KernelVerdict) is None  # nor where it was copied to


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "\x00" * len(text),
        lambda text: text.replace('"crashed"', '"right"'),
        lambda text: text.replace("0.0001", "0.0009"),
        lambda text: text.replace('"trials"', '"trails"'),
        lambda text: json.dumps([1]),
    ],
)
def test_counts_as_missing_when_damaged(path: Path, damage: Any) -> None:
    text = path.read_text()
    path.write_text(damage(text))
    assert path.read_text() != text
    assert cache.kept(path, KEY, KernelVerdict) is None
    assert cache.keep(path, KEY, VERDICT) == "" and cache.kept(path, KEY, KernelVerdict) == VERDICT


def test_says_why_it_cannot_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = cache.place_of(tmp_path / "file", "engine_attention", KEY)
    assert "Not a directory" in cache.keep(path, KEY, VERDICT)
    assert cache.kept(path, KEY, KernelVerdict) is None


@pytest.mark.parametrize(
    ("outcome", "reason", "kept"),
    [
        ("raised", "RESOURCE_EXHAUSTED: 4 GiB", False),
        ("raised", "CUDA_ERROR_OUT_OF_MEMORY", False),
        ("raised", "CUDNN_STATUS_ALLOC_FAILED", False),
        ("raised", "CUDA_ERROR_DEVICE_UNAVAILABLE", False),
        ("crashed", "SIGKILL: Killed", False),
        ("crashed", "SIGSEGV", True),
        ("raised", "ValueError: no layout", True),
        ("unavailable", "UNAVAILABLE to compute capability 8.0", True),  # by its own word
        ("hung", "no result after 180 s", True),  # else each start would wait for it
    ],
)
def test_what_may_pass_is_not_kept(outcome: Outcome, reason: str, kept: bool) -> None:
    trial = Trial(candidate="xla", outcome=outcome, reason=reason)
    both, alone = (
        KernelVerdict(platform="gpu", device="d", trials=t) for t in ((trial, RIGHT), (trial,))
    )
    assert worth_keeping(both) is kept
    assert not worth_keeping(alone)  # the device may be busy, or its driver broken


def test_verdicts_depend_on_the_sources_of_all_that_is_tried(tmp_path: Path) -> None:
    """Kernels, what calls them, their sizes, and the trials."""
    sources = machine.sources_of_candidates()
    for name in (
        *(
            "rlboost_kernels/attention/attention_mosaic_gpu.py",
            "rlboost_kernels/grouped/grouped_mosaic_gpu.py",
        ),
        *("models/cudnn_attention.py", "models/packed_attention.py", "models/grouped_experts.py"),
        *(
            "models/chunked_attention.py",
            "settings/memory_estimates.py",
            "qualification/problem.py",
        ),
    ):
        assert sources[name].read_text()
    (tmp_path / "gpus" / "0").mkdir(parents=True)
    (tmp_path / "version").write_text("NVRM version: 560.35\n")
    (tmp_path / "gpus" / "0" / "information").write_text("Model: NVIDIA H100\n")
    mended = tmp_path / "cudnn_attention.py"
    mended.write_text(sources["models/cudnn_attention.py"].read_text() + "# mended\n")
    before = machine.facts(tmp_path, sources=sources)
    after = machine.facts(tmp_path, sources={**sources, "models/cudnn_attention.py": mended})
    assert before is not None and after is not None
    assert before["kernels"] != after["kernels"] and before["device"] == after["device"]

"""Every part of benchmarks/gpu.py runs dry, and one that breaks leaves the others alone."""

import json

import pytest

from benchmarks import gpu, gpu_kernels


@pytest.mark.soak
@pytest.mark.parametrize("part", gpu.PARTS)
def test_runs_dry(part):
    result = gpu.run_part(part, dry_run=True)
    if result["status"] == "left out":
        pytest.skip(result["reason"])
    assert result["status"] == "ok", result["traceback"]
    values = [figure["value"] for figure in result["figures"]]
    assert values
    assert not [value for value in values if str(value).startswith("failed")]


def test_a_part_that_breaks_is_told_of(monkeypatch, capsys, tmp_path):
    def breaks(*, dry_run):
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS\nand more")

    def needs_more(*, dry_run):
        import a_package_that_is_nowhere  # noqa: F401

    figure = gpu_kernels.figure("share", 0.9, "of read", "≥ 0.85")
    monkeypatch.setattr(gpu_kernels, "correctness", breaks)
    monkeypatch.setattr(gpu_kernels, "latency", needs_more)
    monkeypatch.setattr(gpu_kernels, "bandwidth", lambda dry_run: [figure])
    monkeypatch.setattr(gpu, "run_apart", gpu.run_part)
    path = tmp_path / "gpu.json"
    assert gpu.main(["--parts=correctness,latency,bandwidth", f"--json={path}"]) == 1
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines[0].split(maxsplit=1) == [
        "correctness",
        "failed: RuntimeError: CUDA_ERROR_ILLEGAL_ADDRESS",
    ]
    assert lines[1].endswith("left out: a_package_that_is_nowhere is not installed")
    assert lines[2].split() == ["bandwidth", "share", "0.9", "of", "read", "≥", "0.85"]
    parts = json.loads(path.read_text())["parts"]
    assert [parts[name]["status"] for name in parts] == ["failed", "left out", "ok"]


def test_a_part_whose_process_dies_is_told_of(monkeypatch):
    monkeypatch.setattr(gpu.sys, "executable", "false")
    result = gpu.run_apart("latency", dry_run=True)
    assert (result["status"], result["reason"]) == ("failed", "its process ended with 1")

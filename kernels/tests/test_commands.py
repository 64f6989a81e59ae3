"""The program `rlboost-kernels`; what its commands print is for `tests/wheels.py`."""

import importlib.util
import runpy
import sys

import pytest
from rlboost_kernels import kernel_commands


def test_the_package_is_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["rlboost_kernels"])
    with pytest.raises(SystemExit) as ending:
        runpy.run_module("rlboost_kernels", run_name="__main__")
    assert ending.value.code == 0 and capsys.readouterr().out == kernel_commands.text()


def test_help_names_modules_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert kernel_commands.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(
        kernel_commands.COMMANDS
    )
    assert all(importlib.util.find_spec(module) for module, _ in kernel_commands.COMMANDS.values())


def test_a_misspelt_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert kernel_commands.main(["bnech"]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert said.err == "error: no command 'bnech'; known: bench, build\n"

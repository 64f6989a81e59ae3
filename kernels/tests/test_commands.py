"""The program `rlboost-kernels`; what its commands print is for `tests/wheels.py`."""

import importlib.util

import pytest
from rlboost_kernels import commands


def test_help_names_modules_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(commands.COMMANDS)
    assert all(importlib.util.find_spec(module) for module, _ in commands.COMMANDS.values())


def test_a_misspelt_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["bnech"]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert said.err == "error: no command 'bnech'; known: bench, build\n"

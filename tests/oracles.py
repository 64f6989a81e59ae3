"""Libraries on torch that tests compare with, where they are installed."""

import importlib
import sys
from typing import Any

import pytest


def torch_oracle(name: str = "torch") -> Any:
    """torch, or the module `name` on top of it. Else the test, or the whole file, is skipped.

    transformers alone is not enough: it can be imported without torch and then has no models.
    """
    for needed in ("torch", name):
        try:
            module = importlib.import_module(needed)
        except ImportError:
            python = f"{sys.version_info.major}.{sys.version_info.minor}"
            library = needed.partition(".")[0]
            pytest.skip(
                f"{library} is not installed, the oracle here: pyproject.toml asks for torch and "
                f"what needs it on Python 3.11 only, and this is Python {python}",
                allow_module_level=True,
            )
    return module

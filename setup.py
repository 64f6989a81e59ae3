"""Puts the folder `configs/` into a wheel as `rlboost_jax.configs`; all else is in pyproject.toml.

A wheel with a package `configs` of its own would take that name from everything else in an
environment. In a checkout, and so in an editable installation, `rlboost_jax/configs/__init__.py`
points to the folder, and nothing of this has an effect.
"""

from setuptools import setup
from setuptools.command.build_py import build_py

PACKAGE = "rlboost_jax.configs"


class BuildWithConfigs(build_py):
    def finalize_options(self) -> None:
        super().finalize_options()
        self.packages = sorted({*self.packages, PACKAGE, f"{PACKAGE}.sim"})
        self.package_dir = {**self.package_dir, PACKAGE: "configs"}


setup(cmdclass={"build_py": BuildWithConfigs})

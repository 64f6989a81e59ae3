"""Compiles the library of the `cpu` implementation where that is possible.

Where it is not, for want of a compiler or of headers, the installation goes on without it, and
the package says what is missing when it is asked for. All else is in pyproject.toml.
"""

import importlib.util
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

_CPU = Path(__file__).parent / "rlboost_kernels" / "cpu"
_spec = importlib.util.spec_from_file_location("recipe", _CPU / "build.py")
recipe = importlib.util.module_from_spec(_spec)  # by its path: the package itself imports jax
_spec.loader.exec_module(recipe)


def _report(line: str) -> None:
    """Show progress, which pip passes on with -v."""
    print(line, file=sys.stderr, flush=True)


class BuildLibrary(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        """Without the tag of a Python: the library belongs to none."""
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        try:
            recipe.build(Path(self.get_ext_fullpath(ext.name)).parent, _report)
        except recipe.CannotBuild as error:
            raise CompileError(str(error)) from error  # a warning, as the extension is optional


class WheelOfOnePlatform(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


try:
    NAME = Path(recipe.library_of(recipe.interface_version())).stem
except recipe.CannotBuild:  # as it will say once more
    NAME = "librlboost_kernels"

setup(
    ext_modules=[
        Extension(
            f"rlboost_kernels.cpu.{NAME}",
            sources=sorted(f"rlboost_kernels/cpu/src/{p.name}" for p in recipe.SOURCES.iterdir()),
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": WheelOfOnePlatform},
)

"""Configurations that come with the package, as modules: `from rlboost_jax.configs import base`.

They are the files of `configs/` at the root of the repository. A wheel has them in this folder,
where `setup.py` puts them, `configs/__init__.py` in place of this file. This one is there in a
checkout only, and points to that folder.
"""

__path__ = [__file__.removesuffix("rlboost_jax/configs/__init__.py") + "configs"]
TYPE_CHECKING = False

if TYPE_CHECKING:  # what checks types does not follow `__path__`

    def __getattr__(name: str):  # type: ignore[no-untyped-def]
        ...

"""The reference of `rlboost_kernels`: the first paragraph of each function's docstring.

python tools/kernels_page.py > docs/reference/kernels.md
"""

import inspect

import rlboost_kernels

HEADER = """\
# Kernels: the functions of rlboost_kernels

<!-- Made by `python tools/kernels_page.py > docs/reference/kernels.md`. -->

`pip install ./kernels` installs the package without the rest. `help(rlboost_kernels.matmul)` has
arguments, errors and sources of a function, and the source the shapes of its arguments;
`kernels/README.md` has promises, speeds and a decode loop.

| function | what it does |
|---|---|
"""


def document() -> str:
    names = [name for name in rlboost_kernels.__all__ if not name.startswith("_")]
    return HEADER + "".join(map(_row, names))


def _row(name: str) -> str:
    text = inspect.getdoc(getattr(rlboost_kernels, name)) or ""
    return f"| `{name}` | {' '.join(text.partition(chr(10) * 2)[0].split())} |\n"


if __name__ == "__main__":
    print(document(), end="")

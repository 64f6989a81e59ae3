"""The reference of `rlboost_kernels`: signatures, and the first paragraphs of docstrings.

python tools/kernels_page.py > docs/reference/kernels.md
"""

import inspect
import re
import textwrap

import rlboost_kernels

HEADER = """\
# Kernels: the functions of rlboost_kernels

<!-- Made by `python tools/kernels_page.py > docs/reference/kernels.md`. -->

`pip install ./kernels` installs the package without the rest. `help(rlboost_kernels.matmul)` has
arguments, errors and sources of a function; `kernels/README.md` has promises, speeds and a decode
loop.

Axes: `T` rows, `S` sequences, `H` query heads, `K` key heads, `D` width of a head, `P` pages, `L`
tokens of a page, `M` pages of a sequence, `N` tokens, `E` width of the model, `V` vocabulary.
"""


def document() -> str:
    names = [name for name in rlboost_kernels.__all__ if not name.startswith("_")]
    return "\n".join([HEADER, *map(_section, names)])


def _section(name: str) -> str:
    function = getattr(rlboost_kernels, name)
    text = inspect.getdoc(function) or ""
    return f"## {name}\n\n```python\n{_signature(name, function)}\n```\n\n{_first(text)}\n"


def _signature(name: str, function: object) -> str:
    """As in the source, where its comments say shapes."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))  # type: ignore[arg-type]
    start = source.index(f"def {name}(")
    head = re.match(r"def .*?\)( -> [^\n]*?)?:([^\n]*)", source[start:], re.DOTALL)
    assert head is not None, name
    return head[0]


def _first(text: str) -> str:
    return textwrap.fill(" ".join(text.partition("\n\n")[0].split()), 118)


if __name__ == "__main__":
    print(document(), end="")

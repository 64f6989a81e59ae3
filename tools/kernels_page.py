"""The reference of `rlboost_kernels`, out of its signatures and docstrings.

python tools/kernels_page.py > docs/reference/kernels.md
"""

import inspect
import re
import textwrap

import rlboost_kernels

HEADER = """\
# Kernels: the functions of rlboost_kernels

<!-- Made by `python tools/kernels_page.py > docs/reference/kernels.md`. -->

`pip install ./kernels` installs the package by itself: ragged paged attention, writes to a paged
key-value cache, sampling, log-probabilities and products of matrices for JAX. `kernels/README.md`
has what they promise, how fast they are and an example of a decode loop. Axes: `T` rows, `S`
sequences, `H` query heads, `K` key heads, `D` width of a head, `P` pages, `L` tokens of a page, `M`
pages of a sequence, `N` tokens, `E` width of the model, `V` vocabulary.
"""
_PARTS = ("Args", "Returns", "Raises", "Source")
_ENTRY = re.compile(r"([a-z_][\w, ]*|[A-Z]\w+(?:, [A-Z]\w+)*): (.*)", re.DOTALL)


def document() -> str:
    names = [name for name in rlboost_kernels.__all__ if not name.startswith("_")]
    return "\n".join([HEADER, *map(_section, names)])


def _section(name: str) -> str:
    function = getattr(rlboost_kernels, name)
    text = inspect.getdoc(function) or ""
    return f"## {name}\n\n```python\n{_signature(name, function)}\n```\n\n{_markdown(text)}\n"


def _signature(name: str, function: object) -> str:
    """As in the source, where its comments say shapes."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))  # type: ignore[arg-type]
    start = source.index(f"def {name}(")
    head = re.match(r"def .*?\)( -> [^\n]*?)?:([^\n]*)", source[start:], re.DOTALL)
    assert head is not None, name
    return head[0]


def _markdown(text: str) -> str:
    """Paragraphs as they are; the parts of a docstring as lists."""
    blocks = []
    for paragraph in text.split("\n\n"):
        first, _, rest = paragraph.partition("\n")
        if (title := first.rstrip(":")) in _PARTS and first.endswith(":"):
            blocks.append(f"**{title}**")
            blocks.append("\n".join(_entries(textwrap.dedent(rest))))
        else:
            blocks.append(textwrap.fill(" ".join(paragraph.split()), 118))
    return "\n\n".join(blocks)


def _entries(text: str) -> list[str]:
    """`name: meaning`, each with the lines that are indented under it."""
    found = re.split(r"\n(?=\S)", text.strip("\n"))
    lines = []
    for entry in found:
        plain = " ".join(entry.split())
        match = _ENTRY.fullmatch(plain)
        if match:
            names = ", ".join(f"`{each.strip()}`" for each in match[1].split(","))
            plain = f"{names}: {match[2]}"
        lines.append(textwrap.fill(f"- {plain}", 118, subsequent_indent="  "))
    return lines


if __name__ == "__main__":
    print(document(), end="")

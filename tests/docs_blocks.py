"""Code blocks of README and docs/, and how the ones with commands are run.

A shell block is run by `python -m tests.docs_commands`, unless a comment on the line before its
fence says otherwise:

    <!-- quick -->                             cheap: `tests/test_docs_commands.py` runs it, too
    <!-- run with WORD --flag; WORD2 --f2 -->  run, with flags after the command that has the word
    <!-- tested by `tests/…::test_…`: … -->    that test runs it, or what it says
    <!-- not run: why -->                      nothing runs it, and why
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
SHELLS = frozenset({"sh", "bash", "shell", "console"})
_MARK = re.compile(r"<!-- (quick|not run|tested by|run with)\b:? ?(.*) -->")
_SAVED = re.compile(r"Save this as `([\w./-]+)`[^`]*\Z")

Fate = Literal["run", "quick", "not run", "tested by", "run with"]


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block.

    Attributes:
        page: from the root of the repository.
        line: of its opening fence, from 1.
        language: what follows the fence; "" where nothing does.
        fate: of a shell block.
        reason: what the mark says after that; "" without one.
        saved_as: the file that the text right before it says to save it as; "" for none.
    """

    page: str
    line: int
    language: str
    text: str
    fate: Fate = "run"
    reason: str = ""
    saved_as: str = ""

    @property
    def is_shell(self) -> bool:
        return self.language in SHELLS

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """README first, then tutorials, then the rest."""
    found = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", *sorted(found, key=lambda page: not page.startswith("docs/tutorials/"))]


def blocks_of(page: str) -> list[Block]:
    return blocks(page, (ROOT / page).read_text(encoding="utf-8"))


def blocks(page: str, text: str) -> list[Block]:
    """Fenced blocks in order.

    Raises:
        ValueError: a fence that is indented, has no end or no language, or a mark without a block.
    """
    lines, found, start = text.split("\n"), list[Block](), 0
    opening: Block | None = None
    for number, line in enumerate(lines, 1):
        if opening is not None:
            if line == "```":
                found.append(replace(opening, text="\n".join(lines[opening.line : number - 1])))
                opening, start = None, number
        elif line.lstrip().startswith("```"):
            opening = _opened(page, number, line, lines[start : number - 1])
        elif _MARK.match(line) and not lines[number : number + 1][0].startswith("```"):
            raise ValueError(f"{page}:{number}: a mark, and no block on the next line")
    if opening is not None:
        raise ValueError(f"{opening.place}: a block without an end")
    return found


def _opened(page: str, number: int, line: str, before: list[str]) -> Block:
    language = line.removeprefix("```")
    if not line.startswith("```") or not language.isalpha():
        raise ValueError(f"{page}:{number}: a fence begins its line and names a language")
    block = Block(page=page, line=number, language=language, text="")
    if before and (mark := _MARK.match(before[-1])):
        fate: Fate = mark[1]  # type: ignore[assignment]  # one of the words in the expression
        block = replace(block, fate=fate, reason=mark[2])
    if saved := _SAVED.search("\n".join(before)):
        block = replace(block, saved_as=saved[1])
    return block


def with_flags(block: Block) -> str:
    """The block's commands, with the flags that `run with` gives to some of them."""
    text = block.text
    if block.fate == "run with":
        for more in block.reason.split(";"):
            word, _, flags = more.strip().partition(" ")
            text, found = re.subn(rf"{re.escape(word)}(?=\s|$)", f"{word} {flags}", text)
            if not found:
                raise ValueError(f"{block.place}: no command has the word {word!r}")
    return text

"""What `docs/tutorials/bring-your-own.md` has a reader save and type, read from the page itself."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tutorials" / "bring-your-own.md"
_SAVE = re.compile(r"^Save this as `([\w.]+)`:\n\n```python\n(.*?)^```$", re.M | re.S)
_TYPE = re.compile(r"^```bash\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True, kw_only=True)
class Tutorial:
    files: dict[str, str]  # what to save, by name
    commands: tuple[str, ...]


def tutorial(page: Path = PAGE) -> Tutorial:
    text = page.read_text(encoding="utf-8")
    lines = (line for block in _TYPE.findall(text) for line in block.splitlines())
    return Tutorial(files=dict(_SAVE.findall(text)), commands=tuple(lines))

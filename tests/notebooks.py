"""Notebooks without a kernel: the code that they hold."""

import json
from pathlib import Path
from types import CodeType


def code_cells(path: Path) -> list[CodeType]:
    """Compiled, in order."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [
        compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec")
        for number, cell in enumerate(cells)
        if cell["cell_type"] == "code"
    ]

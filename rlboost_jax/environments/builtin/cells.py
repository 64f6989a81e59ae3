"""Run the last of several cells of Python, after those before it, as a notebook does.

A program of its own for `python_tool.py`, in the process that `workers/sandbox_child.py` makes;
nobody imports it. It reads the cells as JSON from standard input. What those before the last print
is dropped. Of the last all that is printed stays, then the value of its last expression, or the
traceback of what it raised, with exit code `RAISED`.
"""

import ast
import json
import os
import sys
import traceback
import types

RAISED = 3


def run_cell(source: str, names: dict[str, object], *, show: bool) -> None:
    """Run one cell.

    Args:
        names: what cells have defined; changed.
        show: print the value of the last line where that is an expression.
    """
    tree = ast.parse(source, "<cell>")
    last = None
    if tree.body and isinstance(end := tree.body[-1], ast.Expr):
        tree.body.pop()
        last = ast.Expression(end.value)
    run_code(compile(tree, "<cell>", "exec"), names)
    if last is not None:
        value = run_code(compile(last, "<cell>", "eval"), names)
        if show and value is not None:
            print(repr(value))


def run_code(code: types.CodeType, names: dict[str, object]) -> object:
    return types.FunctionType(code, names)()


def explained(error: BaseException) -> str:
    """Traceback from the cell on, without the lines of this file."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != "<cell>":
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames, limit=-8))


def say_last(text: bytes) -> None:
    """Print after all else; if the output file is full, in place of its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.ftruncate(1, max(0, os.lseek(1, 0, os.SEEK_END) - len(text) - 1))
        text = b"\n" + text
    os.lseek(1, 0, os.SEEK_END)
    os.write(1, text)


def main() -> None:
    *before, last = json.load(sys.stdin)
    names: dict[str, object] = {"__name__": "__main__", "__builtins__": __builtins__}
    for source in before:
        run_cell(source, names, show=False)
    sys.stdout.flush()
    os.ftruncate(1, 0)
    os.lseek(1, 0, os.SEEK_SET)
    try:
        run_cell(last, names, show=True)
        sys.stdout.flush()
    except BaseException as error:  # SystemExit as well: it is no end of ours
        try:
            say_last(explained(error).encode(errors="replace"))
        finally:
            os._exit(RAISED)


if __name__ == "__main__":
    main()

"""`rlboost-kernels COMMAND`: each command is a module that `python -m` runs as well."""

import runpy
import sys
from collections.abc import Sequence

COMMANDS = {
    "bench": ("rlboost_kernels.bench", "time the kernels on this machine"),
    "build": ("rlboost_kernels.cpu", "compile the library of the cpu implementation"),
}


def text() -> str:
    """Text that `rlboost-kernels --help` prints."""
    lines = (f"  {name:<7}{line}\n" for name, (_, line) in COMMANDS.items())
    return "".join(("usage: rlboost-kernels COMMAND [OPTIONS]\n\ncommands:\n", *lines))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code, unless the command ends the process."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(text(), end="")
        return 0
    if name not in COMMANDS:
        print(f"error: no command {name!r}; known: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    sys.argv = [sys.argv[0], *rest]
    runpy.run_module(COMMANDS[name][0], run_name="__main__", alter_sys=True)
    return 0

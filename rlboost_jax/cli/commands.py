"""`rlboost COMMAND`: all commands; each is a module that `python -m` runs as well.

    python -m rlboost_jax.cli.commands > docs/reference/commands.md

Nothing of a command is imported before it is chosen.
"""

import os
import runpy
import stat
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from rlboost_jax import __version__
from rlboost_jax.platform import command_parser, exits
from rlboost_jax.platform.mistakes import suggestion


class Command(NamedTuple):
    """A command of `rlboost`."""

    module: str  # that runs
    line: str  # what it does
    record: str = ""  # module and name of the record that its `--config` becomes, if it takes one


_RUN: Final = "rlboost_jax.settings.run_config:RunConfig"
SIMULATION: Final = "rlboost_jax.simulator.sim_config:SimConfig"

COMMANDS: Final[Mapping[str, Command]] = MappingProxyType(
    {
        "train": Command("rlboost_jax.main", "train a model, or go on with a run", _RUN),
        "rollout": Command("rlboost_jax.rollout", "generate for a run, from any machine"),
        "join": Command(
            "rlboost_jax.cli.join", "print what a server needs to join, for RLBOOST_JOIN"
        ),
        "environments": Command("rlboost_jax.environments", "run a run's environments here"),
        "play": Command("rlboost_jax.environments.play", "play a run's environment by hand", _RUN),
        "report": Command("rlboost_jax.cli.report", "draw a run as a page, report.html"),
        "compare": Command(
            "rlboost_jax.cli.compare", "compare runs: weights step by step, and what differs"
        ),
        "page": Command("rlboost_jax.cli.page", "show a run in a browser, finished or not"),
        "evaluate": Command(
            "rlboost_jax.cli.evaluate", "measure a run's policy on held-out prompts"
        ),
        "export": Command("rlboost_jax.export", "write a run's model for transformers, or PEFT"),
        "gateway": Command("rlboost_jax.gateway", "serve a policy behind OpenAI's protocol"),
        "restore": Command("rlboost_jax.cli.restore", "bring a run back from its copies"),
        "verify": Command("rlboost_jax.cli.verify", "check every digest of a run's files"),
        "index": Command("rlboost_jax.cli.index", "make a corpus for the tool that searches"),
        "logits": Command("rlboost_jax.cli.logits", "check a checkpoint, learner against engine"),
        "simulate": Command(
            "rlboost_jax.simulate", "what do preemptible machines gain?", SIMULATION
        ),
        "advise": Command("rlboost_jax.cli.advise", "what is one more machine worth?", SIMULATION),
        "plan": Command("rlboost_jax.cli.plan", "which machines to buy: cost, time and risk", _RUN),
        "calibrate": Command("rlboost_jax.cli.calibrate", "fit the simulator to a run", SIMULATION),
        "configs": Command(
            "rlboost_jax.settings.shipped", "configurations that --config takes by name"
        ),
        "fleet": Command("rlboost_jax.cli.fleet", "find servers that runs have left, and end them"),
        "logs": Command(
            "rlboost_jax.cli.logs", "what a run's servers have printed, wherever they ran"
        ),
        "health": Command(
            "rlboost_jax.rollout.health", "whether the server in this container is at work"
        ),
        "wheelhouse": Command("rlboost_jax.cli.wheelhouse", "wheels for hosts without the package"),
        "compile": Command("rlboost_jax.cli.precompile", "compile for servers of another kind"),
        "completion": Command("rlboost_jax.cli.completion", "completion for bash, zsh or fish"),
        "manager": Command("rlboost_jax.manager", "a run's manager; its trainer starts it"),
    }
)
HEADER: Final = """\
usage: rlboost COMMAND [OPTIONS]

Train language models by reinforcement learning on reserved and preemptible accelerators.

commands:
"""
FOOTER: Final = """
rlboost COMMAND --help has a command's options, rlboost --version the version.
"""
PAGE: Final = """\
# Commands

<!-- Made by `python -m rlboost_jax.cli.commands > docs/reference/commands.md`. -->

An installation has one program, `rlboost`. Each of its commands is a module, too: `python -m
MODULE` takes the same options and runs the same code. `rlboost COMMAND --help` has the options.

| command | what it does | module |
|---|---|---|
"""
PAGE_END: Final = """
`--config` takes a path, or the name of a configuration that comes with the package, which `rlboost
configs` lists. A file of your own can begin with one of them: `rlboost configs quickstart >
mine.py` prints it, and `from rlboost_jax.configs import base` works in a file anywhere. A misspelt
command, option, name or setting is one line with the nearest that exists, and exit code 2.

## Completion

Of commands, options, names of configurations and settings:

<!-- tested by `tests/cli/test_commands.py` -->
```sh
source <(rlboost completion bash)                                    # in ~/.bashrc
source <(rlboost completion zsh)                                     # in ~/.zshrc
rlboost completion fish > ~/.config/fish/completions/rlboost.fish    # once
```

## Kernels

The package `rlboost-kernels` has a program of that name: `rlboost-kernels bench` times all kernels
on this machine, `rlboost-kernels build` compiles the library of the `cpu` implementation, where an
installation found no compiler.
"""


def text() -> str:
    """Text that `rlboost --help` prints."""
    width = max(map(len, COMMANDS)) + 2
    lines = (f"  {name:<{width}}{command.line}\n" for name, command in COMMANDS.items())
    return "".join((HEADER, *lines, FOOTER))


def document() -> str:
    """Text of docs/reference/commands.md."""
    rows = (
        f"| `rlboost {name}` | {command.line} | `{command.module}` |\n"
        for name, command in COMMANDS.items()
    )
    return "".join((PAGE, *rows, PAGE_END))


def main(arguments: Sequence[str] | None = None) -> int:
    """The program `rlboost`; returns its exit code, unless the command ends the process."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(text(), end="")
    elif name == "--version":
        print(__version__)
    elif name in COMMANDS:
        _run(COMMANDS[name].module, rest)
    else:
        hint = suggestion(name, COMMANDS, shown="rlboost {}")
        print(f"error: no command {name!r}; {hint}", file=sys.stderr)
        return exits.MISTAKE
    return 0


def _run(module: str, arguments: list[str]) -> None:
    """As `python -m module arguments` does, the folder it is called in first among the places of
    modules: configurations and reward functions may lie there. Not so where every user may put
    modules there, as in /tmp."""
    folder = os.getcwd()
    if not sys.flags.safe_path and os.stat(folder).st_mode & stat.S_IWOTH:
        print(
            f"modules of {folder} are not imported, since every user may put some there; "
            "start in a folder of your own if the run needs modules of yours",
            file=sys.stderr,
        )
        os.environ["PYTHONSAFEPATH"] = "1"  # of the processes that the command starts
    elif not sys.flags.safe_path:
        sys.path.insert(0, folder)
    sys.argv = [sys.argv[0], *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    command_parser.take_none("rlboost_jax.cli.commands", __doc__)
    print(document(), end="")

"""Completion of commands, options, names of configurations and settings, for a shell.

    source <(rlboost completion bash)                                    # in ~/.bashrc
    source <(rlboost completion zsh)                                     # in ~/.zshrc
    rlboost completion fish > ~/.config/fish/completions/rlboost.fish    # once

The script that is printed holds all it completes: nothing of rlboost is started by a shell.
"""

import ast
import importlib
import importlib.util
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from rlboost_jax.cli.commands import COMMANDS, SIMULATION, Command
from rlboost_jax.platform import command_parser
from rlboost_jax.settings.command_line import field_names
from rlboost_jax.settings.shipped import OF_SIMULATIONS, shipped

FOLDERS: Final = ("workdir", "join", "to")  # options that name one
DEFINE: Final = "DEFINE_"  # how functions of absl begin that make a flag


class Option(NamedTuple):
    """An option of a command.

    `values`: it takes one; `help`: in words, "" where that is not constant.
    """

    name: str
    help: str
    values: bool


def options(module: str) -> tuple[Option, ...]:
    """List the options that a module's text gives to `add_argument` or to `DEFINE_…`.

    They are read in its text: to import all modules takes seconds, and two of them make flags of
    the same name.
    """
    return tuple(_options(ast.parse(_source(module).read_text("utf-8"))))


def _source(module: str) -> Path:
    """Path of a module's file; of a package, the file that takes its options."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, module
    path = Path(spec.origin)
    if path.name != "__init__.py":
        return path
    own = path.with_name("options.py")  # of rollout
    return own if own.exists() else path.with_name("__main__.py")


def _options(tree: ast.Module) -> Iterator[Option]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name = _constant(node.args[0]) if node.args else ""
        named = {keyword.arg: _constant(keyword.value) for keyword in node.keywords}
        if node.func.attr == "add_argument" and name.startswith("--"):
            takes = named.get("action") != "store_true"
            yield Option(name.removeprefix("--"), named.get("help", ""), takes)
        elif node.func.attr.startswith(DEFINE) and name:
            takes = node.func.attr != "DEFINE_bool"
            yield Option(name, _constant(node.args[2]) if len(node.args) > 2 else "", takes)


def _constant(node: ast.expr) -> str:
    """Return a text that is written as a constant; else ""."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def names_of(command: Command) -> tuple[str, ...]:
    """Names of configurations that a command takes."""
    if not command.record:
        return ()
    return tuple(shipped(OF_SIMULATIONS if command.record == SIMULATION else ""))


def settings_of(command: Command) -> tuple[str, ...]:
    """List the settings that may follow `--config.` of a command."""
    if not command.record:
        return ()
    module, _, record = command.record.partition(":")
    return tuple(field_names(getattr(importlib.import_module(module), record)))


def bash() -> str:
    """Return a function for bash, whose words end at `=`."""
    cases = "".join(_bash_case(name, command) for name, command in COMMANDS.items())
    folders = "|".join(f"--{name}" for name in FOLDERS)
    return f"""\
_rlboost() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" option="${{COMP_WORDS[COMP_CWORD-1]}}"
    local options="" settings="" names=""
    COMPREPLY=()
    if [[ $COMP_CWORD == 1 ]]; then
        COMPREPLY=($(compgen -W "{" ".join(COMMANDS)} --help --version" -- "$word"))
        return
    fi
    if [[ $word == "=" ]]; then
        word=""
    elif [[ $option == "=" ]]; then
        option="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    case "${{COMP_WORDS[1]}}" in
{cases}    esac
    case "$option" in
        --config)
            compopt -o filenames
            COMPREPLY=($(compgen -W "$names" -- "$word") $(compgen -f -X '!*.py' -- "$word"))
            COMPREPLY+=($(compgen -d -- "$word")) ;;
        {folders})
            compopt -o filenames
            COMPREPLY=($(compgen -d -- "$word")) ;;
        *)
            [[ $word == --config.* ]] && options="$settings"
            COMPREPLY=($(compgen -W "$options" -- "$word"))
            [[ ${{COMPREPLY[0]}} == *= ]] && compopt -o nospace ;;
    esac
}}
complete -F _rlboost rlboost
"""


def _bash_case(name: str, command: Command) -> str:
    found = " ".join((*map(_written, options(command.module)), "--help", *_words(name)))
    settings = " ".join(f"--config.{setting}=" for setting in settings_of(command))
    names = " ".join(names_of(command))
    return f"""\
        {name})
            options="{found}" names="{names}"
            settings="{settings}" ;;
"""


def zsh() -> str:
    """Return a function for zsh, to be sourced or put where zsh looks for functions."""
    lines = "\n".join(f"    {shlex.quote(f'{n}:{c.line}')}" for n, c in COMMANDS.items())
    cases = "".join(_zsh_case(name, command) for name, command in COMMANDS.items())
    folders = "|".join(f"--{name}" for name in FOLDERS)
    return f"""\
#compdef rlboost
_rlboost() {{
  local -a commands options names settings taken
  commands=(
{lines}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  case $words[2] in
{cases}  esac
  case $words[CURRENT] in
    --config=*)
      compset -P '*='
      compadd -a names
      _files -g '*.py'
      ;;
    ({folders})=*)
      compset -P '*='
      _files -/
      ;;
    --config.*)
      compadd -S '' -a settings
      ;;
    *)
      compadd -a taken
      _describe -o option options -S ''
      ;;
  esac
}}
if [[ $funcstack[1] == _rlboost ]]; then
  _rlboost "$@"
else
  compdef _rlboost rlboost
fi
"""


def _zsh_case(name: str, command: Command) -> str:
    found = [f"{_written(option)}:{option.help}" for option in options(command.module)]
    found.append("--help:its options")
    settings = (f"--config.{setting}=" for setting in settings_of(command))
    return (
        f"    {name})\n      options=({' '.join(map(shlex.quote, found))})\n"
        f"      names=({' '.join(names_of(command))}) taken=({' '.join(_words(name))})\n"
        f"      settings=({' '.join(settings)})\n      ;;\n"
    )


def fish() -> str:
    """Return lines for a file that fish reads."""
    return "\n".join(("complete -c rlboost -f", *_fish())) + "\n"


def _fish() -> Iterator[str]:
    for name, command in COMMANDS.items():
        line = _fish_quoted(command.line)
        yield f"complete -c rlboost -n __fish_use_subcommand -a {name} -d {line}"
        begin = f"complete -c rlboost -n '__fish_seen_subcommand_from {name}'"
        for option in options(command.module):
            about = f" -d {_fish_quoted(option.help)}" if option.help else ""
            yield f"{begin} -l {option.name}{_fish_values(option, names_of(command))}{about}"
        if words := _words(name):
            yield f"{begin} -a '{' '.join(words)}'"
        for setting in settings_of(command):
            yield f"{begin} -l config.{setting} -x"


def _fish_values(option: Option, names: Iterable[str]) -> str:
    if option.name == "config":
        return f" -r -F -a '{' '.join(names)}'"
    if option.name in FOLDERS:
        return " -x -a '(__fish_complete_directories)'"
    return " -x" if option.values else ""


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _written(option: Option) -> str:
    return f"--{option.name}=" if option.values else f"--{option.name}"


def _words(command: str) -> tuple[str, ...]:
    """Words that a command takes besides options."""
    if command == "configs":
        return tuple(shipped())
    return tuple(SCRIPTS) if command == "completion" else ()


SCRIPTS: Final[Mapping[str, Callable[[], str]]] = MappingProxyType(
    {"bash": bash, "zsh": zsh, "fish": fish}
)


def main(argv: Sequence[str] | None = None) -> Any:
    parser = command_parser.parser("completion", __doc__)
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="whose script to print")
    print(SCRIPTS[parser.parse_args(argv).shell](), end="")


if __name__ == "__main__":
    main()

"""Settings of providers that start servers elsewhere: by a user's own commands, by Slurm."""

import shlex
import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from rlboost_jax.settings.setting import setting

JoinBy = Literal["file", "environment"]

PLACEHOLDERS: Final = ("name", "nonce", "run", "pool", "manager", "grace")


@dataclass(frozen=True, kw_only=True)
class CommandConfig:
    """The user's own commands. docs/how-to/fleet-command.md has what each must do.

    Each is split as a shell would split it, but no shell runs it: placeholders are filled in
    afterwards, within their words.
    """

    start: str = setting("", "command that starts one server and does not wait for it")
    stop: str = setting("", "command that ends one server within {grace} seconds; 0: at once")
    list: str = setting("", "command that prints RUN NAME NONCE for each server")
    log: str = setting(
        "", "command that prints the end of a server's log, also once it has ended; '': none"
    )
    pools: str = setting("", "names of pools for {pool}, comma-separated")
    timeout_seconds: float = setting(60.0, "time limit of a command", above=0)
    poll_seconds: float = setting(5.0, "time between lists of servers", above=0)
    settle_seconds: float = setting(
        30.0, "time after a start until list has it, or it has failed", at_least=0
    )


@dataclass(frozen=True, kw_only=True)
class SlurmConfig:
    """One batch job for each server. docs/how-to/fleet-slurm.md has the page."""

    partitions: str = setting(
        "",
        "partitions for jobs, comma-separated",
        note='Each is a pool. Where any will do, Slurm takes whichever starts first. "": the '
        "cluster's default.",
    )
    minutes: int = setting(
        1440,
        "time after which Slurm ends a job",
        unit="min",
        note="The manager asks for another one then. It bounds what a forgotten job costs.",
        at_least=1,
    )
    options: str = setting("", 'further options of sbatch: "--gpus=1 --cpus-per-task=8 --mem=64G"')
    setup: str = setting(
        "", 'shell lines before the server starts, on its node: "module load cuda"'
    )
    program: str = setting(
        "", 'program of the server: "rlboost rollout"; "": this installation, by its path'
    )
    export: str = setting(
        "PATH,HOME,LANG,PYTHONPATH",
        "variables of the trainer's environment that a job gets, comma-separated",
    )
    join_by: JoinBy = setting(
        "file",
        "how a job gets its credentials",
        note='"file": reads <workdir>/join, on a file system that nodes share. "environment": in '
        "the job's environment, which Slurm keeps for its administrators and the job's user.",
    )
    timeout_seconds: float = setting(60.0, "time limit of sbatch, squeue and scancel", above=0)
    poll_seconds: float = setting(10.0, "time between calls of squeue", above=0)


def names_of(pools: str) -> tuple[str, ...]:
    """Split a comma-separated list of names."""
    return tuple(name for each in pools.split(",") if (name := each.strip()))


def command_mistakes(command: CommandConfig) -> Iterator[str]:
    """Yield a line per mistake in the settings of the provider "command"."""
    for what in ("start", "stop", "list", "log"):
        template, place = getattr(command, what), f"fleet.command.{what}"
        if what == "log" and not template:
            continue
        if not template.strip():
            yield f"{place} is ''; name a command, docs/how-to/fleet-command.md has examples"
            continue
        try:
            words = shlex.split(template)
            for word in words:
                _check_word(word, place)
        except ValueError as error:
            yield f"{place} is {template!r}: {error}"


def slurm_mistakes(slurm: SlurmConfig) -> Iterator[str]:
    """Yield a line per mistake in the settings of the provider "slurm"."""
    for what in ("options", "program"):
        try:
            shlex.split(getattr(slurm, what))
        except ValueError as error:
            yield f"fleet.slurm.{what} is {getattr(slurm, what)!r}: {error}"


def _check_word(word: str, place: str) -> None:
    for _, name, spec, conversion in string.Formatter().parse(word):
        if name is None:
            continue
        if name not in PLACEHOLDERS or spec or conversion:
            known = ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)
            raise ValueError(
                f"{{{name}}} is no placeholder; there are {known}, and {{{{ for a brace"
            )

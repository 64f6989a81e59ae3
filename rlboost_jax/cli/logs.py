"""What the servers of a run have printed, wherever they ran.

    rlboost logs --workdir=runs/gsm8k                    who has printed something, and last
    rlboost logs --workdir=runs/gsm8k slurm-3 slurm-4    all there is of these
    rlboost logs --workdir=runs/gsm8k slurm-3 --lines=20

Of a server on this host, or on a file system that it shares, that is its own log. Others send their
lines to the manager while they are connected. What a provider has of a server that never came that
far is asked of it (`fleet.command.log`). Exit status: 0, 1 where nothing is known of a name, 2 on a
mistake.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rlboost_jax.manager.service.server_logs import FOLDER
from rlboost_jax.observe.events_file import read_events
from rlboost_jax.platform import command_parser
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.providers.base import Rendezvous
from rlboost_jax.providers.launcher import LaunchFailed, LogKeeper
from rlboost_jax.providers.log_files import last_lines
from rlboost_jax.providers.provider_choice import open_launcher
from rlboost_jax.settings.config_loading import read_run_config, read_run_id
from rlboost_jax.trust.run_files import join_folder

UNKNOWN: Final = 1  # exit code
MOST_LINES: Final = 1_000_000
OWN: Final = ("manager", "zygote")  # logs of processes that are no servers


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser.parser("logs", __doc__)
    parser.add_argument("--workdir", required=True, type=Path, help="of the run")
    parser.add_argument("--lines", type=int, default=MOST_LINES, help="the last so many")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of servers")
    args = parser.parse_args(arguments)
    workdir = args.workdir.absolute()
    try:
        read_run_id(workdir)
        if not args.names:
            return _overview(workdir)
        found = [_show(workdir, name, max(1, args.lines)) for name in args.names]
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if all(found) else UNKNOWN


def files_of(workdir: Path, name: str) -> Sequence[Path]:
    """List a server's logs, its own first."""
    folders = (workdir / "logs", workdir / "logs" / FOLDER)
    return [path for each in folders if (path := each / f"{name}.log").is_file()]


def _overview(workdir: Path) -> int:
    logs = (workdir / "logs").rglob("*.log")
    names = sorted({path.stem for path in logs} - set(OWN), key=lambda name: (len(name), name))
    for name in names:
        said = last_lines(files_of(workdir, name)[0].read_text(errors="replace"), 1)
        print(f"{name:<20} {said[0] if said else ''}".rstrip())
    if not names:
        print(f"{workdir}: no server has printed anything")
    return 0


def _show(workdir: Path, name: str, count: int) -> bool:
    """Print a server's log; return whether anything is known."""
    paths = files_of(workdir, name) if "/" not in name else ()
    text = paths[0].read_text(errors="replace") if paths else ""
    lines = last_lines(text, count) or asyncio.run(_of_provider(workdir, name))[-count:]
    if not lines:
        print(f"{name}: nothing is known of what it has printed", file=sys.stderr)
    for line in lines:
        print(line)
    return bool(lines)


async def _of_provider(workdir: Path, name: str) -> Sequence[str]:
    """Return the provider's log of a server that the manager has not heard of."""
    place = Rendezvous(
        run_id=read_run_id(workdir),
        workdir=workdir,
        address="",
        local_address="",
        join=join_folder(workdir),
    )
    try:
        launcher = open_launcher(read_run_config(workdir).fleet, place)
        if isinstance(launcher, LogKeeper):
            return await launcher.log(name, _nonce(workdir, name))
    except LaunchFailed as error:
        return (f"its log cannot be had: {error}",)
    return ()


def _nonce(workdir: Path, name: str) -> str:
    """Return the nonce with which a server was requested; "" where it never joined."""
    joined = [e for e in read_events(workdir) if e["kind"] == "joined" and e["instance"] == name]
    return str(joined[-1]["detail"].get("nonce", "")) if joined else ""


if __name__ == "__main__":
    sys.exit(main())

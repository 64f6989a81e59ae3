"""The options of `rlboost rollout`."""

import argparse
from pathlib import Path
from typing import get_args

from rlboost_jax.engine.shared import POOL_SIZES
from rlboost_jax.messages import MAX_NOTICE_SECONDS
from rlboost_jax.platform import command_parser
from rlboost_jax.rollout.notices.metadata_server import ADDRESS
from rlboost_jax.settings.fleet_config import Notices, NoticeSignal

ANSWER_SECONDS = 10.0  # for a manager, by default
DESCRIPTION = """\
Generate for a run, from any machine that reaches its manager.

    rlboost rollout --manager=HOST:PORT --join=FOLDER

The run's configuration comes from the manager, and so do the weights. End it in any way and at
any time: what it was at is done elsewhere.
"""


def arguments(argv: list[str]) -> argparse.Namespace:
    """Parse a command line; exits with code 2 if it is wrong."""
    parser = command_parser.parser("rollout", DESCRIPTION)
    parser.add_argument(
        "--manager",
        required=True,
        type=command_parser.address,
        metavar="HOST:PORT",
        help="`address` in the run's manager.json",
    )
    parser.add_argument(
        "--join",
        type=Path,
        metavar="FOLDER",
        help="the manager's <workdir>/join, or a copy of it; a token in the environment variable "
        "RLBOOST_TOKEN goes before the one there",
    )
    parser.add_argument(
        "--weights",
        type=command_parser.address,
        metavar="HOST:PORT",
        help="where weights are served, if not at the manager's host and the port it names",
    )
    parser.add_argument(
        "--peers",
        default="",
        metavar="HOST:PORT",
        help="with weights.peers, where other servers reach this one; HOST alone: at a free port; "
        "none: they do not; left out: this host's address as it reaches the manager",
    )
    parser.add_argument("--name", default="", help="unique in the fleet; left out: chosen for it")
    parser.add_argument("--price", type=float, default=0.0, help="dollars per hour")
    parser.add_argument("--zone", default="", help="where the machine is, for the report")
    parser.add_argument(
        "--patience_seconds",
        type=float,
        default=ANSWER_SECONDS,
        help=f"how long to try a manager that does not answer; default {ANSWER_SECONDS:g}",
    )
    parser.add_argument(
        "--compiled",
        choices=("fetch", "none"),
        default="fetch",
        help="the run's compiled programs; none: this host has those of the trainer's cache",
    )
    parser.add_argument(
        "--notices",
        choices=get_args(Notices),
        help="whose notices to watch; left out: fleet.notices",
    )
    parser.add_argument(
        "--notices_url", default=ADDRESS, metavar="URL", help="of the metadata server"
    )
    parser.add_argument(
        "--notice_signal",
        choices=get_args(NoticeSignal),
        help="that announces the machine's end; left out: fleet.notice_signal",
    )
    parser.add_argument(
        "--notice_seconds",
        type=_seconds,
        help="from that signal to the end, 0 for no such signal; left out: fleet.notice_seconds",
    )
    parser.add_argument(
        "--budget_socket",
        type=Path,
        metavar="PATH",
        help="share the device: where other processes of this user say what they need of it",
    )
    parser.add_argument(
        "--pool_sizes",
        type=int,
        choices=range(1, 7),
        default=POOL_SIZES,
        help="with it, that the page pool can have: the whole, half of it, and so on",
    )
    parser.add_argument(
        "--neighbour_socket",
        type=Path,
        metavar="PATH",
        help="share the device with servers of other runs: the same path for each of them, which "
        "has the device while it is worth most to its run",
    )
    given = parser.parse_args(argv)
    given.weights = given.weights or ""  # as a default argparse would take it for an address
    return given


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= MAX_NOTICE_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not in 0..{MAX_NOTICE_SECONDS:g}")
    return seconds

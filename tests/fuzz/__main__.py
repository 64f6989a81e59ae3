"""`python -m tests.fuzz --frames=1000000 --seed=1`, or `--seconds=180` and `--followers=180` for
real sockets."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.fuzz import followers, gateway, in_process, over_sockets


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=0, help="into a manager in this process")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="of attacks on a real one's port"
    )
    parser.add_argument(
        "--followers", type=float, default=0.0, help="seconds of attacks on a trainer's own socket"
    )
    parser.add_argument("--gateway", type=int, default=0, help="requests to a gateway")
    parser.add_argument("--seed", type=int, default=1, help="the same frames for the same seed")
    options = parser.parse_args(arguments)
    if not (options.frames or options.seconds or options.followers or options.gateway):
        parser.error(
            "say how much: --frames=N, --seconds=S, --followers=S, --gateway=N, or several"
        )
    if options.frames:
        print(in_process.fuzz(options.frames, options.seed, watch=_report), flush=True)
    if options.seconds:
        with tempfile.TemporaryDirectory() as folder:
            tally = over_sockets.fuzz(Path(folder), options.seconds, options.seed)
        print(tally)
    if options.followers:
        tried = followers.fuzz(options.followers, options.seed)
        print(", ".join(f"{count:,} {kind}" for kind, count in sorted(tried.items())))
    if options.gateway:
        answered = gateway.fuzz(options.gateway, options.seed)
        print(", ".join(f"{count:,} of {status}" for status, count in sorted(answered.items())))
    return 0


def _report(tally: in_process.Tally) -> None:
    """Now and then."""
    if tally.rounds % 20 == 0:
        print(tally, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

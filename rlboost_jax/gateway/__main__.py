"""`rlboost gateway --checkpoint=FOLDER | --workdir=RUN`: a policy behind OpenAI's protocol.

    rlboost gateway --checkpoint=Qwen/Qwen3-0.6B --port=8000
    rlboost gateway --workdir=runs/mine --step=40

Serves chat completions and verifiers' generate endpoint from an engine of its own, without a run:
to evaluate a policy with somebody else's harness, or to try a harness. What clients need is in
the gateway's folder, RUN/gateway unless --folder says otherwise: `token` and `ca.pem`.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from absl import logging

from rlboost_jax.gateway.gateway_limits import GatewayLimits
from rlboost_jax.gateway.served_policy import DEFAULT_TOKENS, Wanted, opened
from rlboost_jax.platform import command_parser, exits
from rlboost_jax.platform.mistakes import ConfigError, Mistake

_FOLDER = "rlboost-gateway"


def main(arguments: list[str] | None = None) -> int:
    from rlboost_jax.gateway.serving import ListenAddress, serve

    given = _parser().parse_args(arguments)
    logging.set_verbosity(logging.INFO if given.verbose else logging.ERROR)
    workdir = given.workdir.absolute() if given.workdir else None
    folder = given.folder or (workdir / "gateway" if workdir else Path(_FOLDER).absolute())
    limits = GatewayLimits(
        max_sessions=given.max_sessions,
        max_turns=given.max_turns,
        turn_seconds=given.turn_seconds,
        idle_seconds=given.idle_seconds,
        concurrent="refuse" if given.refuse_concurrent else "queue",
        held_bytes=given.held_bytes,
    )
    place = ListenAddress(
        host=given.host,
        port=given.port,
        folder=folder,
        authorities=workdir / "authority" if workdir else folder / "authority",
        plain=given.plain,
        allowed_hosts=tuple(given.allowed_hosts.split(",")) if given.allowed_hosts else (),
    )
    wanted = Wanted(
        checkpoint=given.checkpoint or "",
        workdir=workdir,
        step=given.step,
        name=given.name,
        seed=given.seed,
        slots=given.slots,
        max_tokens=given.max_tokens,
        temperature=given.temperature,
        turn_tokens=given.turn_tokens,
        dtype=given.dtype,
        budget_socket=given.budget_socket,
        first_token_seconds=given.first_token_seconds,
        token_seconds=given.token_seconds,
    )
    try:
        place.check()
        limits.check()
        with opened(wanted) as served:
            asyncio.run(serve(served, limits, place, say=lambda line: print(line, flush=True)))
    except KeyboardInterrupt:
        return 0
    except (ConfigError, Mistake, OSError) as error:
        if isinstance(error, ConfigError) and wanted.checkpoint:
            error = error.under("--checkpoint")
        print(f"error: {error}", file=sys.stderr)
        return exits.MISTAKE
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command_parser.parser("gateway", __doc__)
    parser.add_argument("--checkpoint", help="folder, or a name on the hub")
    parser.add_argument("--workdir", type=Path, help="folder of a run, finished or not")
    parser.add_argument("--step", type=int, help="updates made; the newest checkpoint otherwise")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="to listen on; 0: a free one")
    parser.add_argument("--folder", type=Path, help="for the token and the certificate")
    parser.add_argument("--plain", action="store_true", help="no TLS; on a loopback address only")
    parser.add_argument(
        "--allowed_hosts",
        default="",
        metavar="NAME,…",
        help="additional host names to answer to; this host's and addresses are always allowed",
    )
    parser.add_argument("--name", default="", help="of the model; the folder's if not given")
    parser.add_argument("--seed", type=int, default=0, help="names the noise")
    parser.add_argument("--slots", type=int, default=0, help="turns that are sampled side by side")
    parser.add_argument(
        "--max_tokens", type=int, help=f"of a conversation; the run's, or {DEFAULT_TOKENS}"
    )
    parser.add_argument("--turn_tokens", type=int, default=0, help="most of one turn; 0: any")
    parser.add_argument("--temperature", type=float, help="where calls do not say; 0 is greedy")
    parser.add_argument("--dtype", default="", help="of activations, such as bfloat16")
    limits = GatewayLimits()
    parser.add_argument("--max_sessions", type=int, default=limits.max_sessions, help="open ones")
    parser.add_argument("--max_turns", type=int, default=limits.max_turns, help="of a session")
    parser.add_argument(
        "--turn_seconds", type=float, default=limits.turn_seconds, help="that a turn may take"
    )
    parser.add_argument(
        "--idle_seconds", type=float, default=limits.idle_seconds, help="until a session is ended"
    )
    parser.add_argument(
        "--held_bytes",
        type=int,
        default=limits.held_bytes,
        help="of all bodies and answers of calls under way, in sum",
    )
    parser.add_argument(
        "--refuse_concurrent",
        action="store_true",
        help="refuse a call while another of its session is under way; they wait otherwise",
    )
    parser.add_argument(
        "--budget_socket",
        type=Path,
        metavar="PATH",
        help="of a rollout server on this device: it runs where that makes none of our tokens late",
    )
    parser.add_argument(
        "--first_token_seconds", type=float, default=0.5, help="with it, until the first token"
    )
    parser.add_argument(
        "--token_seconds", type=float, default=0.05, help="with it, from one token to the next"
    )
    parser.add_argument("--verbose", action="store_true", help="say what is compiled")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Settings of the manager: leases, placement, the seeding window."""

from dataclasses import dataclass
from typing import Literal

from rlboost_jax.sequences.shared_limits import LONGEST_LEASE_SECONDS, MAX_LEASE_SECONDS
from rlboost_jax.settings.setting import setting

Window = Literal["paper", "model"]
Routing = Literal["pending", "speed", "auto"]


@dataclass(frozen=True, kw_only=True)
class ManagerConfig:
    """Who may be silent for how long, and who gets which work; see docs/explanation/policies.md."""

    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for servers of other hosts")
    port: int = setting(0, "port to listen on; 0: a free one", at_least=0, at_most=65535)
    weights_port: int = setting(
        0,
        "port that weights are served on; 0: a free one",
        note="Servers dial it at the host where they reach the manager: with a firewall or "
        "forwarded ports, fix both ports. No server needs it that sees the learner's disk.",
        at_least=0,
        at_most=65535,
    )
    lease_seconds: float = setting(
        1.5,
        "a server on a good line that is silent for longer is lost",
        note="A lost server is to be known as such within 2 s. A lease runs from the last renewal, "
        "so it ends 1.2 to 1.5 s after a fault, which leaves 0.5 s to a busy manager. An honest "
        "server may be late by 0.9 s: renewals echo the manager's answer to the one before.",
        above=0,
        at_most=MAX_LEASE_SECONDS,
    )
    longest_lease_seconds: float = setting(
        60.0,
        "the same on the worst line; at least lease_seconds",
        note="Each server's lease follows the round trips that were measured on its line and their "
        "losses: 1.5 s up to 0.1 s without any, 13 s at 0.3 s with 3 % lost, 60 s with 10 %. The "
        "shorter, the more honest servers of bad lines are lost. As much as lease_seconds: that is "
        "the lease of all, whatever their lines are like. The trainer's own engines always have "
        "it.",
        above=0,
        at_most=LONGEST_LEASE_SECONDS,
    )
    renew_seconds: float = setting(
        0.3, "time between renewals of a lease; less than a third of it", above=0
    )
    progress_seconds: float = setting(
        30.0,
        "a server that holds work and gives no token for longer is lost; at least lease_seconds",
        note="More than the longest dispatch takes, the prefill of all slots included. A server "
        "that was seen to be slow gets ten times its own longest.",
        above=0,
    )
    drain_seconds: float = setting(
        120.0, "a machine that leaves later than this works on until then", at_least=0
    )
    max_pending: int = setting(
        8, "requests that wait at an instance beyond its slots (Θ)", unit="requests", at_least=0
    )
    balance: bool = setting(True, "work moves from busy to idle instances")
    migration: bool = setting(True, "what moves keeps its tokens; False: it begins anew")
    seeding: bool = setting(
        True, "reserved engines generate first; False: only while no instance is ready"
    )
    window: Window = setting(
        "paper", "how the window is chosen: Algorithm 1, or predicted from lengths and speeds"
    )
    window_initial_seconds: float = setting(1.0, "T_init of Algorithm 1", above=0)
    window_eta: float = setting(3.0, "η of Algorithm 1", above=0)
    window_memory: bool = setting(True, "remember the window of each size of fleet")
    routing: Routing = setting(
        "auto",
        "where work goes: to the instance with the fewest requests, or where it would end first",
        note='"auto": "speed" where fleet.pools differ in provider, device or price, else '
        '"pending".',
    )
    longest_first: bool = setting(
        False,
        "begin with the longest responses; False: in the order of prompts",
        note="It begins with whole groups and one response of each other, then takes those that "
        "are predicted to be longest, where that is predicted to end a step sooner.",
    )

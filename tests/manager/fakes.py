"""Settings, frames and a sampler for tests.

Tokens come from `token`, which depends on what real noise and real weights depend on and
on nothing else, so that any tokens mixed up show.
"""

import functools
from dataclasses import replace
from typing import Any

from rlboost_jax import messages as m
from rlboost_jax.manager.events import Request
from rlboost_jax.manager.settings import Settings
from rlboost_jax.providers.base import ANY_POOL
from rlboost_jax.settings.fleet_config import ChaosConfig, FleetConfig
from rlboost_jax.settings.manager_config import ManagerConfig
from rlboost_jax.settings.routing import Routing

VOCAB, STOP, MAX_TOKENS = 64, 0, 12
ROUTING = Routing(num_layers=2, num_experts=5, experts_per_token=2)
RUN = "run"
SNAPSHOTS = "/run/snapshots"


def settings(**changes: Any) -> Settings:
    """Settings of a small run; `manager__…` and `fleet__…` reach into the sections."""
    manager = ManagerConfig(
        host="127.0.0.1", port=0, weights_port=0, lease_seconds=2.0,
        longest_lease_seconds=0.0, renew_seconds=0.5,
        progress_seconds=30.0, drain_seconds=120.0, max_pending=2, balance=True,
        migration=True, seeding=True, window="paper", window_initial_seconds=0.4, window_eta=3.0,
        window_memory=True, routing="pending", longest_first=False,
    )  # fmt: skip
    chaos = ChaosConfig(
        enabled=False, seed=0, kills_per_minute=0, terms_per_minute=0, joins_per_minute=0
    )
    fleet = FleetConfig(
        provider="local", max_instances=3, sizing="fixed", trace="", trace_speed=1.0,
        synthetic_lifetime_seconds=1.0, synthetic_gap_seconds=1.0, price_per_hour=3600.0,
        reserved_price_per_hour=7200.0, egress_dollars_per_gb=0.0, worth_per_hour=0.0,
        merge_tail=False, orphan_seconds=60.0, notices="none",
        notice_signal="SIGTERM", notice_seconds=0.0, chaos=chaos,
    )  # fmt: skip
    whole = Settings(
        run_id=RUN, manager=manager, fleet=fleet, deterministic=True,
        vocab_size=VOCAB, slots=64, slot_tokens=4 + MAX_TOKENS,
    )  # fmt: skip
    for name, value in changes.items():
        section, _, field = name.rpartition("__")
        if section:
            whole = replace(whole, **{section: replace(getattr(whole, section), **{field: value})})
        else:
            whole = replace(whole, **{field: value})
    return whole


@functools.cache
def length(digest: str, step: int, sample: int) -> int:
    """Length of the whole response, in tokens; some end with a stop id, some at the limit."""
    return 1 + (hash_of(digest) + step * 31 + sample * 17) * 2654435761 % 1000003 % MAX_TOKENS


@functools.cache
def response(digest: str, step: int, sample: int) -> tuple[int, ...]:
    """All its tokens."""
    whole = length(digest, step, sample)
    return tuple(token(digest, step, sample, position) for position in range(whole))


@functools.cache
def response_logprobs(digest: str, step: int, sample: int) -> bytes:
    return m.pack_logprobs([logprob(t) for t in response(digest, step, sample)])


@functools.cache
def token(digest: str, step: int, sample: int, position: int) -> int:
    whole = length(digest, step, sample)
    if position == whole - 1 and whole < MAX_TOKENS:
        return STOP
    mixed = (hash_of(digest) + step * 7 + sample * 13 + position * 29) * 2654435761 >> 7
    return 1 + mixed % (VOCAB - 1)


@functools.cache
def hash_of(digest: str) -> int:
    return sum(ord(letter) * place for place, letter in enumerate(digest, 1))


def logprob(token_id: int) -> float:
    return -(token_id + 1) / 16  # exact in float32


def teacher_scores(tokens: list[int]) -> bytes:
    """What the teacher of a simulated run thinks of tokens."""
    return m.pack_logprobs([-(t + 3) / 32 for t in tokens])


def routes(lead: int, tokens: list[int]) -> bytes:
    """Routes of the first `lead` positions of a prompt, and of the positions before `tokens`."""
    return bytes((n + i) % 5 for n in (*range(lead), *tokens) for i in (0, 1, 2, 4))


def lead(request: m.GenerateRequest) -> int:
    """Routes that come before those of the next tokens."""
    if not request.response_tokens:
        return len(request.prompt_tokens) // 4 - 1
    return request.runs[-1] if request.runs and len(request.runs) % 2 == 0 else 0


def manifest(version: int, digest: str) -> m.Manifest:
    directory = f"{SNAPSHOTS}/{version}"
    return m.Manifest(
        version=version, directory=directory, params_digest=digest, list_sha256="list"
    )


TEACHER = manifest(2**52, "teacher")


def nonce_of(name: str) -> str:
    """What the first manager of a run asks for that server with."""
    return f"0-{name.rpartition('-')[2]}"


def request(name: str) -> Request:
    """What it asks the provider."""
    return Request(name, nonce_of(name), ANY_POOL)


def hello(**changes: Any) -> m.Hello:
    values: dict[str, Any] = dict(
        instance="", reserved=False, slots=2, slot_tokens=4 + MAX_TOKENS, price_per_hour=3600.0,
        zone="z", host="h", device="cpu", fingerprint="same", nonce="1",
        fetches_lists=True,
    )  # fmt: skip
    return m.Hello(**{**values, **changes})


def ready(version: int, digest: str = "d") -> m.Ready:
    return m.Ready(version=version, params_digest=digest)


def begin_batch(
    step: int,
    version: int,
    digest: str,
    *,
    prompts: int = 3,
    group_size: int = 2,
    turns: int = 1,
    turn_tokens: int = 0,
) -> m.BeginBatch:
    return m.BeginBatch(
        batch=step,
        version=version,
        params_digest=digest,
        seed=7,
        group_size=group_size,
        sampling=m.Sampling(
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            max_tokens=MAX_TOKENS,
            stop_ids=(STOP,),
            turn_tokens=turn_tokens,
        ),
        prompts=tuple(
            m.PromptRequest(prompt=p, tokens=m.pack_tokens([p, step, 1])) for p in range(prompts)
        ),
        turns=turns,
    )


def batch(
    sequence: int,
    version: int,
    rows: list[tuple[int, list[int]]],
    *,
    in_flight: int = 0,
    running: int = 0,
    waiting: int = 0,
    leads: list[int] | None = None,
) -> m.TokenBatch:
    """A token batch of (request id, tokens) rows; with routes where it is said how many lead."""
    tokens = [t for _, row in rows for t in row]
    fields: dict[str, Any] = dict(
        sequence=sequence,
        version=version,
        request_ids=m.pack_ids([r for r, _ in rows]),
        counts=m.pack_counts([len(row) for _, row in rows]),
        tokens=m.pack_tokens(tokens),
        logprobs=m.pack_logprobs([logprob(t) for t in tokens]),
        in_flight=in_flight,
        running=running,
        waiting=waiting,
        prefilled_again=0,
    )
    if leads is None:
        return m.TokenBatch(**fields)
    each = [routes(lead, row) for lead, (_, row) in zip(leads, rows, strict=True)]
    return m.RoutedTokenBatch(**fields, leads=m.pack_ids(leads), routes=b"".join(each))

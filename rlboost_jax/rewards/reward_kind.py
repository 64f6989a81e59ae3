"""Reward functions as a kind of worker: each job is a session with one request."""

from typing import Final

import msgspec

from rlboost_jax.rewards.reward_frames import (
    Found,
    Outcomes,
    RewardJob,
    RewardSetup,
    all_failed,
)
from rlboost_jax.workers.worker_kind import GRACE_SECONDS, Pong, WorkerKind, WorkerReady
from rlboost_jax.workers.worker_pool import WorkerPool
from rlboost_jax.workers.worker_sessions import Lost, WorkerSession

END_SECONDS: Final = 5.0  # for a worker to take along what its calls have started
ATTEMPTS: Final = 2  # at a job whose worker breaks or is stuck

_decode = msgspec.msgpack.Decoder(WorkerReady | Outcomes | Pong).decode


def reward_kind(setup: RewardSetup, *, workers: int, sessions: int) -> WorkerKind:
    """The kind of worker that calls a run's reward functions.

    Args:
        sessions: most jobs of one worker at a time.
    """
    return WorkerKind(
        what="reward worker",
        module="rlboost_jax.rewards.reward_worker",
        setup=setup,
        decode=_decode,
        session_of=lambda frame: int(frame.number),
        setting="rewards.functions",
        imports=", ".join(function.name for function in setup.functions),
        workers=workers,
        sessions=sessions,
        answer_seconds=sum(f.time_limit_seconds for f in setup.functions) + GRACE_SECONDS,
        end_seconds=END_SECONDS,
    )


async def judged(pool: WorkerPool, setup: RewardSetup, job: RewardJob) -> tuple[Found, ...]:
    """Outcomes of each function of a job, in the order of the setup.

    Raises:
        WorkersLost, StartsExhausted: no worker can be kept up.
    """

    async def asked(session: WorkerSession) -> tuple[Found, ...]:
        numbered = msgspec.structs.replace(job, number=session.number)
        return (await session.ask(numbered, Outcomes)).outcomes

    try:
        return await pool.attempt(asked, attempts=ATTEMPTS)
    except Lost as lost:
        functions = sum(function.per == job.per for function in setup.functions)
        return (all_failed(job, str(lost)),) * functions

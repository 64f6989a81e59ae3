"""Messages between the trainer and its reward workers, as frames of a socket."""

from typing import Any

import msgspec

from rlboost_jax.settings.rewards_config import Per, RewardConfig
from rlboost_jax.workers.worker_kind import WorkerFrame


class RewardSetup(WorkerFrame, frozen=True, kw_only=True):
    """First frame: everything that a worker needs to know of the run."""

    functions: tuple[RewardConfig, ...]  # with their time limits
    columns: tuple[str, ...]  # that every job has
    memory_mb: int
    sandbox_required: bool
    seed: int


class RewardResponse(msgspec.Struct, frozen=True, kw_only=True):
    completion: str
    completion_ids: tuple[int, ...]
    finished: bool


class RewardJob(WorkerFrame, frozen=True, kw_only=True):
    """Responses to a prompt that are judged in one call: one, or a whole group in sample order."""

    prompt: str
    responses: tuple[RewardResponse, ...]
    columns: dict[str, Any]
    per: Per = "response"  # asks the functions that are called so
    number: int = 0  # of its session


class RewardOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one function for one response: a value, None for no opinion, or a fault."""

    value: float | None = None
    fault: str = ""


Found = tuple[RewardOutcome, ...]  # by one function, for each response of a job


class Returned(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes of one function, from the process of a call."""

    found: Found


class Outcomes(WorkerFrame, frozen=True, kw_only=True):
    """Answer to `RewardJob`, in the order of its functions."""

    outcomes: tuple[Found, ...]
    number: int = 0


def all_failed(job: RewardJob, fault: str) -> Found:
    """Outcomes of a function that failed for the job as a whole."""
    return (RewardOutcome(fault=fault),) * len(job.responses)

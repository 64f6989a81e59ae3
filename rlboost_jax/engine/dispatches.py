"""A dispatch: what a plan gives its device program, and what the program yields for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.engine import step_inputs
from rlboost_jax.engine.draft_policy import SpeculationCounts
from rlboost_jax.engine.layouts import StepLayout
from rlboost_jax.engine.program_plans import ProgramPlan
from rlboost_jax.engine.routes import DispatchRoutes
from rlboost_jax.engine.step_programs import LOGPROBS, TOKENS, Output


class NonFiniteLogits(RuntimeError):
    """A log-probability came out infinite or undefined: the weights are broken."""


@dataclass(frozen=True, kw_only=True)
class EngineDispatch:
    """What one device program yielded, a row per rollout that got at least one token."""

    version: int  # that sampled all of these
    request_ids: NDArray[np.uint32]
    counts: NDArray[np.uint16]
    tokens: NDArray[np.int32]  # concatenated in the order of the rows
    logprobs: NDArray[np.float32]  # nats
    # Row i comes with `leads[i] + counts[i]` routes: of the position before each of its tokens and,
    # with the first of a turn, of the positions since the last sampled token: of the prompt, or
    # of what was given.
    leads: NDArray[np.uint32]
    routes: NDArray[np.unsignedinteger] | None  # [routes, layers, experts], concatenated
    finished: tuple[int, ...]  # of the request ids; no longer held
    prefilled_again: int  # tokens run anew because of evictions
    discarded: int = 0  # tokens that were sampled after a stop string
    drafts: SpeculationCounts | None = None  # of its steps, if they had any


class Sampled(NamedTuple):
    """What a program sampled, a row per sequence: those of its plan in order, then unused ones."""

    tokens: NDArray[np.int32]  # [S, X]; -1 behind the last
    logprobs: NDArray[np.float32]  # [S, X], nats
    counts: NDArray[np.int_]  # [S]
    discarded: int = 0  # that were sampled, too, and are nobody's
    drafts: SpeculationCounts | None = None  # of steps with drafts


def pack(layout: StepLayout, plan: ProgramPlan, max_steps: int) -> NDArray[np.int32]:
    """Pack the input array of a plan's step program.

    Args:
        max_steps: that decode steps may take.
    """
    if plan.mixed or plan.texts is not None:
        chunks = [work.rollout.chunk(work.start, work.count, work.budget) for work in plan.work]
        if plan.texts is None:
            return step_inputs.pack_mixed(layout, chunks)
        rows, steps = (layout.token_rows, 1) if plan.mixed else (len(plan.texts), max_steps)
        return step_inputs.pack_verify(layout, chunks, steps, rows=rows)
    records = [
        work.rollout.decode_record(work.budget)
        if work.follows is None
        else work.rollout.following_record(work.start, work.budget, work.follows)
        for work in plan.work
    ]
    return step_inputs.pack_decode(layout, records, max_steps)


def prefilled_slots(layout: StepLayout, plan: ProgramPlan) -> NDArray[np.int32]:
    """KV slot of each row of prefill, the first ones of a mixed step, and nowhere for others."""
    chunks = [work.rollout.chunk(work.start, work.count, work.budget) for work in plan.prefill]
    return step_inputs.kv_slots(layout, step_inputs.pack_mixed(layout, chunks))


def sampled_of(output: Output) -> Sampled:
    """Copy a program's output to the host; blocks until the program is done."""
    results = np.asarray(output.sampled)
    tokens_SX = np.ascontiguousarray(results[TOKENS].T)
    logprobs_SX = np.ascontiguousarray(results[LOGPROBS].T).view(np.float32)
    drafts = output.counts
    return Sampled(
        tokens_SX,
        logprobs_SX,
        (tokens_SX >= 0).sum(axis=1),
        drafts=None if drafts is None else SpeculationCounts(*np.asarray(drafts).tolist()),
    )


def own_of(plan: ProgramPlan, sampled: Sampled) -> Sampled:
    """Keep the tokens that belong to the plan's rollouts, and count the rest.

    The device knows of stop ids only and may sample a few tokens beyond a stop string.
    """
    counts, tokens = sampled.counts.copy(), sampled.tokens
    for row, rollout in enumerate([work.rollout for work in plan.work]):
        if counts[row] and rollout.limits.stops:
            new = tokens[row, : counts[row]].tobytes()
            counts[row] = 0 if rollout.finished else rollout.transcript.own(new, rollout.limits)
    discarded = int((sampled.counts - counts).sum())
    if discarded:
        behind = np.arange(tokens.shape[1])[None, :] >= counts[:, None]
        tokens = np.where(behind, np.int32(-1), tokens)
    return Sampled(tokens, sampled.logprobs, counts, discarded, sampled.drafts)


def dispatch_of(
    plan: ProgramPlan,
    sampled: Sampled,
    routes: DispatchRoutes | None,
    *,
    version: int,
    finished: Sequence[int],
    prefilled_again: int,
) -> EngineDispatch:
    """Build the `EngineDispatch` of a finished program.

    Args:
        routes: the routes that go with it, in runs that replay them.

    Raises:
        NonFiniteLogits: the weights are broken.
    """
    valid = sampled.tokens >= 0
    logprobs = sampled.logprobs[valid]
    if not np.isfinite(logprobs).all():
        raise NonFiniteLogits(
            f"version {version} gives log-probabilities that are not finite; check its weights"
        )
    yielding = [i for i in range(len(plan.work)) if sampled.counts[i]]
    return EngineDispatch(
        version=version,
        request_ids=np.array([plan.work[i].rollout.request_id for i in yielding], np.uint32),
        counts=sampled.counts[yielding].astype(np.uint16),
        tokens=sampled.tokens[valid],
        logprobs=logprobs,
        leads=routes.leads if routes else np.zeros(len(yielding), np.uint32),
        routes=routes.routes if routes else None,
        finished=tuple(finished),
        prefilled_again=prefilled_again,
        discarded=sampled.discarded,
        drafts=sampled.drafts,
    )

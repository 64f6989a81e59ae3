"""A batch's tokens, restored from the journal.

Whatever does not fit the tokens that are here is left out: those before it were lost with a part
of the journal, and are made again.
"""

from rlboost_jax.manager.journal_entries import Answered, Collected, CollectedRouted, Redone
from rlboost_jax.manager.state.collected import routes_of
from rlboost_jax.manager.state.rollouts import BatchRecord
from rlboost_jax.messages import unpack_counts, unpack_ids


def restore_tokens(batch: BatchRecord, entry: Collected | CollectedRouted, now: float) -> None:
    batch.token_at(min(entry.at, now))
    end = 0
    counts = unpack_counts(entry.counts).tolist()
    for sample, start, count, routes in zip(
        unpack_ids(entry.samples).tolist(),
        unpack_ids(entry.starts).tolist(),
        counts,
        routes_of(entry, counts),
        strict=True,
    ):
        part = slice(4 * end, 4 * (end + count))
        end += count
        rollout = batch.rollout_of(sample)
        if rollout is None or rollout.dormant or rollout.sequences.num_tokens != start:
            continue
        rollout.take_in(entry.tokens[part], entry.logprobs[part], entry.instance, routes)
        if rollout.turn_over:
            batch.end_turn(rollout)


def restore_cuts(batch: BatchRecord, entry: Redone) -> None:
    ids, lengths = unpack_ids(entry.samples).tolist(), unpack_ids(entry.lengths).tolist()
    for sample, length in zip(ids, lengths, strict=True):
        rollout = batch.rollout_of(sample)
        if rollout is not None and length < rollout.sequences.num_tokens:
            batch.cut(rollout, length)


def restore_answer(batch: BatchRecord, entry: Answered) -> None:
    rollout = batch.rollout_of(entry.sample)
    if rollout is not None and rollout.awaits(entry.sequence, entry.attempt, entry.turn):
        batch.answer(rollout, entry.tokens, over=entry.over, prompt=entry.prompt)

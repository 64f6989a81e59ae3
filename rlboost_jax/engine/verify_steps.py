"""Steps in which a sequence has several rows: its newest token and drafts of the next ones.

The first of them may run chunks of prompts, as a mixed step does; drafts are in the rows left over.

Row j of a sequence is sampled with the noise of its own place, as it would be by itself. A draft is
accepted if it is the token that the row before it chose; the first row whose draft is not accepted
yields the sequence's last token of the step. So the tokens are those of steps without drafts, in
fewer steps. Keys and values of rejected drafts lie behind the sequence and are written over.

Only free rows are used: as many as a step of so many sequences runs anyhow.

Source of the scheme: Leviathan et al. 2023, arXiv:2211.17192, with a draft that is a point mass and
noise that is a function of the token's place, so that the rule of acceptance becomes equality.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int
from rlboost_kernels import noise_keys

from rlboost_jax.engine import step_inputs
from rlboost_jax.engine.drafts import MOST_DRAFTS, NO_TOKEN, proposals
from rlboost_jax.engine.layouts import DRAFT_CONTEXT, StepLayout
from rlboost_jax.engine.row_sampling import Draws
from rlboost_jax.engine.step_inputs import StepRows


class _Counts(NamedTuple):
    """The fields of `SpeculationCounts`, in order."""

    steps: Int[Array, ""]
    sequence_steps: Int[Array, ""]
    drafted: Int[Array, ""]
    tokens: Int[Array, ""]


class Verified(NamedTuple):
    """Output of a verification, before it is put into the form of decode steps."""

    pools: Any
    sampled: Int[Array, "3 X R"]
    routes: Array | None  # [X, R, layers, A]
    counts: Int[Array, " 4"]  # the fields of `SpeculationCounts`
    row_routes: Array | None  # [L, layers, A], of the first step


class _State(NamedTuple):
    yielded: Int[Array, " R"]
    newest: Int[Array, "R C"]
    live: Bool[Array, " R"]
    pools: Any
    sampled: Int[Array, "3 X R"]
    routes: Array | None
    row_routes: Array | None
    counts: _Counts


class _Ragged(NamedTuple):
    """Rows that lie one sequence after the other, and unused ones."""

    starts: Int[Array, " R"]
    of: Int[Array, " N"]  # sequence of each row
    nth: Int[Array, " N"]  # of its sequence
    used: Bool[Array, " N"]


def verify_steps(
    layout: StepLayout,
    packed: Int[Array, " _"],
    texts: Int[Array, "R _"],
    pools: Any,
    nothing: tuple[Int[Array, "3 X R"], Array | None],
    *,
    run_layers: Callable[[Any, StepRows], tuple[Array, Any, Array | None]],
    sample: Callable[..., Draws],
) -> Verified:
    """Run steps with drafts until every sequence stops, or all steps are done.

    Args:
        packed: see `step_inputs.pack_verify`; a sequence's budget is at most X. The first step runs
            the known tokens of each, the others their newest one.
        texts: see `DraftTexts.pack`.
        nothing: output of no step, sampled tokens and routes, for X tokens of each sequence.
        run_layers: runs the model over L rows: pools, rows → last layer, pools, routes.
        sample: last layer, keys, places, controls and whether it is needed, of R rows → tokens,
            log-probabilities, checksums.
    """
    R = len(texts)
    context, texts = texts[:, :DRAFT_CONTEXT], texts[:, DRAFT_CONTEXT:]
    num_sequences, num_steps, records, known = step_inputs.unpack_verify(layout, packed, R)
    L = len(known)
    controls = step_inputs.controls(records)
    keys = noise_keys(controls.seed, controls.batch, controls.sample)
    budget, response = records[:, step_inputs.BUDGET], records[:, step_inputs.RESPONSE]
    exists = jnp.arange(R) < num_sequences
    known_starts = jnp.concatenate([jnp.zeros(1, jnp.int32), records[:-1, step_inputs.QUERY_END]])
    prefilled = jnp.where(exists, records[:, step_inputs.QUERY_END] - known_starts - 1, 0)
    sizes = jnp.array(layout.decode_rows)
    most_sampled = jnp.minimum(sizes[jnp.searchsorted(sizes, num_sequences)], R)

    def more(state: _State) -> Bool[Array, ""]:
        return (state.counts.steps < num_steps) & state.live.any()

    def step(state: _State) -> _State:
        yielded, newest, live = state.yielded, state.newest, state.live
        first = state.counts.steps == 0
        before = jnp.where(first, prefilled, 0)  # rows of a sequence before its newest token
        drafts = proposals(newest, texts)
        most = jnp.minimum((drafts != NO_TOKEN).sum(axis=1), budget - yielded - 1)
        room = jnp.minimum(most_sampled, L - before.sum())
        widths = widths_of(jnp.where(live, 1 + most, exists), room)
        rows = _ragged(before + widths, L)
        ahead = rows.nth - before[rows.of]  # of its sequence's newest known token
        inputs = jnp.concatenate([newest[:, -1:], drafts], axis=1)
        tokens = inputs[rows.of, jnp.clip(ahead, 0, MOST_DRAFTS)]
        given = known[jnp.minimum(known_starts[rows.of] + rows.nth, L - 1)]
        runs = live | (exists & first)
        used = rows.used & runs[rows.of]
        past = records[:, step_inputs.LENGTH] - 1 + yielded
        x, pools, routes = run_layers(
            state.pools,
            step_inputs.verify_rows(
                layout,
                records,
                num_sequences,
                of=rows.of,
                tokens=jnp.where(used, jnp.where(first & (ahead <= 0), given, tokens), 0),
                positions=past[rows.of] + ahead,
                used=used,
                lengths=jnp.where(runs, past + widths, 1),
                ends=rows.starts + before + widths,
            ),
        )
        starts, of, nth, used = _ragged(widths, R)
        at = jnp.minimum((rows.starts + before)[of] + nth, L - 1)  # row of each that is sampled
        used &= live[of]
        places = (response + yielded)[of] + nth
        own = jax.tree.map(lambda column: column[of], controls)
        tokens, logprobs, checksums = sample(x[at], keys[of], places, own, used)

        stops = (tokens[:, None] == own.stop_ids).any(axis=1)
        next_draft = drafts[of, jnp.minimum(nth, MOST_DRAFTS - 1)]
        goes_on = (nth + 1 < widths[of]) & (tokens == next_draft) & ~stops
        ended = jnp.cumsum(~goes_on) - ~goes_on  # rows before, at which a sequence ended
        accepted = used & (ended == ended[jnp.minimum(starts, R - 1)][of])
        num = jnp.zeros(R, jnp.int32).at[of].add(accepted.astype(jnp.int32))

        X = state.sampled.shape[1]
        to = jnp.where(accepted, yielded[of] + nth, X)
        bits = jax.lax.bitcast_convert_type(logprobs, jnp.int32)
        sampled = state.sampled.at[:, to, of].set(
            jnp.stack([tokens, bits, checksums]), mode="drop", unique_indices=False
        )
        kept, row_routes = state.routes, state.row_routes
        if kept is not None:
            assert routes is not None and row_routes is not None
            kept = kept.at[to, of].set(routes[at], mode="drop")
            row_routes = jnp.where(first, routes, row_routes)
        last = jnp.clip(starts + num - 1, 0, R - 1)
        new = jnp.full((R, MOST_DRAFTS + 1), NO_TOKEN, jnp.int32)
        new = new.at[of, jnp.where(accepted, nth, MOST_DRAFTS + 1)].set(tokens, mode="drop")
        window = num[:, None] + jnp.arange(DRAFT_CONTEXT)[None, :]
        newest = jnp.take_along_axis(jnp.concatenate([newest, new], axis=1), window, axis=1)
        could = live & (before == 0)  # have drafts
        counts = _Counts(
            steps=state.counts.steps + 1,
            sequence_steps=state.counts.sequence_steps + could.sum(),
            drafted=state.counts.drafted + jnp.where(could, widths - 1, 0).sum(),
            tokens=state.counts.tokens + jnp.where(could, num, 0).sum(),
        )
        yielded += num
        live &= ~stops[last] & (yielded < budget)
        return _State(yielded, newest, live, pools, sampled, kept, row_routes, counts)

    zero, routes = jnp.int32(0), nothing[1]
    start = _State(
        yielded=jnp.zeros(R, jnp.int32),
        newest=context,
        live=budget > 0,
        pools=pools,
        sampled=nothing[0],
        routes=routes,
        row_routes=None if routes is None else jnp.zeros((L, *routes.shape[2:]), routes.dtype),
        counts=_Counts(zero, zero, zero, zero),
    )
    end = jax.lax.while_loop(more, step, start)
    return Verified(end.pools, end.sampled, end.routes, jnp.stack(end.counts), end.row_routes)


def _ragged(widths: Int[Array, " R"], num_rows: int) -> _Ragged:
    """Traced: lay out so many rows of each sequence."""
    ends, row = jnp.cumsum(widths), jnp.arange(num_rows)
    of = jnp.clip(jnp.searchsorted(ends, row, side="right"), 0, len(widths) - 1)
    starts = ends - widths
    return _Ragged(starts, of, row - starts[of], row < ends[-1])


def widths_of(wanted: Int[Array, " R"], num_rows: int | Int[Array, ""]) -> Int[Array, " R"]:
    """Traced: rows of each sequence, at most what it wants and `num_rows` in all.

    All get the same, as far as they want it; rows that are left go to the first that want more.

    Args:
        wanted: at most MOST_DRAFTS + 1 each, and 0 or 1 or more as it has no place or one.
    """
    most = jnp.arange(1, MOST_DRAFTS + 2)
    sums = jnp.minimum(wanted[:, None], most[None, :]).sum(axis=0)
    same = jnp.maximum((sums <= num_rows).sum(), 1)
    widths = jnp.minimum(wanted, same)
    want_more = wanted > same
    left = num_rows - widths.sum()
    return widths + (want_more & (jnp.cumsum(want_more) <= left)).astype(widths.dtype)

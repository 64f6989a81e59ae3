"""Sequences of any length in packed batches of a few shapes.

A batch has rows of the full length, of half of it, of a quarter, …, and always about as many
tokens, so that the gradient program is compiled once for each length and short sequences do
not pay for attention over the longest. Which batches there are follows from the trajectories
alone. A sequence of n tokens takes n - 1 positions of one row: position i holds
token i as input, and everything about its *target*, token i + 1, lies beside it. Targets that
were given, and not sampled, are context only: no mask names them and they have no weight.

The sequences of an episode see nothing of each other, and may lie in different rows and batches.
Together they count as one response: their tokens share its weight.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple, assert_never

import numpy as np
from jaxtyping import Bool, Float, Int, UInt

from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.pytree import pytree
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.sequences.identities import noise_seed
from rlboost_jax.sequences.sequence import Sequence as Tokens
from rlboost_jax.settings.algorithm_config import LossAggregation
from rlboost_jax.settings.routing import Routing


class DoesNotFit(Mistake, ValueError):
    """A sequence is longer than a row, or too short to have a target."""


@pytree
class PackedBatch:
    """R rows of T positions. Positions without a sequence hold zeros."""

    tokens: Int[np.ndarray, "R T"]
    positions: Int[np.ndarray, "R T"]  # of the token in its own sequence
    segments: Int[np.ndarray, "R T"]  # 1, 2, … along a row; 0 where there is nothing
    targets: Int[np.ndarray, "R T"]  # the token after it in its sequence
    response_mask: Bool[np.ndarray, "R T"]  # the target was sampled by the policy
    behaviour_logprobs: Float[np.ndarray, "R T"]  # of the target, nats
    advantages: Float[np.ndarray, "R T"]  # of the target, where it was sampled
    weights: Float[np.ndarray, "R T"]  # of the target in the loss; 0 where it was given
    samples: Int[np.ndarray, "R T"] | None = None  # of the target if it was sampled, or -1
    sequences: Int[np.ndarray, "R T"] | None = None  # its sequence, of the sample's; 0, 1, …
    response_tokens: Int[np.ndarray, "R T"] | None = None  # that were sampled in all of these
    # What names the noise of a sampled target: seed, batch, sample, place after the prompt.
    noise_names: UInt[np.ndarray, "R T 4"] | None = None
    noise_known: Bool[np.ndarray, "R T"] | None = None
    # Zeros where the trajectories have none, which the algorithm then does not ask for.
    old_logprobs: Float[np.ndarray, "R T"] | None = None
    old_values: Float[np.ndarray, "R T"] | None = None
    returns: Float[np.ndarray, "R T"] | None = None
    teacher_logprobs: Float[np.ndarray, "R T"] | None = None
    taught: Bool[np.ndarray, "R T"] | None = None  # a teacher scored the target
    routes: UInt[np.ndarray, "R T L A"] | None = None  # of the token, where they are replayed


def pack(
    trajectories: Iterable[Trajectory],
    *,
    rows: int,
    row_tokens: int,
    loss_aggregation: LossAggregation,
    row_lengths: int = 1,
    routing: Routing | None = None,
    seed: int = 0,
) -> list[PackedBatch]:
    """Pack each sequence of each trajectory once.

    With one length first-fit in the given order. With several first-fit from the longest
    sequence on: those that need long rows come first, and shorter ones fill up what room
    they leave.

    Args:
        rows: of a batch of the longest rows.
        row_tokens: of the longest rows.
        row_lengths: how many lengths of rows there are.
        routing: of the routes that the trajectories have; None: none are packed.
        seed: of the run, which names the noise.

    Raises:
        DoesNotFit: a sequence needs more than a row.
    """
    shapes = batch_shapes(rows, row_tokens, row_lengths)
    batches, left = [], [piece for t in trajectories for piece in _pieces(t)]
    if row_lengths > 1:  # sorting is stable: the order is still that of the trajectories
        left.sort(key=lambda piece: _num_positions(piece, row_tokens), reverse=True)
    for shape, (_, next_tokens) in itertools.pairwise([*shapes, (0, 0)]):
        while left and _num_positions(left[0], row_tokens) > next_tokens:
            batch, left = _filled(left, shape, loss_aggregation, routing, seed)
            batches.append(batch)
    return batches


def batch_shapes(rows: int, row_tokens: int, row_lengths: int) -> tuple[tuple[int, int], ...]:
    """Shapes (rows, tokens of a row) of all batches, from the longest rows on.

    None has more tokens than the first, and all have a multiple of its rows.
    """
    lengths = [row_tokens // 2**i for i in range(row_lengths)]
    return tuple((rows * (row_tokens // length), length) for length in lengths)


def fill(
    trajectories: Sequence[Trajectory],
    *,
    rows: int,
    row_tokens: int,
    loss_aggregation: LossAggregation,
    routing: Routing | None = None,
) -> tuple[PackedBatch, list[Trajectory]]:
    """Pack one batch first-fit in the given order; returns it and the trajectories without room.

    Args:
        trajectories: of one sequence each.

    Raises:
        DoesNotFit: a trajectory needs more than a row.
    """
    pieces = [piece for t in trajectories for piece in _pieces(t)]
    batch, left = _filled(pieces, (rows, row_tokens), loss_aggregation, routing)
    return batch, [piece.trajectory for piece in left]


def empty(rows: int, row_tokens: int, routing: Routing | None = None) -> PackedBatch:
    """Batch without sequences, to compile programs with."""
    batch, _ = fill(
        [], rows=rows, row_tokens=row_tokens, loss_aggregation="token_mean", routing=routing
    )
    return batch


def first_fit(lengths: Iterable[int], *, rows: int, capacity: int) -> list[int | None]:
    """Row for each length: the first that still has room for it, or None."""
    room = [capacity] * rows
    places = []
    for length in lengths:
        row = next((row for row, free in enumerate(room) if free >= length), None)
        if row is not None:
            room[row] -= length
        places.append(row)
    return places


def update_divisor(
    trajectories: Sequence[Trajectory],
    loss_aggregation: LossAggregation,
    *,
    max_response_tokens: int = 0,
) -> int:
    """Divisor of the token sums of a whole update; at least 1.

    Args:
        max_response_tokens: for the "constant" divisor, which is that many for each response,
            of how many sequences it may be.
    """
    trained = [t for t in trajectories if t.trained]
    match loss_aggregation:
        case "token_mean":
            return max(1, sum(t.num_sampled for t in trained))
        case "sequence_mean" | "sequence_sum":
            return max(1, len(trained))
        case "constant":
            return max(1, len(trained) * max_response_tokens)
        case _:
            assert_never(loss_aggregation)


def by_sample(
    batches: Iterable[PackedBatch], values: Iterable[Float[np.ndarray, "_ _"]]
) -> dict[int, Float[np.ndarray, " _"]]:
    """Values of packed targets by sample.

    One value for each sampled token, through all sequences of the sample in order.
    """
    parts: dict[int, dict[int, Float[np.ndarray, " _"]]] = {}
    for batch, array in zip(batches, values, strict=True):
        assert batch.samples is not None and batch.sequences is not None, "made by `pack`"
        names = batch.samples.astype(np.int64) * 2**32 + batch.sequences
        for name in np.unique(names[batch.response_mask]).tolist():
            (sample, place), here = divmod(name, 2**32), names == name
            parts.setdefault(sample, {})[place] = np.asarray(array)[here]
    return {
        sample: np.concatenate([found[place] for place in sorted(found)])
        for sample, found in parts.items()
    }


class _PackedPiece(NamedTuple):
    """A sequence of a trajectory, which is packed separately."""

    trajectory: Trajectory
    place: int  # among the trajectory's sequences
    sequence: Tokens
    start: int  # sampled tokens of the sequences before it
    num_sampled: int  # of all sequences together


def _pieces(trajectory: Trajectory) -> list[_PackedPiece]:
    pieces, start, everything = [], 0, trajectory.num_sampled
    for place, sequence in enumerate(trajectory.sequences):
        pieces.append(_PackedPiece(trajectory, place, sequence, start, everything))
        start += sequence.num_sampled
    return pieces


def _num_positions(piece: _PackedPiece, row_tokens: int) -> int:
    length, sample = piece.sequence.trained_length, piece.trajectory.sample
    if length == 0:
        raise DoesNotFit(f"sample {sample}: no token was sampled; it needs at least one")
    if length - 1 > row_tokens:
        raise DoesNotFit(
            f"sample {sample}: {length} tokens need {length - 1} positions, a row has "
            f"{row_tokens}; raise learner.row_tokens"
        )
    return length - 1


def _filled(
    pieces: Sequence[_PackedPiece],
    shape: tuple[int, int],
    loss_aggregation: LossAggregation,
    routing: Routing | None,
    seed: int = 0,
) -> tuple[PackedBatch, list[_PackedPiece]]:
    """Fill one batch of this shape; returns it and the pieces without room."""
    rows, row_tokens = shape
    lengths = [_num_positions(piece, row_tokens) for piece in pieces]
    members: list[list[_PackedPiece]] = [[] for _ in range(rows)]
    left: list[_PackedPiece] = []
    places = first_fit(lengths, rows=rows, capacity=row_tokens)
    for piece, row in zip(pieces, places, strict=True):
        (left if row is None else members[row]).append(piece)
    return _batch(members, row_tokens, loss_aggregation, routing, seed), left


def _batch(
    members: Sequence[Sequence[_PackedPiece]],
    row_tokens: int,
    loss_aggregation: LossAggregation,
    routing: Routing | None,
    seed: int,
) -> PackedBatch:
    def zeros(dtype: type) -> np.ndarray:
        return np.zeros((len(members), row_tokens), dtype)

    batch = PackedBatch(
        tokens=zeros(np.int32),
        positions=zeros(np.int32),
        segments=zeros(np.int32),
        targets=zeros(np.int32),
        response_mask=zeros(np.bool_),
        behaviour_logprobs=zeros(np.float32),
        advantages=zeros(np.float32),
        weights=zeros(np.float32),
        samples=zeros(np.int32) - 1,
        sequences=zeros(np.int32),
        response_tokens=zeros(np.int32),
        noise_names=np.zeros((len(members), row_tokens, 4), np.uint32),
        noise_known=zeros(np.bool_),
        old_logprobs=zeros(np.float32),
        old_values=zeros(np.float32),
        returns=zeros(np.float32),
        teacher_logprobs=zeros(np.float32),
        taught=zeros(np.bool_),
        routes=None if routing is None else _first_experts((len(members), row_tokens), routing),
    )
    for row, pieces in enumerate(members):
        start = 0
        for segment, piece in enumerate(pieces, start=1):
            start = _place(batch, row, start, segment, piece, loss_aggregation, seed)
    return batch


def _first_experts(positions: tuple[int, int], routing: Routing) -> UInt[np.ndarray, "R T L A"]:
    """Placeholder routes for positions without a token."""
    experts = np.arange(routing.experts_per_token, dtype=routing.dtype)
    return np.tile(experts, (*positions, routing.num_layers, 1))


def _place(
    batch: PackedBatch,
    row: int,
    start: int,
    segment: int,
    piece: _PackedPiece,
    loss_aggregation: LossAggregation,
    seed: int,
) -> int:
    """Write one sequence into [start, end) of a row; returns end."""
    t, sequence = piece.trajectory, piece.sequence
    own = slice(piece.start, piece.start + sequence.num_sampled)  # of the trajectory's arrays
    tokens = sequence.tokens[: sequence.trained_length]
    end = start + len(tokens) - 1
    everything, sampled = (row, slice(start, end)), (row, start + sequence.sampled_positions - 1)
    batch.tokens[everything] = tokens[:-1]
    batch.targets[everything] = tokens[1:]
    batch.positions[everything] = np.arange(len(tokens) - 1)
    batch.segments[everything] = segment
    batch.response_mask[sampled] = True
    batch.behaviour_logprobs[sampled] = sequence.logprobs
    if batch.samples is not None and batch.sequences is not None:
        batch.samples[sampled], batch.sequences[sampled] = t.sample, piece.place
    if batch.response_tokens is not None:
        batch.response_tokens[everything] = piece.num_sampled
    if t.batch is not None and batch.noise_names is not None and batch.noise_known is not None:
        names = np.zeros((sequence.num_sampled, 4), np.uint32)
        names[:, :3] = noise_seed(seed, piece.place), t.batch, t.sample
        names[:, 3] = sequence.sampled_positions - sequence.runs[0]
        batch.noise_names[sampled] = names
        batch.noise_known[sampled] = True
    batch.advantages[sampled] = t.advantage if t.advantages is None else t.advantages[own]
    if t.trained:
        batch.weights[sampled] = _token_weight(piece.num_sampled, loss_aggregation)
    if batch.routes is not None:
        assert sequence.routes is not None, "recorded of every token, see `FinishedRollout`"
        batch.routes[everything] = sequence.routes
    if t.teacher_logprobs is not None and batch.taught is not None:
        batch.taught[sampled] = True
    for name in ("old_logprobs", "old_values", "returns", "teacher_logprobs"):
        values = getattr(t, name)
        if values is not None:
            getattr(batch, name)[sampled] = values[own]
    return end


def _token_weight(num_sampled: int, loss_aggregation: LossAggregation) -> float:
    """Weight of each token of a response in the sum that `update_divisor` divides."""
    match loss_aggregation:
        case "sequence_mean":
            return 1 / num_sampled
        case "token_mean" | "sequence_sum" | "constant":
            return 1.0
        case _:
            assert_never(loss_aggregation)

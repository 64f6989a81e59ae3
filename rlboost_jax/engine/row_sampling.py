"""A token, its log-probability and a checksum of its logits, for each row of a step program.

XLA sums over the vocabulary, on CPU in an order that depends on the number of rows. So that a row's
bits do not depend on it, all programs sample over the same number of rows or, from a large
vocabulary on CPU, over tiles of one size. A tile fits into a core's cache, and a step with prefill
samples only the rows that are needed.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Shaped
from rlboost_kernels import token_noise, tokens_from_noise

from rlboost_jax.engine.layouts import StepLayout
from rlboost_jax.engine.step_inputs import Controls
from rlboost_jax.models.forward import head
from rlboost_jax.models.params import Params
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.sampling_config import NoiseKind

Draws = tuple[Int[Array, " R"], Float[Array, " R"], Int[Array, " R"]]
LogitsOf = Callable[[Float[Array, "R E"]], Float[Array, "R V"]]

LARGE_VOCABULARY: Final = 65_536  # entries from which tiles are worth their loop
_TILE: Final = 8  # rows


def apart(values: Any) -> Any:
    """Return the values behind a barrier that the compiler may not fuse across.

    Mixed and decode steps make their rows in different ways, take other rows of the last layer and
    do something else with what is sampled. Joined with any of it, a norm may add up in another
    order, or a bfloat16 value stay unrounded, in one of the two programs. Rounded later, most such
    differences go: on an H200 one log-probability in ten thousand had other bits.
    """
    return jax.lax.optimization_barrier(values)


class RowSampler:
    """Samples from the last layer's rows. Holds no arrays."""

    def __init__(
        self,
        layout: StepLayout,
        model: ModelConfig,
        *,
        split: bool,
        vocabulary: int,
        noise: NoiseKind,
        truncated: bool,
        in_tiles: bool,
    ) -> None:
        """
        Args:
            model: of a device's share.
            split: whether the vocabulary is divided among devices.
            vocabulary: entries on all of them.
            noise: how it selects a token.
            truncated: whether rows may ask for top-k or top-p.
            in_tiles: whether to sample a tile at a time.
        """
        self._layout, self._truncated, self._in_tiles = layout, truncated, in_tiles
        self._model, self._split = model, split
        self._vocabulary, self._noise = vocabulary, noise

    def draw(
        self,
        params: Params,
        x: Float[Array, "R E"],
        keys: Key[Array, " R"],
        positions: Int[Array, " R"],
        controls: Controls,
        needed: Bool[Array, " R"] | None = None,
    ) -> Draws:
        """Sample every row; the result of a row without a sequence is meaningless.

        Args:
            needed: whether a row is sampled from, where that is known on the device only; None:
                each is.
        """
        rows = len(x)
        R = min(rows, self._layout.sampled_rows)  # sequences are in the first rows
        given = (
            x[:R],
            token_noise(keys[:R], positions[:R], self._noise, vocabulary=self._vocabulary),
            controls.temperature[:R],
            controls.top_p[:R],
            controls.top_k[:R],
        )
        x, *columns = apart(given)
        logits_of = partial(head, self._model, params, split=self._split)
        sampled = apart(self._of_rows(logits_of, x, columns, needed))
        return padded(sampled, rows)

    def _of_rows(
        self,
        logits_of: LogitsOf,
        x: Float[Array, "R E"],
        columns: Sequence[Shaped[Array, " R"]],
        needed: Bool[Array, " N"] | None,
    ) -> Draws:
        """Sample a token for every row.

        Args:
            logits_of: head of the model; a row's logits depend on that row alone.
            columns: noise (numbers that select a token), temperature, top-p and top-k of each row.
            needed: whether a row's token will be used, where only the device knows it; results of
                other rows mean nothing. None: every row's is.
        """
        if needed is None or not self._in_tiles:
            return self._draw(logits_of, x, columns)
        R = len(x)
        # The smallest batch size of decode steps that holds the last needed row. During prefill,
        # head and sampler over all rows would take longer than the layers.
        sizes = (0, *(rows for rows in self._layout.decode_rows if rows < R), R)

        def over(size: int) -> Draws:
            if size:
                drawn = self._draw(logits_of, x[:size], [column[:size] for column in columns])
            else:
                none = jnp.zeros(0, jnp.int32)
                drawn = none, none.astype(jnp.float32), none
            return padded(drawn, R)

        last = jnp.where(needed[:R], jnp.arange(1, R + 1), 0).max()
        chosen = jnp.searchsorted(jnp.array(sizes), last)
        draws: Draws = jax.lax.switch(chosen, [partial(over, size) for size in sizes])
        return draws

    def _draw(
        self, logits_of: LogitsOf, x: Float[Array, "R E"], columns: Sequence[Shaped[Array, " R"]]
    ) -> Draws:
        logits, R = logits_of(x), len(x)
        if not self._in_tiles:
            most = self._layout.sampled_rows
            same_rows = padded((logits, *columns), most)
            tokens, logprobs = tokens_from_noise(*same_rows, truncated=self._truncated)
            return tokens[:R], logprobs[:R], _checksum(logits)

        def tile(parts: tuple[Array, ...]) -> Draws:
            logits, *columns = parts
            tokens, logprobs = tokens_from_noise(logits, *columns, truncated=self._truncated)
            return tokens, logprobs, _checksum(logits)

        count = -(-R // _TILE)
        tiles = jax.tree.map(
            lambda column: column.reshape(count, _TILE, *column.shape[1:]),
            padded((logits, *columns), _TILE * count),
        )
        tokens, logprobs, checksums = jax.lax.map(tile, tiles)
        return tokens.reshape(-1)[:R], logprobs.reshape(-1)[:R], checksums.reshape(-1)[:R]


def padded(columns: Any, rows: int) -> Any:
    """Pad each array to so many rows with zeros."""

    def longer(column: Shaped[Array, "R *_"]) -> Shaped[Array, "N *_"]:
        return jnp.pad(column, [(0, rows - len(column))] + [(0, 0)] * (column.ndim - 1))

    return jax.tree.map(longer, columns)


def _checksum(logits: Float[Array, "R V"]) -> Int[Array, " R"]:
    """Checksum of each row: a change of any bit of one logit changes it, since factors are odd."""
    bits = jax.lax.bitcast_convert_type(logits, jnp.int32)
    factors = 2 * jnp.arange(logits.shape[1], dtype=jnp.int32) + 1
    return (bits * factors[None, :]).sum(axis=1, dtype=jnp.int32)

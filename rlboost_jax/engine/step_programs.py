"""The device programs of the engine: a mixed step, decode steps, and the copying of pages.

A row's bits must not depend on its companions. Attention and, on CPU, products see to that for any
number of rows; then a mixed step runs the model over T rows, head and sampler over R, and decode
steps run over as few as their sequences need. XLA's own products only see to it for one number of
rows, or for a class of them: then layers have T rows in every program, and head and sampler one
number of them, too (`layouts.py`). Sequence i is in row i of head and sampler. So a token's keys,
values, logits and noise are the same whichever program computes them, which `invariance.py` checks
on the device.

The KV pool is one array [P, L, 2K, D] per layer, donated and written in place. Parameters
are arguments, flattened once, with the layers unstacked.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt
from rlboost_kernels import (
    copy_kv_pages,
    kv_pages_shape,
    noise_keys,
    ragged_paged_attention,
    update_kv_pages,
)
from rlboost_kernels.attention.attention_api import choose_attention

from rlboost_jax.engine import step_inputs
from rlboost_jax.engine.devices import HEADS, WHOLE, Devices
from rlboost_jax.engine.draft_policy import MOST_TOKENS_A_STEP
from rlboost_jax.engine.drafts import MOST_DRAFTS
from rlboost_jax.engine.joined import joined
from rlboost_jax.engine.layouts import StepLayout
from rlboost_jax.engine.row_sampling import LARGE_VOCABULARY, RowSampler, apart
from rlboost_jax.engine.step_inputs import StepRows
from rlboost_jax.engine.verify_steps import verify_steps
from rlboost_jax.engine.weight_panels import reads_panels, with_panels
from rlboost_jax.models.forward import apply_layer, embed, head
from rlboost_jax.models.params import Params, abstract_params, unstack_layers
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.routing import Routing
from rlboost_jax.settings.sampling_config import NoiseKind

Leaves = tuple[Array, ...]
Pools = tuple[Float[Array, "P L C D"], ...]  # C: keys at even, values at odd head indices

# Rows of what is sampled, [3, steps, sequences] int32: token (-1: none), bits of its
# log-probability, and a checksum of the logits it was sampled from.
TOKENS, LOGPROBS, CHECKSUMS = range(3)


class Output(NamedTuple):
    """Output of a step program for the host."""

    sampled: Int[Array, "3 X S"]
    routes: UInt[Array, "X R layers A"] | None  # of tokens: not of a mixed step
    row_routes: UInt[Array, "T layers A"] | None = None  # of a mixed step, with drafts or without
    counts: Int[Array, " 4"] | None = None  # of steps with drafts: `SpeculationCounts`


class AttentionNotAvailable(Mistake, ValueError):
    """`engine.attention` names an implementation that cannot run here."""


class Programs:
    """The compiled programs of one model, layout and set of options. Holds no arrays."""

    def __init__(
        self,
        model: ModelConfig,
        layout: StepLayout,
        *,
        max_steps: int,
        truncated_sampling: bool,
        noise: NoiseKind,
        attention: str,
        kv_dtype: str,
        devices: Devices,
        routing: Routing | None = None,
    ) -> None:
        """Build the programs without compiling any.

        Args:
            noise: how it selects a token.
            attention: "auto" or an implementation of `rlboost_kernels`.
            devices: that they are for.
            routing: of the routes that are returned; None: none are.

        Raises:
            AttentionNotAvailable: not here, or not with these sizes and types.
        """
        self.model, self.layout, self.max_steps = model, layout, max_steps
        self._devices, self._share, self._split = devices, devices.share, devices.split
        self._kv_dtype, self._routing = kv_dtype, routing
        on_cpu_alone = devices.first.platform == "cpu" and not devices.split
        self._sampler = RowSampler(
            layout,
            devices.share,
            split=devices.split,
            vocabulary=model.vocab_size,
            noise=noise,
            truncated=truncated_sampling,
            in_tiles=on_cpu_alone and model.vocab_size >= LARGE_VOCABULARY,
        )
        self.attention = self._choose_attention(attention, devices.first.platform)
        self.abstract_params = abstract_params(model)
        tree = jax.eval_shape(unstack_layers, self.abstract_params)
        if not devices.split:
            layers = tuple(jax.eval_shape(joined, layer) for layer in tree["layers"])
            tree = {**tree, "layers": layers}
        if reads_panels(devices):
            tree = jax.eval_shape(partial(with_panels, dtype=model.dtype), tree)
        self.abstract_leaves, self._tree = jax.tree.flatten(tree)
        program, step = devices.program, (devices.leaf_specs(), HEADS, WHOLE)
        self.mixed = program(self._mixed, step, (HEADS, WHOLE), donated=(1,))
        self.logits = program(self._logits, step, (HEADS, WHOLE), donated=(1,))
        self.decode = program(self._decode, (*step, WHOLE), (HEADS, WHOLE, WHOLE), donated=(1,))
        self.verify = program(self._verify, (*step, WHOLE), (HEADS, WHOLE), donated=(1,))
        self.copy_pages = program(_copy_pages, (HEADS, WHOLE), HEADS, donated=(0,))
        self.read_pages = program(_read_pages, (HEADS, WHOLE), HEADS)
        self.take_pages = program(_take_pages, (HEADS, WHOLE), HEADS)  # of one layer

    @property
    def most_verified(self) -> int:
        """Most tokens that steps with drafts yield for a sequence."""
        return max(MOST_TOKENS_A_STEP * self.max_steps, MOST_DRAFTS + 1)

    @property
    def _pool(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of one device's part of a layer's pool."""
        return self._pool_of(self.layout.num_pages)

    def _pool_of(self, num_pages: int) -> jax.ShapeDtypeStruct:
        layout, model = self.layout, self._share
        shape = kv_pages_shape(num_pages, layout.page_size, model.num_key_heads, model.head_dim)
        return jax.ShapeDtypeStruct(shape, self._kv_dtype)

    def _choose_attention(self, named: str, platform: str) -> str:
        shape = (self.layout.token_rows, self._share.num_query_heads, self.model.head_dim)
        q = jax.ShapeDtypeStruct(shape, self.model.dtype)
        try:
            return choose_attention(named, q, self._pool, platform=platform)
        except NotImplementedError as error:
            raise AttentionNotAvailable(
                f"engine.attention is {named!r}: {error}; 'auto' takes one that can"
            ) from None

    def empty_pools(self, num_pages: int = 0) -> Pools:
        """A pool per layer. Zeros: what no one has written is masked, but must be finite.

        Args:
            num_pages: fewer than the layout's; 0: as many. Programs take either: a place that is
                nowhere in the larger pool is nowhere in the smaller.
        """
        return self._devices.zero_pools(self._pool_of(num_pages or self.layout.num_pages))

    def no_ends(self) -> Int[Array, " N"]:
        """The `ends` argument of decode steps that follow no others."""
        ends = np.full(self.layout.decode_rows[-1], -1, np.int32)
        return jax.device_put(ends, self._devices.everywhere())

    def _mixed(
        self, leaves: Leaves, pools: Pools, packed: Int[Array, " _"]
    ) -> tuple[Pools, Output]:
        """One step over prefill chunks and single tokens.

        Every sequence is sampled after its last row; those whose budget is 0 (a prefill that
        goes on) yield nothing.
        """
        params = jax.tree.unflatten(self._tree, leaves)
        rows, records, last_rows = step_inputs.unpack_mixed(self.layout, packed)
        controls = step_inputs.controls(records)
        keys = noise_keys(controls.seed, controls.batch, controls.sample)
        x, pools, routes = self._run_layers(params, pools, rows)
        needed = records[:, step_inputs.BUDGET] > 0
        tokens, logprobs, checksums = self._sampler.draw(
            params, x[last_rows], keys, records[:, step_inputs.RESPONSE], controls, needed
        )
        tokens = jnp.where(needed, tokens, -1)
        sampled = _sampled(tokens, logprobs, checksums)[:, None, : self.layout.slots]
        return pools, Output(sampled, None, routes)

    def _logits(
        self, leaves: Leaves, pools: Pools, packed: Int[Array, " _"]
    ) -> tuple[Pools, Float[Array, "T V"]]:
        """Logits after every row of a mixed step. For checks."""
        params = jax.tree.unflatten(self._tree, leaves)
        rows, _, _ = step_inputs.unpack_mixed(self.layout, packed)
        x, pools, _ = self._run_layers(params, pools, rows)
        return pools, head(self._share, params, x, split=self._split)

    def _decode(
        self, leaves: Leaves, pools: Pools, packed: Int[Array, " _"], ends: Int[Array, " N"]
    ) -> tuple[Pools, Output, Int[Array, " N"]]:
        """Up to X = `max_steps` decode steps of the sequences in the first rows.

        A sequence stops by itself after a stop id or when its budget is spent, and all is over
        when none is left. The next decode steps may begin with the `ends` of these (`metadata`):
        the newest token of every sequence, -1 after a stop id.
        """
        params = jax.tree.unflatten(self._tree, leaves)
        num_sequences, num_steps, records = step_inputs.unpack_decode(self.layout, packed, ends)
        controls = step_inputs.controls(records)
        keys = noise_keys(controls.seed, controls.batch, controls.sample)
        length, response = records[:, step_inputs.LENGTH], records[:, step_inputs.RESPONSE]

        def more(state: Any) -> Bool[Array, ""]:
            done, _, live, _, _ = state
            return (done < num_steps) & live.any()

        def step(state: Any) -> Any:
            done, newest, live, pools, output = state
            rows = step_inputs.decode_rows(
                self.layout, records, num_sequences, newest, length + done, live
            )
            x, pools, routes = self._run_layers(params, pools, rows)
            tokens, logprobs, checksums = self._sampler.draw(
                params, x, keys, response + done, controls
            )
            tokens = jnp.where(live, tokens, -1)
            output = _with_step(output, _sampled(tokens, logprobs, checksums), routes, done)
            stopped = (tokens[:, None] == controls.stop_ids).any(axis=1)
            newest = jnp.where(live, jnp.where(stopped, -1, tokens), newest)
            live &= ~stopped & (done + 1 < records[:, step_inputs.BUDGET])
            return done + 1, newest, live, pools, output

        nothing = self._nothing(len(records), self.max_steps)
        live = records[:, step_inputs.BUDGET] > 0
        start = (jnp.int32(0), records[:, step_inputs.TOKEN], live, pools, nothing)
        _, newest, _, pools, output = jax.lax.while_loop(more, step, start)
        unused = jnp.full(len(ends) - len(records), -1, jnp.int32)
        return pools, output, jnp.concatenate([newest, unused])

    def _verify(
        self,
        leaves: Leaves,
        pools: Pools,
        packed: Int[Array, " _"],
        texts: Int[Array, "R _"],
    ) -> tuple[Pools, Output]:
        """Up to `max_steps` steps with drafts, see `verify_steps.py`."""
        params = jax.tree.unflatten(self._tree, leaves)
        verified = verify_steps(
            self.layout,
            packed,
            texts,
            pools,
            self._nothing(len(texts), self.most_verified)[:2],
            run_layers=partial(self._run_layers, params),
            sample=partial(self._sampler.draw, params),
        )
        sampled, routes, row_routes = verified.sampled, verified.routes, verified.row_routes
        return verified.pools, Output(sampled, routes, row_routes, verified.counts)

    def _nothing(self, num_rows: int, num_tokens: int) -> Output:
        """Output before the first decode step, with room for so many tokens of each sequence."""
        sampled = jnp.full((3, num_tokens, num_rows), -1, jnp.int32)
        if self._routing is None:
            return Output(sampled, None)
        shape = (num_tokens, num_rows, *self._routing.shape)
        return Output(sampled, jnp.zeros(shape, self._routing.dtype))

    def _run_layers(
        self, params: Params, pools: Pools, rows: StepRows
    ) -> tuple[Float[Array, "T E"], Pools, UInt[Array, "T layers A"] | None]:
        chosen: list[Int[Array, "T A"] | None] = []
        written: list[Float[Array, "P L C D"]] = []
        model, split = self._share, self._split
        rows = apart(rows)

        def attend(
            q: Float[Array, "T H D"], k: Float[Array, "T K D"], v: Float[Array, "T K D"]
        ) -> Float[Array, "T H D"]:
            pool = update_kv_pages(pools[len(written)], k, v, rows.kv_slots)
            written.append(pool)
            return ragged_paged_attention(
                q,
                pool,
                rows.kv_lens,
                rows.page_table,
                rows.query_starts,
                rows.num_sequences,
                sm_scale=model.attention_scale,
                soft_cap=model.attention_soft_cap or None,
                sliding_window=model.layer_windows[len(written) - 1] or None,
                implementation=self.attention,
            ).astype(q.dtype)

        x = embed(model, params, rows.tokens, split=split)
        for layer, window in zip(params["layers"], model.layer_windows, strict=True):
            x, experts = apply_layer(
                model,
                layer,
                x,
                rows.positions,
                attend,
                local=window > 0,
                by_row=True,
                split=split,
            )
            chosen.append(experts)
        x = apart(x)
        if self._routing is None:
            return x, tuple(written), None
        routes = jnp.stack([experts for experts in chosen if experts is not None], axis=1)
        return x, tuple(written), routes.astype(self._routing.dtype)


def _with_step(
    output: Output,
    sampled: Int[Array, "3 R"],
    routes: UInt[Array, "R layers A"] | None,
    step: Array,
) -> Output:
    """Add the results of one decode step to the output."""
    put = jax.lax.dynamic_update_index_in_dim
    return Output(
        put(output.sampled, sampled, step, axis=1),
        None if routes is None else put(output.routes, routes, step, axis=0),
    )


def _sampled(
    tokens: Int[Array, " R"], logprobs: Float[Array, " R"], checksums: Int[Array, " R"]
) -> Int[Array, "3 R"]:
    bits = jax.lax.bitcast_convert_type(logprobs, jnp.int32)
    return jnp.stack([tokens, bits, checksums])


def _copy_pages(pools: Pools, copies: Int[Array, "2 S"]) -> Pools:
    """Copy page `copies[0, i]` to `copies[1, i]`; a destination outside the pool is no copy."""
    return tuple(copy_kv_pages(pool, copies[0], copies[1]) for pool in pools)


def _read_pages(pools: Pools, pages: Int[Array, " _"]) -> tuple[Float[Array, "_ L C D"], ...]:
    return tuple(pool[pages] for pool in pools)


def _take_pages(pool: Float[Array, "P L C D"], pages: Int[Array, " _"]) -> Float[Array, "_ L C D"]:
    return pool[pages]

"""The programs of a rollout server: on one H100, or split over `engine.tensor_parallel` of them.

All slots are busy, and hold half of the longest rollout or as much as the pool has pages for.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, SingleDeviceSharding
from rlboost_kernels.attention import attention_mosaic_gpu, attention_xla, tiles

from benchmarks.h100.chip import CACHED_BYTES, MEMORY_BYTES
from benchmarks.h100.cost import Assumptions, Call
from benchmarks.h100.program import Program, Work, attention_flops, product_parameters
from rlboost_jax.engine import step_inputs
from rlboost_jax.engine.device_memory import DeviceMemory, MemoryPlan, engine_sizes, plan_memory
from rlboost_jax.engine.devices import HEADS, WHOLE, Devices
from rlboost_jax.engine.layouts import StepLayout, make_layout
from rlboost_jax.engine.step_programs import Programs
from rlboost_jax.models.adapters import base_model
from rlboost_jax.settings.engine_config import EngineConfig
from rlboost_jax.settings.memory_estimates import page_bytes, weight_bytes
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.routing import routing_of
from rlboost_jax.settings.run_config import RunConfig


@dataclass(frozen=True)
class _Load:
    """What the rows of a step look at."""

    rows: int  # of tokens that are run
    sequences: int
    context: float  # tokens that each row sees

    @property
    def tokens_read(self) -> float:
        """Whose keys and values have to be read."""
        return self.sequences * self.context


def programs(
    run: RunConfig, devices: list[Any], attention: str, *, drafts: bool = False
) -> Iterator[Program]:
    """A server's programs: decode steps, mixed steps, copies of pages.

    Args:
        attention: implementation, as `engine.attention` names it.
        drafts: free rows of decode steps may hold drafts.
    """
    server = _Server(run, devices, attention, drafts)
    if drafts:
        yield server.verify()
    yield server.decode()
    yield server.mixed()
    if attention == "auto":
        yield server.copies()


class _Server:
    def __init__(self, run: RunConfig, devices: list[Any], attention: str, drafts: bool) -> None:
        self.run, self.config = run, replace(run.engine, attention=attention)
        self.model, self.split = base_model(run.model), run.engine.tensor_parallel
        self.devices = Devices(self.model, self.split, devices)
        layout = _layout(run, self.config, drafts)
        self.plan = memory_plan(run, self.config, drafts=drafts)
        self.layout = replace(layout, num_pages=self.plan.num_pages)
        self.programs = Programs(
            self.model,
            self.layout,
            max_steps=self.config.steps_per_dispatch,
            truncated_sampling=run.truncated_sampling,
            noise=run.sampling.noise,
            attention=attention,
            kv_dtype=self.config.kv_dtype,
            devices=self.devices,
            routing=routing_of(run.model, run.algorithm),
        )
        self.first = devices[0]

    def decode(self) -> Program:
        slots, steps = self.layout.slots, self.config.steps_per_dispatch
        held = self.layout.num_pages * self.layout.page_size / slots
        load = _Load(slots, slots, min(self.run.slot_tokens / 2, held))
        packed = step_inputs.pack_decode(self.layout, (), 0, rows=self.layout.decode_rows[-1])
        lower = partial(
            self.programs.decode.lower,
            self._leaves(),
            self._pools(),
            self._numbers(packed.size),
            self._numbers(self.layout.decode_rows[-1]),
        )
        each = self._work(load)
        work = Work(
            flops=steps * each.flops, num_bytes=steps * each.num_bytes, tokens=steps * slots
        )
        said = f"{slots} slots of {load.context:,.0f} tokens, {steps} steps"
        return self._program("decode", lower, work, load, said, steps=steps)

    def verify(self) -> Program:
        """Steps with a draft in every free row, of which none is right, and no prefill."""
        layout, steps = self.layout, self.config.steps_per_dispatch
        slots, rows = layout.slots, layout.decode_rows[-1]
        held = layout.num_pages * layout.page_size / slots
        load = _Load(rows, slots, min(self.run.slot_tokens / 2, held))
        packed = step_inputs.pack_verify(layout, (), 0, rows=rows)
        texts = (rows, layout.text_tokens)
        lower = partial(
            self.programs.verify.lower,
            self._leaves(),
            self._pools(),
            self._numbers(packed.size),
            jax.ShapeDtypeStruct(texts, jnp.int32, sharding=self._place(WHOLE)),
        )
        each = self._work(load, sampled=layout.sampled_rows)
        work = Work(
            flops=steps * each.flops, num_bytes=steps * each.num_bytes, tokens=steps * slots
        )
        said = f"{slots} slots of {load.context:,.0f} tokens, {rows} rows, {steps} steps"
        return self._program("verify", lower, work, load, said, steps=steps)

    def mixed(self) -> Program:
        prompt = self.config.max_prompt_tokens
        rows = self.layout.token_rows
        load = _Load(rows, math.ceil(rows / prompt), prompt)
        packed = step_inputs.pack_mixed(self.layout, ())
        lower = partial(
            self.programs.mixed.lower, self._leaves(), self._pools(), self._numbers(packed.size)
        )
        said = f"{rows} rows of prompts, at the end of {prompt} tokens"
        return self._program("mixed", lower, self._work(load), load, said)

    def copies(self) -> Program:
        slots = self.layout.slots
        place = self._place(WHOLE)
        copies = jax.ShapeDtypeStruct((2, slots), jnp.int32, sharding=place)
        lower = partial(self.programs.copy_pages.lower, self._pools(), copies)
        work = Work(num_bytes=2 * slots * page_bytes(self.devices.share, self.config))
        return self._program("copy pages", lower, work, None, f"{slots} pages")

    def _program(
        self, name: str, lower: Any, work: Work, load: _Load | None, assumed: str, steps: int = 1
    ) -> Program:
        return Program(
            name=name if load is None else f"{name} {self.programs.attention}",
            lower=lower,
            devices=self.split,
            work=work,
            plan_bytes=self.plan.total,
            held_bytes=self.plan.weights + self.plan.pool,
            assumptions=Assumptions() if load is None else self._assumptions(load, steps),
            assumed=assumed,
            context=load.context if load else 0.0,
            shared_rounding=load is not None and self.run.deterministic,
        )

    def _assumptions(self, load: _Load, steps: int) -> Assumptions:
        layout, model = self.layout, self.devices.share
        block = max(layout.page_size, attention_xla.BLOCK_TOKENS)
        blocks = math.ceil(load.rows / attention_xla.TILE_ROWS)
        pool = rf"\[{layout.num_pages},{layout.page_size},"
        item = jnp.dtype(self.config.kv_dtype).itemsize
        sums = _sums(model, load)
        return Assumptions(
            trips=(
                (r"_attend\)/.*while/body.*while$", math.ceil(load.context / block)),
                (r"_attend\)/.*while$", blocks),
                (r"_(decode|verify)\).*while$", steps),
            ),
            calls=(
                Call(
                    pattern=pool,
                    flops=load.rows * attention_flops(model, load.context) / model.num_layers,
                    num_bytes=load.tokens_read * 2 * model.num_key_heads * model.head_dim * item,
                    written=sums,
                ),
                # The kernel that merges them.
                Call(
                    pattern=rf"mosaic_gpu.*f32\[\d+,\d+,\d+,{_columns(model)}\]",
                    flops=0.0,
                    num_bytes=sums if sums > CACHED_BYTES else 0.0,
                ),
            ),
        )

    def _work(self, load: _Load, sampled: int = 0) -> Work:
        """Work of one step.

        Args:
            sampled: rows that the head runs for; 0: one for each sequence.
        """
        model = self.model
        head = model.vocab_size * model.embed_dim
        flops = 2 * load.rows * (product_parameters(model) - head)
        flops += 2 * (sampled or load.sequences) * head + load.rows * attention_flops(
            model, load.context
        )
        looked_up = 0 if model.tie_embeddings else head / self.split
        share = self.devices.share
        weights = weight_bytes(share, self.run.weights.rollout_dtype)
        item = jnp.dtype(self.run.weights.rollout_dtype).itemsize
        read = load.tokens_read * page_bytes(share, self.config) / self.layout.page_size
        return Work(flops=flops, num_bytes=weights - item * looked_up + read, tokens=load.sequences)

    def _place(self, spec: Any) -> Any:
        mesh = self.devices._mesh
        return SingleDeviceSharding(self.first) if mesh is None else NamedSharding(mesh, spec)

    def _leaves(self) -> Any:
        leaves, dtype = self.programs.abstract_leaves, self.run.weights.rollout_dtype
        specs = self.devices.leaf_specs() if self.split > 1 else (WHOLE,) * len(leaves)
        return tuple(
            jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(dtype), sharding=self._place(spec))
            for leaf, spec in zip(leaves, specs, strict=True)
        )

    def _pools(self) -> Any:
        pages, tokens, heads, width = self.programs._pool.shape
        shape = (pages, tokens, heads * self.split, width)
        pool = jax.ShapeDtypeStruct(shape, self.config.kv_dtype, sharding=self._place(HEADS))
        return (pool,) * self.model.num_layers

    def _numbers(self, count: int) -> Any:
        return jax.ShapeDtypeStruct((count,), jnp.int32, sharding=self._place(WHOLE))


def _columns(model: ModelConfig) -> int:
    """Float32 numbers that Mosaic's kernel keeps of a row, a query head and a split."""
    return max(model.head_dim, attention_mosaic_gpu.THREADS) + attention_mosaic_gpu.SUMS


def _sums(model: ModelConfig, load: _Load) -> float:
    """Bytes of what the kernel writes of a layer's splits: of rows that see them, and no others."""
    splits = math.ceil(load.context / tiles.SPLIT_TOKENS)
    return 4.0 * load.rows * model.num_query_heads * splits * _columns(model)


def _layout(run: RunConfig, config: EngineConfig, drafts: bool) -> StepLayout:
    exact = run.deterministic
    return make_layout(config, run.slot_tokens, any_rows=False, exact=exact, drafts=drafts)


def memory_plan(run: RunConfig, config: EngineConfig, *, drafts: bool = False) -> MemoryPlan:
    """Memory plan of one of the server's GPUs, which it has to itself."""
    layout = _layout(run, config, drafts)
    sizes = engine_sizes(
        run.model,
        config,
        slot_tokens=run.slot_tokens,
        param_dtype=run.weights.rollout_dtype,
        truncated_sampling=run.truncated_sampling,
        sampled_rows=layout.sampled_rows,
        products="xla",
        platform="gpu",
    )
    return plan_memory(sizes, DeviceMemory(limit=int(MEMORY_BYTES)), config.memory_fraction)

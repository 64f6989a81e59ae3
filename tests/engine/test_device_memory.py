"""Division of a device's memory: decided by hand and in general, and kept to by the engine."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.engine import engine_plan
from rlboost_jax.engine.device_memory import (
    DeviceMemory,
    MemoryPlan,
    NotEnoughMemory,
    Sizes,
    device_memory,
    host_memory,
    plan_memory,
)
from rlboost_jax.engine.engine import Engine
from rlboost_jax.messages import GenerateRequest
from rlboost_jax.models.params import flatten_params, unflatten_params
from rlboost_jax.settings.engine_config import EngineConfig
from rlboost_jax.settings.model_config import ModelConfig
from tests.engine.step_programs import step_programs

SLOT_TOKENS = 44
# 5 slots of 4 pages: 200 bytes for all of them.
SIZES = Sizes(weights=100, working=50, page=10, slot_pages=4, slots=5, num_pages=0)

EXPERTS = {"num_experts": 8, "experts_per_token": 2, "expert_dim": 512, "embed_dim": 64}
SOAK = pytest.mark.soak


@pytest.fixture
def on_device(
    model: ModelConfig, engine_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Engine]:
    """Engines on a device that has as many bytes as it is given. Nothing is compiled."""

    def build(limit: int | None = None, *, taken_bytes: int = 0) -> Engine:
        with monkeypatch.context() as patch:
            patch.setattr(engine_plan, "device_memory", lambda _: DeviceMemory(limit=limit))
            return Engine(
                model,
                replace(engine_config, memory_fraction=1.0),
                slot_tokens=SLOT_TOKENS,
                truncated_sampling=False,
                taken_bytes=taken_bytes,
            )

    return build


@pytest.fixture
def tight(on_device: Callable[..., Engine]) -> Engine:
    """An engine with memory for one copy of the weights and 11 pages; all slots need 66."""
    sizes = on_device().memory.sizes
    return on_device(sizes.weights + sizes.working + 11 * sizes.page)


@pytest.mark.parametrize(
    ("limit", "pages", "copies"),
    [
        (None, 20, 2),
        (10_000, 20, 2),
        (900, 20, 2),  # 2 x 100 + 50 + 200 of 450
        (898, 20, 1),
        (700, 20, 1),  # 100 + 50 + 200 of 350
        (698, 19, 1),
        (380, 4, 1),  # 100 + 50 + 40 of 190
    ],
)
def test_half_of_a_memory_by_hand(limit: int | None, pages: int, copies: int) -> None:
    plan = plan_memory(SIZES, DeviceMemory(limit=limit), 0.5)
    assert (plan.num_pages, plan.double_buffered) == (pages, copies == 2)
    assert (plan.weights, plan.pool) == (copies * 100, pages * 10)
    assert plan.total == copies * 100 + 50 + pages * 10
    if limit is not None:  # what others have is no part of what is divided
        there = DeviceMemory(limit=limit + 77, taken=77)
        assert plan_memory(SIZES, there, 0.5) == replace(plan, memory=there)


def test_what_is_held_already_is_part_of_what_will_be() -> None:
    held = DeviceMemory(limit=1000, taken=300)
    assert held.with_taken(200).taken == 300
    assert held.with_taken(400).taken == 400


@pytest.mark.parametrize(
    ("memory", "pages", "parts"),
    [
        (
            DeviceMemory(limit=378),
            0,
            [
                *("needs 190 B", "weights 100 B", "working space 50 B", "4 pages 40 B"),
                *("are 189 B", "0.5 of 378 B"),
                *("engine.memory_fraction", "engine.token_rows", "engine.kv_dtype"),
            ],
        ),
        (DeviceMemory(limit=378), 4, ["needs 190 B"]),  # no number of pages would do
        (DeviceMemory(limit=5, taken=9), 0, ["0.5 of 0 B", "9 B taken", "are 0 B"]),
        (
            DeviceMemory(limit=700),
            21,
            ["engine.num_pages is 21", "360 B", "350 B", "0.5 of 700 B", "choose 20 or less"],
        ),
    ],
)
def test_too_little_is_one_line_with_what_to_change(
    memory: DeviceMemory, pages: int, parts: list[str]
) -> None:
    with pytest.raises(NotEnoughMemory) as caught:
        plan_memory(replace(SIZES, num_pages=pages), memory, 0.5)
    line = str(caught.value)
    assert "\n" not in line and all(part in line for part in parts), line


@pytest.mark.parametrize(
    ("limit", "taken", "pages", "text"),
    [
        (
            2000,
            0,
            0,
            "memory: 0.5 of 2.0 KiB for the engine: weights 2 x 100 B (double-buffered), 20 pages "
            "200 B (all 5 slots at their longest), working space 50 B; together 450 B",
        ),
        (
            1600,
            1000,
            0,
            "memory: 0.5 of 600 B for the engine, 1000 B taken: weights 100 B (swapped in place), "
            "15 pages 150 B (3 of 5 slots at their longest), working space 50 B; together 300 B",
        ),
        (
            None,
            0,
            2000,
            "memory: of unknown size, no limit for the engine: weights 2 x 100 B (double-buffered),"
            " 2,000 pages 19.5 KiB (all 5 slots at their longest), working space 50 B; together "
            "19.8 KiB",
        ),
    ],
)
def test_a_plan_is_a_line(limit: int | None, taken: int, pages: int, text: str) -> None:
    memory = DeviceMemory(limit=limit, taken=taken)
    assert str(plan_memory(replace(SIZES, num_pages=pages), memory, 0.5)) == text


counts = st.integers(1, 60)
some_sizes = st.builds(
    lambda extra, **parts: Sizes(
        **parts, num_pages=0 if extra is None else parts["slot_pages"] + extra
    ),
    extra=st.none() | counts,
    weights=counts,
    working=counts,
    page=counts,
    slot_pages=counts,
    slots=counts,
)
fractions = st.floats(0.01, 1)


def planned(sizes: Sizes, limit: int | None, fraction: float) -> MemoryPlan | None:
    try:
        return plan_memory(sizes, DeviceMemory(limit=limit), fraction)
    except NotEnoughMemory:
        return None


@given(sizes=some_sizes, limit=st.none() | st.integers(0, 500_000), fraction=fractions)
def test_a_plan_keeps_to_its_share(sizes: Sizes, limit: int | None, fraction: float) -> None:
    plan = planned(sizes, limit, fraction)
    wanted = sizes.num_pages or sizes.slots * sizes.slot_pages
    if plan is None:
        assert limit is not None
        least = sizes.num_pages or sizes.slot_pages
        assert sizes.weights + sizes.working + least * sizes.page > int(fraction * limit)
        return
    assert limit is None or plan.total <= fraction * limit
    assert sizes.slot_pages <= plan.num_pages <= wanted
    assert sizes.num_pages in (0, plan.num_pages)
    if limit is None or 2 * sizes.weights + sizes.working + wanted * sizes.page <= int(
        fraction * limit
    ):
        assert plan.double_buffered and plan.num_pages == wanted


@given(
    sizes=some_sizes,
    limits=st.tuples(st.integers(0, 50_000), st.integers(0, 50_000)),
    fraction=fractions,
)
def test_more_memory_is_never_worse(sizes: Sizes, limits: tuple[int, int], fraction: float) -> None:
    less, more = (planned(sizes, limit, fraction) for limit in sorted(limits))
    if less is not None:
        assert more is not None
        assert less.num_pages <= more.num_pages
        assert less.double_buffered <= more.double_buffered


@pytest.mark.parametrize("tie_embeddings", [False, True])
@pytest.mark.parametrize(
    ("param_dtype", "kv_dtype"), [("float32", "bfloat16"), ("bfloat16", "float32")]
)
def test_plans_the_bytes_that_are_there(
    model: ModelConfig,
    engine_config: EngineConfig,
    tie_embeddings: bool,
    param_dtype: str,
    kv_dtype: str,
) -> None:
    engine = Engine(
        replace(model, tie_embeddings=tie_embeddings),
        replace(engine_config, kv_dtype=kv_dtype),
        slot_tokens=SLOT_TOKENS,
        truncated_sampling=False,
        param_dtype=param_dtype,
    )
    assert sum(pool.nbytes for pool in engine.device_state.pools) == engine.memory.pool
    leaves = engine.parameters.leaves_or_zeros()
    assert sum(leaf.nbytes for leaf in leaves) == engine.memory.sizes.weights


@pytest.mark.optimized(False)  # buffers are laid out before that: to 128 bytes they are the same
@pytest.mark.parametrize(
    ("shape", "settings", "truncated"),
    [
        ({"vocab_size": 8000}, {}, True),  # logits are most of it
        pytest.param({"vocab_size": 9000}, {}, False, marks=SOAK),  # and sampled in another way
        ({"hidden_dim": 1024, "num_query_heads": 16, "head_dim": 64}, {"attention": "xla"}, False),
        ({}, {"attention": "reference"}, False),
        pytest.param(
            {"dtype": "float16", "embed_dim": 128, "hidden_dim": 512}, {}, False, marks=SOAK
        ),
        ({**EXPERTS, "dtype": "bfloat16"}, {}, False),
        pytest.param({**EXPERTS, "num_layers": 2}, {}, False, marks=SOAK),
        pytest.param(
            {"sliding_window": 5, "attention_pattern": "L", "hidden_dim": 1024},
            {},
            False,
            marks=SOAK,
        ),
    ],
)
def test_working_space_is_what_the_compiler_takes_at_most(
    model: ModelConfig,
    engine_config: EngineConfig,
    shape: dict[str, Any],
    settings: dict[str, Any],
    truncated: bool,
) -> None:
    engine = Engine(
        replace(model, **{"num_layers": 1, **shape}),
        replace(engine_config, **settings),
        slot_tokens=SLOT_TOKENS,
        truncated_sampling=truncated,
    )
    taken = [
        program.lower(*arguments).compile().memory_analysis().temp_size_in_bytes
        for program, *arguments in step_programs(engine)
    ]
    working = engine.memory.sizes.working
    assert working / 8 < max(taken) <= working


def test_a_small_device_gets_a_small_pool_and_the_same_tokens(
    tight: Engine,
    params: dict[str, Any],
    build_engine: Callable[..., Engine],
    request_of: Callable[..., GenerateRequest],
    drain: Callable[[Engine], Any],
) -> None:
    assert (
        tight.memory.num_pages == tight.layout.num_pages == len(tight.device_state.pools[0]) == 11
    )
    assert not tight.memory.double_buffered
    requests = [request_of(i, range(1, 8 + i), group=i) for i in range(6)]
    results = []
    for engine in (build_engine(), tight):
        engine.load(params, 1)
        engine.submit(requests)
        results.append(drain(engine))
    assert results[0] == results[1]
    assert tight.fingerprint == build_engine().fingerprint


def test_too_small_a_device_is_an_error_before_anything_is_allocated(
    on_device: Callable[..., Engine],
) -> None:
    before = jax.live_arrays()
    with pytest.raises(NotEnoughMemory, match=r"one rollout of full length .* 11 pages") as caught:
        on_device(100_000)
    assert caught.traceback  # whose frames would keep what they have allocated
    assert {id(array) for array in jax.live_arrays()} <= {id(array) for array in before}


def test_the_learner_next_door_has_its_place(on_device: Callable[..., Engine]) -> None:
    alone = on_device(10**6)
    shared = on_device(10**6, taken_bytes=10**6 - alone.memory.total)
    assert alone.memory.double_buffered and shared.memory.double_buffered
    assert shared.memory.num_pages == alone.memory.num_pages
    one_byte_less = on_device(10**6, taken_bytes=10**6 - alone.memory.total + 1)
    assert not one_byte_less.memory.double_buffered


def test_what_is_prepared_during_the_work_is_what_is_loaded(
    on_device: Callable[..., Engine], tight: Engine, params: dict[str, Any]
) -> None:
    """The old version samples on until the new one is swapped in; without room it is not there."""
    roomy = on_device()
    for engine in (roomy, tight):
        engine.load(params, 1)
    before, new = roomy.parameters.leaves, jax.tree.map(lambda leaf: 2 * leaf, params)
    prepared = roomy.parameters.prepare(new)
    assert roomy.version == 1 and roomy.parameters.leaves is before
    assert tight.parameters.prepare(new) is new
    roomy.load(prepared, 2)
    tight.load(new, 2)
    leaves = zip(roomy.parameters.leaves, tight.parameters.leaves, strict=True)
    assert roomy.version == 2 and all(np.array_equal(a, b) for a, b in leaves)


@pytest.mark.parametrize("in_place", [True, False])
def test_old_weights_go_before_new_ones_come_if_there_is_no_room_for_both(
    on_device: Callable[..., Engine],
    tight: Engine,
    params: dict[str, Any],
    in_place: bool,
) -> None:
    engine = tight if in_place else on_device()
    parameters = engine.parameters
    engine.load(params, 1)
    old, seen = parameters.leaves, []

    class Watched(np.ndarray):
        """A leaf on the host that is read as it is put on the device."""

        def __getitem__(self, index: Any) -> Any:
            seen.append([leaf.is_deleted() for leaf in old])
            return super().__getitem__(index)

    engine.load(jax.tree.map(lambda leaf: np.asarray(2 * leaf).view(Watched), params), 2)
    assert seen and all(deleted == [in_place] * len(old) for deleted in seen)
    assert engine.version == 2
    stacked = flatten_params(params)["head.kernel"]
    assert any(
        leaf.shape == stacked.shape and np.array_equal(leaf, 2 * stacked)
        for leaf in parameters.leaves
    )


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("wrong", ["missing", "unknown", "shape"])
def test_refused_weights_leave_the_old_ones(
    on_device: Callable[..., Engine],
    tight: Engine,
    params: dict[str, Any],
    in_place: bool,
    wrong: str,
) -> None:
    engine = tight if in_place else on_device()
    engine.load(params, 1)
    old, leaves = engine.parameters.leaves, flatten_params(params)
    match wrong:
        case "missing":
            del leaves["head.kernel"]
        case "unknown":
            leaves["head.bias"] = np.zeros(3)
        case "shape":
            leaves["head.kernel"] = leaves["head.kernel"].T
    with pytest.raises(ValueError, match="the snapshot is of another model"):
        engine.load(unflatten_params(leaves), 2)
    assert engine.version == 1
    assert engine.parameters.leaves is old and not any(leaf.is_deleted() for leaf in old)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_device_that_fails_leaves_the_old_version_or_none(
    on_device: Callable[..., Engine],
    tight: Engine,
    params: dict[str, Any],
    request_of: Callable[..., GenerateRequest],
    monkeypatch: pytest.MonkeyPatch,
    in_place: bool,
) -> None:
    engine = tight if in_place else on_device()
    engine.load(params, 1)
    with monkeypatch.context() as patch:

        def fail(*_: Any) -> None:
            raise MemoryError("the device is full")

        patch.setattr(jax, "device_put", fail)
        with pytest.raises(MemoryError):
            engine.load(params, 2)
    assert engine.version == (None if in_place else 1)
    assert bool(engine.parameters.leaves) is not in_place
    engine.load(params, 2)
    assert engine.version == 2


def test_a_gpu_says_what_it_has() -> None:
    stats = {"bytes_limit": 80_000, "bytes_in_use": 700, "peak_bytes_in_use": 900}
    gpu = Mock(jax.Device, platform="gpu", memory_stats=lambda: stats)
    assert device_memory(gpu) == DeviceMemory(limit=80_000, taken=700)
    silent = Mock(jax.Device, platform="gpu", memory_stats=lambda: None)
    assert device_memory(silent) == DeviceMemory(limit=None)


def test_cpu_devices_share_the_host() -> None:
    memory = device_memory(jax.devices()[0])
    assert memory == DeviceMemory(limit=host_memory() // len(jax.devices()))
    assert 2**26 < host_memory() < 2**50


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        (
            "0::/a/b\n",
            {"memory.max": "9000\n", "a/memory.max": "700\n", "a/b/memory.max": "max\n"},
            700,
        ),
        ("0::/of/the/host\n", {"memory.max": "600\n"}, 600),  # as a container sees it
        ("0::/\n", {}, None),
        (
            "5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n",
            {
                "memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
                "memory/a/memory.limit_in_bytes": "500\n",
            },
            500,
        ),
        ("4:cpu,memory:/\n", {"memory/memory.limit_in_bytes": "400\n"}, 400),
        (None, {"memory.max": "300\n"}, None),
    ],
)
def test_a_control_group_limits_a_host(
    tmp_path: Path, groups: str | None, files: dict[str, str], expected: int | None
) -> None:
    for name, text in itertools.chain(
        ((f"sys/fs/cgroup/{name}", text) for name, text in files.items()),
        [] if groups is None else [("proc/self/cgroup", groups)],
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    whole = host_memory(tmp_path / "nothing")
    assert host_memory(tmp_path) == (whole if expected is None else expected)

"""The start-up check passes on sound programs and finds each kind of unsound one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rlboost_kernels import available_implementations, noise_keys

from rlboost_jax.engine import row_sampling, step_inputs
from rlboost_jax.engine import step_programs as programs
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.invariance import RowsNotInvariant
from rlboost_jax.engine.layouts import StepLayout, make_layout
from rlboost_jax.messages import GenerateRequest
from rlboost_jax.models.params import init_params, unstack_layers
from rlboost_jax.settings.engine_config import EngineConfig
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.speculation_config import Drafter
from tests.engine.conftest import Rollouts
from tests.engine.step_programs import step_programs
from tests.planted import Plant


@pytest.fixture
def fresh_engine(
    model: ModelConfig, engine_config: EngineConfig, params: dict[str, Any]
) -> Callable[[], Engine]:
    """An engine that is traced anew, so that what a test replaces is in its programs."""

    def build() -> Engine:
        one_layer = replace(model, num_layers=1)
        engine = Engine(one_layer, engine_config, slot_tokens=44, truncated_sampling=False)
        layers = {name: _first(leaf) for name, leaf in params["layers"].items()}
        engine.load({**params, "layers": layers}, 1)
        return engine

    return build


def _first(tree: Any) -> Any:
    return {k: _first(v) for k, v in tree.items()} if isinstance(tree, dict) else tree[:1]


@pytest.mark.parametrize(
    "settings", [{}, pytest.param({"num_pages": 11}, marks=pytest.mark.optimized(False))]
)
def test_sound_programs_pass_and_the_engine_is_as_before(
    build_engine: Callable[..., Engine], settings: dict[str, int]
) -> None:
    engine = build_engine(**settings)
    engine.assert_row_invariance()
    assert (engine.held(), engine.version) == ((), 1)


@pytest.mark.optimized(False)
def test_random_weights_do_before_any_are_loaded(
    model: ModelConfig, engine_config: EngineConfig
) -> None:
    one_layer = replace(model, num_layers=1)
    config = replace(engine_config, slots=2, steps_per_dispatch=50)
    engine = Engine(one_layer, config, slot_tokens=6, truncated_sampling=False)
    engine.assert_row_invariance()
    assert engine.version is None


@pytest.mark.optimized(False)
def test_an_engine_whose_programs_were_made_otherwise_has_another_fingerprint(
    model: ModelConfig, engine_config: EngineConfig, plant: Plant
) -> None:
    """Each is sound by itself; the third gives one logit another last bit, in both programs."""
    sound, one_layer = row_sampling.head, replace(model, num_layers=1)

    def made_otherwise(*args: Any, **options: Any) -> Any:
        return sound(*args, **options).at[:, 11].multiply(1 + 2.0**-23)

    def checked() -> str:
        engine = Engine(one_layer, engine_config, slot_tokens=44, truncated_sampling=False)
        described = engine.fingerprint
        engine.assert_row_invariance()
        assert engine.fingerprint != described
        return engine.fingerprint

    first, second = checked(), checked()
    plant(row_sampling, "head", made_otherwise)
    assert first == second != checked()


@pytest.mark.parametrize(
    "kv_dtype",
    [
        "float8_e4m3fn",  # of activations in bfloat16
        pytest.param("bfloat16", marks=pytest.mark.soak),
    ],
)
def test_narrow_types_are_rounded_alike_in_both_programs(
    model: ModelConfig, engine_config: EngineConfig, kv_dtype: str
) -> None:
    """Compilers may leave out roundings, which must not depend on the program around them."""
    small = replace(model, num_layers=1, dtype="bfloat16")
    config = replace(engine_config, kv_dtype=kv_dtype)
    Engine(small, config, slot_tokens=44, truncated_sampling=False).assert_row_invariance()


@pytest.mark.optimized(False)
def test_a_layer_that_looks_at_other_rows_is_found(fresh_engine: Any, plant: Plant) -> None:
    sound = programs.apply_layer

    def leaky(config: Any, layer: Any, x: Any, *others: Any, **options: Any) -> Any:
        return sound(config, layer, x + 1e-6 * x.mean(0, keepdims=True), *others, **options)

    plant(programs, "apply_layer", leaky)
    with pytest.raises(RowsNotInvariant, match="keys or values of layer 0 at token 0 of copy"):
        fresh_engine().assert_row_invariance()


@pytest.mark.optimized(False)
def test_a_head_that_depends_on_the_row_is_found(fresh_engine: Any, plant: Plant) -> None:
    sound = row_sampling.head

    def skewed(config: Any, params: Any, x: Any, **options: Any) -> Any:
        logits = sound(config, params, x, **options)
        last_bit = 1 + 2.0**-23 * (jnp.arange(len(x)) % 3 == 2)
        return logits.at[:, 11].multiply(last_bit)

    plant(row_sampling, "head", skewed)
    with pytest.raises(
        RowsNotInvariant,
        match=r"the mixed step with engine.token_rows = 64 .* copy 2; on CPU take a multiple of 16",
    ):
        fresh_engine().assert_row_invariance()


@pytest.mark.optimized(False)
def test_programs_that_differ_from_each_other_are_found(fresh_engine: Any, plant: Plant) -> None:
    """The decode step's logits are off by one bit; each program by itself is sound."""
    sound = row_sampling.head
    calls = []

    def second_program_differs(config: Any, params: Any, x: Any, **options: Any) -> Any:
        calls.append(len(x))
        logits = sound(config, params, x, **options)
        return logits if len(calls) == 1 else logits.at[:, 11].multiply(1 + 2.0**-23)

    plant(row_sampling, "head", second_program_differs)
    with pytest.raises(RowsNotInvariant, match="logits at token"):
        fresh_engine().assert_row_invariance()


@pytest.mark.optimized(False)
@pytest.mark.parametrize("program", ["verify", "mixed verify"])
def test_attention_that_depends_on_the_rows_of_a_sequence_is_found(
    program: str, model: ModelConfig, engine_config: EngineConfig, plant: Plant
) -> None:
    """In decode steps or beside prefill, and neither where sequences have no drafts."""
    sound = programs.ragged_paged_attention

    def by_width(q: Any, pool: Any, lengths: Any, table: Any, starts: Any, *rest: Any, **o: Any):  # type: ignore[no-untyped-def]
        out = sound(q, pool, lengths, table, starts, *rest, **o)
        prefills = len(q) == engine_config.token_rows
        if prefills != (program == "mixed verify") or len(table) == engine_config.slots:
            return out
        of = jnp.searchsorted(starts[1:], jnp.arange(len(q)), side="right")
        several = jnp.diff(starts)[jnp.minimum(of, len(starts) - 2)] > 1
        return jnp.where(several[:, None, None], out * (1 + 2.0**-20), out)

    plant(programs, "ragged_paged_attention", by_width)
    for drafters in ((), ("prompt",)):
        engine = Engine(
            replace(model, num_layers=1),
            engine_config,
            slot_tokens=44,
            truncated_sampling=False,
            drafters=drafters,
        )
        if drafters:
            with pytest.raises(RowsNotInvariant, match=f"the {program} step with"):
                engine.assert_row_invariance()
        else:
            engine.assert_row_invariance()


@pytest.mark.parametrize("in_tiles", [False, True])
def test_decode_steps_of_every_size_give_the_bits_of_a_mixed_one(
    in_tiles: bool,
    model: ModelConfig,
    engine_config: EngineConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The width is one whose sum XLA orders by the number of rows."""
    monkeypatch.setattr(programs, "LARGE_VOCABULARY", 1 if in_tiles else 2**31)
    engine = _of_three_sizes(model, engine_config, drafters=("prompt",))
    if "cpu" in available_implementations():
        assert engine.layout.decode_rows == (8, 16, 40)
    engine.assert_row_invariance()


@pytest.mark.parametrize("in_tiles", [False, True])
def test_the_sampler_does_not_know_how_many_rows_there_are(
    in_tiles: bool,
    model: ModelConfig,
    engine_config: EngineConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The vocabulary is one whose sum XLA orders by the number of rows."""
    monkeypatch.setattr(programs, "LARGE_VOCABULARY", 1 if in_tiles else 2**31)
    engine = _of_three_sizes(model, engine_config)
    random, most = np.random.default_rng(0), engine.layout.sampled_rows
    params = jax.tree.map(
        lambda leaf: jnp.asarray(random.standard_normal(leaf.shape), leaf.dtype),
        unstack_layers(init_params(engine.programs.model, 0)),
    )
    x = jnp.asarray(random.standard_normal((most, 64)), jnp.float32)

    @jax.jit
    def sample(x: Any, needed: Any = None) -> Any:
        records = jnp.zeros((len(x), step_inputs.record_width(engine.layout)), jnp.int32)
        one = jax.lax.bitcast_convert_type(jnp.float32(1), jnp.int32)
        controls = step_inputs.controls(records.at[:, step_inputs.TEMPERATURE].set(one))
        keys = noise_keys(controls.seed, controls.batch, controls.sample)
        return engine.programs._sampler.draw(params, x, keys, jnp.arange(len(x)), controls, needed)

    whole = sample(x)
    for rows in engine.layout.decode_rows:
        for part, all_rows in zip(sample(x[:rows]), whole, strict=True):
            assert np.asarray(part).tobytes() == np.asarray(all_rows)[:rows].tobytes()
    for last in (0, 1, 8, 9, most):  # rows of a mixed step that are sampled from
        for part, all_rows in zip(sample(x, jnp.arange(most) < last), whole, strict=True):
            assert np.asarray(part)[:last].tobytes() == np.asarray(all_rows)[:last].tobytes()


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.optimized(False)
def test_logits_are_those_of_rows_that_are_sampled(
    exact: bool,
    fresh_engine: Callable[[], Engine],
    request_of: Callable[..., GenerateRequest],
    drain: Callable[[Engine], Rollouts],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU: 128 rows of layers in every exact program, 64 of head and sampler."""

    def many_rows(config: EngineConfig, slot_tokens: int, **_: bool) -> StepLayout:
        config = replace(config, token_rows=128)
        return make_layout(config, slot_tokens, any_rows=False, exact=exact)

    usual = fresh_engine()
    monkeypatch.setattr("rlboost_jax.engine.engine_plan.make_layout", many_rows)
    engine = fresh_engine()
    assert engine.layout.decode_rows == (128 if exact else 64,)
    assert engine.layout.sampled_rows == 64
    for program, *arguments in step_programs(engine):
        text = program.lower(*arguments).as_text()
        assert "tensor<128x37xf32>" not in text
        assert ("tensor<64x37xf32>" in text) == (program is not engine.programs.copy_pages)
    if exact:
        engine.assert_row_invariance()
    found = []
    for each in (usual, engine):
        for i in range(8):  # more than there are slots, so that rows change hands
            each.submit([request_of(i, range(i + 1, 2 * i + 3))])
        found.append(drain(each))
    assert {i: tokens for i, (tokens, _) in found[0].items()} == {
        i: tokens for i, (tokens, _) in found[1].items()
    }
    for i, (_, bits) in found[0].items():
        logprobs, others = (np.array(b, np.int32).view(np.float32) for b in (bits, found[1][i][1]))
        np.testing.assert_allclose(logprobs, others, atol=1e-5)


def _of_three_sizes(
    model: ModelConfig, engine_config: EngineConfig, drafters: tuple[Drafter, ...] = ()
) -> Engine:
    wide = replace(model, num_layers=1, embed_dim=64, head_dim=16, vocab_size=384)
    config = replace(engine_config, slots=40)
    return Engine(wide, config, slot_tokens=44, truncated_sampling=False, drafters=drafters)

"""Simulations of the runs in `configs/`, at the bounds that an H100's compiler leaves."""

import pytest

from configs import qwen3_14b_openr1
from configs.sim import h100
from rlboost_jax.engine import drafts
from rlboost_jax.simulator.rates import EngineRates, train_seconds
from rlboost_jax.simulator.sim_config_loading import sim_config

BOUNDS = {
    "num_params": 1_000_000_000,
    "num_layers": 10,
    "num_query_heads": 8,
    "num_key_heads": 4,
    "head_dim": 50,
    "kv_tokens": 2_000_000,
    "step_seconds": 0.003,
    "context_token_seconds": 2e-8,
    "prefill_token_seconds": 4e-6,
    "token_seconds": 1e-5,
    "pair_seconds": 5e-10,
    "batch_seconds": 0.02,
    "update_seconds": 0.2,
}


@pytest.mark.parametrize("name", h100.BOUNDS)
def test_every_run_can_be_simulated(name):
    config = sim_config(h100.get_config(name))
    held = EngineRates(config).kv_tokens
    assert held == pytest.approx(h100.BOUNDS[name]["kv_tokens"], abs=1)


def test_seconds_are_the_bounds_over_the_share_reached():
    config = sim_config(h100.simulation("qwen3_14b_openr1", BOUNDS, reached=0.5))
    rates = EngineRates(config)
    for batch, context in ((1, 0), (7, 3000), (32, 32 * 14_848)):
        expected = (0.003 + 2e-8 * context) / 0.5
        assert rates.step_seconds(batch, context) == pytest.approx(expected)
    assert rates.prefill_seconds == pytest.approx(8e-6)
    assert train_seconds(config, [1000, 3000]) == pytest.approx(
        (1e-5 * 4000 + 5e-10 * (1000**2 + 3000**2) / 2) / 0.5
    )
    trainer = config.trainer
    assert (trainer.micro_batch_seconds, trainer.apply_seconds) == pytest.approx((0.04, 0.4))
    # Two GPUs of 80 GB; a token caches 2 x 10 x 4 x 50 numbers of two bytes.
    assert config.engine.memory_fraction == pytest.approx((2e9 + 2e6 * 8000) / 160e9)


def test_all_else_is_the_runs_own():
    own, config = qwen3_14b_openr1.get_config(), sim_config(h100.get_config("qwen3_14b_openr1"))
    assert (config.engine.chips, config.engine.slots) == (2, own.engine.slots)
    assert (config.reserved.nodes, config.reserved.chips_per_node, config.num_engines) == (1, 8, 4)
    assert config.reserved.price_per_node_hour == own.fleet.reserved_price_per_hour
    assert config.workload.prompts_per_step == own.learner.prompts_per_step
    assert config.policy.window_initial_seconds == own.manager.window_initial_seconds
    assert config.market.instances == tuple(range(own.fleet.max_instances + 1))
    two = sim_config(h100.get_config("qwen3_32b_openr1"))
    assert (two.reserved.nodes, two.reserved.chips_per_node, two.num_engines) == (2, 8, 4)


def test_a_run_with_drafts_has_them_in_the_rows_of_its_engine():
    own = qwen3_14b_openr1.get_config()
    without = sim_config(h100.simulation("qwen3_14b_openr1", BOUNDS, own=own)).engine
    own.speculation.enabled = True
    engine = sim_config(h100.simulation("qwen3_14b_openr1", BOUNDS, own=own)).engine
    assert (without.most_drafts, engine.most_drafts) == (0, drafts.MOST_DRAFTS)
    assert engine.token_rows == own.engine.token_rows
    assert engine.draft_seconds == 0.0  # not compiled
    eight = sim_config(h100.get_config("qwen3_8b_openr1")).engine
    # 226.1 ms for eight steps in place of 210.7 (docs/how-to/speculation.md)
    assert eight.draft_seconds * 8 * h100.REACHED == pytest.approx(0.0154, abs=1e-4)


def test_another_share_is_named_with_the_run():
    usual, slow = (sim_config(h100.get_config(f"qwen3_06b_gsm8k{end}")) for end in ("", ",0.25"))
    ratio = train_seconds(slow, [500]) / train_seconds(usual, [500])
    assert ratio == pytest.approx(h100.REACHED / 0.25)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("qwen3_9b", "no bounds of 'qwen3_9b'; there are qwen25_05b_gsm8k"),
        ("qwen3_8b_openr1,1.5", "1.5 of the bounds' speed; choose more than 0, at most 1"),
    ],
)
def test_mistakes(run, message):
    with pytest.raises(ValueError, match=message):
        h100.get_config(run)

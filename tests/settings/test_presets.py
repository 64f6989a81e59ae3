"""A name stands for the choices of its paper; what contradicts itself is one line."""

import ast
import functools
import json
import re
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from configs import base
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.algorithm_config import AlgorithmConfig
from rlboost_jax.settings.config_loading import run_config, run_config_from_dict, to_dict
from rlboost_jax.settings.dry_run import plan_text
from rlboost_jax.settings.presets import PRESETS

ALGORITHMS = Path(__file__).resolve().parents[2] / "rlboost_jax" / "algorithms"


def changed(**choices):
    values = base.get_config()
    for name, value in choices.items():
        section, _, field = name.rpartition("__")
        setattr(functools.reduce(getattr, [section or "algorithm"], values), field, value)
    return values


@pytest.mark.parametrize("name", PRESETS)
def test_a_name_alone_is_the_preset(name):
    run = run_config(changed(name=name))
    assert run.algorithm == PRESETS[name]
    assert run_config_from_dict(json.loads(json.dumps(to_dict(run)))) == run


def test_what_is_set_takes_the_place_of_the_presets():
    run = run_config(changed(name="dapo", clip_high=0.5, group_size=16, epochs=2))
    assert run.algorithm == replace(PRESETS["dapo"], clip_high=0.5, group_size=16, epochs=2)
    line = next(line for line in plan_text(run).splitlines() if line.startswith("algorithm"))
    assert "dapo; other than its preset: group_size 16 (8), clip_high 0.5 (0.28)" in line


def test_zero_and_false_are_set_too():
    run = run_config(changed(name="dapo", kl_coefficient=0, dynamic_sampling=False))
    assert not run.algorithm.dynamic_sampling
    assert run.algorithm == replace(PRESETS["dapo"], dynamic_sampling=False)


def test_the_base_names_every_choice():
    assert set(base.get_config().algorithm) == {field.name for field in fields(AlgorithmConfig)}


def test_a_near_name_is_suggested():
    with pytest.raises(ConfigError, match=r"algorithm.name 'drgrpo' .*did you mean 'dr_grpo'\?"):
        run_config(changed(name="drgrpo"))


COMMON = {
    "group_size": 8, "advantage": "group_std", "deviation": "population",
    "turn_advantages": "episode", "turn_discount": 1.0, "whiten": False, "discount": 1.0,
    "gae_lambda": 0.95, "old_policy": "behaviour", "ratio_level": "token", "surrogate": "clip",
    "clip_low": 0.2, "clip_high": 0.2, "dual_clip": 0.0, "sapo_temperature_positive": 1.0,
    "sapo_temperature_negative": 1.05, "loss_aggregation": "sequence_mean",
    "kl_coefficient": 0.0, "kl_estimator": "k3", "kl_placement": "loss", "kl_gradient": "own",
    "entropy_coefficient": 0.0, "correction": "none", "correction_level": "token",
    "correction_low": 0.5, "correction_high": 2.0, "overlong_penalty": 0.0,
    "overlong_band": 0.2, "overlong_filter": False, "dynamic_sampling": False,
    "dynamic_sampling_by": "first_function", "dynamic_sampling_factor": 4.0, "mini_batches": 1,
    "epochs": 1, "lag": 0, "critic_learning_rate": 1e-5, "value_clip": 0.2,
    "routing_replay": True,
}  # fmt: skip
OWN: dict[str, dict[str, object]] = {
    "grpo": {},
    "dr_grpo": {"advantage": "group_mean", "loss_aggregation": "constant"},
    "dapo": {
        "clip_high": 0.28,
        "loss_aggregation": "token_mean",
        "overlong_penalty": 1.0,
        "dynamic_sampling": True,
    },
    "gspo": {"ratio_level": "sequence", "clip_low": 0.0003, "clip_high": 0.0004},
    "rloo": {
        "advantage": "leave_one_out",
        "surrogate": "reinforce",
        "loss_aggregation": "sequence_sum",
        "kl_coefficient": 0.03,
        "kl_estimator": "k1",
        "kl_placement": "reward",
    },
    "reinforce_pp": {
        "advantage": "return",
        "whiten": True,
        "loss_aggregation": "token_mean",
        "kl_coefficient": 0.01,
        "kl_estimator": "k1",
        "kl_placement": "reward",
    },
    "reinforce_pp_baseline": {
        "advantage": "group_mean",
        "whiten": True,
        "loss_aggregation": "token_mean",
        "kl_coefficient": 0.001,
        "kl_estimator": "k2",
    },
    "cispo": {
        "surrogate": "cispo",
        "clip_low": 1.0,
        "clip_high": 4.0,
        "loss_aggregation": "token_mean",
    },
    "sapo": {"surrogate": "sapo"},
    "ppo": {
        "group_size": 1,
        "advantage": "gae",
        "whiten": True,
        "loss_aggregation": "token_mean",
    },
}


def test_presets_are_their_papers():
    """Every choice of every name, written down from the papers a second time."""
    assert {name: asdict(preset) for name, preset in PRESETS.items()} == {
        name: {"name": name, **COMMON, **own} for name, own in OWN.items()
    }


DECISIONS = {"advantage", "ratio_level", "surrogate", "kl_coefficient", "loss_aggregation"}


@pytest.mark.parametrize("name", PRESETS)
def test_the_module_of_a_name_says_all_that_it_is_made_of(name):
    """And where that is from, on one screen."""
    text = (ALGORITHMS / f"{name}.py").read_text(encoding="utf-8")
    (call,) = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    assert {keyword.arg for keyword in call.keywords} >= {"name", *DECISIONS}
    assert re.search(r"^Source: .*arXiv:\d{4}\.\d{5}", text, re.MULTILINE)
    assert text.count("\n") <= 100


CONTRADICTIONS = [
    ({"group_size": 1}, ["algorithm.group_size is 1", "algorithm.advantage 'group_std'"]),
    ({"name": "ppo", "dynamic_sampling": True}, ["algorithm.dynamic_sampling"]),
    ({"name": "ppo", "ratio_level": "sequence"}, ["take 'sequence_token'"]),
    ({"name": "rloo", "ratio_level": "sequence"}, ["'reinforce' has no ratio"]),
    ({"name": "rloo", "epochs": 2}, ["algorithm.epochs 2", "'reinforce'", "take 'clip'"]),
    ({"name": "cispo", "dual_clip": 9.0}, ["algorithm.dual_clip is 9.0", "'cispo'"]),
    ({"dual_clip": 1.1}, ["algorithm.dual_clip is 1.1", "algorithm.clip_high"]),
    ({"kl_coefficient": 0.1, "kl_estimator": "k1"}, ["'k1'", "algorithm.kl_gradient"]),
    (
        {"kl_coefficient": 0.1, "kl_placement": "reward", "kl_gradient": "importance"},
        ["algorithm.kl_gradient is 'importance'", "algorithm.kl_placement"],
    ),
    ({"correction": "mask"}, ["algorithm.correction is 'mask'", "algorithm.old_policy"]),
    (
        {"correction": "mask", "old_policy": "recomputed", "correction_low": 3.0},
        ["algorithm.correction_low is 3.0", "algorithm.correction_high (2.0)"],
    ),
    (
        {"name": "dr_grpo", "correction": "reject", "old_policy": "recomputed"},
        ["algorithm.correction is 'reject'", "algorithm.loss_aggregation 'constant'"],
    ),
    (
        {"overlong_penalty": 1.0, "overlong_band": 0.001},
        ["algorithm.overlong_band is 0.001", "sampling.max_response_tokens (200)"],
    ),
    ({"mini_batches": 3}, ["algorithm.mini_batches is 3", "4 micro-batches"]),
    (
        {"dynamic_sampling_by": "reward"},
        ["algorithm.dynamic_sampling_by is 'reward'", "algorithm.dynamic_sampling to True"],
    ),
]


@pytest.mark.parametrize(("choices", "said"), CONTRADICTIONS)
def test_choices_that_contradict_each_other(choices, said):
    with pytest.raises(ConfigError) as caught:
        run_config(changed(**choices))
    (line,) = str(caught.value).splitlines()
    for part in said:
        assert part in line

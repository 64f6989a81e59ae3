"""The same batch through TRL's loss: the same number, and the same gradient.

TRL is no dependency: without it these are skipped. Its trainer is not set up; only its loss is
called, with log-probabilities given to it.
"""

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.packing import pack, update_divisor
from rlboost_jax.learner.programs.objective import objective
from rlboost_jax.sequences.sequence import Sequence
from rlboost_jax.settings.presets import PRESETS
from tests.oracles import torch_oracle

torch = torch_oracle()
grpo_trainer = pytest.importorskip("trl.trainer.grpo_trainer", exc_type=ImportError)

LENGTHS, MOST = (1, 4, 9, 2, 6, 3), 9
RECOMPUTED = {"old_policy": "recomputed", "mini_batches": 2}

# Ours, TRL's settings.
CASES = {
    "grpo": (PRESETS["grpo"], {"loss_type": "grpo"}),
    "dr_grpo": (PRESETS["dr_grpo"], {"loss_type": "dr_grpo"}),
    "dapo": (PRESETS["dapo"], {"loss_type": "dapo", "epsilon_high": 0.28}),
    "gspo": (
        replace(PRESETS["gspo"], clip_low=0.05, clip_high=0.1),
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon_low": 0.05,
            "epsilon_high": 0.1,
        },
    ),
    # The trap: TRL's epsilon_high is the bound itself.
    "cispo": (
        replace(PRESETS["cispo"], clip_high=0.3),
        {"loss_type": "cispo", "epsilon_high": 1.3},
    ),
    "sapo": (PRESETS["sapo"], {"loss_type": "sapo"}),
    "dual clip": (replace(PRESETS["grpo"], dual_clip=1.4), {"loss_type": "grpo", "delta": 1.4}),
    "k3 in the loss": (
        replace(PRESETS["grpo"], kl_coefficient=0.3),
        {"loss_type": "grpo", "beta": 0.3},
    ),
    "k3 times the ratio": (
        replace(PRESETS["grpo"], kl_coefficient=0.3, kl_gradient="importance"),
        {"loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": True},
    ),
    "truncated": (
        replace(PRESETS["dapo"], correction="truncate", correction_high=1.1, **RECOMPUTED),
        {"loss_type": "dapo", "epsilon_high": 0.28, "mode": "token_truncate"},
    ),
    "masked": (
        replace(
            PRESETS["dapo"],
            correction="mask",
            correction_low=0.9,
            correction_high=1.1,
            **RECOMPUTED,
        ),
        {"loss_type": "dapo", "epsilon_high": 0.28, "mode": "token_mask"},
    ),
}


@pytest.fixture(scope="module")
def batch():
    """Padded arrays [B, T] and the trajectories they are of."""
    rng = np.random.default_rng(0)
    shape = (len(LENGTHS), MOST)
    mask = np.arange(MOST)[None] < np.array(LENGTHS)[:, None]
    sampled = -rng.exponential(1.0, shape).astype(np.float32)
    arrays = {
        "mask": mask,
        "sampled": sampled,
        "old": sampled + rng.normal(0, 0.15, shape).astype(np.float32),
        "live": sampled + rng.normal(0, 0.3, shape).astype(np.float32),
        "reference": sampled + rng.normal(0, 0.3, shape).astype(np.float32),
        "advantages": rng.normal(size=len(LENGTHS)).astype(np.float32),
    }
    trajectories = [
        Trajectory(
            prompt=0,
            sample=i,
            sequence=Sequence.of_response([1, 2], [5] * length, sampled[i, :length], version=0),
            advantage=float(arrays["advantages"][i]),
            old_logprobs=arrays["old"][i, :length],
        )
        for i, length in enumerate(LENGTHS)
    ]
    return arrays, trajectories


def through_trl(arrays, *, recomputed, **settings):
    """Loss and its gradient in the log-probabilities [B, T]."""
    mode = settings.pop("mode", None)
    live = torch.tensor(arrays["live"], requires_grad=True)
    tensors = {name: torch.tensor(values) for name, values in arrays.items()}
    inputs = {
        "prompt_ids": torch.zeros(len(LENGTHS), 2, dtype=torch.long),
        "prompt_mask": torch.ones(len(LENGTHS), 2, dtype=torch.long),
        "completion_ids": torch.zeros(len(LENGTHS), MOST, dtype=torch.long),
        "completion_mask": tensors["mask"].long(),
        "advantages": tensors["advantages"],
        "old_per_token_logps": tensors["old"] if recomputed else tensors["sampled"],
        "ref_per_token_logps": tensors["reference"],
        "num_items_in_batch": tensors["mask"].sum(),
    }
    if mode:  # as `_generate_and_score_completions` makes it
        ratio = torch.exp(tensors["old"] - tensors["sampled"])
        outside = (ratio < 0.9) | (ratio > 1.1)
        cut = ratio.clamp(max=1.1) if mode == "token_truncate" else ratio.masked_fill(outside, 0.0)
        inputs["importance_sampling_ratio"] = cut
    trainer = object.__new__(grpo_trainer.GRPOTrainer)
    choices = {"epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.0, **settings}
    arguments = SimpleNamespace(
        delta=choices.pop("delta", None),
        use_bias_correction_kl=choices.pop("use_bias_correction_kl", False),
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
        steps_per_generation=1,
    )
    accelerator = SimpleNamespace(
        num_processes=1, gather=lambda x: x, reduce=lambda x, **_: x, is_main_process=True
    )
    vars(trainer).update(
        {
            "importance_sampling_level": "token",
            "args": arguments,
            "accelerator": accelerator,
            "model": SimpleNamespace(training=True),
            "current_gradient_accumulation_steps": 1,
            "max_completion_length": MOST,
            "top_entropy_quantile": 1.0,
            "off_policy_mask_threshold": None,
            "aux_loss_enabled": False,
            "_entropy_bonus_enabled": False,
            "use_vllm": mode is not None,
            "vllm_importance_sampling_correction": True,
            "_metrics": {"train": defaultdict(list)},
            "_get_per_token_logps_and_entropies": lambda *_, **__: (live, live.detach(), None),
            **choices,
        }
    )
    loss = trainer._compute_loss(None, inputs)
    loss.backward()
    return loss.item(), live.grad.numpy()


def through_ours(algorithm, arrays, trajectories):
    (packed,) = pack(
        trajectories, rows=3, row_tokens=16, loss_aggregation=algorithm.loss_aggregation
    )

    def flat(values):
        out = np.zeros(packed.tokens.shape, np.float32)
        for i, length in enumerate(LENGTHS):
            out[packed.samples == i] = values[i, :length]
        return jnp.asarray(out.ravel())

    def loss(logprobs):
        return objective(
            algorithm,
            packed,
            logprobs,
            jnp.zeros_like(logprobs),
            whole_logprobs=logprobs if algorithm.has_reference else None,
            reference_logprobs=flat(arrays["reference"]) if algorithm.has_reference else None,
        )[0]

    divisor = update_divisor(trajectories, algorithm.loss_aggregation, max_response_tokens=MOST)
    value, gradient = jax.jit(jax.value_and_grad(loss))(flat(arrays["live"]))
    gradient = np.asarray(gradient).reshape(packed.tokens.shape)
    padded = np.zeros_like(arrays["live"])
    for i, length in enumerate(LENGTHS):
        padded[i, :length] = gradient[packed.samples == i]
    return float(value) / divisor, padded / divisor


@pytest.mark.parametrize("name", CASES)
def test_the_same_batch_has_the_same_loss_and_gradient(name, batch):
    (algorithm, settings), (arrays, trajectories) = CASES[name], batch
    recomputed = algorithm.old_policy == "recomputed"
    expected, slope = through_trl(arrays, recomputed=recomputed, **settings)
    found, gradient = through_ours(algorithm, arrays, trajectories)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-7)

"""TRL's GRPOTrainer: its loss and backward pass over responses that are there already."""

from collections.abc import Sequence
from typing import Any

import datasets
import torch
import trl
from transformers import AutoTokenizer

from benchmarks.peers.training.torch import make_model, make_optimizer, step
from benchmarks.peers.training.work import Shape, Update, Work
from rlboost_jax.learner.episodes.trajectory import Trajectory


def sizes(shape: Shape) -> tuple[int, ...]:
    """Responses of a padded batch to try."""
    return shape.padded


class Given(trl.GRPOTrainer):
    """Takes what it is given in place of generating."""

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return inputs


def make_update(work: Work, size: int) -> Update:
    given, prompt = work.trajectories, work.shape.prompt
    micro_batches = [_inputs(given[i : i + size], prompt) for i in range(0, len(given), size)]
    algorithm = work.run.algorithm
    trainer = Given(
        model=make_model(work)[1],
        processing_class=AutoTokenizer.from_pretrained(work.folder),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=datasets.Dataset.from_dict({"prompt": ["1"]}),
        args=trl.GRPOConfig(
            output_dir=str(work.folder / "trl"),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=len(micro_batches),
            num_generations=size,
            loss_type="dapo",  # the mean over all tokens of the update
            beta=0.0,
            epsilon=algorithm.clip_low,
            epsilon_high=algorithm.clip_high,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
        ),
    )
    trainer.current_gradient_accumulation_steps = len(micro_batches)
    model = trainer.model.train()
    optimizer = make_optimizer(work, model)
    tokens = torch.tensor(float(work.tokens))

    def update() -> float:
        for inputs in micro_batches:
            trainer.training_step(model, {**inputs, "num_items_in_batch": tokens}, None)
        return step(work, model, optimizer)

    return update


def _inputs(chosen: Sequence[Trajectory], prompt: int) -> dict[str, torch.Tensor]:
    """A micro-batch as the trainer's own generation gives it: prompts and responses [B, …]."""
    tokens = [torch.tensor(t.sequence.tokens).long() for t in chosen]
    responses = [each[prompt:] for each in tokens]
    old = [torch.tensor(t.sequence.logprobs) for t in chosen]

    def padded(rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    return {
        "prompt_ids": torch.stack([each[:prompt] for each in tokens]),
        "prompt_mask": torch.ones(len(chosen), prompt, dtype=torch.long),
        "completion_ids": padded(responses),
        "completion_mask": padded([torch.ones_like(each) for each in responses]),
        "advantages": torch.tensor([t.advantage for t in chosen]),
        "old_per_token_logps": padded(old),
    }

"""`transformers` on torch over the learner's own packed rows."""

import peft
import torch
import torch.nn.functional as F
import transformers

from benchmarks.peers.training.work import Shape, Update, Work
from rlboost_jax.learner.packing import PackedBatch


def sizes(shape: Shape) -> tuple[int, ...]:
    """Rows of a packed batch to try."""
    return shape.rows


def make_update(work: Work, rows: int) -> Update:
    model, _ = make_model(work)
    optimizer = make_optimizer(work, model)
    batches = [_tensors(batch) for batch in work.packed(rows)]
    clip, tokens = (work.run.algorithm.clip_low, work.run.algorithm.clip_high), work.tokens

    def update() -> float:
        for batch in batches:
            _loss(model, batch, clip).div(tokens).backward()
        return step(work, model, optimizer)

    return update


def make_model(work: Work) -> tuple[transformers.PreTrainedModel, torch.nn.Module]:
    """The model, and the same as PEFT wraps it where adapters are trained.

    PEFT puts the adapters into the model that it wraps, so both compute the same.
    """
    torch.set_num_threads(work.threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        work.folder, dtype=torch.float32, attn_implementation="sdpa", trust_remote_code=False
    ).train()
    if work.adapter is None:
        return model, model
    return model, peft.PeftModel.from_pretrained(model, work.adapter, is_trainable=True).train()


def make_optimizer(work: Work, model: torch.nn.Module) -> torch.optim.Optimizer:
    learner = work.run.learner
    return torch.optim.AdamW(
        [each for each in model.parameters() if each.requires_grad],
        lr=learner.learning_rate,
        betas=(learner.beta1, learner.beta2),
        weight_decay=learner.weight_decay,
        fused=True,
    )


def step(work: Work, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """The norm of the gradient, which is clipped, applied and set to zero."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), work.run.learner.max_gradient_norm)
    optimizer.step()
    optimizer.zero_grad()
    return norm.item()


def _tensors(batch: PackedBatch) -> dict[str, torch.Tensor]:
    """[R, T] each; the mask of attention is [R, 1, T, T]."""
    segments = torch.from_numpy(batch.segments)
    same = segments[:, None, :, None] == segments[:, None, None, :]
    return {
        "tokens": torch.from_numpy(batch.tokens).long(),
        "positions": torch.from_numpy(batch.positions).long(),
        "attention": same.tril(),
        "mask": torch.from_numpy(batch.response_mask),
        "targets": torch.from_numpy(batch.targets).long(),
        "old": torch.from_numpy(batch.behaviour_logprobs),
        "advantages": torch.from_numpy(batch.advantages),
    }


def _loss(
    model: transformers.PreTrainedModel, batch: dict[str, torch.Tensor], clip: tuple[float, float]
) -> torch.Tensor:
    """The clipped objective, summed over sampled tokens."""
    mask = batch["mask"]
    hidden = model.model(
        input_ids=batch["tokens"],
        position_ids=batch["positions"],
        attention_mask=batch["attention"],
        use_cache=False,
    ).last_hidden_state
    logits = model.lm_head(hidden[mask])
    logprobs = -F.cross_entropy(logits, batch["targets"][mask], reduction="none")
    ratio = (logprobs - batch["old"][mask]).exp()
    advantages = batch["advantages"][mask]
    low, high = clip
    clipped = ratio.clamp(1 - low, 1 + high)
    return -torch.minimum(ratio * advantages, clipped * advantages).sum()

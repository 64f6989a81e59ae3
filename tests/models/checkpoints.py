"""Tiny checkpoints of every family, made by transformers with weights that are felt."""

from pathlib import Path
from typing import Any

from tests.oracles import torch_oracle

torch = torch_oracle()
transformers = torch_oracle("transformers")

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)  # threads cost more than models of this size

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,  # exceeded by the tests' sequences
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "beta_fast": 4.0,  # so that pairs of all three kinds are there
    "original_max_position_embeddings": 32,
}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}
SIZES = {"vocab_size": 61, "intermediate_size": 40, "num_hidden_layers": 2}


def _heads(width: int, queries: int, keys: int, head_dim: int) -> dict[str, int]:
    return {
        "hidden_size": width,
        "num_attention_heads": queries,
        "num_key_value_heads": keys,
        "head_dim": head_dim,
    }


def _windows(period: str, num_layers: int) -> list[str]:
    kinds = {"L": "sliding_attention", "G": "full_attention"}
    return [kinds[period[i % len(period)]] for i in range(num_layers)]


CASES: dict[str, transformers.PreTrainedConfig] = {
    "qwen2, 7 query heads to a key head, biases, a window in the last layer": (
        transformers.Qwen2Config(
            **{**SIZES, "num_hidden_layers": 3},
            **_heads(56, 7, 1, 8),
            use_sliding_window=True,
            sliding_window=9,
            max_window_layers=2,
            tie_word_embeddings=False,
        )
    ),
    "qwen3, heads of 96, tied, scaled positions": transformers.Qwen3Config(
        **SIZES, **_heads(48, 2, 1, 96), tie_word_embeddings=True, rope_parameters=YARN
    ),
    "qwen3_moe, 2 of 5 experts": transformers.Qwen3MoeConfig(
        **SIZES,
        **_heads(32, 4, 2, 16),
        attention_bias=True,
        num_experts=5,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        norm_topk_prob=True,
    ),
    "llama, scaled positions, biases": transformers.LlamaConfig(
        **SIZES,
        **_heads(48, 6, 2, 32),
        rope_parameters=LLAMA3_ROPE,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "mistral, a window": transformers.MistralConfig(
        **SIZES, **_heads(40, 4, 4, 24), sliding_window=7
    ),
    "seed_oss, an output without a bias": transformers.SeedOssConfig(
        **SIZES, **_heads(40, 6, 2, 16), attention_bias=True, attention_out_bias=False
    ),
    "gemma2, soft caps and every other window": transformers.Gemma2Config(
        **{**SIZES, "num_hidden_layers": 3},
        **_heads(32, 4, 2, 16),
        sliding_window=6,
        query_pre_attn_scalar=24,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=4.0,
    ),
    "gemma3, 7 layers, windows and two kinds of positions": transformers.Gemma3TextConfig(
        **{**SIZES, "num_hidden_layers": 7},
        **_heads(32, 4, 1, 16),
        sliding_window=8,
        layer_types=_windows("LLG", 7),
        query_pre_attn_scalar=20,
        rope_parameters=GEMMA3_ROPE,
    ),
}

PLAIN_WEIGHTS = transformers.Qwen3MoeConfig(  # those of a token's experts add up to less than 1
    **SIZES,
    **_heads(32, 4, 2, 16),
    num_experts=4,
    num_experts_per_tok=3,
    moe_intermediate_size=24,
    norm_topk_prob=False,
)


def checkpoint(config: Any, folder: Path, *, dtype: torch.dtype = torch.float32, **saving: Any):
    """Save a model with random weights and return it: torch's own, in float32.

    Scales lie away from what they start at, which would hide a missing norm; matrices keep
    activations at about 1, so that attention and gates are not flat; biases are as large.
    """
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    unit = 0.0 if config.model_type.startswith("gemma") else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(unit - 0.5, unit + 0.5)
            elif parameter.ndim == 1:
                parameter.normal_(0, 0.5)
            else:
                parameter.normal_(0, 1.4 * parameter.shape[-1] ** -0.5)
    model.to(dtype).save_pretrained(folder, **saving)
    return model.to(torch.float32).eval()


def logits_of(model: Any, tokens: Any) -> Any:
    with torch.no_grad():
        return model(torch.from_numpy(tokens).long()).logits.numpy()

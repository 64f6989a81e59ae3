"""`transformers` on torch as a peer: the same architecture with the same weights."""

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from rlboost_jax.models.params import Params, flatten_params
from rlboost_jax.settings.model_config import ModelConfig

_LAYER = {
    "attention_norm.scale": "input_layernorm.weight",
    "attention.query.kernel": "self_attn.q_proj.weight",
    "attention.key.kernel": "self_attn.k_proj.weight",
    "attention.value.kernel": "self_attn.v_proj.weight",
    "attention.output.kernel": "self_attn.o_proj.weight",
    "attention.query_norm.scale": "self_attn.q_norm.weight",
    "attention.key_norm.scale": "self_attn.k_norm.weight",
    "mlp_norm.scale": "post_attention_layernorm.weight",
    "mlp.gate.kernel": "mlp.gate_proj.weight",
    "mlp.up.kernel": "mlp.up_proj.weight",
    "mlp.down.kernel": "mlp.down_proj.weight",
}
_OTHER = {
    "embedding.table": "model.embed_tokens.weight",
    "head.norm.scale": "model.norm.weight",
    "head.kernel": "lm_head.weight",
}


def qwen3(config: ModelConfig, params: Params) -> transformers.Qwen3ForCausalLM:
    """Qwen3 of that shape with those weights, in float32, with torch's fused attention."""
    model = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            vocab_size=config.vocab_size,
            hidden_size=config.embed_dim,
            intermediate_size=config.hidden_dim,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_query_heads,
            num_key_value_heads=config.num_key_heads,
            head_dim=config.head_dim,
            rope_theta=config.rope_theta,
            rms_norm_eps=config.norm_epsilon,
            tie_word_embeddings=config.tie_embeddings,
            attn_implementation="sdpa",
        )
    )
    missing = model.load_state_dict(_state(params), strict=False).missing_keys
    if missing not in ([], ["lm_head.weight"] if config.tie_embeddings else []):
        raise ValueError(f"{missing} have no counterpart among the parameters")
    model.tie_weights()
    return model.eval()


def generate(
    model: transformers.PreTrainedModel, prompts: NDArray[np.int64], num_tokens: int
) -> NDArray[np.int64]:
    """The greedy continuation of all prompts [B, P] by exactly `num_tokens`: [B, num_tokens].

    No token ends it: the end that a family has by itself would be passed over for the next best.
    """
    model.generation_config.eos_token_id = None  # else it stands in for ours
    settings = transformers.GenerationConfig(
        do_sample=False,
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens = torch.from_numpy(prompts)
    with torch.inference_mode():
        out = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), generation_config=settings
        )
    return out[:, prompts.shape[1] :].numpy()


def _state(params: Params) -> dict[str, torch.Tensor]:
    state = {}
    for name, leaf in flatten_params(params).items():
        array = np.asarray(leaf, np.float32)
        if not name.startswith("layers."):
            array = array[None]
        if name.endswith("kernel"):
            array = array.swapaxes(1, 2)
        for index, layer in enumerate(array):
            inner = name.removeprefix("layers.")
            theirs = _OTHER.get(name) or f"model.layers.{index}.{_LAYER[inner]}"
            state[theirs] = torch.from_numpy(np.array(layer))
    return state

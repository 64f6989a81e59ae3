"""GGUF files of transformers' models, in the layout that llama.cpp's converter gives them."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

NORMS_PLUS_ONE = ("gemma2", "gemma3")
ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
}


def write_gguf(
    model: Any,
    path: Path,
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    more: Any = None,
) -> None:
    """Write a model of transformers; matrices in blocks of `kind`.

    Args:
        more: gets the writer before the file is made, to add to its metadata.
    """
    config = model.config
    name = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("yarn", "linear"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3(rope, config.head_dim))
    if name in NORMS_PLUS_ONE:
        writer.add_sliding_window(config.sliding_window)
    if name == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if name == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    for their_name, values in _tensors(model, name).items():
        if values.ndim == 1 or values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            writer.add_tensor(their_name, values)
        else:
            writer.add_tensor(their_name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    if more is not None:
        more(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(model: Any, architecture: str) -> dict[str, np.ndarray]:
    config = model.config
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    found: dict[str, np.ndarray] = {}
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if "norm" in name and architecture in NORMS_PLUS_ONE:
            values = values + np.float32(1)
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_proj" in name else config.num_key_value_heads
            halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        if name.endswith("experts.gate_up_proj"):
            gate, up = np.split(values, 2, axis=1)
            layer = name.split(".")[2]
            found[f"blk.{layer}.ffn_gate_exps.weight"] = np.ascontiguousarray(gate)
            found[f"blk.{layer}.ffn_up_exps.weight"] = np.ascontiguousarray(up)
            continue
        name = name if name.endswith((".weight", ".bias")) else f"{name}.weight"
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        found[theirs] = np.ascontiguousarray(values)
    return found


def _llama3(rope: dict[str, Any], head_dim: int) -> np.ndarray:
    """The table that llama.cpp divides frequencies by, entry for entry."""
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (i / head_dim)
        original = rope["original_max_position_embeddings"]
        low, high = original / rope["low_freq_factor"], original / rope["high_freq_factor"]
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(rope["factor"])
        else:
            share = (original / wavelength - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"]
            )
            factors.append(1 / ((1 - share) / rope["factor"] + share))
    return np.asarray(factors, np.float32)

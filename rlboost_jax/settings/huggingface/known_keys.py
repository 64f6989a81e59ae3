"""Keys of a checkpoint's config.json: what each is to the reader.

Those that `config.py` and `rope_scaling.py` use are in `used_keys`. Those of `HARMLESS` say nothing
about logits. Those of `NEUTRAL` would change them, and are refused unless their value does not.
What is left over is named in a warning.
"""

from collections.abc import Mapping
from typing import Any, Final

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.foreign_keys import report_unknown
from rlboost_jax.settings.huggingface.families import FamilyRow

# Keys of every family: sizes, switches, and what other programs than a forward pass read.
_USED: Final = (
    *("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "num_key_value_heads", "head_dim", "rms_norm_eps"),
    *("tie_word_embeddings", "rope_theta", "rope_scaling", "rope_parameters"),
    *("max_position_embeddings", "original_max_position_embeddings"),
)
_EXPERTS: Final = (
    *("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size"),
    "norm_topk_prob",
)
HARMLESS: Final = frozenset(
    (
        # who wrote it, with what, and how it is loaded
        *("architectures", "transformers_version", "_name_or_path", "name_or_path", "dtype"),
        *("torch_dtype", "tokenizer_class", "unsloth_version", "unsloth_fixed", "model_name"),
        "sliding_window_size",  # of Gemma 2's first files: transformers reads sliding_window
        *("is_llama_config", "transformers.js_config", "use_flash_attn", "max_sequence_length"),
        *("attn_implementation", "_attn_implementation", "_attn_implementation_autoset"),
        *("torchscript", "use_bfloat16", "tf_legacy_loss", "return_dict", "pretraining_tp"),
        # marks, which the tokenizer and generation_config.json decide on
        *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id"),
        *("decoder_start_token_id", "prefix"),
        # how it was, or would be, trained
        *("initializer_range", "initializer_factor", "attention_dropout", "hidden_dropout"),
        *("resid_pdrop", "embd_pdrop", "residual_dropout", "dropout", "router_aux_loss_coef"),
        *("output_router_logits", "router_jitter_noise", "gradient_checkpointing"),
        *("chunk_size_feed_forward", "pruned_heads"),
        # what a call returns, and how generate() samples
        *("use_cache", "cache_implementation", "output_attentions", "output_hidden_states"),
        *("output_scores", "return_dict_in_generate", "max_length", "min_length", "do_sample"),
        *("early_stopping", "num_beams", "num_beam_groups", "diversity_penalty", "temperature"),
        *("top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty"),
        *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids"),
        *("num_return_sequences", "remove_invalid_values", "exponential_decay_length_penalty"),
        *("suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id"),
        "forced_eos_token_id",
        # heads for classification
        *("id2label", "label2id", "num_labels", "problem_type", "finetuning_task"),
        *("task_specific_params", "classifier_dropout"),
    )
)
# Each with the values at which it changes nothing; a missing key, or null, is such a value too.
NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "text_config": (),
    "vision_config": (),
    "quantization_config": (),
    "compression_config": (),
    "mlp_bias": (False,),
    "num_experts": (0,),  # where a family has none
    "num_local_experts": (0,),
    "mlp_only_layers": ([],),
    "decoder_sparse_step": (1,),
    "lm_head_bias": (False,),
    "use_bidirectional_attention": (False,),
    "is_causal": (True,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (),
    "tie_encoder_decoder": (False,),
    "partial_rotary_factor": (1,),
    "rotary_pct": (1,),
    "rope_interleaved": (False,),
    "use_mrope": (False,),
    "no_rope_layers": ([],),
    "no_rope_layer_interval": (0,),
    "alibi": (False,),
    "parallel_attn": (False,),
    "clip_qkv": (),
    "attention_chunk_size": (),
    "attn_temperature_tuning": (False, 0),
    "attention_sink": (False,),
    "activation_sparsity_pattern": ([],),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "attention_multiplier": (),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "scale_emb": (1,),
    "scale_depth": (1,),
    "shared_expert_intermediate_size": (0,),
    "n_shared_experts": (0,),
    "n_routed_experts": (0,),
    "routed_scaling_factor": (1,),
}
# Keys of a model with vision around its text that are not the text's own.
_AROUND_TEXT: Final = (
    *("text_config", "vision_config", "mm_tokens_per_image", "boi_token_index"),
    *("eoi_token_index", "image_token_index", "boi_token_id", "eoi_token_id", "image_token_id"),
    *("model_type", "tie_word_embeddings", "is_encoder_decoder"),
)


def check_keys(
    values: Mapping[str, Any], row: FamilyRow, numbers: Mapping[str, str], where: str
) -> None:
    """Refuse keys that would change the model in ways not implemented; warn of unknown ones.

    Args:
        values: the file's own.
        numbers: the key of each field that only some families read.
        where: the file's path, for messages.

    Raises:
        ConfigError: names the key and its value.
    """
    used = _used_keys(row, numbers)
    normed = dict.fromkeys(("use_qk_norm", "qk_norm", "qk_layernorm"), (row.qk_norm,))
    neutral = {key: said for key, said in {**NEUTRAL, **normed}.items() if key not in used}
    for key, said in neutral.items():
        value = values.get(key)
        if value is not None and value not in said:
            raise ConfigError(
                f"{where}: {key} is {_shown(value)}; that is not supported"
                + (f", only {said[0]!r} is" if said else "")
            )
    kinds = values.get("layer_types")
    if isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds):
        used.add("layer_types")
    report_unknown(values, {*used, *HARMLESS, *neutral}, where)


def check_around_text(values: Mapping[str, Any], where: str) -> None:
    """Warn once of unknown keys beside the text's section."""
    report_unknown(values, {*_AROUND_TEXT, *HARMLESS}, where)


def _used_keys(row: FamilyRow, numbers: Mapping[str, str]) -> set[str]:
    used = {*_USED, row.activation_key, "hidden_act"}
    used |= {said for said in (row.attention_bias, row.output_bias) if isinstance(said, str)}
    used |= {numbers[name] for name in row.numbers}
    if row.windows != "none":
        used |= {"sliding_window"}
    if row.windows == "five_of_six":
        used |= {"sliding_window_pattern", "_sliding_window_pattern"}
    if row.window_switch:  # published files have both where no layer sees a window
        used |= {"use_sliding_window", "max_window_layers"}
    if row.layer_types:
        used.add("layer_types")
    if row.local_rope:
        used.add("rope_local_base_freq")
    if row.experts:
        used |= {*_EXPERTS}
    return used


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]} …"

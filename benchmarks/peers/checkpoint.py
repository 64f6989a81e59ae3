"""Random weights as the checkpoint that every peer starts from, by the project's own export."""

import json
from pathlib import Path

import jax.numpy as jnp

from rlboost_jax.models.checkpoint_writer import write_checkpoint
from rlboost_jax.models.params import Params, init_params
from rlboost_jax.settings.huggingface.config import to_huggingface
from rlboost_jax.settings.model_config import ModelConfig

END = 0  # the token that peers want to end at


def endless_params(model: ModelConfig, seed: int) -> Params:
    """Random, and never choosing `END` greedily: its row of the tied table is zero.

    So is its logit, and of thousands of others one is larger. Peers differ in how they are asked
    to pass over an end; none of them has to.
    """
    if not model.tie_embeddings:
        raise ValueError("a head of its own would choose the end: model.tie_embeddings is False")
    params = init_params(model, seed)
    table = jnp.asarray(params["embedding"]["table"]).at[END].set(0.0)
    return {**params, "embedding": {**params["embedding"], "table": table}}


def write_folder(model: ModelConfig, params: Params, folder: Path) -> Path:
    """config.json, safetensors in float32, and a tokenizer of numbers for the tools that insist."""
    folder.mkdir(parents=True)
    write_checkpoint(model, params, folder, dtype="float32")
    ends = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": END}
    config = to_huggingface(model) | ends | {"torch_dtype": "float32"}
    words = {str(i): i for i in range(model.vocab_size)}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": str(END)},
    }
    contents = {
        "config.json": config,
        "generation_config.json": ends,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
    }
    for name, values in contents.items():
        (folder / name).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    return folder

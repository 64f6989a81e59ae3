"""Names of the parameter tree's leaves, and of files, in a Hugging Face checkpoint.

A leaf of `layers` holds a tensor of every layer (and every expert), stacked; matrices are stored
[in, out] here and [out, in] there.
"""

import itertools
from collections.abc import Iterator
from typing import Final, NamedTuple

from rlboost_jax.settings.huggingface.tensor_files import HEAD, PREFIX, TABLE
from rlboost_jax.settings.model_config import ModelConfig

_PROJECTIONS: Final = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
_ENDS: Final = {
    "kernel": "weight",
    "bias": "bias",
    "lora_a": "lora_A.weight",  # as the PEFT library has them
    "lora_b": "lora_B.weight",
}
_LAYER: Final = {
    **{
        f"{ours}.{end}": f"{theirs}.{their_end}"
        for ours, theirs in _PROJECTIONS.items()
        for end, their_end in _ENDS.items()
    },
    "attention_norm.scale": "input_layernorm.weight",
    "attention.query_norm.scale": "self_attn.q_norm.weight",
    "attention.key_norm.scale": "self_attn.k_norm.weight",
    "mlp.router.kernel": "mlp.gate.weight",
    "mlp.experts.gate": "mlp.experts.{expert}.gate_proj.weight",
    "mlp.experts.up": "mlp.experts.{expert}.up_proj.weight",
    "mlp.experts.down": "mlp.experts.{expert}.down_proj.weight",
}
_NORMS: Final = {"mlp_norm.scale": "post_attention_layernorm.weight"}
_NORMS_WITH_POST: Final = {
    "attention_post_norm.scale": "post_attention_layernorm.weight",
    "mlp_norm.scale": "pre_feedforward_layernorm.weight",
    "mlp_post_norm.scale": "post_feedforward_layernorm.weight",
}
_REST: Final = {
    "embedding.table": TABLE,
    "head.norm.scale": "norm.weight",
}


class Stored(NamedTuple):
    """Storage of a leaf."""

    tensors: dict[tuple[int, ...], str]  # name of the tensor at each index of the stacked axes
    transposed: bool


def stored(
    model: ModelConfig,
    leaf: str,
    shape: tuple[int, ...],
    prefix: str = PREFIX,
    head: str = HEAD,
) -> Stored:
    """Storage of the leaf of this dotted name and shape.

    Args:
        prefix: of all tensors but the head's.
        head: the head's name.
    """
    if leaf == "head.kernel":
        return Stored({(): head}, transposed=True)
    if not leaf.startswith("layers."):
        return Stored({(): prefix + _REST[leaf]}, transposed=False)
    inner = leaf.removeprefix("layers.")
    norms = _NORMS_WITH_POST if model.post_norms else _NORMS
    template = f"{prefix}layers.{{layer}}.{ {**_LAYER, **norms}[inner] }"
    axes = 2 if "{expert}" in template else 1
    indices: Iterator[tuple[int, ...]] = itertools.product(*map(range, shape[:axes]))
    tensors = {i: template.format(layer=i[0], expert=i[-1]) for i in indices}
    return Stored(tensors, transposed=len(shape) - axes == 2)

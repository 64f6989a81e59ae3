"""The tensors of a GGUF file under the names, and in the layout, of a Hugging Face checkpoint.

Three things differ between the two: names; experts, which lie in one tensor of a layer; and what
llama.cpp's converter changes for its kernels: rows of queries and keys of Llamas, scales of
Gemma's norms.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.gguf.container import FILE, GgufUnusable, read_container
from rlboost_jax.settings.gguf.model_metadata import (
    HEAD,
    ROPE_TABLE,
    TABLE,
    Architecture,
    architecture_of,
    config_values,
)
from rlboost_jax.settings.gguf.quantized import Blocks
from rlboost_jax.settings.huggingface.tensor_files import CheckpointUnusable, TensorFiles

_REST: Final = {
    TABLE: "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    HEAD: "lm_head.weight",
}
_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
_POST_NORMS: Final = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_EXPERTS: Final = {
    "ffn_gate_exps": "gate_proj",
    "ffn_up_exps": "up_proj",
    "ffn_down_exps": "down_proj",
}
_MOST_EXPERTS: Final = 2**14  # of one layer
_NAME: Final = re.compile(r"blk\.(?P<layer>\d+)\.(?P<part>\w+)\.(?P<end>weight|bias)")


@dataclass(frozen=True)
class StoredAs:
    """Where and how the file stores a tensor of the checkpoint.

    Attributes:
        name: of the tensor in the file.
        expert: its place along the first axis; None where there is none.
        heads: number of heads whose rows alternate between two halves; 0: rows lie as they are.
        offset: what is added to each number in the file.
    """

    name: str
    expert: int | None = None
    heads: int = 0
    offset: float = 0.0


def open_tensors(folder: Path) -> TensorFiles:
    """Open the tensors of a checkpoint's folder, in safetensors files or in a GGUF file.

    Raises:
        CheckpointUnusable: files are missing or broken.
    """
    return GgufTensors(folder) if (folder / FILE).exists() else TensorFiles(folder)


class GgufTensors(TensorFiles):
    """Tensors of a GGUF model under the names that they have in safetensors files."""

    def __init__(self, folder: Path) -> None:
        """
        Args:
            folder: stands for the file (`stand_in.py`); `FILE` in it is the model.

        Raises:
            CheckpointUnusable: the file is broken.
            ConfigError: an architecture that is not known, or the package gguf is missing.
        """
        try:
            # One link at most: in a cache of the hub, the next ones lose the names of parts.
            place = folder / FILE
            self._container = read_container(
                folder / place.readlink() if place.is_symlink() else place
            )
        except GgufUnusable as error:
            raise CheckpointUnusable(str(error)) from None
        self._plan = _plan(self._container.tensors, *_form(self._container))
        self._blocks: dict[str, Blocks] = {}
        super().__init__(folder)

    def path(self, name: str) -> Path:
        return self._container.tensors[self._plan[name].name].path

    def slice_of(self, name: str) -> Any:
        stored = self._plan[name]
        if stored.name not in self._blocks:
            try:
                self._blocks[stored.name] = Blocks(self._container.tensors[stored.name])
            except (GgufUnusable, OSError) as error:
                raise CheckpointUnusable(f"{error}") from None
        return _Slice(self._blocks[stored.name], stored)

    def _find(self) -> dict[str, str]:
        return dict.fromkeys(self._plan, FILE)

    def _keys(self, file: str) -> frozenset[str]:
        return frozenset(self._plan)


class _Slice:
    """A tensor that can be cut like one of `safetensors`."""

    def __init__(self, blocks: Blocks, stored: StoredAs) -> None:
        self._blocks, self._stored = blocks, stored

    def get_shape(self) -> list[int]:
        return list(self._blocks.shape[0 if self._stored.expert is None else 1 :])

    def get_dtype(self) -> str:
        return "F32"

    def __getitem__(self, index: Any) -> np.ndarray:
        stored, cuts = self._stored, index if isinstance(index, tuple) else (index,)
        if stored.expert is not None:
            one = slice(stored.expert, stored.expert + 1)
            return self._blocks[(one, *cuts)][0]
        if stored.heads:
            if len(self._blocks.shape) == 1:  # biases
                every = np.arange(self._blocks.shape[0])
                return self._blocks[:][_interleaved(every, len(every) // stored.heads)][cuts]
            rows = np.arange(self._blocks.shape[0])[cuts[0]]
            cuts = (_interleaved(rows, self._blocks.shape[0] // stored.heads), *cuts[1:])
        found = self._blocks[cuts]
        return found - np.float32(stored.offset) if stored.offset else found


def _interleaved(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of the file for rows of a checkpoint, where the halves of a head alternate."""
    heads, within = np.divmod(rows, head_dim)
    half, place = np.divmod(within, head_dim // 2)
    return heads * head_dim + 2 * place + half


def _form(container: Any) -> tuple[Architecture, int, int]:
    """Return the architecture, and the numbers of query heads and key heads."""
    try:
        values = config_values(container)
    except ConfigError as error:
        raise CheckpointUnusable(str(error)) from None
    heads = values["num_attention_heads"]
    return architecture_of(container), heads, values.get("num_key_value_heads") or heads


def _plan(
    tensors: Mapping[str, Any], row: Architecture, query_heads: int, key_heads: int
) -> dict[str, StoredAs]:
    """Map names in a checkpoint to stored tensors; those of unknown names keep theirs."""
    plan: dict[str, StoredAs] = {}
    layer_names = {**_LAYER, **(_POST_NORMS if row.post_norms else {})}
    heads = {"attn_q": query_heads, "attn_k": key_heads} if row.interleaved else {}

    def put(theirs: str, stored: StoredAs) -> None:
        if theirs in plan:
            raise CheckpointUnusable(
                f"{tensors[stored.name].path} has two tensors for {theirs}: {plan[theirs].name} "
                f"and {stored.name}"
            )
        plan[theirs] = stored

    for name, tensor in tensors.items():
        offset = 1.0 if row.offset_norms and name.endswith("norm.weight") else 0.0
        match = _NAME.fullmatch(name)
        if name == ROPE_TABLE:
            continue  # config.json says the same
        if match is None or match["part"] not in {*layer_names, *_EXPERTS}:
            put(_REST.get(name, name), StoredAs(name, offset=offset))
            continue
        prefix, part = f"model.layers.{match['layer']}.", match["part"]
        if part in _EXPERTS:
            if tensor.shape[0] > _MOST_EXPERTS or len(tensor.shape) < 2:
                raise CheckpointUnusable(
                    f"{tensor.path} has tensor {name} of shape {list(tensor.shape)}; at most "
                    f"{_MOST_EXPERTS:,} experts are read"
                )
            for expert in range(tensor.shape[0]):
                theirs = f"mlp.experts.{expert}.{_EXPERTS[part]}.{match['end']}"
                put(prefix + theirs, StoredAs(name, expert=expert))
        else:
            theirs = f"{layer_names[part]}.{match['end']}"
            put(prefix + theirs, StoredAs(name, heads=heads.get(part, 0), offset=offset))
    return plan

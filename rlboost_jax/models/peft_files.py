"""Adapters as a folder of the PEFT library, which many other engines and tools read too."""

import json
from pathlib import Path
from typing import Final

import jax
import numpy as np
from safetensors.numpy import save_file

from rlboost_jax.models.adapters import is_adapter
from rlboost_jax.models.checkpoint_reader import check_tensors, read_leaf
from rlboost_jax.models.params import Params, abstract_params, flatten_params, unflatten_params
from rlboost_jax.models.tensor_names import stored
from rlboost_jax.settings.huggingface.adapter_config import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    adapter_prefix,
)
from rlboost_jax.settings.huggingface.sources import name_and_revision
from rlboost_jax.settings.huggingface.tensor_files import (
    PREFIX,
    CheckpointUnusable,
    TensorFiles,
)
from rlboost_jax.settings.model_config import ModelConfig

_WRAPPED: Final = "base_model.model."  # what PEFT puts a model into


def write_peft(model: ModelConfig, params: Params, folder: Path, *, dtype: str) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors`.

    Args:
        params: adapters, or a whole tree with some.
        dtype: of the tensors.
    """
    tensors = {}
    for name, leaf in flatten_params(params).items():
        if is_adapter(name):
            array = np.asarray(leaf)
            how = stored(model, name, array.shape, _WRAPPED + PREFIX)
            for index, tensor in how.tensors.items():
                tensors[tensor] = np.ascontiguousarray(array[index].T.astype(dtype))
    save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    base, revision = name_and_revision(model.source)
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base or None,
        "revision": revision,
        "r": model.lora.rank,
        "lora_alpha": model.lora.alpha,
        "target_modules": list(model.lora.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (folder / ADAPTER_CONFIG).write_text(json.dumps(values, indent=2) + "\n")


def read_peft(model: ModelConfig, folder: str | Path, *, shardings: Params | None = None) -> Params:
    """Read the adapters of a folder, float32; the tree has nothing else.

    Args:
        model: with rank and targets of the adapter, as `adapter_config.py` reads them.
        shardings: where each leaf goes; None puts all on the default device.

    Raises:
        CheckpointUnusable: it does not hold just the adapters of the model; names the first tensor.
    """
    leaves = {n: a for n, a in flatten_params(abstract_params(model)).items() if is_adapter(n)}
    default = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    places = dict.fromkeys(leaves, default) if shardings is None else flatten_params(shardings)
    with TensorFiles(Path(folder), single=ADAPTER_WEIGHTS) as tensors:
        prefix = adapter_prefix(tensors.files, str(Path(folder) / ADAPTER_WEIGHTS))
        plan = {name: stored(model, name, leaf.shape, prefix) for name, leaf in leaves.items()}
        shapes = {n: (plan[n], leaf.shape) for n, leaf in leaves.items()}
        wanted = check_tensors(tensors, shapes, ADAPTER_CONFIG)
        for name in sorted(tensors.files.keys() - wanted):
            raise CheckpointUnusable(
                f"tensor {name} in {tensors.path(name)} has no place in a {model.family} of "
                f"{model.num_layers} layers with adapters on {', '.join(model.lora.targets)}"
            )
        return unflatten_params(
            {
                name: read_leaf(tensors, plan[name], leaf.shape, places[name], np.dtype("float32"))
                for name, leaf in leaves.items()
            }
        )

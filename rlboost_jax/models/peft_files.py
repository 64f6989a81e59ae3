"""Adapters as a folder of the PEFT library, which many other engines and tools read too."""

import json
from pathlib import Path
from typing import Final

import numpy as np
from safetensors.numpy import save_file

from rlboost_jax.models.adapters import is_adapter
from rlboost_jax.models.params import Params, flatten_params
from rlboost_jax.models.tensor_names import stored
from rlboost_jax.settings.huggingface.tensor_files import PREFIX
from rlboost_jax.settings.model import ModelConfig

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
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
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.source or None,
        "r": model.lora.rank,
        "lora_alpha": model.lora.alpha,
        "target_modules": list(model.lora.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (folder / CONFIG).write_text(json.dumps(values, indent=2) + "\n")

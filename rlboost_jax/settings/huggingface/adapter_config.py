"""Adapters in the PEFT library's format as settings of `model.lora`. No JAX here.

An option of `adapter_config.json` is used, or changes nothing at the value it has, or is refused by
name: most would change what the adapters add.
"""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.bounded_files import Unreadable, explained
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.foreign_keys import refuse_unknown, warn_once
from rlboost_jax.settings.huggingface.keys import flag, number, whole
from rlboost_jax.settings.huggingface.sources import source_folder
from rlboost_jax.settings.huggingface.tensor_files import CheckpointUnusable, TensorFiles
from rlboost_jax.settings.model_config import LORA_TARGETS, LoraConfig

ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
_TENSOR: Final = re.compile(
    r"(?P<prefix>base_model\.model\.(?:[\w.]+\.)?)layers\.\d+\.(?:self_attn|mlp)\."
    r"(?P<target>\w+)\.lora_[AB]\.weight"
)
# `target_modules` and `exclude_modules` say what tensors say better; the others are about how the
# adapter was made and loaded.
_KNOWN: Final = frozenset(
    (
        *("peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "lora_dropout"),
        *("task_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode"),
        *("peft_version", "megatron_core", "qalora_group_size", "runtime_config", "loftq_config"),
        *("init_lora_weights", "layers_pattern", "rank_pattern", "alpha_pattern", "bias"),
        *("exclude_modules", "eva_config"),
    )
)
_NOT_DONE: Final = (  # each changes what an adapter adds, or where
    *("use_dora", "lora_bias", "fan_in_fan_out", "modules_to_save", "layers_to_transform"),
    *("layer_replication", "trainable_token_indices", "target_parameters", "use_qalora"),
)
_DRAWN: Final = (True, False, None, "gaussian", "eva", "orthogonal")  # starts that leave the base


def with_adapter(lora: Mapping[str, Any], known: LoraConfig | None = None) -> dict[str, Any]:
    """Fill the section `model.lora` with rank, alpha and targets of the adapter in its `source`.

    Args:
        known: what a run that has begun has read; None: it is read now.

    Raises:
        ConfigError: the adapter has an option that is not done here, or a setting that is not at
            its default contradicts it.
    """
    usual = LoraConfig()
    if known is None:
        fields = adapter_fields(lora["source"])
    else:
        fields = {name: getattr(known, name) for name in ("rank", "alpha", "targets")}
    for name, value in fields.items():
        given = lora.get(name)
        asked = tuple(given) if name == "targets" and given is not None else given
        same = set(asked) == set(value) if name == "targets" and asked is not None else None
        if asked is None or asked == getattr(usual, name) or asked == value or same:
            continue
        raise ConfigError(
            f"config.model.lora.{name} is {asked!r} and the adapter in {lora['source']!r} has "
            f"{value!r}; leave it out"
        )
    return {**lora, **fields}


def adapter_fields(source: str) -> dict[str, Any]:
    """Return `rank`, `alpha` and `targets` of an adapter, in a folder or on the hub.

    Raises ConfigError.
    """
    folder = adapter_folder(source)
    path = folder / ADAPTER_CONFIG
    try:
        values = foreign_json.read(path, dict)
    except (OSError, Unreadable) as error:
        raise ConfigError(f"config.model.lora.source: {explained(error)}") from None
    _check(values, str(path))
    rank = whole(values, "r", str(path), 8)
    alpha = number(values, "lora_alpha", str(path), 8.0)
    if flag(values, "use_rslora", str(path)):  # alpha counts by the rank's root
        alpha *= math.sqrt(rank)
    return {"rank": rank, "alpha": alpha, "targets": _targets(folder)}


def adapter_folder(source: str) -> Path:
    """Return the folder of an adapter's files, fetched if need be; raises ConfigError."""
    try:
        return source_folder(source, (ADAPTER_CONFIG, ADAPTER_WEIGHTS))
    except ConfigError as error:
        raise error.under("config.model.lora.source") from None


def adapter_prefix(names: Iterable[str], where: str) -> str:
    """Return the prefix of the tensors' names up to `layers`; raises CheckpointUnusable.

    An adapter of anything but the matrices of layers is not done, nor are two models in one file.
    """
    prefixes = set()
    for name in names:
        found = _TENSOR.fullmatch(name)
        if found is None or found["target"] not in LORA_TARGETS:
            raise CheckpointUnusable(
                f"tensor {name} in {where} is no adapter of {', '.join(LORA_TARGETS)} in a layer, "
                "and only those can be trained"
            )
        prefixes.add(found["prefix"])
    if len(prefixes) != 1:
        raise CheckpointUnusable(
            f"{where} has adapters of {len(prefixes)} models: {', '.join(sorted(prefixes))}"
        )
    return prefixes.pop()


def _targets(folder: Path) -> tuple[str, ...]:
    path = folder / ADAPTER_WEIGHTS
    try:
        with TensorFiles(folder, single=ADAPTER_WEIGHTS) as tensors:
            adapter_prefix(tensors.files, str(path))
            targets = {found["target"] for n in tensors.files if (found := _TENSOR.fullmatch(n))}
    except CheckpointUnusable as error:
        raise ConfigError(f"config.model.lora.source: {error}") from None
    return tuple(target for target in LORA_TARGETS if target in targets)


def _check(values: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError for an option of adapters that is not implemented."""
    kind = values.get("peft_type", "LORA")
    if kind != "LORA":
        raise ConfigError(f"{where}: peft_type is {kind!r}; known: 'LORA'")
    if values.get("bias", "none") != "none":
        raise ConfigError(f"{where}: bias is {values['bias']!r}; only 'none' is supported")
    start = values.get("init_lora_weights", True)
    if not any(start is each or start == each for each in _DRAWN):
        raise ConfigError(
            f"{where}: init_lora_weights is {start!r}, by which the base is changed too; save the "
            "adapter by PEFT with path_initial_model_for_weight_conversion"
        )
    for name, own in (("rank_pattern", "r"), ("alpha_pattern", "lora_alpha")):
        pattern = values.get(name) or {}
        if not isinstance(pattern, Mapping) or any(v != values.get(own) for v in pattern.values()):
            raise ConfigError(f"{where}: {name} is {pattern!r}; all must have one {own}")
    for name in _NOT_DONE:
        if values.get(name) not in (None, False, [], {}):
            raise ConfigError(
                f"{where}: {name} is {values[name]!r}; adapters with it are not supported"
            )
    says_something = {k: v for k, v in values.items() if v not in (None, False, "", [], {}, ())}
    refuse_unknown(says_something, _KNOWN, where)
    if values.get("lora_dropout"):
        warn_once(f"{where}: passed over: lora_dropout, since no dropout is trained with here")

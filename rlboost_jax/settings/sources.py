"""Where a checkpoint's files are: a folder, or a name on the Hugging Face hub.

Names go through huggingface_hub, which keeps what it fetched in a cache: offline, a model that was
fetched once is found again. The package is asked for only when there is such a name.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

from rlboost_jax.settings.errors import ConfigError
from rlboost_jax.settings.huggingface import from_huggingface

CONFIG: Final = "config.json"
WEIGHTS: Final = ("*.safetensors", "*.safetensors.index.json")
# What makes texts of tokens, and says how to sample: copied along when a model is exported.
TOKENIZER: Final = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
    "generation_config.json",
)

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


def source_fields(source: str) -> dict[str, Any]:
    """Fields of `ModelConfig` that a checkpoint's config.json decides.

    Raises:
        ConfigError: there is no such file, or it describes no model that is known here.
    """
    return from_huggingface(source_config(source), str(_config_path(source)))


def source_config(source: str) -> dict[str, Any]:
    """The contents of config.json; raises ConfigError."""
    path = _config_path(source)
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"config.model.source: cannot read {path}: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"config.model.source: {path} holds no configuration of a model")
    return values


def source_folder(source: str, patterns: tuple[str, ...]) -> Path:
    """The folder with those of a checkpoint's files that match, fetched if need be.

    Raises:
        ConfigError: the folder does not exist, or the name cannot be fetched.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    name, revision = _hub_name(source)
    hub = _hub(source)
    try:
        return Path(hub.snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    except Exception as error:  # a zoo: of the hub, of HTTP libraries, of the system
        raise _not_fetched(source, error) from error


def _config_path(source: str) -> Path:
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not (folder / CONFIG).is_file():
            raise ConfigError(
                f"config.model.source: {folder} has no {CONFIG}; name the folder of a checkpoint"
            )
        return folder / CONFIG
    name, revision = _hub_name(source)
    hub = _hub(source)
    try:
        return Path(hub.hf_hub_download(name, CONFIG, revision=revision))
    except Exception as error:  # see source_folder
        raise _not_fetched(source, error) from error


def _hub_name(source: str) -> tuple[str, str | None]:
    if not _HUB_NAME.fullmatch(source):
        raise ConfigError(
            f"config.model.source is {source!r}: no such folder, and no name on the hub either, "
            'which looks like "Qwen/Qwen3-0.6B"'
        )
    name, _, revision = source.partition("@")
    return name, revision or None


def _hub(source: str) -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise ConfigError(
            f"config.model.source is {source!r}: no such folder, and names on the hub need the "
            "package huggingface_hub; pip install 'rlboost-jax[hf]', or name a folder"
        ) from None
    return huggingface_hub


def _not_fetched(source: str, error: Exception) -> ConfigError:
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason")
    return ConfigError(
        f"config.model.source is {source!r}: no such folder, and the hub does not give it "
        f"({type(error).__name__}: {reason}); check the name, the network and HF_TOKEN, or fetch "
        "it elsewhere and name the folder"
    )

"""Where a checkpoint's files are: a folder, a GGUF file, or a name on the Hugging Face hub.

Names go through huggingface_hub, which keeps what it fetched in a cache: offline, a model that was
fetched once is found again. The package is asked for only when there is such a name.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.bounded_files import Unreadable, explained
from rlboost_jax.platform.mistakes import ConfigError, install, plain
from rlboost_jax.settings.foreign_keys import warn_once
from rlboost_jax.settings.gguf.container import SUFFIX
from rlboost_jax.settings.gguf.stand_in import MODEL_SOURCE, is_gguf, stand_in
from rlboost_jax.settings.huggingface.config import from_huggingface

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
    "additional_chat_templates/*",
    "generation_config.json",
)

Hub = Callable[[], Any]
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


def _huggingface_hub() -> Any:
    import huggingface_hub

    return huggingface_hub


def source_fields(
    source: str,
    *,
    weights: bool = False,
    tied: bool | None = None,
    hub: Hub = _huggingface_hub,
) -> dict[str, Any]:
    """Fields of `ModelConfig` that a checkpoint's config.json decides.

    Where it ties the head to the embeddings, and the weights have a head of its own, the weights
    are right and a warning says so. Without weights on this host, the file is believed.

    Args:
        weights: fetch them where they decide that.
        tied: what a run that has begun has; its weights are not asked.
        hub: the package that fetches names, as huggingface_hub does; may raise ImportError.

    Raises:
        ConfigError: there is no such file, or it describes no model that is known here.
    """
    path = _config_path(source, hub)
    fields = from_huggingface(_values(path), str(path))
    if not fields["tie_embeddings"] or tied is not None:
        return {**fields, "tie_embeddings": fields["tie_embeddings"] and tied is not False}
    folder = source_folder(source, WEIGHTS, hub=hub) if weights else path.parent
    if head := _own_head(folder):
        fields["tie_embeddings"] = False
        warn_once(
            f"{path} ties the head to the embeddings, and {head} is not them: it is trained and "
            "exported as a matrix of its own (model.tie_embeddings is False)"
        )
    return fields


def _own_head(folder: Path) -> str:
    """The name of a head that is not the embeddings; "" also where files are missing or broken."""
    from rlboost_jax.settings.gguf.gguf_tensors import open_tensors
    from rlboost_jax.settings.huggingface.tensor_files import CheckpointUnusable

    try:
        with open_tensors(folder) as tensors:
            return tensors.own_head()
    except CheckpointUnusable:  # which the reader of weights will say
        return ""


def source_config(source: str) -> dict[str, Any]:
    """The contents of config.json; raises ConfigError."""
    return _values(_config_path(source, _huggingface_hub))


def _values(path: Path) -> dict[str, Any]:
    try:
        return foreign_json.read(path, dict)
    except (OSError, Unreadable) as error:
        raise ConfigError(f": {explained(error)}", setting=MODEL_SOURCE) from None


def source_folder(source: str, patterns: tuple[str, ...], *, hub: Hub = _huggingface_hub) -> Path:
    """The folder with those of a checkpoint's files that match, fetched if need be.

    Args:
        hub: see `source_fields`.

    Raises:
        ConfigError: the folder does not exist, or the name cannot be fetched.
    """
    folder = Path(source).expanduser()
    if os.path.isdir(folder):  # False where a folder above may not be entered
        return folder
    if is_gguf(source):
        return stand_in(source, tokenizer=not {*TOKENIZER}.isdisjoint(patterns))
    name, revision = _hub_name(source)
    fetch = _package(source, hub).snapshot_download
    try:
        return Path(fetch(name, revision=revision, allow_patterns=list(patterns)))
    except Exception as error:  # a zoo: of the hub, of HTTP libraries, of the system
        raise _not_fetched(source, error) from error


def name_and_revision(source: str) -> tuple[str, str | None]:
    """Return a folder and None, or a hub name and its revision if any."""
    if os.path.exists(Path(source).expanduser()) or not _HUB_NAME.fullmatch(source):
        return source, None
    return _hub_name(source)


def _config_path(source: str, hub: Hub) -> Path:
    folder = Path(source).expanduser()
    if os.path.isdir(folder):  # see source_folder
        if not (folder / CONFIG).is_file():
            raise ConfigError(
                f": {folder} has no {CONFIG}; name "
                + (_gguf_file_in(folder) or "the folder of a checkpoint"),
                setting=MODEL_SOURCE,
            )
        return folder / CONFIG
    if is_gguf(source):
        return stand_in(source) / CONFIG
    name, revision = _hub_name(source)
    fetch = _package(source, hub).hf_hub_download
    try:
        return Path(fetch(name, CONFIG, revision=revision))
    except Exception as error:  # see source_folder
        raise _not_fetched(source, error) from error


def _gguf_file_in(folder: Path) -> str:
    """A GGUF file that the folder has, "" where it has none."""
    return next((f"the file itself: {path}" for path in sorted(folder.glob("*.gguf"))), "")


def _hub_name(source: str) -> tuple[str, str | None]:
    if source.lower().endswith(SUFFIX):
        raise ConfigError(f" is {source!r}: there is no such file", setting=MODEL_SOURCE)
    if not _HUB_NAME.fullmatch(source):
        raise ConfigError(
            f" is {source!r}: no such folder, and no name on the hub either, which looks like "
            '"Qwen/Qwen3-0.6B"',
            setting=MODEL_SOURCE,
        )
    if reason := missing_folder(source):
        raise ConfigError(
            f" is {source!r}: {reason}; name another, or {source}@main for the hub's",
            setting=MODEL_SOURCE,
        )
    name, _, revision = source.partition("@")
    return name, revision or None


def missing_folder(source: str) -> str:
    """Say why `OWNER/NAME` is a missing path, not a name on the hub; "" if it may be a name.

    A folder OWNER on this host decides, even one that this user may not read, unless a revision is
    given.
    """
    owner, _, name = source.partition("/")
    if not _HUB_NAME.fullmatch(source) or "@" in name or os.path.exists(source):
        return ""
    if not os.path.isdir(owner):
        return ""
    try:
        found = sorted(each for each in os.listdir(owner) if not each.startswith("."))
    except OSError as error:
        return f"the folder {owner} cannot be read ({error.strerror})"
    if name in found:
        return f"the folder {owner} cannot be entered (Permission denied)"
    inside = f"has {', '.join(map(plain, found[:5]))}" + (", …" if len(found) > 5 else "")
    return f"no such folder; the folder {owner} {inside if found else 'is empty'}"


def _package(source: str, hub: Hub) -> Any:
    try:
        return hub()
    except ImportError:
        raise ConfigError(
            f" is {source!r}: no such folder, and names on the hub need the package "
            f"huggingface_hub; name a folder, or {install('hf')}",
            setting=MODEL_SOURCE,
        ) from None


def _not_fetched(source: str, error: Exception) -> ConfigError:
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason")
    return ConfigError(
        f" is {source!r}: no such folder, and the hub does not give it "
        f"({type(error).__name__}: {reason}); check the name, the network and HF_TOKEN, or fetch "
        "it elsewhere and name the folder",
        setting=MODEL_SOURCE,
    )

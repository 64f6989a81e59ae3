"""A folder that stands for a GGUF file wherever a Hugging Face checkpoint is wanted.

It has config.json and generation_config.json, the tokenizer's files where those are asked for, and
a link to the file itself; weights are read from there. It is made once in the user's cache and
found again by the file's place and header.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlboost_jax.platform.mistakes import ConfigError, install
from rlboost_jax.platform.private_paths import own_folder
from rlboost_jax.settings.gguf.container import (
    ARCHITECTURE,
    FILE,
    SUFFIX,
    Container,
    GgufUnusable,
    read_container,
)
from rlboost_jax.settings.gguf.model_metadata import config_values, end_marks

MODEL_SOURCE: Final = "config.model.source"  # the setting that checkpoints are named by
_NAMED: Final = "data.tokenizer"
_TOKENIZER: Final = {  # what transformers builds a tokenizer of: its name, and the metadata's key
    "tokenizer_type": "ggml.model",
    "pre_tokenizer_type": "ggml.pre",
    "tokens": "ggml.tokens",
    "scores": "ggml.scores",
    "token_type": "ggml.token_type",
    "merges": "ggml.merges",
    "bos_token_id": "ggml.bos_token_id",
    "eos_token_id": "ggml.eos_token_id",
    "unk_token_id": "ggml.unknown_token_id",
    "pad_token_id": "ggml.padding_token_id",
    "add_prefix_space": "ggml.add_space_prefix",
}
_MARKS: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unk_token_id",
    "pad_token": "pad_token_id",
}


def is_gguf(source: str) -> bool:
    """Whether a source names a GGUF file that exists."""
    path = Path(source).expanduser()
    return path.suffix.lower() == SUFFIX and path.is_file()


def stand_in(source: str, *, tokenizer: bool = False) -> Path:
    """Return the folder that stands for a GGUF file.

    Args:
        tokenizer: also write the tokenizer's files, which needs transformers.

    Raises:
        ConfigError: the file is broken, holds a model that is not known, or has no tokenizer.
    """
    path = Path(source).expanduser().absolute()
    try:
        container = read_container(path)
    except GgufUnusable as error:
        raise ConfigError(f": {error}", setting=MODEL_SOURCE) from None
    files = {"config.json": config_values(container)}
    if ends := end_marks(container):
        files["generation_config.json"] = {"eos_token_id": list(ends)}
    texts = {name: json.dumps(content, indent=2) + "\n" for name, content in files.items()}
    try:
        return _filled(container, texts, tokenizer)
    except OSError as error:
        raise ConfigError(
            f": what is made of {path} cannot be written: {error}; set HOME to a folder of yours",
            setting=MODEL_SOURCE,
        ) from None


def _filled(container: Container, texts: Mapping[str, str], tokenizer: bool) -> Path:
    """Return the folder with these files; raises OSError."""
    folder = _cache() / _name(container, texts)
    if not (folder / "config.json").is_file():
        with _whole(folder) as part:
            for name, text in texts.items():
                (part / name).write_text(text)
            (part / FILE).symlink_to(container.path)
    if tokenizer and not (folder / "tokenizer.json").is_file():
        with tempfile.TemporaryDirectory(dir=folder, prefix="tokenizer-") as part:
            _tokenizer(container).save_pretrained(part)
            for file in sorted(Path(part).iterdir(), key=lambda f: f.name == "tokenizer.json"):
                os.replace(file, folder / file.name)  # the last one says that all are there
    return folder


def _cache() -> Path:
    """Return the folder for this user's stand-ins; its contents are trusted as this user's own."""
    place = Path.home() / ".cache" / "rlboost_jax" / "gguf"
    return own_folder(place, "the folder of what is made of GGUF files,")


def _name(container: Container, texts: Mapping[str, str]) -> str:
    """Name a folder after everything it depends on: the header, the path and the reading."""
    with open(container.path, "rb") as file:
        digest = hashlib.sha256(file.read(container.header_bytes))
    digest.update(f"{container.path} {sorted(texts.items())}".encode())
    return digest.hexdigest()[:32]


@contextlib.contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """Yield a folder to fill, renamed into place at the end; the first of several wins."""
    part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}."))
    try:
        yield part
        with contextlib.suppress(FileExistsError, OSError):
            part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _tokenizer(container: Container) -> Any:
    """Build the file's tokenizer with transformers.

    Raises:
        ConfigError: the file has none, or one that transformers does not know.
    """
    where, metadata = container.path, container.metadata
    if not metadata.get("tokenizer.ggml.tokens"):
        raise ConfigError(f": {where} has no tokenizer; name another one", setting=_NAMED)
    try:
        import transformers

        try:
            from transformers.integrations.gguf import convert_gguf_tokenizer
        except ImportError:  # before 5.23
            from transformers.integrations.ggml import convert_gguf_tokenizer
    except ImportError:
        raise ConfigError(
            f" {str(where)!r} needs transformers; {install('hf')}", setting=_NAMED
        ) from None
    said = {
        name: _listed(metadata[f"tokenizer.{key}"])
        for name, key in _TOKENIZER.items()
        if f"tokenizer.{key}" in metadata
    }
    tokens, by_pieces = said["tokens"], said.get("tokenizer_type") == "llama"
    try:
        backend, more = convert_gguf_tokenizer(metadata[ARCHITECTURE], said)
        marks = {name: tokens[said[key]] for name, key in _MARKS.items() if key in said}
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=backend,
            chat_template=metadata.get("tokenizer.chat_template"),
            add_bos_token=metadata.get("tokenizer.ggml.add_bos_token", by_pieces),
            add_eos_token=metadata.get("tokenizer.ggml.add_eos_token", False),
            **{"clean_up_tokenization_spaces": False, **marks, **more},
        )
    except Exception as error:  # whatever a broken table leads to
        line = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ConfigError(
            f": {where}: transformers makes no tokenizer of it ({line}); name a folder that has "
            "the model's tokenizer.json",
            setting=_NAMED,
        ) from None


def _listed(value: Any) -> Any:
    """Convert nested arrays to Python lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value

"""Configurations in and out: ml_collections, plain dictionaries, `config.json`.

Whatever the way in, the result has passed every check of `validate.py`. Nothing here
imports JAX, so that the manager and tools read configurations too.
"""

import dataclasses
import difflib
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar

import msgspec

from rlboost_jax.platform import at_rest, durable, foreign_json
from rlboost_jax.platform.bounded_files import Unreadable
from rlboost_jax.platform.mistakes import ConfigError, plain, suggestion
from rlboost_jax.platform.readable import check_texts
from rlboost_jax.settings.changes import Change
from rlboost_jax.settings.huggingface.sources import source_fields
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.presets import resolved
from rlboost_jax.settings.renamed import successor, without_retired
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.setting import is_required
from rlboost_jax.settings.teacher_models import with_models
from rlboost_jax.settings.validation.run_checks import check, check_files

REMEDY: Final = "bring it back from a copy, or choose another --workdir"  # of a damaged record

_BESIDE: Final = ("run_id", "changes", "fork", "code")  # of settings, in `config.json`

Record = TypeVar("Record")


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint of another run that a run was begun with."""

    workdir: str
    run_id: str
    step: int

    def __str__(self) -> str:
        return f"{self.workdir}@{self.step}"


class ConfigDictLike(Protocol):
    """An `ml_collections.ConfigDict`, as far as it is needed here."""

    def to_dict(self) -> dict[str, Any]: ...


def run_config(config: ConfigDictLike, workdir: str | Path = "") -> RunConfig:
    """The checked record of a configuration file; also opens the files it names.

    With a `model.source`, the architecture is that of its config.json: the record is complete, and
    its readers need no checkpoint.

    Args:
        workdir: where the run goes on, or begins, for which weights may be fetched once all else
            is right; "": it is only looked at.

    Raises ConfigError.
    """
    if not hasattr(config, "to_dict"):
        raise ConfigError(f"get_config() returned {config!r}; it must return the ConfigDict")
    values = config.to_dict()
    check_texts(values)
    model, before = values.get("model"), _model_before(workdir) if workdir else None
    if isinstance(model, Mapping):
        values["model"] = _with_sources(model, before)
    record = run_config_from_dict(values)
    check_files(record)
    source = record.model.source
    if workdir and source and record.model.tie_embeddings and not _begun(before, source):
        tied = source_fields(source, weights=True)["tie_embeddings"]
        record = dataclasses.replace(
            record, model=dataclasses.replace(record.model, tie_embeddings=tied)
        )
        check(record)
    return with_models(record, weights=bool(workdir))


def _with_sources(model: Mapping[str, Any], before: ModelConfig | None) -> Mapping[str, Any]:
    """Complete `model` from its checkpoint and its adapter; raises ConfigError.

    Args:
        before: of the run that has begun; what that has read is not read again.
    """
    source, lora = model.get("source"), model.get("lora")
    if isinstance(source, str) and source:
        tied = before.tie_embeddings if before and _begun(before, source) else None
        model = {**model, **source_fields(source, tied=tied)}
    if isinstance(lora, Mapping) and isinstance(lora.get("source"), str) and lora["source"]:
        from rlboost_jax.settings.huggingface.adapter_config import with_adapter

        known = before is not None and before.lora.source == lora["source"]
        model = {**model, "lora": with_adapter(lora, before.lora if before and known else None)}
    return model


def _begun(before: ModelConfig | None, source: str) -> bool:
    return before is not None and before.source == source


def _model_before(workdir: str | Path) -> ModelConfig | None:
    """Model of a run that has begun; None where there is no run."""
    try:
        return read_run_config(workdir).model
    except ConfigError:  # where it is damaged, those who open the workdir say so
        return None


def run_config_from_dict(values: Mapping[str, Any]) -> RunConfig:
    """Make the checked record from nested dictionaries, as `to_dict` and JSON give them.

    What `config.json` carries besides settings is passed over. Files that the configuration names
    are not opened, since they are on the trainer's host. What the algorithm leaves open is filled
    in by its preset.

    Raises ConfigError.
    """
    values = {key: value for key, value in values.items() if key not in _BESIDE}
    check_texts(values)
    record = record_from_dict(values, RunConfig, fill=_with_preset)
    check(record)
    return record


def record_from_dict(
    values: Mapping[str, Any],
    kind: type[Record],
    *,
    defaults: str = "configs/base.py",
    fill: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda values: values,
) -> Record:
    """Make a record and those inside it from nested dictionaries.

    Settings that are missing take their defaults: `config.json` of a run may be older than they.

    Args:
        defaults: the file that lists all fields, for errors.
        fill: replaces values that are None, once the keys are known to be right.

    Raises ConfigError, a line per key that is wrong or missing.
    """
    mistakes = list(_wrong_keys(values, kind, "", defaults))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    try:
        return msgspec.convert(fill(values), kind)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        place = place.rstrip("`")
        shown = f" is {_at(values, place)!r}" if _at(values, place) is not None else ""
        raise ConfigError(f"config.{place}{shown}: {reason[:1].lower()}{reason[1:]}") from None


def _at(values: Mapping[str, Any], place: str) -> Any:
    """Return the value at a place; None where there is none, or the place is inside of a value."""
    found: Any = values
    for name in place.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _with_preset(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**values, "algorithm": resolved(values["algorithm"])}


def read_run_config(path: str | Path) -> RunConfig:
    """Read the configuration in `config.json`; `path` is that file or the workdir.

    Raises ConfigError.
    """
    values = _read(path)
    try:
        return run_config_from_dict(values)
    except ConfigError as error:
        raise ConfigError(
            "\n".join(f"{_file(path)}: {e}" for e in str(error).split("\n"))
        ) from None


def read_run_id(path: str | Path) -> str:
    """Read the run's id in `config.json`; raises ConfigError where there is none."""
    run_id = _read(path).get("run_id")
    if not isinstance(run_id, str):
        raise ConfigError(f"{path}: no run_id; is it a workdir of rlboost_jax?")
    return run_id


def read_changes(path: str | Path) -> tuple[Change, ...]:
    """Read the changes since the run began from `config.json`; raises ConfigError."""
    return _part(path, "changes", tuple[Change, ...]) or ()


def read_origin(path: str | Path) -> Origin | None:
    """Read which run this one was forked from, None if it was not; raises ConfigError."""
    return _part(path, "fork", Origin)


def read_code(path: str | Path) -> Mapping[str, str]:
    """Read the digests of code from other packages, by its path; raises ConfigError."""
    return _part(path, "code", dict[str, str]) or {}


def write_run_config(
    path: str | Path,
    config: RunConfig,
    run_id: str,
    *,
    changes: Sequence[Change] = (),
    fork: Origin | None = None,
    code: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write `config.json` durably, in one piece: a reader never sees half of it.

    Args:
        code: digests of what the run takes from other packages, by its path.
    """
    history = {"changes": msgspec.to_builtins(tuple(changes))} if changes else {}
    if fork is not None:
        history["fork"] = msgspec.to_builtins(fork)
    if code:
        history["code"] = dict(code)
    at_rest.write_sealed(_file(path), {"run_id": run_id, **history, **to_dict(config)})


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Convert to nested dictionaries that JSON can hold; `run_config_from_dict` takes them back."""
    values: dict[str, Any] = msgspec.to_builtins(config)
    return values


def _wrong_keys(
    values: Mapping[str, Any], record: Any, prefix: str, defaults: str
) -> Iterator[str]:
    fields = {field.name: field.type for field in dataclasses.fields(record)}
    for key in values:
        if key not in fields:
            hint = successor(f"{prefix}{key}") or suggestion(str(key), fields, shown=prefix + "{}")
            yield f"config.{prefix}{plain(key)} does not exist; {hint}"
    wanted = {field.name for field in dataclasses.fields(record) if is_required(field)}
    for name, kind in fields.items():
        if name not in values:
            if name in wanted and not any(
                difflib.get_close_matches(str(k), [name]) for k in values if k not in fields
            ):
                yield f"config.{prefix}{name} is missing; {defaults} has its default"
        elif dataclasses.is_dataclass(kind):
            if isinstance(values[name], Mapping):
                yield from _wrong_keys(values[name], kind, f"{prefix}{name}.", defaults)
            else:
                yield f"config.{prefix}{name} must be a section, not {values[name]!r}"
        elif typing.get_origin(kind) is typing.Literal:
            value, choices = values[name], typing.get_args(kind)
            if value is not None and value not in choices:
                yield f"{prefix}{name} {value!r} does not exist; {suggestion(str(value), choices)}"
        elif (record := _entry(kind)) is not None and isinstance(values[name], list | tuple):
            for index, entry in enumerate(values[name]):
                yield from _wrong_entry(entry, record, f"{prefix}{name}[{index}]")


def _entry(kind: Any) -> Any:
    """Return the record that a tuple's entries are, None if they are no records."""
    first = (*typing.get_args(kind), None)[0]
    return first if dataclasses.is_dataclass(first) else None


def _wrong_entry(entry: Any, record: Any, place: str) -> Iterator[str]:
    """Yield mistakes in an entry: fields that are unknown or wrong, and names that are missing."""
    fields = {field.name: field for field in dataclasses.fields(record)}
    if not isinstance(entry, dict):
        yield f"config.{place} must be a plain dictionary, not {entry!r}"
        return
    for key in entry:
        if key not in fields:
            hint = suggestion(str(key), fields, shown="{}")
            yield f"config.{place}: {key!r} does not exist; {hint}"
    for name, field in fields.items():
        if is_required(field) and name not in entry:
            yield f"config.{place}: {name!r} is missing"


def _part(path: str | Path, name: str, kind: type[Record]) -> Record | None:
    value = _read(path).get(name)
    try:
        return None if value is None else msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {name} is damaged ({error}); {REMEDY}") from None


def _read(path: str | Path) -> dict[str, Any]:
    path = _file(path)
    try:
        values = foreign_json.read(path, dict)
    except OSError as error:
        lost = durable.is_lost(error)
        remedy = REMEDY if lost else "give the workdir of a run"
        raise ConfigError(f"cannot read {path}: {error.strerror or error}; {remedy}") from error
    except Unreadable as error:
        raise ConfigError(f"{path} is damaged (it {error.reason}); {REMEDY}") from error
    try:
        return without_retired(at_rest.unsealed(values, path, REMEDY))
    except durable.Damaged as error:
        raise ConfigError(str(error)) from None


def _file(path: str | Path) -> Path:
    path = Path(path)
    return path / "config.json" if path.is_dir() else path

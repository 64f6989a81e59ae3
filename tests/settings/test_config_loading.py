import dataclasses
import functools
import json
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_collections import ConfigDict

from configs import base
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings import changes, config_loading
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.setting import FROM_PRESET, settings_of


@pytest.fixture
def config() -> RunConfig:
    return config_loading.run_config(base.get_config())


def fields(record: Any, prefix: str = "config") -> Iterator[str]:
    """Dotted names of all fields, in order."""
    for field in dataclasses.fields(record):
        name = f"{prefix}.{field.name}"
        if dataclasses.is_dataclass(field.type):
            yield from fields(field.type, name)
        else:
            yield name


def test_base_has_the_defaults_of_all_settings() -> None:
    """Sections and numbers are written as by a person."""
    config = base.get_config()
    named = [name.removeprefix("config.") for name in fields(RunConfig)]
    assert [setting.name for setting in settings_of(RunConfig)] == named
    for setting in settings_of(RunConfig):
        *sections, name = setting.name.split(".")
        section = functools.reduce(operator.getitem, sections, config)
        if setting.default is FROM_PRESET:
            assert section[name] is None
        else:
            value = section[name]
            value = value.to_dict() if isinstance(value, ConfigDict) else value
            assert value == setting.default
    assert config.learner.mesh == (1, 1, 1) and config.seed == 0
    config.algorithm.advantage = "gae"  # of the type that the preset's is of
    with pytest.raises(TypeError):
        config.algorithm.group_size = "8"


def test_settings_that_are_missing_take_their_defaults(config: RunConfig) -> None:
    values = config_loading.to_dict(config)
    del values["engine"]["slots"], values["algorithm"]["clip_low"]
    assert config_loading.run_config_from_dict(values) == config


def test_json_takes_a_config_there_and_back(config: RunConfig) -> None:
    text = json.dumps(config_loading.to_dict(config))
    assert config_loading.run_config_from_dict(json.loads(text)) == config


def test_config_json_carries_the_run_id(tmp_path: Path, config: RunConfig) -> None:
    config_loading.write_run_config(tmp_path / "config.json", config, "f00d")
    assert config_loading.read_run_config(tmp_path / "config.json") == config
    assert config_loading.read_run_config(tmp_path) == config
    assert config_loading.read_run_id(tmp_path) == "f00d"
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_server_need_not_see_the_trace_file(config: RunConfig) -> None:
    values = config_loading.to_dict(config)
    values["fleet"]["trace"] = "/on/the/trainer/only.csv"
    assert config_loading.run_config_from_dict(values).fleet.trace == "/on/the/trainer/only.csv"


@pytest.mark.parametrize(
    ("place", "key", "says"),
    [
        ((), "modle", "did you mean model?"),
        (("engine",), "token_row", "did you mean engine.token_rows?"),
        (("fleet", "chaos"), "kills_per_minutes", "did you mean fleet.chaos.kills_per_minute?"),
        (("weights",), "zzz", "known: rollout_dtype, keep_versions, deltas, peers, "),
    ],
)
def test_an_unknown_key_suggests_the_right_one(
    config: RunConfig, place: tuple[str, ...], key: str, says: str
) -> None:
    values = config_loading.to_dict(config)
    section = values
    for name in place:
        section = section[name]
    section[key] = 1
    with pytest.raises(ConfigError) as caught:
        config_loading.run_config_from_dict(values)
    assert ".".join(["config", *place, key]) in str(caught.value)
    assert says in str(caught.value)


def test_a_renamed_key_is_reported_once(config: RunConfig) -> None:
    values = config_loading.to_dict(config)
    values["engine"]["token_row"] = values["engine"].pop("token_rows")
    with pytest.raises(ConfigError) as caught:
        config_loading.run_config_from_dict(values)
    assert str(caught.value) == (
        "config.engine.token_row does not exist; did you mean engine.token_rows?"
    )


def test_a_missing_section_is_named(config: RunConfig) -> None:
    values = config_loading.to_dict(config)
    del values["fleet"]["chaos"]
    with pytest.raises(ConfigError, match=r"config\.fleet\.chaos is missing"):
        config_loading.run_config_from_dict(values)


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_steps", "ten"), ("num_steps", 1.5), ("deterministic", 1), ("model", 3), ("seed", None)],
)
def test_a_wrong_type_is_named(config: RunConfig, name: str, value: object) -> None:
    values = {**config_loading.to_dict(config), name: value}
    with pytest.raises(ConfigError, match=f"^config.{name}[: ]") as caught:
        config_loading.run_config_from_dict(values)
    assert "\n" not in str(caught.value)


def test_a_mesh_has_three_axes(config: RunConfig) -> None:
    values = config_loading.to_dict(config)
    values["learner"]["mesh"] = (1, 1)
    with pytest.raises(ConfigError, match=r"config\.learner\.mesh"):
        config_loading.run_config_from_dict(values)


def test_an_int_does_for_a_float(config: RunConfig) -> None:
    values = config_loading.to_dict(config)
    values["manager"]["lease_seconds"] = 2
    lease = config_loading.run_config_from_dict(values).manager.lease_seconds
    assert lease == 2.0 and isinstance(lease, float)


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_a_file_that_is_no_config_is_a_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=str(tmp_path)) as caught:
        config_loading.read_run_config(tmp_path / "config.json")
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_run_is_a_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="workdir"):
        config_loading.read_run_config(tmp_path)


@given(seed=st.integers(0, 100), instances=st.integers(0, 9))
def test_differences_are_the_fields_that_differ(seed: int, instances: int) -> None:
    first = config_loading.run_config(base.get_config())
    second = dataclasses.replace(
        first, seed=seed, fleet=dataclasses.replace(first.fleet, max_instances=instances)
    )
    found = {d.name: (d.first, d.second) for d in changes.differences(first, second)}
    expected = {}
    if seed != first.seed:
        expected["seed"] = (first.seed, seed)
    if instances != first.fleet.max_instances:
        expected["fleet.max_instances"] = (first.fleet.max_instances, instances)
    assert found == expected
    never = {d.name for d in changes.foreign(first, second)}
    assert never == expected.keys() - {"fleet.max_instances"}


def test_data_may_have_moved(config: RunConfig) -> None:
    data = dataclasses.replace(config.data, source="b/train.jsonl", tokenizer="b/tokenizer")
    moved = dataclasses.replace(config, data=data)
    assert changes.differences(config, moved) and not changes.foreign(config, moved)

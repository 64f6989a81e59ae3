import errno
import json
import os
import types
from pathlib import Path
from typing import Any

import pytest

from configs import base
from rlboost_jax.data.dataset_rows import open_rows
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import run_config, to_dict
from rlboost_jax.settings.huggingface import sources
from tests.settings.test_huggingface import PUBLISHED

VALUES = {**PUBLISHED["Llama-3.2-1B"][1], "vocab_size": 300}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(VALUES))
    return tmp_path


@pytest.fixture
def hub(folder: Path) -> types.SimpleNamespace:
    """A stand-in for huggingface_hub that remembers what it was asked for."""
    asked: list[tuple[Any, ...]] = []

    def hf_hub_download(name: str, file: str, *, revision: str | None) -> str:
        asked.append((name, file, revision))
        if name == "nobody/nothing":
            raise ConnectionError("\nno route to host\nmore")
        return str(folder / file)

    def snapshot_download(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, tuple(allow_patterns), revision))
        return str(folder)

    return types.SimpleNamespace(
        hf_hub_download=hf_hub_download, snapshot_download=snapshot_download, asked=asked
    )


def configured(source: str) -> Any:
    config = base.get_config()
    config.model.source = source
    return run_config(config)


def test_the_architecture_is_the_checkpoint_s_and_the_record_is_complete(folder: Path) -> None:
    model = configured(str(folder)).model
    assert (model.source, model.family) == (str(folder), "llama")
    assert (model.num_layers, model.rope_scaling, model.vocab_size) == (16, "llama3", 300)
    assert model.dtype == "float32"  # the run's own
    assert to_dict(configured(str(folder)))["model"]["rope_factor"] == 32


def test_a_model_of_text_is_not_trained_on_a_task_that_has_no_text(folder: Path) -> None:
    """README's flags on the quickstart: it ran to its end with a reward of 0."""
    (folder / "config.json").write_text(json.dumps({**VALUES, "vocab_size": 151_936}))
    said = r"a model of text \(151936 tokens\), and task 'clock' has a language of its own"
    with pytest.raises(ConfigError, match=said):
        configured(str(folder))


def test_it_is_checked_like_any_other(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**VALUES, "vocab_size": 7}))
    with pytest.raises(ConfigError, match=r"model\.vocab_size is 7, task 'clock' has 112 tokens"):
        configured(str(folder))


def test_a_name_is_fetched_from_the_hub(hub: types.SimpleNamespace, folder: Path) -> None:
    name = "meta-llama/Llama-3.2-1B"
    assert sources.source_fields(f"{name}@f00d", hub=lambda: hub)["family"] == "llama"
    assert set(hub.asked) == {(name, "config.json", "f00d")}
    assert sources.source_folder(name, sources.WEIGHTS, hub=lambda: hub) == folder
    assert hub.asked[-1] == (name, sources.WEIGHTS, None)


def test_weights_are_fetched_only_where_they_decide_whether_the_head_is_tied(
    hub: types.SimpleNamespace, folder: Path
) -> None:
    name = "meta-llama/Llama-3.2-1B"
    for tied, asked in ((True, [sources.WEIGHTS]), (False, [])):
        (folder / "config.json").write_text(json.dumps({**VALUES, "tie_word_embeddings": tied}))
        for options in ({}, {"weights": True, "tied": tied}, {"weights": True}):
            hub.asked.clear()
            fields = sources.source_fields(name, hub=lambda: hub, **options)
            assert fields["tie_embeddings"] is tied
            expected = asked if options == {"weights": True} else []
            assert [each[1] for each in hub.asked] == ["config.json", *expected]


def test_what_the_hub_does_not_give_is_one_line(hub: types.SimpleNamespace) -> None:
    with pytest.raises(ConfigError, match="ConnectionError: no route to host") as caught:
        sources.source_fields("nobody/nothing", hub=lambda: hub)
    assert "\n" not in str(caught.value) and "HF_TOKEN" in str(caught.value)


def test_without_the_package_a_name_says_what_to_install() -> None:
    def absent() -> Any:
        raise ImportError("No module named 'huggingface_hub'")

    with pytest.raises(ConfigError, match=r"need the package huggingface_hub; name a folder"):
        sources.source_fields("Qwen/Qwen3-0.6B", hub=absent)


def test_a_folder_that_is_none_and_one_without_a_model(tmp_path: Path) -> None:
    for source, says in (
        ("/no/such/folder", "no such folder, and no name on the hub either"),
        (str(tmp_path), f"{tmp_path} has no config.json"),
    ):
        with pytest.raises(ConfigError, match=r"^config\.model\.source") as caught:
            configured(source)
        assert says in str(caught.value)
        under = caught.value.under("--model")
        assert (str(under), under.setting) == (
            str(caught.value).replace("config.model.source", "--model", 1),
            "--model",
        )
    plain = ConfigError("config.model.source is in a message that carries no setting")
    assert plain.under("--model") is plain
    for text in ("{", "[]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ConfigError, match=str(tmp_path)):
            configured(str(tmp_path))


def test_a_name_whose_owner_is_a_folder_here_is_not_asked_of_the_hub(
    hub: types.SimpleNamespace, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "mine" / "one").mkdir(parents=True)
    for name, says in (("mine/nothing", "the folder mine has one"), ("./nothing", "the folder .")):
        with pytest.raises(ConfigError, match=f"no such folder; {says}"):
            sources.source_fields(name, hub=lambda: hub)
    assert hub.asked == []
    assert sources.source_fields("mine/nothing@main", hub=lambda: hub)["family"] == "llama"
    with pytest.raises(ConfigError, match=r"the folder mine has one; .* data\.format to 'hugging"):
        open_rows("mine/rows", "auto", subset="", split="", columns=())

    def refused(path: str) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "listdir", refused)
    unreadable = r"'mine/nothing': the folder mine cannot be read \(Permission denied\); "
    with pytest.raises(ConfigError, match=f"config.model.source is {unreadable}name another"):
        sources.source_fields("mine/nothing", hub=lambda: hub)
    with pytest.raises(ConfigError, match=f"data.source {unreadable}if it is a name on the hub"):
        open_rows("mine/nothing", "auto", subset="", split="", columns=())
    monkeypatch.setattr(os, "listdir", lambda _: ["nothing"])  # and stat refuses
    with pytest.raises(ConfigError, match="the folder mine cannot be entered"):
        sources.source_fields("mine/nothing", hub=lambda: hub)

"""What an upload asks the hub for, by a stand-in with huggingface_hub's own signatures."""

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlboost_jax import export
from rlboost_jax.cli import hub_push
from rlboost_jax.cli.hub_push import NotPushed, Push
from rlboost_jax.platform.mistakes import ConfigError

SECRET = "hf_not_a_real_one"


class Hub:
    """Repositories by name, and whether they are private; nothing leaves this process."""

    def __init__(self, **private: bool) -> None:
        self.private = {name.replace("__", "/"): value for name, value in private.items()}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.refuses = ""

    def __call__(self, token: str) -> "Hub":
        assert token == SECRET
        return self

    def __getattr__(self, method: str) -> Any:
        if method not in ("create_repo", "repo_info", "upload_folder"):
            raise AttributeError(method)
        real = inspect.signature(getattr(pytest.importorskip("huggingface_hub").HfApi, method))

        def called(*arguments: Any, **named: Any) -> Any:
            bound = real.bind(self, *arguments, **named).arguments
            self.calls.append((method, bound))
            if self.refuses == method:
                raise ConnectionError(f"\n401 of {SECRET}\nmore")
            name = bound["repo_id"]
            if method == "create_repo" and name not in self.private:
                self.private[name] = bound["private"]
            place = f"https://hub/{name}/commit/1"
            return SimpleNamespace(private=self.private[name], commit_url=place)

        return called


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "additional_chat_templates").mkdir()
    for name in ("config.json", "model.safetensors", "additional_chat_templates/tools.jinja"):
        (tmp_path / name).write_text("x" * 1024)
    return tmp_path


def pushed(hub: Hub, folder: Path, *, public: bool = False) -> list[str]:
    said: list[str] = []
    push = Push("me/model", public=public, environ={"HF_TOKEN": SECRET}, api=hub)
    assert hub.calls == [], "nothing is asked before there is something to upload"
    push.upload(folder, "after 3 updates", said.append)
    return said


@pytest.mark.parametrize(
    ("hub", "public", "seen"),
    [
        (Hub(), False, "private"),
        (Hub(), True, "public"),
        (Hub(me__model=True), False, "private"),
        (Hub(me__model=True), True, "private"),  # as it is: nobody's choice is undone
        (Hub(me__model=False), True, "public"),
    ],
)
def test_what_goes_where_is_said_before_it_goes(
    hub: Hub, public: bool, seen: str, folder: Path
) -> None:
    said = pushed(hub, folder, public=public)
    assert said == [
        f"uploading 3 files, 3.0 KiB, of {folder} to me/model ({seen})",
        "me/model: https://hub/me/model/commit/1",
    ]
    assert [method for method, _ in hub.calls] == ["create_repo", "repo_info", "upload_folder"]
    asked = hub.calls[-1][1]
    assert (asked["folder_path"], asked["commit_message"]) == (folder, "after 3 updates")
    assert "*.safetensors.index.json" in asked["delete_patterns"]  # of an upload in more files


def test_nothing_is_added_to_what_is_public_unless_asked(folder: Path) -> None:
    hub = Hub(me__model=False)
    with pytest.raises(NotPushed, match="me/model is public already, and --public is not given"):
        pushed(hub, folder)
    assert "upload_folder" not in dict(hub.calls)


@pytest.mark.parametrize("method", ["create_repo", "repo_info", "upload_folder"])
def test_what_the_hub_does_not_take_is_one_line_without_the_token(
    method: str, folder: Path
) -> None:
    hub = Hub()
    hub.refuses = method
    with pytest.raises(NotPushed) as caught:
        pushed(hub, folder)
    said = str(caught.value)
    assert said.startswith(f"me/model does not take {folder} (ConnectionError: 401 of …); the fold")
    assert f"`hf upload me/model {folder}`" in said
    assert "\n" not in said and SECRET not in said


@pytest.mark.parametrize(
    ("name", "environ", "says"),
    [
        ("model", {"HF_TOKEN": SECRET}, "--push=model is no name of a repository; give OWNER"),
        ("a/b/c", {"HF_TOKEN": SECRET}, "--push=a/b/c is no name of a repository"),
        ("../b", {"HF_TOKEN": SECRET}, "--push=../b is no name"),
        ("me/model@main", {"HF_TOKEN": SECRET}, "is no name of a repository"),
        ("me/model", {}, "--push=me/model needs a token that may write; set it in HF_TOKEN"),
        ("me/model", {"HF_TOKEN": " "}, "needs a token that may write"),
        ("me/model", {"HF_TOKEN": "x"}, "needs the package huggingface_hub"),
    ],
)
def test_what_is_wrong_is_found_before_anything_is_written(
    name: str, environ: dict[str, str], says: str
) -> None:
    def absent(token: str) -> Any:
        raise ImportError("No module named 'huggingface_hub'")

    with pytest.raises(ConfigError) as caught:
        Push(name, environ=environ, api=absent)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_the_command_uploads_what_it_has_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = Hub()
    monkeypatch.setattr(
        export,
        "Push",
        lambda name, public: Push(name, public=public, environ={"HF_TOKEN": SECRET}, api=hub),
    )
    monkeypatch.setattr(
        export, "export", lambda *a, **k: [f"{folder}: adapters of rank 2; they are of /home/me"]
    )
    export.main([f"--workdir={folder}", f"--to={folder}", "--push=me/model"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines] == [f"{folder}:", "uploading", "me/model:"]
    assert hub.calls[-1][1]["commit_message"] == "adapters of rank 2"


def test_without_a_token_the_command_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(hub_push.TOKEN, raising=False)
    with pytest.raises(SystemExit) as caught:
        export.main([f"--workdir={tmp_path}", f"--to={tmp_path / 'out'}", "--push=me/model"])
    assert caught.value.code == 2 and not (tmp_path / "out").exists()
    assert "set it in HF_TOKEN" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        export.main([f"--workdir={tmp_path}", f"--to={tmp_path / 'out'}", "--public"])
    assert "--public says how --push uploads" in capsys.readouterr().err

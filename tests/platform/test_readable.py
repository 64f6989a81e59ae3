"""Names of folders whose bytes are no UTF-8: one line that names them, and never a traceback."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs import base, tiny
from rlboost_jax import export
from rlboost_jax.cli import evaluate, logits, precompile
from rlboost_jax.data.dataset_rows import open_rows
from rlboost_jax.environments.__main__ import main as environments
from rlboost_jax.gateway.__main__ import main as gateway
from rlboost_jax.learner.workdir import WorkdirUnusable
from rlboost_jax.main import train
from rlboost_jax.platform import compile_cache
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.platform.readable import check_text
from rlboost_jax.rollout import server
from rlboost_jax.settings.config_loading import run_config, run_config_from_dict

NAMES = {
    b"\xff": r"\xff",
    b"caf\xe9": r"caf\xe9",  # Latin-1
    b"\x83n\x83b": r"\x83n\x83b",  # Shift JIS
    b"\xed\xa0\x80": r"\xed\xa0\x80",  # half a surrogate pair, as CESU-8 has it
    b"\xc3": r"\xc3",  # cut off
    b"\xc0\xae": r"\xc0\xae",  # too long a form of "."
    b"\xf5\x80\x80\x80": r"\xf5\x80\x80\x80",  # beyond Unicode
}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_text_is_named(name: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        check_text(Path("/data") / os.fsdecode(name), "--join")
    assert str(caught.value).startswith(f"--join is '/data/{NAMES[name]}', which is no text")
    str(caught.value).encode()


def test_half_a_pair_of_a_notebook_is_named_too() -> None:
    with pytest.raises(ConfigError, match=r"--join is '\\ud800', which"):
        check_text("\ud800", "--join")


@pytest.mark.parametrize("name", ["", "a b", "ä", "数学", "🙂", "\x7f", "a\u0308", "\ufffd"])
def test_any_text_is_taken(name: str) -> None:
    check_text(name, "--join")


@pytest.mark.parametrize(
    "place",
    [
        ("data", "source"),
        ("data", "tokenizer"),
        ("model", "source"),
        ("compile_cache_dir",),
        ("observe", "alerts", "webhook_file"),
        ("rewards", "functions"),
        ("fleet", "wheelhouse"),
    ],
)
def test_a_setting_that_is_no_text_is_named(place: tuple[str, ...]) -> None:
    config = base.get_config()
    *sections, field = place
    section = config
    for each in sections:
        section = section[each]
    odd = os.fsdecode(b"/data/\xff")
    section[field] = (odd,) if isinstance(section[field], tuple) else odd
    named = rf"^config\.{'.'.join(place)}(\[0\])? is '/data/\\xff', which is no text in UTF-8"
    for read in (run_config, lambda config: run_config_from_dict(config.to_dict())):
        with pytest.raises(ConfigError, match=named):
            read(config)


def test_a_file_within_a_folder_is_named(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")).write_text('{"question": 1}\n')
    with pytest.raises(ConfigError, match=r"^a file of data\.source is '.*/\\xff\.jsonl', which"):
        open_rows(str(tmp_path), "auto", subset="", split="", columns=("question",))


ODD = os.fsdecode(b"/nowhere/\xff")
COMMANDS: dict[str, Callable[[], Any]] = {
    "rollout": lambda: server.main(["--manager=127.0.0.1:9", f"--join={ODD}"]),
    "environments": lambda: environments(["--trainer=127.0.0.1:9", f"--join={ODD}"]),
    "evaluate": lambda: evaluate.main([f"--workdir={ODD}"]),
    "export": lambda: export.main(["--workdir=a", f"--to={ODD}"]),
    "compile": lambda: precompile.main(["--workdir", ODD]),
    "logits": lambda: logits.main([f"--model={ODD}", "--tokens=a", "--out=b"]),
    "gateway": lambda: gateway([f"--checkpoint={ODD}"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_say_so_in_one_line(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        COMMANDS[command]()
    said = capfd.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1
    assert said.startswith("error: ") and r"'/nowhere/\xff', which is no text in UTF-8" in said


def test_a_notebook_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    with pytest.raises(WorkdirUnusable, match=r"^--workdir is '.*/\\xff', which is no text"):
        train(tiny.get_config(), folder)
    with pytest.raises(ConfigError, match=r"^compile_cache_dir is "):
        compile_cache.enable(folder)
    os.mkdir(folder)
    monkeypatch.chdir(folder)
    with pytest.raises(WorkdirUnusable, match=r"^--workdir is "):
        train(tiny.get_config(), "run")
    assert os.listdir(folder) == []


def test_a_command_says_so(tmp_path: Path) -> None:
    """A shell passes the bytes on as they are."""
    command = [sys.executable, "-m", "rlboost_jax.main", "--config=tiny"]
    done = subprocess.run(
        [*map(os.fsencode, command), os.fsencode(f"--workdir={tmp_path}/") + b"\xff"],
        capture_output=True,
        check=False,
    )
    said = done.stderr.decode()
    assert done.returncode == 2 and said.count("\n") == 1 and os.listdir(tmp_path) == []
    assert said.startswith("error: --workdir is '") and r"\xff', which is no text" in said

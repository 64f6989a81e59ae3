"""`rlboost`: its commands, what it says of mistakes, and what shells complete."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlboost_jax.cli import commands, completion
from rlboost_jax.platform import command_parser
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings import shipped
from rlboost_jax.settings.command_line import with_files
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("jax", "numpy", "flax", "aiohttp", "absl")


def program(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    source = "import sys; from rlboost_jax.cli.commands import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", source, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


def test_the_page_is_made_from_the_table() -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    assert page == commands.document(), (
        "python -m rlboost_jax.cli.commands > docs/reference/commands.md"
    )


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_a_command_is_a_module_that_runs(name: str) -> None:
    spec = importlib.util.find_spec(commands.COMMANDS[name].module)
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin)
    main = path.with_name("__main__.py") if path.name == "__init__.py" else path
    assert 'if __name__ == "__main__":' in main.read_text(encoding="utf-8")


def test_every_entry_point_for_people_is_a_command() -> None:
    """They are those at the top, and packages that run; others have a page that they print."""
    found = {f"rlboost_jax.{path.parent.name}" for path in ROOT.glob("rlboost_jax/*/__main__.py")}
    for path in (*ROOT.glob("rlboost_jax/*.py"), *ROOT.glob("rlboost_jax/cli/*.py")):
        if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8"):
            found.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
    known = {command.module for command in commands.COMMANDS.values()}
    # A bare host runs the text of the bootstrap, which `rlboost wheelhouse --script` prints.
    itself = {"rlboost_jax.cli.commands", "rlboost_jax.__main__"}
    assert found - known == {"rlboost_jax.cli.bootstrap", *itself}


def test_help_names_all_of_them_and_imports_none() -> None:
    source = (
        "import sys; from rlboost_jax.cli.commands import main; main(['--help']); "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    *lines, imported = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if line[:2] == "  "] == list(commands.COMMANDS)
    assert imported == "[]"
    assert max(map(len, lines)) <= command_parser.WIDTH


@pytest.mark.parametrize("name", ["train", "rollout", "configs"])  # all: tests/wheels.py
def test_help_of_a_command_fits_and_is_no_mistake(name: str, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = program(name, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: rlboost {name} ")
    assert max(map(len, done.stdout.splitlines())) <= command_parser.WIDTH
    said = set(re.findall(r"^  (?:-h, )?--(\w+)", done.stdout, re.MULTILINE))
    named = {option.name for option in completion.options(commands.COMMANDS[name].module)}
    assert said == named | {"help"}


def test_the_package_is_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rlboost_jax", "trian"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2 and "did you mean rlboost train?" in done.stderr


def test_options_have_underscores_between_words() -> None:
    """As settings do; nobody has to remember which command wants the other sign."""
    names = {
        f"{name} {option.name}": option.name
        for name, command in commands.COMMANDS.items()
        for option in completion.options(command.module)
    }
    assert [each for each, option in names.items() if not re.fullmatch(r"[a-z_]+", option)] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], "no command 'trian'; did you mean rlboost train?"),
        (["report", "--wrkdir=x"], "no option --wrkdir; did you mean --workdir?"),
        (["report"], "the following arguments are required: --workdir"),
        (["configs", "quikstart"], "no 'quikstart'; did you mean quickstart?"),
        (["train", "--config=quickstrat"], "did you mean --config=quickstart?"),
        (["train", "--config=configs/tiny.py"], "No such file or directory; did you mean --config"),
        (["train", "--config", "tiny", "--config.num_stpes=1"], "did you mean config.num_steps?"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = program(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ") and words in done.stderr


def test_a_configuration_is_found_by_name_and_a_file_goes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = str(ROOT / "configs" / "quickstart.py")
    assert Path(shipped.file_of("quickstart")).samefile(file)
    assert shipped.file_of(file) == file
    assert Path(with_files(["", "--config", "quickstart"], "")[2]).samefile(file)
    named = shipped.file_of("h100:qwen3_8b_openr1,0.6", "sim")
    assert named.endswith("configs/sim/h100.py:qwen3_8b_openr1,0.6")
    (tmp_path / "quickstart").write_text("def get_config(): ...")
    assert shipped.file_of("quickstart") == "quickstart"
    with pytest.raises(ConfigError, match="no file and no name; known: base, gemma3_270m_words"):
        shipped.file_of("zzz")
    (tmp_path / "my_run.py").touch()
    with pytest.raises(ConfigError, match=r"no name; did you mean --config=my_run\.py\?"):
        shipped.file_of("my_run")


def test_configurations_are_those_of_the_folder_and_import_what_a_wheel_has() -> None:
    assert {"quickstart", "tiny", "qwen3_8b_openr1"} < set(shipped.shipped())
    assert {"base", "h100"} < set(shipped.shipped("sim"))
    assert "h100_bounds" not in shipped.shipped("sim")  # a table, with no get_config
    for path in (ROOT / "configs").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(from|import) configs\b", text, re.MULTILINE), path


@pytest.mark.parametrize(("mode", "imported"), [(0o755, True), (0o1777, False), (0o777, False)])
def test_modules_of_the_folder_are_imported_unless_all_may_put_some_there(
    mode: int,
    imported: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    folder.chmod(mode)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(commands.runpy, "run_module", lambda *_, **__: None)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    assert commands.main(["report"]) == 0
    assert (sys.path[0] == str(folder)) == imported
    assert ("PYTHONSAFEPATH" in os.environ) == (not imported)
    assert (f"modules of {folder} are not imported" in capsys.readouterr().err) == (not imported)
    os.environ.pop("PYTHONSAFEPATH", None)


def test_a_module_configs_that_is_not_there_is_explained(tmp_path: Path) -> None:
    """A file that was written in a checkout, where there is none."""
    (tmp_path / "mine.py").write_text("from configs import base\n")
    source = "import sys; sys.modules['configs'] = None; import rlboost_jax.cli.commands as c; "
    source += "sys.exit(c.main(['train', '--config=mine.py']))"
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "mine.py, line 1: " in done.stderr and "rlboost_jax.configs" in done.stderr


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers for the last of the words, which bash splits at `=` as well."""
    source = f"""
source {script}
compopt() {{ :; }}
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_rlboost
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    command = ["bash", "-c", source, "bash", "rlboost", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_options_names_and_settings(tmp_path: Path) -> None:
    script = tmp_path / "rlboost.bash"
    script.write_text(completion.bash())
    (tmp_path / "folder").mkdir()
    assert completed(script, "re") == ["report", "restore"]
    assert completed(script, "report", "--w") == ["--workdir="]
    assert completed(script, "train", "--su") == ["--supervise"]
    assert completed(script, "train", "--config", "=", "quick") == ["quickstart"]
    assert completed(script, "train", "--config", "quick") == ["quickstart"]
    assert "h100" in completed(script, "simulate", "--config", "=")
    assert completed(script, "train", "--config.learner.prompts_per") == [
        "--config.learner.prompts_per_step="
    ]
    assert completed(script, "verify", "--workdir", "=", f"{tmp_path}/f") == [f"{tmp_path}/folder"]
    assert completed(script, "completion", "z") == ["zsh"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_one_to_its_shell(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    script = tmp_path / "script"
    script.write_text(completion.SCRIPTS[shell]())
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_list_may_be_cut_off() -> None:
    command = f"{sys.executable} -m rlboost_jax.settings.shipped | head -1"
    ran = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert (ran.stdout, ran.stderr) == ("for train:\n", "")

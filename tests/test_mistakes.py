"""Deliberate mistakes: each is one line with the value, the limit and the setting; nothing is left.

`system/test_mistakes.py` has those that need a process of their own.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from absl.testing import flagsaver

from rlboost_jax import main
from rlboost_jax.cli import wheelhouse
from rlboost_jax.platform import exits
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.command_line import parse
from rlboost_jax.settings.config_loading import run_config

ROOT = Path(__file__).resolve().parent.parent
OWN = """
from configs import tiny


def get_config():
    config = tiny.get_config()
    config.task.name = "dataset"
    config.data.source = "rows.jsonl"
    config.data.prompt_column = "question"
    config.data.answer_column = "answer"
    config.data.tokenizer = "bytes"
    config.model.vocab_size = 260
    config.engine.max_prompt_tokens = 64
    config.warmup.max_updates = 0
    config.evaluation.num_prompts = 2
    config.rewards.functions = ({"name": "exact"},)
    config.rewards.sandbox = "best_effort"
    return config
"""
Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Refused:
    """`refused("num_steps=0")`: the one line that a start says before anything is there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(ROOT))
    rows = ({"question": f"what is {i} + 1", "answer": str(i + 1)} for i in range(40))
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "torn.jsonl").write_text('{"question": "a", "answer": "b"}\n{"question": \n')
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "own.py").write_text(OWN)

    def said(*settings: str, flags: tuple[str, ...] = (), config: str = "own.py") -> str:
        before = set(tmp_path.rglob("*"))
        overrides = [f"--config.{each}" for each in settings]
        argv = ["main", f"--config={config}", "--workdir=runs/mine", *overrides, *flags]
        monkeypatch.setattr(sys, "argv", argv)
        with flagsaver.flagsaver():
            try:
                parse(argv)
                main.train(main._CONFIG.value, main._WORKDIR.value, fork=main._FORK.value)
            except SystemExit as ending:
                code, line = ending.code, capsys.readouterr().err
            except Exception as error:
                code, line = exits.of_error(error), f"error: {error}\n"
        assert code == exits.MISTAKE, line
        assert line.startswith("error: ") and line.count("\n") == 1, line
        assert set(tmp_path.rglob("*")) == before, "something is left"
        return line

    return said


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("learner.learning_rat=1", "did you mean config.learner.learning_rate?"),
        ("learner.lr=1", "does not exist; did you mean learner.learning_rate?"),
        ("learner=8", "config.learner is a section; set a field of it"),
        ("num_steps=ten", "--config.num_steps=ten"),
        (
            "num_steps=0",
            "num_steps is 0 and there is no supervised update: name rows with responses in",
        ),
        ("learner.learning_rate=-1", "learner.learning_rate is -1.0; choose more than 0"),
        ("learner.learning_rate=nan", "learner.learning_rate is nan; choose more than 0"),
        ("learner.mesh=(1, 1)", "config.learner.mesh is (1, 1): expected `array` of length 3"),
        ("learner.mesh=(2, 2, 2)", "8 devices needed by learner.mesh=(2, 2, 2)"),
        (
            "learner.micro_batch_prompts=7",
            "_prompts (7); set that to 4, or learner.prompts_per_step to 35",
        ),
        ("algorithm.name=gpro", "algorithm.name 'gpro' does not exist; did you mean 'gspo'?"),
        ("algorithm.group_size=1", "algorithm.group_size is 1; algorithm.advantage 'group_std'"),
        ("algorithm.lag=99", "algorithm.lag is 99; choose 8 or less"),
        ("sampling.temperature=0", "sampling.temperature is 0.0; choose more than 0"),
        ("engine.num_pages=1", "engine.num_pages is 1, one rollout of 192 tokens needs 12"),
        ("engine.attention=cuda", "engine.attention 'cuda' does not exist; known: auto"),
        ("fleet.trace=nowhere.csv", "fleet.trace: cannot read nowhere.csv"),
        ("fleet.provider=aws", "fleet.provider 'aws' does not exist; known: local, none"),
        ("manager.port=70000", "manager.port is 70000; choose 65535 or less"),
        ("manager.lease_seconds=0.1", "choose less than 0.0333333"),
        (
            "checkpoint.keep_every=5;checkpoint.every_steps=2",
            "keep_every is 5, not a multiple of checkpoint.every_steps (2)",
        ),
        ("checkpoint.keep=1", "checkpoint.keep is 1; choose 2 or more"),
        ("evaluation.samples=4", "raise the temperature, or take 1 sample"),
        ("observe.trackers=('tensorbord',)", "did you mean 'tensorboard'?"),
        ("observe.profile_step=9", "observe.profile_step is 9; the last step is 3"),
        ("model.num_query_heads=3", "not a multiple of model.num_key_heads (2)"),
        ("model.vocab_size=100", "the tokenizer 'bytes' has 258 tokens; raise model.vocab_size"),
        (
            "warmup.max_updates=5",
            "a data set has no worked answers to warm up on: set it to 0, or name",
        ),
        ("task.name=clok", "task.name 'clok' does not exist; did you mean 'clock'?"),
        ("data.source=nowhere.jsonl", "'nowhere.jsonl': no such file of format jsonl"),
        ("data.source=empty.jsonl", "'empty.jsonl': no row of 0 is left to train on"),
        ("data.source=torn.jsonl,data.bad_rows=error", "torn.jsonl, line 2: no JSON"),
        ("data.prompt_column=qestion", "no column 'qestion' among 'answer', 'question'"),
        ("data.answer_column=anser", "no column 'anser' among 'answer', 'question'"),
        ("data.template={qestion}?,data.prompt_column=", "no column 'qestion'"),
        ("data.tokenizer=", "data.tokenizer is '', and so is model.source"),
        ("data.heldout_share=0", "says what to evaluate on; choose one of them"),
        ("data.max_prompt_tokens=2", "rows.jsonl, line 1: 14 tokens, data.max_prompt_tokens is 2)"),
        ("data.chat=always", "has no chat template; set data.chat_template"),
        ("data.answer_format=boxed", "no answer of format 'boxed' in '1'"),
        ("data.answer_format=hash", "'hash' does not exist; known: '', after_hashes, boxed"),
        ("data.reward_columns=('level',)", "no column 'level' among 'answer', 'question'"),
        (
            "data.stop_ids=(999,)",
            "data.stop_ids is (999,); ids go from 0 to 259 (model.vocab_size)",
        ),
        ("data.split=test", "data.split is 'test', and files of format jsonl have none"),
        ("num_steps=99999999999999999999", "choose 1000000000 or less"),
        ("compile_cache_dir=rows.jsonl/in", "rows.jsonl/in cannot be made: Not a directory; set"),
        ("observe.alerts.command=('nosuchprogram',)", "'nosuchprogram': no such program; give its"),
        (
            "observe.alerts.webhook_file=nowhere",
            "webhook_file 'nowhere': No such file or directory",
        ),
        ("observe.alerts.webhook_file=own.py", "'own.py': the file holds no URL of http; name"),
    ],
)
def test_a_wrong_setting(refused: Refused, setting: str, says: str) -> None:
    assert says in refused(*setting.replace(",data.", ";data.").split(";"))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ('{"name": "maths"}', "'maths' does not exist; known: math, exact"),
        ('{"name": "exact", "weigth": 1.0}', "'weigth' does not exist; did you mean weight?"),
        ('{"name": "exact"}, {"name": "exact"}', "'exact' twice; give each a 'label'"),
        ('{"name": "nowhere:score"}', "'nowhere:score' cannot be imported: ModuleNotFoundError"),
    ],
)
def test_a_wrong_reward(refused: Refused, tmp_path: Path, function: str, says: str) -> None:
    (tmp_path / "reward.py").write_text(OWN.replace('{"name": "exact"}', function))
    assert says in refused(config="reward.py")


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--learner.learning_rate=1", "no option --learner.learning_rate; settings begin with con"),
        ("--num_steps=3", "settings begin with config: --config.num_steps"),
        ("--lr=1", "no option --lr; did you mean --config.learner.learning_rate?"),
        ("--rollout.n=8", "did you mean --config.algorithm.group_size?"),
        ("--output_dir=x", "did you mean --workdir?"),
        ("--learner.micro_batch_promts=1", "did you mean --config.learner.micro_batch_prompts?"),
    ],
)
def test_a_setting_without_its_beginning(refused: Refused, option: str, says: str) -> None:
    assert says in refused(flags=(option,))


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("data.source=nowhere.jsonl", "no such file of format jsonl"),
        ("data.answer_column=anser", "no column 'anser' among 'answer', 'question'"),
        ("data.max_prompt_tokens=2", "40 too long"),
        ("data.split=test", "files of format jsonl have none"),
    ],
)
def test_a_dry_run_opens_the_data(
    refused: Refused, setting: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=says):
        open_data(monkeypatch, f"--config.{setting}")


def test_a_dry_run_says_what_it_read(
    refused: Refused, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_data(monkeypatch)
    assert "40 rows of rows.jsonl: " in capsys.readouterr().out
    (tmp_path / "other.py").write_text(OWN.replace('"exact"', '"nowhere:score"'))
    with pytest.raises(ConfigError, match="'nowhere:score' cannot be imported"):
        open_data(monkeypatch, file="other.py")


def test_a_dry_run_calls_reward_functions_of_the_user(
    refused: Refused, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "def short(completions, finished): return [float(finished[0] and not completions[0])]\n"
        "def last(completions, **columns): return [completions[0][-1]]\n"
    )
    for functions, line in (
        ('{"name": "mine:short"},', "'mine:short' gives 1 for an empty response to the first"),
        (
            '{"name": "mine:last"},',
            "prompt: IndexError: string index out of range (mine.py, line 2)",
        ),
        ('{"name": "mine:short", "max_concurrent": 2},', ""),
    ):
        own = OWN.replace('{"name": "exact"},', functions)
        (tmp_path / "other.py").write_text(own)
        open_data(monkeypatch, file="other.py")
        said = capsys.readouterr().out
        assert line in said and ("reward " in said) == bool(line)


def open_data(monkeypatch: pytest.MonkeyPatch, *settings: str, file: str = "own.py") -> None:
    """What `--dry_run` does after the plan."""
    argv = ["main", f"--config={file}", *settings]
    monkeypatch.setattr(sys, "argv", argv)
    with flagsaver.flagsaver():
        parse(argv)
        main._open_data(run_config(main._CONFIG.value))


def test_a_wrong_file(refused: Refused, tmp_path: Path) -> None:
    assert "name a file, or what `rlboost configs` lists" in refused(config="nope.py")
    (tmp_path / "torn.py").write_text("def get_config(:")
    assert "torn.py, line 1: SyntaxError" in refused(config="torn.py")
    assert "--config= names nothing; name a file" in refused(config="")


def test_data_and_rewards_of_a_run_that_makes_its_own(refused: Refused, tmp_path: Path) -> None:
    generated = OWN.replace('config.data.source = "rows.jsonl"', "pass")
    (tmp_path / "generated.py").write_text(generated)
    line = refused("task.name=reversal", "task.max_length=10", config="generated.py")
    assert "rewards.functions is 'exact', and task 'reversal' generates its own" in line


def test_a_wrong_fork(refused: Refused, tmp_path: Path) -> None:
    assert "is no workdir of a run; give RUN@STEP" in refused(flags=("--fork=runs/other@3",))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{")
    assert "kept; that run has none" in refused(flags=("--fork=other@3",))


def test_a_workdir_that_others_use(refused: Refused, tmp_path: Path) -> None:
    for name in ("mine", "file"):
        (tmp_path / name).mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    (tmp_path / "file" / "file").touch()
    assert "holds 1 files and no config.json" in refused(flags=("--workdir=mine",))
    assert "choose another --workdir" in refused(flags=("--workdir=file/file",))


def test_a_wheelhouse_where_no_folder_can_be(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ending:
        wheelhouse.main([f"--to={tmp_path}/file/wheels"])
    assert ending.value.code == exits.MISTAKE
    assert "wheels is no place for a folder: Not a directory" in capsys.readouterr().err

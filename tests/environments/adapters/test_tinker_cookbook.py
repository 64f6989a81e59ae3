"""tinker-cookbook, the package itself: environments in tokens, where torch is there.

Of those in its wheel one needs neither a network nor another model; the others are its own classes
over small talks (plugins/tinker_talks.py).
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.environments.adapters.tinker_cookbook import TinkerCookbook
from rlboost_jax.environments.runner import EnvironmentFailed
from rlboost_jax.platform.mistakes import ConfigError
from tests.environments.adapters.transcript import PLUGINS, Job, played, transcripts

pytest.importorskip("tinker_cookbook", reason="no tinker-cookbook: see make test-adapters")
pytest.importorskip("torch", reason="no torch")
NAME = "tinker_cookbook"
ARITHMETIC = "tinker_cookbook.recipes.math_rl.arithmetic_env:ArithmeticDatasetBuilder"
GUESS = "tinker_cookbook.recipes.multiplayer_rl.guess_number.env:GuessNumberDatasetBuilder"
TALKS = "tinker_talks:TalksDatasetBuilder"
END = "\n\nUser:"  # of a turn, as the role_colon renderer has it


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Make a tokenizer of bytes, which encodes a text alike wherever it stands."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters]
    made = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.add_special_tokens({"additional_special_tokens": names[1:2]})
    folder = tmp_path_factory.mktemp("tokenizer")
    fast.save_pretrained(folder)
    fast.folder = str(folder)
    return fast


def job(tokenizer: Any, builder: str, *texts: str, index: int = 1, **options: Any) -> Job:
    turns = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    return Job(
        name=NAME,
        options={"builder": builder, "builder_options": options},
        example={"index": index},
        turns=turns,
    )


def talk(tokenizer: Any, kind: str, *texts: str, index: int = 1) -> Job:
    return job(tokenizer, TALKS, *texts, index=index, folder=tokenizer.folder, kind=kind)


def test_whole_episodes_repeat_in_every_process_and_are_worth_what_they_are(
    tokenizer: Any,
) -> None:
    counted = [f" {n}{END}" for n in (2, 1)]
    sums = {
        "batch_size": 4,
        "model_name_for_tokenizer": tokenizer.folder,
        "renderer_name": "role_colon",
        "n_batches": 10,
        "group_size": 1,
    }
    cases = {
        "arithmetic": (job(tokenizer, ARITHMETIC, f" 91{END}", **sums), 1.0),
        "twice": (talk(tokenizer, "twice", f" ab ab{END}"), 1.0),
        "upper": (talk(tokenizer, "upper", f" AB{END}"), 0.9),
        "countdown": (talk(tokenizer, "countdown", *counted), 2.0),
        "echo": (talk(tokenizer, "echo", f" hear{END}", index=4), 1.0),
    }
    jobs = [each for each, _ in cases.values()]
    for (name, (_, worth)), said in zip(cases.items(), transcripts(jobs, times=2), strict=True):
        assert said[-1]["done"], name
        total = sum(step["reward"] for step in said[2:])
        assert total == pytest.approx(worth), (name, tokenizer.decode(said[0]), said)


def test_what_follows_a_turn_is_what_is_new(tokenizer: Any) -> None:
    said = asyncio.run(played(talk(tokenizer, "countdown", f" 2{END}", f" 1{END}")))
    assert tokenizer.decode(said[0]) == "User: Count down from 2.\n\nAssistant:"
    assert tokenizer.decode(said[2]["observation"]) == " go on\n\nAssistant:"


def test_an_environment_that_says_a_turn_otherwise_is_refused(tokenizer: Any) -> None:
    options = {
        "batch_size": 4,
        "model_name": tokenizer.folder,
        "renderer_name": "role_colon",
        "train_group_size": 1,
    }
    with pytest.raises(EnvironmentFailed, match="other tokens than were sampled"):
        asyncio.run(played(job(tokenizer, GUESS, f" Guess: 5{END}", **options)))


def test_rewards_of_a_group_are_refused(tokenizer: Any) -> None:
    with pytest.raises(EnvironmentFailed, match="Ranked rewards groups"):
        asyncio.run(played(talk(tokenizer, "ranked", "x")))


def test_evaluation_has_the_other_data_set(tokenizer: Any) -> None:
    firsts = {
        heldout: {
            tokenizer.decode(asyncio.run(played(talk(tokenizer, "twice", "x", index=index)))[0])
            for index in range(0 if heldout else 1, 64, 8)
        }
        for heldout in (False, True)
    }
    assert firsts[True] and firsts[False] and not firsts[True] & firsts[False]


@pytest.mark.parametrize(
    ("builder", "says"),
    [
        ("tinker_cookbook.recipes.math_rl.arithmetic_env:ArithmeticBuilder", "did you mean"),
        ("tinker_cookbook.no_such:DatasetBuilder", "no_such"),
        (ARITHMETIC, "batch_size"),
    ],
)
def test_a_wrong_option_is_a_line(builder: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        TinkerCookbook(builder)


def test_the_tokenizer_is_one_of_bytes(tokenizer: Any, tmp_path: Path) -> None:
    assert tokenizer.decode(tokenizer.encode("a\n\nb", add_special_tokens=False)) == "a\n\nb"

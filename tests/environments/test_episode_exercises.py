"""What a run with an environment trains on and is measured by."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs import base
from rlboost_jax.data.prompt_stream import PromptStream
from rlboost_jax.environments.episode_exercises import EpisodeExercises, Numbers, added, seed_of
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.rewards.verdict import Verdict, at_once
from rlboost_jax.settings.config_loading import run_config_from_dict
from rlboost_jax.settings.run_config import RunConfig

HERE = "tests.environments.speakers"


def run_of(**changes: Any) -> RunConfig:
    config = base.get_config()
    config.task.name = "environment"
    config.task.num_heldout = 8
    config.warmup.max_updates = 0
    config.environment.name = f"{HERE}:Adder"
    config.environment.max_given_tokens = 20
    for name, value in changes.items():
        section, _, field = name.partition("__")
        config[section][field] = value
    return run_config_from_dict(config.to_dict())


def test_numbers_that_are_held_out_are_never_trained_on() -> None:
    """Nor what an environment makes of them modulo a number that eight divides."""
    train = [Numbers(700, heldout=False)[i][0]["index"] for i in range(700)]
    heldout = [Numbers(100, heldout=True)[i][0]["index"] for i in range(100)]
    assert sorted([*train, *heldout]) == list(range(800))
    for modulus in (8, 64, 256):
        assert not {n % modulus for n in train} & {n % modulus for n in heldout}


def test_an_example_has_the_same_seed_in_each_epoch_and_no_two_the_same() -> None:
    seeds = [seed_of(3, {"index": n}) for n in range(1000)]
    assert len(set(seeds)) == 1000 and seeds == [seed_of(3, {"index": n}) for n in range(1000)]
    assert seed_of(4, {"index": 0}) != seeds[0]
    assert seed_of(3, {"a": 1, "b": 2}) == seed_of(3, {"b": 2, "a": 1})


@pytest.fixture(scope="module")
def exercises() -> Iterator[EpisodeExercises]:
    made = EpisodeExercises(run_of())
    yield made
    made.close()


def test_prompts_follow_from_seed_and_number(exercises: EpisodeExercises) -> None:
    one, other = (PromptStream(exercises, seed=0).slice(5, 40) for _ in range(2))
    assert [p.tokens.tolist() for p in one] == [p.tokens.tolist() for p in other]
    examples = [p.problem.example["index"] for p in one]
    assert len(set(examples)) == 40 and all(n % 8 for n in examples)
    heldout = exercises.heldout(0, 20)
    assert [p.problem.example["index"] for p in heldout] == [8 * n for n in range(8)]
    assert exercises.stop_ids == (1,)


def rows_of(tmp_path: Path, count: int = 40) -> dict[str, Any]:
    path = tmp_path / "rows.jsonl"
    rows = ({"question": f"what is {n}?", "answer": str(n), "level": n % 3} for n in range(count))
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return {
        "task__name": "dataset",
        "environment__name": f"{HERE}:Asks",
        "environment__max_given_tokens": 100,
        "data__source": str(path),
        "data__heldout_share": 0.3,
        "data__tokenizer": "bytes",
        "data__prompt_column": "question",
        "data__answer_column": "answer",
        "data__reward_columns": ("level",),
        "model__vocab_size": 300,
        "engine__max_prompt_tokens": 200,
    }


def test_rows_of_a_data_set_are_examples(tmp_path: Path) -> None:
    made = EpisodeExercises(run_of(**rows_of(tmp_path)))
    try:
        prompt = made.train(0)[0]
        example = prompt.problem.example
        number = example["answer"]
        assert example == {
            "question": f"what is {number}?",
            "answer": number,
            "level": int(number) % 3,
        }
        assert f"tell me: what is {number}?" in made.text(prompt.tokens)
        heldout = {p.problem.example["answer"] for p in made.heldout(0, 100)}
        train = {made.train(0)[n].problem.example["answer"] for n in range(len(made.train(0)))}
        assert heldout and not heldout & train and len(heldout | train) == 40
        assert made.record is not None and made.record["rows"] == 40
    finally:
        made.close()


def test_several_data_sets_make_the_examples_of_one_environment(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    names = ("source", "prompt_column", "answer_column", "reward_columns")
    one = {name: rows.pop(f"data__{name}") for name in names}
    rows["data__mixture"] = (
        {**one, "name": "often", "weight": 3.0},
        {**one, "name": "rarely", "reward_columns": ()},
    )
    rows["rewards__functions"] = ({"name": "exact", "label": "said"},)
    made = EpisodeExercises(run_of(**rows))
    try:
        prompts = PromptStream(made, seed=0).slice(0, 12)
        sources = [prompt.source.name for prompt in prompts if prompt.source]
        assert (sources.count("often"), sources.count("rarely")) == (9, 3)
        for prompt, source in zip(prompts, sources, strict=True):
            example = prompt.problem.example
            assert example["data_source"] == source
            assert ("level" in example) == (source == "often")
            said = np.array([*example["answer"].encode(), 257], np.int32)
            worth = at_once(Verdict(reward=0.5, accuracy=1.0))
            assert made.judged(prompt, said, worth).result().components["said"] == 1.0
        assert {p.source.name for p in made.heldout(0, 8) if p.source} == {"often", "rarely"}
    finally:
        made.close()


def test_first_prompts_are_asked_for_side_by_side() -> None:
    """Resets that wait for one another would wait for ever, one after the other."""
    made = EpisodeExercises(
        run_of(environment__name=f"{HERE}:BeginsTogether", environment__workers=1)
    )
    try:
        assert len(PromptStream(made, seed=0).slice(0, 8)) == 8
        assert len(made.heldout(0, 8)) == 8
    finally:
        made.close()


def test_reward_functions_are_added_to_what_an_episode_is_worth(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    rows["rewards__functions"] = ({"name": "exact", "weight": 2.0, "label": "said"},)
    made = EpisodeExercises(run_of(**rows))
    try:
        prompt = made.train(0)[0]
        answer = prompt.problem.example["answer"]
        said = [*f"<answer>{answer}</answer>".encode(), 257]
        worth = at_once(Verdict(reward=0.5, accuracy=1.0, components={"environment": 0.5}))
        verdict = made.judged(prompt, said, worth).result()  # type: ignore[arg-type]
        assert set(verdict.components) == {"environment", "said"}
        assert verdict.reward == 0.5 + 2.0 * verdict.components["said"]
        assert verdict.accuracy == 1.0
    finally:
        made.close()


def test_an_episode_that_is_left_out_stays_so_whatever_functions_say() -> None:
    episode = Verdict(reward=0.0, accuracy=0.0, left_out="gone", turn_rewards=())
    assert added(episode, Verdict(reward=1.0, accuracy=1.0)).left_out == "gone"


def test_functions_that_compare_responses_are_refused(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    rows["rewards__functions"] = ({"name": "exact", "per": "group"},)
    with pytest.raises(ConfigError, match="per 'group', which compares responses of one turn"):
        run_of(**rows)

"""Lessons of a warm-up: what is given in them, and what the policy is to say."""

from dataclasses import replace

import numpy as np
import pytest

from rlboost_jax.data.tasks import get_task
from rlboost_jax.data.tokenizers import ByteTokenizer
from rlboost_jax.data.vocabulary import ANSWER, BEGIN, END, EQUALS
from rlboost_jax.environments.builtin.drawers import Drawers
from rlboost_jax.environments.builtin.higher_lower import HigherLower
from rlboost_jax.environments.prompt_renderer import TokenRenderer, UnencodableObservation
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.packing import fill
from rlboost_jax.learner.setup.lessons import EpisodeLessons, TaskLessons, lessons_of
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.data_config import TaskConfig
from rlboost_jax.settings.environment_config import EnvironmentConfig


def lesson(lessons, index=0, *, worked, seed=0):
    return lessons.lesson(index, np.random.default_rng(seed), worked=worked)


def test_a_task_has_a_prompt_and_a_response():
    task = get_task(TaskConfig())
    found = lesson(TaskLessons(task, 7), 3, worked=True)
    problem = task.problem("train", 7, 3)
    np.testing.assert_array_equal(found.prompt, task.prompt_tokens(problem))
    np.testing.assert_array_equal(found.sampled_tokens, task.worked_answer(problem))
    assert len(found.runs) == 2


def episodes(make, seed=7):
    def written(turn):
        raise AssertionError("token ids are no text")

    return EpisodeLessons("mine", make, seed, renderer=TokenRenderer(112), written=written)


def of_environment(config, *, form, tokenizer):
    options = {"mean_notes": 1e9, "most_notes": 1, "form": form}
    environment = EnvironmentConfig(name="drawers", options=options, tool_format="json")
    return replace(
        config,
        environment=environment,
        data=replace(config.data, tokenizer=tokenizer),
        model=replace(config.model, vocab_size=264),
    )


def drawers(notes):
    return lambda: Drawers(mean_notes=1e9, most_notes=notes)  # always so many


def test_a_worked_episode_says_back_what_is_found():
    """By hand: the prompt names a drawer, each look gives what the next turn says."""
    found = lesson(episodes(drawers(2)), worked=True)
    parts = [run.tokens.tolist() for run in found.split()]
    assert [run.sampled for run in found.split()] == [False, True] * 4
    begin, start, equals = parts[0]
    assert (begin, equals) == (BEGIN, EQUALS)
    said = start
    for turn, given in zip(parts[1:-1:2], parts[2::2], strict=True):
        assert turn == [said, END]
        said, equals = given
        assert equals == EQUALS
    assert parts[-1] == [ANSWER, said, END]


def test_a_guess_looks_nowhere():
    found = lesson(episodes(drawers(2)), worked=False)
    assert found.runs == (3, 3) and found.tokens[3] == ANSWER


def test_what_is_given_is_no_target():
    """Each token that was sampled has one weight, at the position before it, and no other has."""
    found = lesson(episodes(drawers(3)), worked=True)
    taught = Trajectory(prompt=0, sample=0, sequence=found, advantage=0.0)
    batch, _ = fill([taught], rows=1, row_tokens=64, loss_aggregation="token_mean")
    expected = np.zeros(64)
    expected[found.sampled_positions - 1] = 1.0
    np.testing.assert_array_equal(batch.weights[0], expected)
    np.testing.assert_array_equal(batch.targets[0][batch.weights[0] > 0], found.sampled_tokens)


def test_it_follows_from_index_seed_and_rng():
    def bytes_of(index, seed, rng):
        lessons = episodes(HigherLower, seed)
        return lesson(lessons, index, worked=False, seed=rng).tokens.tobytes()

    assert bytes_of(0, 0, 0) == bytes_of(0, 0, 0)
    assert len({bytes_of(i, s, r) for i in range(3) for s in range(3) for r in range(3)}) > 20


def test_episodes_in_text_are_written_as_they_are_in_a_run(config):
    lessons = lessons_of(of_environment(config, form="text", tokenizer="bytes"))
    found = lesson(lessons, worked=True)
    parts = list(found.split())
    texts = [bytes(t for t in part.tokens.tolist() if t < 256).decode() for part in parts]
    assert texts[0].endswith("and nothing else.") and texts[1].startswith('{"name": "look"')
    assert texts[2].startswith("drawer ") and texts[2][7:] in texts[3]
    assert texts[4] == texts[5] and texts[4].isdecimal()
    assert all(part.tokens[-1] == ByteTokenizer.END for part in parts[1::2])
    assert all(part.tokens[-1] == ByteTokenizer.ASSISTANT for part in parts[::2])


class Awaited:
    """Answers to be awaited."""

    async def reset(self, example, seed):
        return np.array([BEGIN, EQUALS], np.int32)

    async def step(self, turn):
        from rlboost_jax.environments.protocol import Step

        return Step(done=turn.index == 1, observation=np.array([EQUALS], np.int32))

    def demonstration(self, rng, worked):
        return np.array([ANSWER, END], np.int32)


def test_environments_that_are_awaited():
    assert lesson(episodes(Awaited), worked=True).runs == (2, 2, 1, 2)


class Silent:
    def reset(self, example, seed):
        return "go"

    def step(self, turn):
        raise AssertionError


def test_an_environment_that_shows_nothing_is_refused():
    with pytest.raises(ConfigError, match="demonstration"):
        episodes(Silent)


def test_text_needs_a_tokenizer(config):
    lessons = lessons_of(of_environment(config, form="text", tokenizer=""))
    with pytest.raises(UnencodableObservation, match=r"data\.tokenizer"):
        lesson(lessons, worked=True)


def test_a_run_with_an_environment_has_its_episodes(config):
    found = lesson(lessons_of(of_environment(config, form="tokens", tokenizer="")), worked=True)
    assert found.runs == (3, 2, 2, 2, 2, 3)


def test_a_run_without_an_environment_has_its_task(config):
    assert isinstance(lessons_of(config), TaskLessons)

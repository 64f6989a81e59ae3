"""The service as trainer and manager see it: questions in, answers and verdicts out."""

import os
import queue
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs import base
from rlboost_jax import messages
from rlboost_jax.data.exercises import Prompt
from rlboost_jax.environments.environment_journal import JournalNotWritten
from rlboost_jax.environments.episodes import EpisodeService
from rlboost_jax.environments.hosted import EpisodeFailed
from rlboost_jax.learner.setup.lessons import taught
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.sequences.identities import Batch, Work
from rlboost_jax.settings.config_loading import run_config_from_dict
from rlboost_jax.settings.run_config import RunConfig
from tests.patience import PATIENCE_SECONDS

END = 1
HERE = "tests.environments.speakers"


def run_of(name: str = "Adder", **environment: Any) -> RunConfig:
    config = base.get_config()
    config.task.name = "environment"
    config.warmup.max_updates = 0
    config.environment.name = f"{HERE}:{name}"
    config.environment.max_given_tokens = 20
    config.environment.workers = 1
    config.environment.attempts = 2
    for key, value in environment.items():
        config.environment[key] = value
    return run_config_from_dict(config.to_dict())


class Desk:
    """A service with a manager and a trainer that are this test."""

    def __init__(self, run: RunConfig, folder: Path) -> None:
        self.run, self.folder = run, folder
        self.answers: queue.Queue[tuple[messages.Answer, int]] = queue.Queue()  # with streams
        self.errors: queue.Queue[Exception] = queue.Queue()
        self.notes: list[str] = []
        self.service = EpisodeService(run, example={"index": 0}, seed=1, note=self.notes.append)
        self.service.connect(
            folder,
            "run",
            answer=lambda answer, stream: self.answers.put((answer, stream)),
            fail=self.errors.put,
        )
        self.problems: dict[int, Prompt] = {}
        self.prompts: dict[int, list[int]] = {}
        for number in range(4):
            problem, tokens = self.service.problem({"index": number}, number + 10)
            self.problems[number] = Prompt(tokens=tokens, problem=problem)
            self.prompts[number] = tokens.tolist()

    def begin(self, batch: int = 0) -> None:
        self.service.begin(batch, lambda work: self.problems.get(work.prompt))

    def ask(
        self,
        *runs: list[int],
        sample: int = 0,
        attempt: int = 0,
        batch: int = 0,
        stream: int = 0,
    ) -> None:
        """Ask about runs, in turn sampled and given."""
        self.service.take(
            messages.Parked(
                work=work(sample, batch),
                attempt=attempt,
                turn=len(runs) // 2,
                tokens=messages.pack_tokens(np.concatenate(runs)),
                runs=tuple(map(len, runs)),
                logprobs=b"",
            ),
            stream,
        )

    def answer(self) -> messages.Answer:
        return self.answers.get(timeout=PATIENCE_SECONDS)[0]

    def said(self) -> tuple[list[int], bool]:
        answer = self.answer()
        return messages.unpack_tokens(answer.tokens).tolist(), answer.over

    def judge(self, *runs: list[int], sample: int = 0, batch: int = 0) -> Verdict:
        sequence = taught([np.array(run, np.int32) for run in ([1], *runs)])
        judged = self.service.judge(work(sample, batch), 0, sequence)
        return judged.result(PATIENCE_SECONDS)

    def killed(self) -> "Desk":
        """Another service in the same folder, as after a kill of the trainer."""
        self.service.close()
        return Desk(self.run, self.folder)


def work(sample: int, batch: int = 0) -> Work:
    return Work(seed=0, batch=Batch(batch), prompt=sample // 2, sample=sample)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(run_of(), tmp_path)
    yield made
    made.service.close()


def test_prompts_are_what_the_environment_says_first(desk: Desk) -> None:
    assert desk.prompts == {n: [2, n + 10, 3] for n in range(4)}


def test_an_answer_goes_back_on_the_stream_of_its_question(desk: Desk) -> None:
    """Also of one that came before its batch was begun, and was asked again meanwhile."""
    desk.ask([5, 6, END], stream=1)
    desk.ask([5, 7, END], stream=2)
    desk.begin()
    answer, stream = desk.answers.get(timeout=PATIENCE_SECONDS)
    assert (messages.unpack_tokens(answer.tokens).tolist(), stream) == ([3, 13, 3], 2)
    desk.ask([5, 7, END], stream=3)
    assert desk.answers.get(timeout=PATIENCE_SECONDS) == (answer, 3)


def test_turns_are_answered_and_the_whole_is_judged(desk: Desk) -> None:
    desk.begin()
    desk.ask([5, 6, END])
    assert desk.said() == ([3, 12, 3], False)
    desk.ask([5, 6, END], [3, 12, 3], [7, END])
    assert desk.said() == ([3, 20, 3], False)
    verdict = desk.judge([5, 6, END], [3, 12, 3], [7, END], [3, 20, 3], [9, 9])
    assert verdict.turn_rewards == (0.5, 0.5, 0.25), "the last one was cut off"
    assert verdict.reward == 1.25 and verdict.accuracy == 38.0
    assert [(c.turn, c.name, c.failed) for c in verdict.account.calls] == [
        (0, "total", False),
        (1, "total", False),
        (2, "total", False),
    ]


def test_a_question_that_comes_twice_is_answered_twice_and_put_once(desk: Desk) -> None:
    desk.begin()
    for _ in range(3):
        desk.ask([5, END])
    assert [desk.said() for _ in range(1)] == [([3, 6, 3], False)]
    desk.ask([5, END])
    assert desk.said() == ([3, 6, 3], False)
    assert desk.judge([5, END]).account.metrics["steps"] == 1.0


def test_questions_before_a_batch_begins_wait_for_it(desk: Desk) -> None:
    desk.ask([5, END], batch=7)
    desk.begin(7)
    assert desk.said() == ([3, 6, 3], False)


def test_what_was_answered_before_a_kill_is_not_asked_for_again(desk: Desk) -> None:
    desk.begin()
    desk.ask([5, END])
    first = desk.said()
    again = desk.killed()
    pool = again.service.pool
    opens, pool.open = pool.open, None  # no environment is touched
    again.begin()
    again.ask([5, END])
    assert again.said() == first
    pool.open = opens
    again.ask([5, END], first[0], [6, END])
    assert again.said() == ([3, 13, 3], False), "it was made again, and its turn replayed"
    again.service.close()


def test_workers_that_are_killed_leave_no_trace(desk: Desk) -> None:
    desk.begin()
    runs: list[list[int]] = [[4, END]]
    for _ in range(4):
        desk.ask(*runs)
        runs.append(desk.said()[0])
        for pid in desk.service.pool.pids:
            os.kill(pid, signal.SIGKILL)
        runs.append([4, END])
    assert runs[1::2] == [[3, 5 * n, 3] for n in range(1, 5)]


def test_several_groups_are_several_environments(desk: Desk) -> None:
    desk.begin()
    for sample in range(8):
        desk.ask([sample, END], sample=sample)
    found = {(answer := desk.answer()).work.sample: answer for _ in range(8)}
    for sample, answer in found.items():
        assert messages.unpack_tokens(answer.tokens).tolist() == [3, sample + 1, 3]


def test_one_that_fails_is_left_out_and_says_why(tmp_path: Path) -> None:
    desk = Desk(run_of("Fails"), tmp_path)
    desk.begin()
    desk.ask([5, END])
    assert desk.said() == ([], True)
    verdict = desk.judge([5, END])
    assert verdict.left_out == "step: ZeroDivisionError: of mine" and not verdict.turn_rewards
    assert desk.notes == ["environment: step: ZeroDivisionError: of mine; it is made again"]
    desk.service.close()


def test_a_run_may_stop_for_it(tmp_path: Path) -> None:
    desk = Desk(run_of("Fails", on_failure="stop"), tmp_path)
    desk.begin()
    desk.ask([5, END])
    error = desk.errors.get(timeout=PATIENCE_SECONDS)
    assert isinstance(error, EpisodeFailed) and "ZeroDivisionError" in str(error)
    desk.service.close()


def test_one_that_draws_without_the_seed_begins_again(tmp_path: Path) -> None:
    desk = Desk(run_of("Draws", attempts=100), tmp_path)
    desk.begin()
    desk.ask([5, END])
    first = desk.said()[0]
    for pid in desk.service.pool.pids:
        os.kill(pid, signal.SIGKILL)
    desk.ask([5, END], first, [6, END])
    answer = desk.answer()
    assert answer.restart and not answer.tokens and not answer.over
    desk.ask([5, END], attempt=1)
    assert not desk.answer().restart
    desk.service.close()


def test_a_journal_that_cannot_be_written_ends_the_run(desk: Desk) -> None:
    (desk.folder / "environments").write_text("a file where a folder should be")
    desk.begin()
    error = desk.errors.get(timeout=PATIENCE_SECONDS)
    assert isinstance(error, JournalNotWritten)


def test_a_question_that_contradicts_itself_ends_the_run(desk: Desk) -> None:
    desk.begin()
    wrong = messages.Parked(
        work=work(0),
        attempt=0,
        turn=0,
        tokens=messages.pack_tokens([1, 2]),
        runs=(5,),
        logprobs=b"",
    )
    desk.service.take(wrong)
    assert "runs of 5 tokens do not make up 2" in str(desk.errors.get(timeout=PATIENCE_SECONDS))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("SpeaksText", "speaks text and the run has no tokenizer; set data.tokenizer"),
        ("Long", "an episode begins with 5000 tokens, and 1 to"),
        ("Outside", "token 999 of an observation; the vocabulary is 0..111"),
        ("NeverBegins", "reset: LookupError: no data here"),
    ],
)
def test_what_no_prompt_can_be_made_of_is_a_mistake(
    tmp_path: Path, name: str, message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        Desk(run_of(name), tmp_path)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_a_group_that_no_environment_can_begin_is_left_out(tmp_path: Path) -> None:
    """By any caller: the manager about a turn, the trainer about a response. Others stay."""
    desk = Desk(run_of("BeginsAllButOne"), tmp_path)
    try:
        assert desk.prompts == {0: [2, 10, 3], 1: [2, 11, 3], 2: [END], 3: [2, 13, 3]}
        why = "cannot begin example {'index': 2}: reset: LookupError: no data here"
        assert [note for note in desk.notes if why in note and "left out" in note]
        desk.begin()
        desk.ask([5, END], sample=4)
        assert desk.said() == ([], True)
        left_out = desk.judge([5, END], sample=4)
        assert why in left_out.left_out and left_out.turn_rewards == ()
        desk.ask([5, END], sample=6)
        assert desk.said() == ([3, 6, 3], False)
    finally:
        desk.service.close()
    with pytest.raises(EpisodeFailed, match="LookupError: no data here") as raised:
        Desk(run_of("BeginsAllButOne", on_failure="stop"), tmp_path)
    assert "\n" not in str(raised.value)


def test_a_text_that_no_context_has_room_for_ends_the_episode_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer would hold the trainer's other episodes up for minutes, and fill its memory."""
    desk = Desk(speaking("SpeaksForEver"), tmp_path)
    monkeypatch.setattr(desk.service.renderer, "after", None)
    desk.begin()
    turn = [*b"41", 257]
    desk.ask(turn)
    assert desk.said() == ([], True)
    verdict = desk.judge(turn)
    assert verdict.reward == 0.5 and verdict.account.metrics["context_full"] == 1.0
    desk.service.close()


def speaking(name: str) -> RunConfig:
    """A run whose environment speaks text."""
    config = base.get_config()
    config.task.name = "environment"
    config.warmup.max_updates = 0
    config.data.tokenizer = "bytes"
    config.model.vocab_size = 300
    config.engine.max_prompt_tokens = 200
    config.environment.name = f"{HERE}:{name}"
    config.environment.max_given_tokens = 200
    return run_of_dict(config.to_dict())


def test_text_is_spoken_where_there_is_a_tokenizer(tmp_path: Path) -> None:
    desk = Desk(speaking("SpeaksText"), tmp_path)
    text = desk.service.renderer.text
    assert "say a number" in text(desk.prompts[0])
    desk.begin()
    turn = [*b"41", 257]
    desk.ask(turn)
    given, over = desk.said()
    assert "you said 41" in text(given) and not over
    desk.ask(turn, given, [*b"42", 257])
    assert desk.said() == ([], True)
    assert desk.judge(turn, given, [*b"42", 257]).accuracy == 1.0
    desk.service.close()


def run_of_dict(values: Mapping[str, Any]) -> RunConfig:
    return run_config_from_dict(values)

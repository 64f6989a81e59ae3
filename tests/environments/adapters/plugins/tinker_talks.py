"""Data sets of tinker-cookbook's kind, for its own classes of environments."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import chz
from tinker_cookbook.renderers import get_renderer, get_text_content
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer


class Twice(ProblemEnv):
    """A word, twice."""

    def __init__(self, word: str, renderer: Any) -> None:
        super().__init__(renderer)
        self.word = word

    def get_question(self) -> str:
        return f"Say {self.word} twice."

    def check_answer(self, sample_str: str) -> bool:
        return sample_str.strip() == f"{self.word} {self.word}"

    def check_format(self, sample_str: str) -> bool:
        return " " in sample_str

    def get_reference_answer(self) -> str:
        return f"{self.word} {self.word}"


class Upper(Twice):
    """A word in capitals."""

    def get_question(self) -> str:
        return f"Shout {self.word}."

    def check_answer(self, sample_str: str) -> bool:
        return sample_str.strip() == self.word.upper()


class Countdown(MessageEnv):
    """Counts down from a number to nothing, one turn each."""

    def __init__(self, top: int) -> None:
        self.left, self.messages = top, [{"role": "user", "content": f"Count down from {top}."}]

    async def initial_observation(self) -> list[Any]:
        return self.messages

    async def step(self, message: Any) -> MessageStepResult:
        right = get_text_content(message).strip() == str(self.left)
        self.left -= 1
        observed = {"role": "user", "content": "go on" if right else "no"}
        self.messages = [*self.messages, message, observed]
        return MessageStepResult(
            reward=float(right), episode_done=self.left == 0, next_messages=self.messages
        )


class Echo(Countdown):
    """Says what it heard, for two turns."""

    async def step(self, message: Any) -> MessageStepResult:
        self.left = min(self.left, 2) - 1
        observed = {"role": "user", "content": get_text_content(message)[::-1]}
        self.messages = [*self.messages, message, observed]
        return MessageStepResult(
            reward=0.5, episode_done=self.left == 0, next_messages=self.messages
        )


@dataclass(frozen=True)
class Group(EnvGroupBuilder):
    make: Callable[[], Env]

    async def make_envs(self) -> Sequence[Env]:
        return [self.make()]


class Ranked(Group):
    async def compute_group_rewards(self, trajectory_group: Any, env_group: Any) -> Any:
        return [(1.0, {}) for _ in trajectory_group]


class Talks(RLDataset):
    def __init__(self, builders: Sequence[EnvGroupBuilder]) -> None:
        self.builders = builders

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return self.builders[2 * index : 2 * index + 2]

    def __len__(self) -> int:
        return len(self.builders) // 2


@chz.chz
class TalksDatasetBuilder(RLDatasetBuilder):
    folder: str
    kind: str
    renderer: str = "role_colon"

    async def __call__(self) -> tuple[RLDataset, RLDataset]:
        renderer = get_renderer(self.renderer, get_tokenizer(self.folder))

        def builder(number: int) -> EnvGroupBuilder:
            word = "abcdefghij"[: number + 2]
            if self.kind in ("twice", "upper"):
                made = Twice if self.kind == "twice" else Upper
                return ProblemGroupBuilder(partial(made, word, renderer), 1)
            kind = Echo if self.kind == "echo" else Countdown
            group = Ranked if self.kind == "ranked" else Group

            def env() -> Env:
                return EnvFromMessageEnv(renderer=renderer, message_env=kind(number + 2))

            return group(env)

        made = [builder(number) for number in range(8)]
        return Talks(made[:6]), Talks(made[6:])

"""An environment whose user is a program: it says higher or lower."""

import random
from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["GuessingEnv", "GuessingTasks"]


class NumberData(vf.TaskData):
    seed: int


class NumberTask(vf.Task[NumberData, vf.State, vf.TaskConfig]):
    pass


class GuessingConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessingEnv(vf.Env[GuessingConfig]):
    async def run(self, task: NumberTask, agents: vf.Agents) -> None:
        number = random.Random(task.data.seed).randint(1, 30)
        won = 0.0
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            for _ in range(8):
                if segment.terminated:
                    break
                said = segment.last_reply.strip()
                if said == str(number):
                    won = 1.0
                    break
                guess = int(said) if said.isdigit() else 0
                segment = await interaction.turn("higher" if guess < number else "lower")
        interaction.trace.record_reward("won", won, 1.0)


class GuessingTasks(vf.Taskset[NumberTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self) -> Iterator[NumberTask]:
        seed = 0
        while True:
            yield NumberTask(
                NumberData(prompt=f"Game {seed}: a number from 1 to 30.", seed=seed),
                self.config.task,
            )
            seed += 1

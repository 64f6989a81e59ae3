"""A taskset that stops an episode by a rule of its own, and rewards how far it came."""

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["TalkEnv", "TalkTasks"]


class TalkTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.stop
    async def after_two(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 2

    @vf.reward(weight=0.25)
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class TalkConfig(vf.EnvConfig):
    speaker: vf.AgentConfig = vf.AgentConfig()


class TalkEnv(vf.Env[TalkConfig]):
    async def run(self, task: TalkTask, agents: vf.Agents) -> None:
        async with agents.speaker.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                segment = await interaction.turn("go on")


class TalkTasks(vf.Taskset[TalkTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self) -> Iterator[TalkTask]:
        number = 0
        while True:
            number += 1
            yield TalkTask(vf.TaskData(prompt=f"Talk {number}."), self.config.task)

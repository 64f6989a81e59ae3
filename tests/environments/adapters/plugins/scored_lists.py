"""Two drafts of a list, judged after the episode across both turns; a list that is none fails."""

import json
from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["DraftsEnv", "ListTasks"]


class ListData(vf.TaskData):
    answer: list[int]


class ListTask(vf.Task[ListData, vf.State, vf.TaskConfig]):
    pass


class DraftsConfig(vf.EnvConfig):
    writer: vf.AgentConfig = vf.AgentConfig()


class DraftsEnv(vf.Env[DraftsConfig]):
    async def run(self, task: ListTask, agents: vf.Agents) -> None:
        async with agents.writer.interaction(task) as interaction:
            drafts = [(await interaction.turn()).last_reply]
            drafts.append((await interaction.turn("Once more.")).last_reply)
        interaction.trace.info["drafts"] = drafts

    async def finalize(self, task: ListTask, episode: vf.Episode) -> None:
        (trace,) = episode.traces
        for name, draft, weight in zip(
            ("first", "second"), trace.info["drafts"], (0.25, 0.5), strict=True
        ):
            try:
                numbers = json.loads(draft)
            except ValueError:
                raise RuntimeError("the ledger is closed") from None
            right = (
                float(numbers == task.data.answer)
                if name == "second"
                else float(sorted(numbers) == task.data.answer)
            )
            trace.record_reward(name, right, weight)


class ListTasks(vf.Taskset[ListTask, vf.TasksetConfig]):
    def load(self) -> Iterator[ListTask]:
        for top in range(3, 40):
            yield ListTask(
                ListData(prompt=f"Sort the numbers to {top}.", answer=list(range(1, top + 1))),
                self.config.task,
            )

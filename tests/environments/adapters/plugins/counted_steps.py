"""A taskset with a tool whose state is the episode's, and a stop."""

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["CountedSteps"]


class Counter(vf.Toolset[vf.ToolsetConfig, vf.State]):
    def __init__(self, config: vf.ToolsetConfig) -> None:
        super().__init__(config)
        self.total = 0

    @vf.tool
    async def add(self, amount: int) -> str:
        """Add to the total."""
        self.total += amount
        return f"total {self.total}"


class StepData(vf.TaskData):
    target: int


class StepTask(vf.Task[StepData, vf.State, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Counter(vf.ToolsetConfig())]

    @vf.reward
    async def reached(self, trace: vf.Trace) -> float:
        said = [m.content for m in trace.branches[-1].messages if m.role == "tool"]
        return float(bool(said) and said[-1] == f"total {self.data.target}")


class CountedSteps(vf.Taskset[StepTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self) -> Iterator[StepTask]:
        target = 3
        while True:
            target += 2
            yield StepTask(StepData(prompt=f"Count to {target}.", target=target), self.config.task)


if __name__ == "__main__":
    Counter.run()

"""A taskset of single turns: say a word backwards."""

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["ReversedWords"]
WORDS = ("stone", "river", "lamp", "orchard", "cloud", "ember", "field", "north", "pearl", "quill")


class WordData(vf.TaskData):
    answer: str


class WordTask(vf.Task[WordData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def exact(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.reward(weight=0.1)
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply.strip()) == len(self.data.answer))

    @vf.metric
    async def num_characters(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class WordConfig(vf.TasksetConfig):
    repeats: int = 4


class ReversedWords(vf.Taskset[WordTask, WordConfig]):
    def load(self) -> Iterator[WordTask]:
        for repeat in range(self.config.repeats):
            for word in WORDS:
                asked = word * (repeat + 1)
                yield WordTask(
                    WordData(prompt=asked, system_prompt="Backwards, please.", answer=asked[::-1]),
                    self.config.task,
                )

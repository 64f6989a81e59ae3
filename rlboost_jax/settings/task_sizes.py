"""How long the prompts and responses of each task can be.

The checks of a configuration need these before the task itself is imported, so they live
here and `rlboost_jax/data` builds its tasks on them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rlboost_jax.settings.data_config import TaskConfig

DATASET: Final = "dataset"  # task.name of a run whose prompts are those of config.data
ENVIRONMENT: Final = "environment"  # task.name of a run whose environment makes its examples

NUM_SPECIALS: Final = 5  # padding, end, beginning, "=", "#"
FIRST_COUNTER: Final = 16  # counter values 0, 1, 2, … from here on
NUM_COUNTERS: Final = 96
VOCAB_SIZE: Final = FIRST_COUNTER + NUM_COUNTERS
MIN_LENGTH: Final = 2  # of a problem, in its own unit


@dataclass(frozen=True, kw_only=True)
class TaskSize:
    vocab_size: int
    max_prompt_tokens: int
    max_response_tokens: int  # of the longest worked answer


def _clock(task: TaskConfig) -> TaskSize:
    # <bos> x a [n] =      and n times "[k] v", then # v <eos>
    return TaskSize(
        vocab_size=VOCAB_SIZE, max_prompt_tokens=5, max_response_tokens=2 * task.max_length + 3
    )


def _running_sum(task: TaskConfig) -> TaskSize:
    # <bos> d … d =        and n times "[k] s", then # s <eos>
    return TaskSize(
        vocab_size=VOCAB_SIZE,
        max_prompt_tokens=task.max_length + 2,
        max_response_tokens=2 * task.max_length + 3,
    )


def _reversal(task: TaskConfig) -> TaskSize:
    # <bos> d … d =        and n times "[k] d", then # d … d <eos>
    return TaskSize(
        vocab_size=VOCAB_SIZE,
        max_prompt_tokens=task.max_length + 2,
        max_response_tokens=3 * task.max_length + 2,
    )


TASK_SIZES: Final[Mapping[str, Callable[[TaskConfig], TaskSize]]] = {
    "clock": _clock,
    "running_sum": _running_sum,
    "reversal": _reversal,
}


def task_size(task: TaskConfig) -> TaskSize:
    """Return the sizes of a task; raises KeyError for an unknown one."""
    return TASK_SIZES[task.name](task)

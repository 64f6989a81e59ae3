"""Well-known data sets: where they are, what their columns hold, how an answer is judged.

A preset fills the fields of `config.data` that a run leaves empty, and `config.rewards.functions`
where there are none. It is all there is to a data set: another one needs a record, no code.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from rlboost_jax.settings.data_config import DataConfig
from rlboost_jax.settings.rewards_config import RewardConfig
from rlboost_jax.settings.run_config import RunConfig

BUILT_IN_REWARDS: Final = (
    "math",
    "exact",
    "regex",
    "format",
    "length",
    "countdown",
    "code",
    "http",
)

_BOXED: Final = "Please reason step by step, and put your final answer within \\boxed{{}}."


def _preset(rewards: tuple[RewardConfig, ...], **data: Any) -> Mapping[str, Any]:
    return MappingProxyType({**data, "rewards": rewards})


_MATH: Final = (RewardConfig(name="math", options={"boxed_only": True}),)

DATA_PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    # Cobbe et al. 2021, arXiv:2110.14168. question; answer: a solution that ends in "#### 42".
    "gsm8k": _preset(
        _MATH,
        source="openai/gsm8k",
        subset="main",
        split="train",
        heldout_split="test",
        template="{question}\n" + _BOXED,
        answer_column="answer",
        answer_format="after_hashes",
    ),
    # Hendrycks et al. 2021, arXiv:2103.03874. problem, level, type; solution with \boxed{…}.
    "math": _preset(
        _MATH,
        source="DigitalLearningGmbH/MATH-lighteval",
        split="train",
        heldout_split="test",
        template="{problem}\n" + _BOXED,
        answer_column="solution",
        answer_format="boxed",
    ),
    # problem, solution, answer, problem_type, question_type, …; no test split.
    "openr1_math": _preset(
        _MATH,
        source="open-r1/OpenR1-Math-220k",
        subset="default",
        split="train",
        template="{problem}\n" + _BOXED,
        answer_column="answer",
    ),
    # problem, answer, solution; no test split.
    "deepscaler": _preset(
        _MATH,
        source="agentica-org/DeepScaleR-Preview-Dataset",
        split="train",
        template="{problem}\n" + _BOXED,
        answer_column="answer",
    ),
    # target: a number; nums: three or four numbers to make it of; no test split.
    "countdown": _preset(
        (RewardConfig(name="countdown"), RewardConfig(name="format", weight=0.1)),
        source="Jiayi-Pan/Countdown-Tasks-3to4",
        split="train",
        template=(
            "Using the numbers {nums}, create an equation that equals {target}. You can use "
            "+, -, * and /, and each number must be used exactly once. Show your work in "
            "<think> </think> tags, and return the final equation in <answer> </answer> tags, "
            "for example <answer> (1 + 2) / 3 </answer>."
        ),
        reward_columns=("nums", "target"),
    ),
}


def resolved(run: RunConfig) -> tuple[DataConfig, tuple[RewardConfig, ...]]:
    """Return the data and reward functions of a run, with its preset and model applied.

    Where a run names its own `source`, the preset's place of it (subset, splits) does not apply.
    """
    data = dataclasses.replace(run.data, tokenizer=run.data.tokenizer or run.model.source)
    if not data.preset:
        return data, run.rewards.functions
    preset = dict(DATA_PRESETS[run.data.preset])
    rewards = run.rewards.functions or preset.pop("rewards")
    preset.pop("rewards", None)
    if run.data.source:
        for name in ("source", "subset", "split", "heldout_split"):
            preset.pop(name, None)
    if run.data.heldout_source:
        preset.pop("heldout_split", None)
    if run.data.prompt_column or run.data.messages_column:
        preset.pop("template", None)
    empty = {name: value for name, value in preset.items() if not getattr(run.data, name)}
    return dataclasses.replace(data, **empty), rewards

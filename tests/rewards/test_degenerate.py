"""Responses that no person would write: what reads them takes one pass, however long they are."""

import random
import re
from collections.abc import Callable

import pytest

from rlboost_jax.rewards.answer_extraction import after_hashes, answer_tag, boxed
from rlboost_jax.workers.sandbox import NotContained
from tests.computing import limited

try:
    from rlboost_jax.rewards.code import program_in
except NotContained as error:
    pytest.skip(str(error), allow_module_level=True)

LENGTH = 2_000_000  # characters: what is quadratic takes an hour and more for them
CPU_SECONDS = 20.0

# What they mean, in regular expressions that take a time quadratic in the length.
BLOCK = re.compile(r"^[ \t]*```[ \t]*(\S*)[^\n]*\n(.*?)```", re.DOTALL | re.MULTILINE)
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def slow_program(text: str) -> str:
    blocks = BLOCK.findall(text)
    for languages in (("python", "py", "python3"), ("",)):
        if found := [inside for language, inside in blocks if language.lower() in languages]:
            return str(found[-1])
    return text


def slow_answer(text: str) -> str | None:
    found = ANSWER.findall(text)
    return found[-1].strip() if found else None


@pytest.mark.parametrize(
    ("read", "slow", "parts"),
    [
        (
            program_in,
            slow_program,
            ("```", "``", "`", "py", "python", "PY", "bash", "\n", "\n", " ", "\t", "x = 1", "\r"),
        ),
        (
            answer_tag,
            slow_answer,
            ("<answer>", "</answer>", "<answer", "answer>", "a", " ", "\n"),
        ),
    ],
)
def test_texts_mean_what_they_meant(
    read: Callable[[str], str | None], slow: Callable[[str], str | None], parts: tuple[str, ...]
) -> None:
    draw = random.Random(7)
    found = 0
    for _ in range(20_000):
        text = "".join(draw.choices(parts, k=draw.randrange(30)))
        meant = slow(text)
        assert read(text) == meant, text
        found += meant not in (None, text)
    assert found > 500, "most texts held nothing"


@pytest.mark.parametrize(
    "text",
    [
        "```" + "a" * LENGTH,
        "```" + " " * LENGTH,
        "```py\n" + "a" * LENGTH,
        "``` a\n" * (LENGTH // 6),
        (" " * 1000 + "\n") * (LENGTH // 1001),
        "`" * LENGTH,
        "<answer>" * (LENGTH // 8),
        "<answer></answer>" * (LENGTH // 17) + "<answer>",
        "\\boxed{" * (LENGTH // 7),
        "#### 1," + "1," * (LENGTH // 2),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_any_length_is_read_in_one_pass(text: str) -> None:
    with limited(CPU_SECONDS):
        for read in (program_in, answer_tag, boxed, after_hashes):
            read(text)

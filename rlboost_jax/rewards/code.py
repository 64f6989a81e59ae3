"""Reward for programs that the policy writes: tests in a sandbox."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.bounded_files import Unreadable
from rlboost_jax.platform.mistakes import plain
from rlboost_jax.rewards.references import absent
from rlboost_jax.settings.foreign_keys import refuse_unknown
from rlboost_jax.workers.sandbox import (
    MEMORY_MB,
    SECONDS,
    NotStarted,
    is_required,
    passes_apart,
    run_contained,
)

_FENCE = re.compile(r"^[ \t]*```[ \t]*", re.MULTILINE)
_LANGUAGE = re.compile(r"\S*")
_PYTHON = ("python", "py", "python3")
# What data sets call tests by standard input and output; whatever else they say of a test would
# change what it asks for (a function's name, say), and is an error.
_KINDS = {"type": ("stdin_stdout", "stdin"), "testtype": ("stdin",)}


def code(
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    tests: Sequence[Any],
    seconds: float = SECONDS,
    memory_mb: int = MEMORY_MB,
    partial: bool = False,
) -> list[float | None]:
    """1 if the program in the completion (`program_in`) passes all tests; None without tests.

    A program that raises, hangs, exits with another code than 0 or takes too much fails the test it
    does so in.

    Args:
        tests: per response, one of: Python that raises where the program is wrong, such as
            asserts (a text, or a list of texts that are a test each); a list of
            {"input": …, "output": …} for standard input and output; {"inputs": […],
            "outputs": […]}; or one of these as JSON. None, "" and an empty list: the row has none.
        seconds: for all tests of a response together.
        partial: the share of tests passed, in place of all or nothing.
    """
    if not (seconds > 0 and memory_mb > 0):
        raise ValueError(f"seconds is {seconds} and memory_mb {memory_mb}; choose more than 0")
    return [
        judged(completion, asked, seconds=seconds, memory_mb=memory_mb, partial=partial)
        if (asked := cases(given))
        else None
        for completion, given in zip(completions, tests, strict=True)
    ]


def program_in(completion: str) -> str:
    """The last Python block, or else the last without a language, or else the whole text."""
    blocks = list(_blocks(completion))
    for languages in (_PYTHON, ("",)):
        found = [text for language, text in blocks if language.lower() in languages]
        if found:
            return found[-1]
    return completion


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """(language, content) of each fenced block that is closed.

    One pass, whatever the policy wrote: no character is looked at more than a few times.
    """
    at = 0
    while (fence := _FENCE.search(text, at)) is not None:
        line_end = text.find("\n", fence.end())
        end = text.find("```", line_end + 1)
        if line_end < 0 or end < 0:
            return
        language = _LANGUAGE.match(text, fence.end())
        assert language is not None  # "" matches too
        yield language[0], text[line_end + 1 : end]
        at = end + 3


def cases(tests: Any) -> list[str | tuple[str, str]]:
    """Convert tests to Python texts to run after the program, or (standard input, standard output).

    Raises ValueError.
    """
    if absent(tests) or (isinstance(tests, str) and not tests.strip()):
        return []
    if isinstance(tests, str):
        try:
            parsed = foreign_json.decode(tests, "tests", object, halves=True)
        except Unreadable:
            return [tests]
        return cases(parsed) if isinstance(parsed, list | dict | None) else [tests]
    if isinstance(tests, bytes):
        return cases(tests.decode())
    if isinstance(tests, dict) and {"inputs", "outputs"} <= tests.keys():
        _check_keys(tests, ("inputs", "outputs"))
        if not all(isinstance(tests[name], list | tuple) for name in ("inputs", "outputs")):
            raise ValueError("inputs and outputs of tests must be lists")
        pairs = zip(tests["inputs"], tests["outputs"], strict=True)
        tests = [{"input": i, "output": o} for i, o in pairs]
    if not isinstance(tests, list):
        raise ValueError(
            f"tests are {str(tests)[:40]!r}; see docs/how-to/rewards.md for their forms"
        )
    return [_case(test) for test in tests]


def _case(test: Any) -> str | tuple[str, str]:
    if isinstance(test, str) and test.strip():
        return test
    if isinstance(test, dict) and {"input", "output"} <= test.keys():
        _check_keys(test, ("input", "output"))
        if test["output"] is not None:
            return _said(test["input"]), _said(test["output"])
    raise ValueError(f"a test is {str(test)[:40]!r}; see docs/how-to/rewards.md for their forms")


def _check_keys(test: dict[str, Any], own: tuple[str, ...]) -> None:
    """Raise ValueError for keys of a test that are not supported."""
    refuse_unknown(test, (*own, *_KINDS), "a test of the column 'tests'", error=ValueError)
    for name, kinds in _KINDS.items():
        if test.get(name) is not None and test[name] not in kinds:
            raise ValueError(
                f"a test has {name} {plain(repr(test[name]))}; known: {', '.join(kinds)}"
            )


def _said(value: Any) -> str:
    """Text of standard input or output: "" for None, a line for each member of a list."""
    if isinstance(value, list):
        return "\n".join(map(_said, value))
    return "" if value is None else str(value)


def judged(
    completion: str,
    tests: Sequence[str | tuple[str, str]],
    *,
    seconds: float,
    memory_mb: int,
    partial: bool,
    passes: Callable[..., bool] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> float:
    """Compute the reward of one completion.

    Args:
        tests: see `cases`.
        passes: runs one; None: in a process.
    """
    run = passes or _passes
    program, passed = program_in(completion), 0
    end = clock() + seconds
    for number, test in enumerate(tests):
        left = end - clock()
        if left <= 0:
            break
        try:
            good = run(program, test, seconds=left, memory_mb=memory_mb)
        except NotStarted:
            if number == 0 or clock() < end:
                raise
            good = False  # those before took the time that the start of this one needs
        if good:
            passed += 1
        elif not partial:
            return 0.0
    return passed / len(tests) if partial else float(passed == len(tests))


def _passes(program: str, test: str | tuple[str, str], *, seconds: float, memory_mb: int) -> bool:
    required = is_required()
    if isinstance(test, str):
        return passes_apart(program, test, seconds=seconds, memory_mb=memory_mb, required=required)
    ran = run_contained(
        program, stdin=test[0], seconds=seconds, memory_mb=memory_mb, required=required
    )
    return ran.completed and _lines(ran.output) == _lines(test[1])


def _lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.split("\n") if line.strip()]


# A host where programs cannot be contained is found out before the first response.
run_contained("", seconds=20.0, memory_mb=MEMORY_MB, required=is_required())

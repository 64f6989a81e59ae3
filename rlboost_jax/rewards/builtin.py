"""Reward functions that come with the library, in the form that a run's own have, too.

`function(prompts, completions, *, columns…, options…) -> list[float]`: lists with an entry per
response, columns of the data set by their names, options from the configuration. Each says
nothing of the others and keeps nothing between calls. None in place of a number says nothing of a
response: its row has no reference.
"""

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Final

from rlboost_jax.rewards.answer_extraction import FORMATS, answer_tag
from rlboost_jax.rewards.references import absent, alternatives, exact_number, listed

# Of `rewards.functions`' names; "http" runs in the trainer, see `http_rewards.py`.
BUILT_IN: Final[Mapping[str, str]] = {
    "math": "rlboost_jax.rewards.math_answers:math",
    "exact": "rlboost_jax.rewards.builtin:exact",
    "regex": "rlboost_jax.rewards.builtin:regex",
    "format": "rlboost_jax.rewards.builtin:layout",
    "length": "rlboost_jax.rewards.builtin:length",
    "countdown": "rlboost_jax.rewards.builtin:countdown",
    "code": "rlboost_jax.rewards.code:code",
}


def exact(
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    answer: Sequence[object],
    extract: str = "",
    ignore_case: bool = False,
) -> list[float | None]:
    """1 if the answer equals the reference, white space aside; None without a reference.

    Args:
        answer: a text; or what else `references.alternatives` makes texts of, any of them.
        extract: where it stands in the completion: "" all of it, "boxed", "after_hashes",
            "answer_tag".
    """

    if extract not in FORMATS:
        known = ", ".join(map(repr, FORMATS))
        raise ValueError(f"extract is {extract!r}; choose one of {known}")

    def plain(text: str) -> str:
        text = " ".join(text.split())
        return text.casefold() if ignore_case else text

    def judged(given: str | None, wanted: object) -> float | None:
        texts = alternatives(wanted)
        if not texts:
            return None
        whole = (wanted,) if isinstance(wanted, str) else ()
        return float(given is not None and plain(given) in map(plain, (*whole, *texts)))

    found = [FORMATS[extract](completion) for completion in completions]
    return [judged(given, wanted) for given, wanted in zip(found, answer, strict=True)]


def regex(
    prompts: Sequence[str], completions: Sequence[str], *, pattern: str, whole: bool = False
) -> list[float]:
    """1 if the pattern is found in the completion, or with `whole` matches all of it."""
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise ValueError(f"pattern {pattern!r} is no regular expression: {error}") from None
    match = compiled.fullmatch if whole else compiled.search
    return [float(match(completion) is not None) for completion in completions]


def layout(
    prompts: Sequence[str], completions: Sequence[str], *, tags: str = "think,answer"
) -> list[float]:
    """1 if the completion is one block of each tag in this order, and nothing else.

    With the default it is `<think>…</think> <answer>…</answer>`. A template may have opened the
    first block in the prompt already: its opening tag may be absent.
    """
    names = [name.strip() for name in tags.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(f"tags is {tags!r}; give names, each once, such as 'think,answer'")
    return [float(_in_blocks(completion, names)) for completion in completions]


def _in_blocks(text: str, names: Sequence[str]) -> bool:
    rest = text.strip()
    first = f"<{names[0]}>"
    rest = rest if first in text else first + rest
    for name in names:
        opening, closing = f"<{name}>", f"</{name}>"
        if text.count(opening) > 1 or text.count(closing) != 1 or not rest.startswith(opening):
            return False
        _, closed, rest = rest.partition(closing)
        if not closed:  # it stands before its opening tag
            return False
        rest = rest.lstrip()
    return not rest


def length(
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    completion_ids: Sequence[Sequence[int]],
    free_tokens: int,
    limit_tokens: int,
) -> list[float]:
    """0 up to `free_tokens`, from there in equal steps down to -1 at `limit_tokens`.

    Source: Yu et al. 2025 (DAPO), arXiv:2503.14476, equation 13.
    """
    if not 0 <= free_tokens < limit_tokens:
        raise ValueError(f"free_tokens {free_tokens} is not below limit_tokens {limit_tokens}")
    over = [(len(ids) - free_tokens) / (limit_tokens - free_tokens) for ids in completion_ids]
    return [-min(1.0, max(0.0, share)) for share in over]


_OPERATIONS: Final[Mapping[type, Callable[[Fraction, Fraction], Fraction]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_LONGEST_EQUATION: Final = 200  # characters; deeper nesting would be no equation of six numbers


def countdown(
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    nums: Sequence[object],
    target: Sequence[object],
) -> list[float | None]:
    """1 where `<answer>` holds an equation of all the numbers, each once, that gives the target.

    Args:
        nums: a list of numbers, or of texts that are numbers, for each; None: nothing to say.
        target: a number or a text that is one; a list accepts any of its members.

    Raises:
        ValueError: they are no numbers.
    """

    def judged(given: str | None, listed_nums: object, wanted: object) -> float | None:
        if absent(listed_nums) or absent(wanted):
            return None
        numbers = [exact_number(each) for each in listed(listed_nums)]
        wanted = wanted.tolist() if hasattr(wanted, "tolist") else wanted
        targets = [exact_number(t) for t in (wanted if isinstance(wanted, list) else [wanted])]
        return float(given is not None and any(_solves(given, numbers, t) for t in targets))

    found = [answer_tag(completion) for completion in completions]
    return [judged(*each) for each in zip(found, nums, target, strict=True)]


def _solves(equation: str, numbers: Sequence[Fraction], target: Fraction) -> bool:
    equation = equation.partition("=")[0].strip()
    if len(equation) > _LONGEST_EQUATION:
        return False
    used: list[int] = []
    try:
        value = _value(ast.parse(equation, mode="eval").body, used)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return False
    return value == target and Counter(used) == Counter(numbers)


def _value(node: ast.expr, used: list[int]) -> Fraction:
    """Exact value of an equation; the numbers in it are appended to `used`."""
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            used.append(number)
            return Fraction(number)
        case ast.BinOp(left, operation, right) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_value(left, used), _value(right, used))
    raise ValueError("not of numbers, +, -, * and /")

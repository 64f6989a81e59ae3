"""Mathematical answers, judged by math-verify (extra `math`): 1/2, 0.5 and \\frac{1}{2} are one.

https://github.com/huggingface/Math-Verify. Its own time limits are switched off: they use
signals, and the caller limits the time anyway.
"""

import logging
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from math_verify import parse, verify
from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig

from rlboost_jax.rewards.answer_extraction import after_thinking, answer_tag, last_boxes
from rlboost_jax.rewards.as_latex import as_latex
from rlboost_jax.rewards.references import (
    MOST_EXPONENT,
    NUMBER,
    alternatives,
    number,
    written_out,
)

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of the limits switched off

_COMMANDS, _OPENED = ("\\boxed", "\\fbox"), ("\\boxed{", "\\fbox{")
_DELIMITER = re.compile(r"(?<!\\)\$")  # of mathematics; \$ is a dollar
_WITH_WORDS = re.compile(r"[\sA-Za-z$€£¥₹°%:=]*[+-]?[0-9][0-9,]*(?:\.[0-9]*)?[\sA-Za-z$€£¥₹°%.]*")
_SPACES = re.compile(r"^(?:~|\\[ ,;!])+|(?:~|\\[ ,;!]|\\$)+$")  # of LaTeX, around a box's content
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_TENS = re.compile(  # 6.02 × 10^{23}, in the ways that it is written
    r"(?P<factor>[+-]?[0-9]*\.?[0-9]+)\s*(?:\\times|\\cdot|×|\*)\s*10\s*(?:\^|\*\*)\s*"
    r"(?:\{\s*(?P<braced>[+-]?[0-9]{1,3})\s*\}|(?P<bare>[+-]?[0-9]{1,3}))"
)
_SCIENTIFIC = re.compile(
    r"(?<![\w.\\])[+-]?[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]{1,3}(?![\w^]|\.[0-9])"
)
_ANYWHERE = (LatexExtractionConfig(), ExprExtractionConfig())
_BOXED = (LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False),)
# Whole numbers are equal in all digits. Others to nine, or to the six places that math-verify
# compares where these say something of the number at all.
_SAME_SHARE, _SAME_PLACES, _LEAST_SHARE = Decimal("1e-9"), Decimal("5e-7"), Decimal("1e-3")
_TINY = Decimal("1e-3")  # below it six places tell little


def math(
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    answer: Sequence[object],
    boxed_only: bool = False,
) -> list[float | None]:
    r"""1 where the answer equals the reference as mathematics; None where there is no reference.

    What follows `</think>` is the answer, if there is one in it. Where it has boxes, the last one
    counts, with those that it is listed with (`\boxed{2} and \boxed{3}`). One without an end is
    no answer. Without a box, what stands in the last `<answer>…</answer>` goes before all else.

    Args:
        answer: a text or a number; or what else `references.alternatives` makes texts of: any.
        boxed_only: the answer counts in `\boxed{…}` or after a phrase such as "the answer is";
            otherwise the last expression will do.

    Raises:
        ValueError: the reference is no mathematics.
    """
    return [
        _judged(completion, wanted, boxed_only)
        for completion, wanted in zip(completions, answer, strict=True)
    ]


def _judged(completion: str, reference: object, boxed_only: bool) -> float | None:
    if isinstance(reference, bool):
        raise ValueError(f"the reference answer {reference} is no mathematics")
    texts = dict.fromkeys(map(_written_out, alternatives(reference)))
    if not texts:
        return None
    mistakes = []
    for wanted in texts:
        try:
            if _right(completion, wanted, boxed_only):
                return 1.0
        except ValueError as error:
            mistakes.append(error)
    if len(mistakes) == len(texts):
        raise mistakes[0]
    return 0.0


def _right(completion: str, wanted: str, boxed_only: bool) -> bool:
    final = after_thinking(completion)
    tagged = answer_tag(final) if last_boxes(final) is None else None
    for text in dict.fromkeys((tagged or final, final, completion)):
        boxes = last_boxes(text)
        if boxes is not None:
            return bool(boxes) and _boxes_right(boxes, text, wanted, boxed_only)
        if given := _parsed(text, wanted, boxed_only):
            return _equal(_reference(wanted), given, wanted)
    _reference(wanted)  # raises, whatever was answered
    return False


def _boxes_right(boxes: Sequence[str], text: str, wanted: str, boxed_only: bool) -> bool:
    """Whether boxes match in an obvious way: most answers, a hundred times faster than parsing."""
    commands, opened = (sum(map(text.count, these)) for these in (_COMMANDS, _OPENED))
    only = commands == opened == 1
    if len(boxes) == 1:
        (content,) = boxes
        if content and content == wanted.strip():
            return True
        given, right = _number(content), number(wanted)
        if given is not None and right is not None:
            close = _close(given, right)
            if close or boxed_only or not only:
                return close
    if not only:
        text = ", ".join(f"\\boxed{{{content}}}" for content in boxes)
    return _equal(_reference(wanted), _parsed(text, wanted, boxed_only), wanted)


def _reference(answer: str) -> Any:
    text = as_latex(answer)
    written = text if _DELIMITER.search(text) else f"${text}$"
    parsed = parse(written, parsing_timeout=None)
    if not _WITH_WORDS.fullmatch(text) and not _expressions(
        parse(written, extraction_config=_ANYWHERE[:1], parsing_timeout=None)
    ):
        parsed = [each for each in parsed if isinstance(each, str)]  # a number found in it
    if not parsed:
        raise ValueError(f"the reference answer {answer[:40]!r} is no mathematics")
    return parsed


def _expressions(parsed: Sequence[Any]) -> list[Any]:
    return [each for each in parsed if not isinstance(each, str)]


def _parsed(text: str, wanted: str, boxed_only: bool) -> Any:
    text = as_latex(text)
    if number(wanted) is not None:  # 1e-5 is a number then, and not a multiple of e
        text = _SCIENTIFIC.sub(lambda found: _written_out(found[0]), text)
    extraction = _BOXED if boxed_only else _ANYWHERE
    return parse(text, extraction_config=extraction, parsing_timeout=None)


def _equal(reference: Any, given: Any, wanted: str) -> bool:
    if not given:
        return False
    right = number(wanted)
    value = None if right is None else _value(given[0])
    if right is not None and value is not None and (_close(value, right) or abs(right) < _TINY):
        return _close(value, right)
    return bool(verify(reference, given, timeout_seconds=None))


def _value(expression: Any) -> Decimal | None:
    """The value of a parsed answer, if it is a real number."""
    if not getattr(expression, "is_number", False) or not expression.is_real:
        return None
    text = str(expression.evalf(30))
    value = Decimal(text) if NUMBER.fullmatch(text) else None
    if value and expression.is_integer and value.adjusted() <= MOST_EXPONENT:
        return Decimal(int(expression))
    return value


def _close(given: Decimal, right: Decimal) -> bool:
    off = abs(given - right)
    if not off or (given == given.to_integral_value() and right == right.to_integral_value()):
        return not off
    return off <= _SAME_SHARE * abs(right) or (
        off <= _SAME_PLACES and off <= _LEAST_SHARE * abs(right)
    )


def _number(text: str) -> Decimal | None:
    """The value of a box that holds nothing but a number."""
    text = _SPACES.sub("", text)
    if (tens := _TENS.fullmatch(text)) is not None:
        return Decimal(tens["factor"]).scaleb(int(tens["braced"] or tens["bare"]))
    return number(text)


def _written_out(text: str) -> str:
    if _THOUSANDS.fullmatch(text.strip()):
        text = text.replace(",", "")
    value = number(text)
    return text if value is None else written_out(value)


# sympy and the grammar build their tables at the first use; every call starts from here.
assert _right("It is $\\boxed{0.5}$.", "\\frac{1}{2}", boxed_only=False)

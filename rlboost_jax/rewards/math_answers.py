"""Mathematical answers, judged by math-verify (extra `math`): 1/2, 0.5 and \\frac{1}{2} are one.

https://github.com/huggingface/Math-Verify. Its own time limits are switched off: they use
signals, and the caller limits the time anyway.
"""

import logging
import re
from collections.abc import Sequence
from typing import Any

from math_verify import parse, verify
from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig

from rlboost_jax.rewards.answers import boxed

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of the limits switched off

_BOX = re.compile(r"\\(?:boxed|fbox)\b")
_DELIMITER = re.compile(r"(?<!\\)\$")  # of mathematics; \$ is a dollar
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_ANYWHERE = (LatexExtractionConfig(), ExprExtractionConfig())
_BOXED = (LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False),)


def math(
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    answer: Sequence[object],
    boxed_only: bool = False,
) -> list[float]:
    r"""1 where the answer equals the reference as mathematics.

    Args:
        boxed_only: the answer counts in `\boxed{…}` or after a phrase such as "the answer is";
            otherwise the last expression will do.

    Raises:
        ValueError: the reference is no mathematics.
    """
    return [
        float(_judged(completion, str(wanted), boxed_only))
        for completion, wanted in zip(completions, answer, strict=True)
    ]


def _judged(completion: str, wanted: str, boxed_only: bool) -> bool:
    """What is plain to see is seen at once: most answers, and a hundred times faster."""
    if boxed_only and len(_BOX.findall(completion)) == 1:
        given, wanted = boxed(completion) or "", wanted.strip()
        if given and given == wanted:
            return True
        if _INTEGER.fullmatch(given) and _INTEGER.fullmatch(wanted):
            return int(given) == int(wanted)
    return _equal(_reference(wanted), completion, _BOXED if boxed_only else _ANYWHERE)


def _reference(answer: str) -> Any:
    parsed = parse(answer if _DELIMITER.search(answer) else f"${answer}$", parsing_timeout=None)
    if not parsed:
        raise ValueError(f"the reference answer {answer[:40]!r} is no mathematics")
    return parsed


def _equal(reference: Any, completion: str, extraction: Sequence[Any]) -> bool:
    given = parse(completion, extraction_config=extraction, parsing_timeout=None)
    return bool(given) and bool(verify(reference, given, timeout_seconds=None))


# sympy and the grammar build their tables at the first use; every call starts from here.
assert _equal(_reference("\\frac{1}{2}"), "It is $\\boxed{0.5}$.", _ANYWHERE)

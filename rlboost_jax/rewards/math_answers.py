"""Mathematical answers, judged by math-verify (extra `math`): 1/2, 0.5 and \\frac{1}{2} are one.

https://github.com/huggingface/Math-Verify. Its own time limits are switched off: they use
signals, and whoever calls this limits the time anyway.
"""

import logging
from collections.abc import Sequence
from typing import Any

from math_verify import parse, verify
from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of the limits switched off

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
        float(_equal(_reference(str(wanted)), completion, _BOXED if boxed_only else _ANYWHERE))
        for completion, wanted in zip(completions, answer, strict=True)
    ]


def _reference(answer: str) -> Any:
    parsed = parse(answer if "$" in answer else f"${answer}$", parsing_timeout=None)
    if not parsed:
        raise ValueError(f"the reference answer {answer[:40]!r} is no mathematics")
    return parsed


def _equal(reference: Any, completion: str, extraction: Sequence[Any]) -> bool:
    given = parse(completion, extraction_config=extraction, parsing_timeout=None)
    return bool(given) and bool(verify(reference, given, timeout_seconds=None))


# sympy and the grammar build their tables at the first use; every call starts from here.
assert _equal(_reference("\\frac{1}{2}"), "It is $\\boxed{0.5}$.", _ANYWHERE)

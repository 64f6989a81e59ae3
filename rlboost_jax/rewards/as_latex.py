r"""Conversion of mathematics as people type it to LaTeX: 2√3, x², ½, 1 1/2, pi, 2**10, 10\,000.

math-verify reads some of it as something else: 2√3 as 2, 1 1/2 as 1, and 10\,000 as 10 times 0.
"""

import re
import unicodedata
from collections.abc import Callable
from typing import Final

_ABOVE: Final = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ"
_BELOW: Final = "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₙ"
_SIGNS: Final = str.maketrans(
    {
        **{"–": "-", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in "},
        **{"∅": r"\emptyset ", "·": r"\cdot ", "\u200b": ""},
    }
)
_ROOT: Final = re.compile(r"(?P<kind>[√∛])\s*(?:\((?P<inner>[^()]*)\)|(?P<one>[0-9]+|\w|\{))")
_DEGREES: Final = {"√": "", "∛": "[3]"}
_FRACTION: Final = re.compile(r"(?P<above>[0-9]+)\u2044(?P<below>[0-9]+)")
_FRAC: Final = r"\\frac{\g<above>}{\g<below>}"
_MIXED: Final = re.compile(
    r"(?<![\w.,/^}\\)])(?P<whole>[0-9]{1,12})[ \t]+"
    r"(?P<above>[0-9]{1,6})/(?P<below>[0-9]{1,6})(?![\w/^]|\.[0-9])"
)
_GROUPS: Final = re.compile(
    r"(?<![\w.,])[0-9]{1,3}(?:(?:\\[,:; ]|[~\u00a0\u2009\u202f])[0-9]{3})+(?![0-9])"
)
_REPEATED: Final = re.compile(
    r"(?P<fixed>[0-9]{0,30})\.(?P<places>[0-9]{0,30})\\overline\s*"
    r"(?:\{(?P<many>[0-9]{1,30})\}|(?P<one>[0-9]))"
)
_PI: Final = re.compile(r"(?<![\\A-Za-z])pi(?![A-Za-z])")


def as_latex(text: str) -> str:
    """Write numbers, roots and powers of a text in LaTeX."""
    for pattern, written in _RULES:
        text = pattern.sub(written, text)
    if not text.isascii():
        for pattern, written in _UNICODE:
            text = pattern.sub(written, text)
        text = text.translate(_SIGNS)
    return text


def _normal(found: re.Match[str]) -> str:
    return unicodedata.normalize("NFKC", found[0]).replace("\u2212", "-")


def _root(found: re.Match[str]) -> str:
    inner = found["one"] if found["inner"] is None else found["inner"]
    sign = rf"\sqrt{_DEGREES[found['kind']]}"
    return f"{sign}{{" if inner == "{" else f"{sign}{{{inner}}}"


def _mixed(found: re.Match[str]) -> str:
    if int(found["above"]) >= int(found["below"]):
        return found[0]
    return rf"{found['whole']}\frac{{{found['above']}}}{{{found['below']}}}"


def _repeated(found: re.Match[str]) -> str:
    """Fraction for a repeating decimal: 0.1\\overline{6} is (16 - 1) / 90."""
    again = found["many"] or found["one"]
    before = found["fixed"] + found["places"]
    above = int(before + again) - int(before or "0")
    below = (10 ** len(again) - 1) * 10 ** len(found["places"])
    return rf"\frac{{{above}}}{{{below}}}"


_Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]
_RULES: Final[tuple[_Rule, ...]] = (
    (_MIXED, _mixed),
    (_GROUPS, lambda found: re.sub(r"[^0-9]", "", found[0])),
    (_REPEATED, _repeated),
    (_PI, r"\\pi"),
    (re.compile(r"(?<=[0-9)])\*\*(-?[0-9]+)(?!\*)"), r"^{\1}"),
)
_UNICODE: Final[tuple[_Rule, ...]] = (
    (re.compile(f"[{_ABOVE}]+"), lambda found: f"^{{{_normal(found)}}}"),
    (re.compile(f"[{_BELOW}]+"), lambda found: f"_{{{_normal(found)}}}"),
    (re.compile(r"[０-９％＋－＝（）．，]"), _normal),
    (re.compile(r"[¼-¾⅐-⅞]"), lambda found: _FRACTION.sub(_FRAC, _normal(found))),
    (re.compile(r"[€£¥₹]\s*(?=[0-9])"), ""),
    (_FRACTION, _FRAC),
    (_ROOT, _root),
)

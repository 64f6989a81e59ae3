"""A calculator: exact arithmetic on whole numbers, decimals and fractions.

Nothing is evaluated by Python. An expression is parsed and walked, and each number on the way is
bounded, so that no call takes long: at most `MOST_CHARACTERS` of text, `MOST_BITS` of a number.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from rlboost_jax.environments.tools import tool

MOST_CHARACTERS: Final = 400  # of an expression
MOST_BITS: Final = 4096  # of a numerator or denominator: 1,233 digits
DECIMALS: Final = 20  # of a number without a finite decimal form
_DIGITS: Final = 1300  # of a decimal that is written out

Numbers = tuple[Fraction, ...]


class NotArithmetic(ValueError):
    """An expression has no value here; the message says why, for the policy to read."""


@tool(idempotent=True, time_limit_seconds=5.0)
def calculator(expression: str) -> str:
    """Exact arithmetic: + - * / // % **, parentheses, and abs, min, max, sum, round, floor, ceil,
    sqrt, gcd, factorial."""
    return calculated(expression)


def calculated(expression: str) -> str:
    """Compute the value as text: `7`, `0.25`, or `1/3 = 0.33333333333333333333…`.

    Raises:
        NotArithmetic
    """
    value = value_of(expression)
    if value.denominator == 1:
        return str(value.numerator)
    places = _decimal_places(value.denominator)
    if places is not None and places <= _DIGITS:
        return _decimal(value, places)
    return f"{value} = {_decimal(value, DECIMALS)}…"


def value_of(expression: str) -> Fraction:
    """Value of an expression. Raises NotArithmetic."""
    if len(expression) > MOST_CHARACTERS:
        raise NotArithmetic(
            f"the expression has {len(expression)} characters, and {MOST_CHARACTERS} are possible"
        )
    plain = expression.translate(_SIGNS).strip()
    try:
        tree = ast.parse(plain, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise NotArithmetic(f"{_shown(expression)} is no arithmetic") from None
    return _value(tree.body, plain)


_SIGNS: Final = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "^": "**"})


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise NotArithmetic(f"{exponent} is no whole number, as an exponent must be")
    if base == 0 and exponent < 0:
        raise NotArithmetic("a division by zero")
    times = abs(exponent.numerator)
    size = max(abs(base.numerator), base.denominator)
    if size > 1 and times * (size.bit_length() - 1) > MOST_BITS:
        raise _too_large()
    if size <= 1:  # 0, 1 or -1, whatever the exponent
        times = min(times, 2 + times % 2)
    power = base**times
    return 1 / power if exponent < 0 else power


_OPERATIONS: Final[Mapping[type, Callable[[Fraction, Fraction], Fraction | int]]] = (
    MappingProxyType(
        {
            ast.Add: operator.add,
            ast.Sub: operator.sub,
            ast.Mult: operator.mul,
            ast.Div: operator.truediv,
            ast.FloorDiv: operator.floordiv,
            ast.Mod: operator.mod,
            ast.Pow: _power,
        }
    )
)


def _factorial(numbers: Numbers) -> Fraction:
    (n,) = numbers
    if n.denominator != 1 or n < 0:
        raise NotArithmetic(f"{n} has no factorial")
    if n > MOST_BITS // 4:  # 1024! has 8770 bits, 536! has 4096
        raise _too_large()
    return Fraction(math.factorial(n.numerator))


def _root(numbers: Numbers) -> Fraction:
    (x,) = numbers
    if x < 0:
        raise NotArithmetic(f"{x} has no square root")
    root = Fraction(math.isqrt(x.numerator), math.isqrt(x.denominator))
    if root * root != x:
        raise NotArithmetic(f"the square root of {x} is no fraction")
    return root


def _gcd(numbers: Numbers) -> Fraction:
    if any(n.denominator != 1 for n in numbers):
        raise NotArithmetic("gcd is of whole numbers")
    return Fraction(math.gcd(*(n.numerator for n in numbers)))


def _rounded(numbers: Numbers) -> Fraction:
    """Round half away from zero, as people do."""
    x, places = numbers if len(numbers) == 2 else (*numbers, Fraction(0))
    if places.denominator != 1 or abs(places) > 100:
        raise NotArithmetic(f"round to {places} places; choose a whole number up to 100")
    scale = Fraction(10) ** places.numerator
    whole = math.floor(abs(x) * scale + Fraction(1, 2))
    return Fraction(whole if x >= 0 else -whole) / scale


# With the fewest and most numbers that each takes.
FUNCTIONS: Final[Mapping[str, tuple[Callable[[Numbers], Fraction], int, int]]] = MappingProxyType(
    {
        "abs": (lambda n: abs(n[0]), 1, 1),
        "min": (min, 1, 100),
        "max": (max, 1, 100),
        "sum": (lambda n: sum(n, Fraction(0)), 1, 100),
        "round": (_rounded, 1, 2),
        "floor": (lambda n: Fraction(math.floor(n[0])), 1, 1),
        "ceil": (lambda n: Fraction(math.ceil(n[0])), 1, 1),
        "sqrt": (_root, 1, 1),
        "gcd": (_gcd, 1, 100),
        "factorial": (_factorial, 1, 1),
    }
)


def _value(node: ast.expr, text: str) -> Fraction:
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int(number)):
            return _bounded(Fraction(number))
        case ast.Constant(value=float()):
            return _literal(ast.get_source_segment(text, node) or "")
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand, text)
        case ast.UnaryOp(ast.UAdd(), operand):
            return _value(operand, text)
        case ast.BinOp(left, operation, right) if type(operation) in _OPERATIONS:
            a, b = _value(left, text), _value(right, text)
            try:
                return _bounded(Fraction(_OPERATIONS[type(operation)](a, b)))
            except ZeroDivisionError:
                raise NotArithmetic("a division by zero") from None
        case ast.Call(ast.Name(name), arguments, []) if name in FUNCTIONS:
            function, fewest, most = FUNCTIONS[name]
            if not fewest <= len(arguments) <= most:
                raise NotArithmetic(f"{name} takes {fewest} to {most} numbers")
            return _bounded(function(tuple(_value(each, text) for each in arguments)))
        case ast.Tuple():
            raise NotArithmetic("a comma does not belong in a number; write 1000 for 1,000")
    segment = ast.get_source_segment(text, node) or text
    raise NotArithmetic(f"{_shown(segment)} is no arithmetic")


def _literal(digits: str) -> Fraction:
    """Exact value of a decimal as written: 0.1 is a tenth."""
    _, _, exponent = digits.lower().partition("e")
    if exponent and abs(int(exponent)) > 1000:
        raise _too_large()
    return _bounded(Fraction(digits))


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        raise _too_large()
    return value


def _too_large() -> NotArithmetic:
    return NotArithmetic(f"a number of more than {MOST_BITS} bits comes up; that is too large")


def _decimal_places(denominator: int) -> int | None:
    """Decimal places of a reduced fraction with this denominator; None if infinitely many."""
    counts = []
    for prime in (2, 5):
        count = 0
        while denominator % prime == 0:
            denominator, count = denominator // prime, count + 1
        counts.append(count)
    return max(counts) if denominator == 1 else None


def _decimal(value: Fraction, places: int) -> str:
    """Format a value with this many decimal places; further ones are cut off."""
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[:-places]}.{digits[-places:]}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")

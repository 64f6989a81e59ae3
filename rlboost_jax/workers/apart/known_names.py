"""Names that a test reads: which are the program's, and which are Python's and its library's.

Of the standard library only, as `verdict_process.py`, whose process has it.
"""

import ast
import builtins
import importlib
from collections.abc import Callable
from typing import Any, Final

from rlboost_jax.workers.apart.stand_ins import Remote, TypeOf

MODULES: Final = {
    name: name
    for name in (
        *("bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions"),
        *("functools", "heapq", "itertools", "json", "math", "numpy", "operator", "random", "re"),
        *("statistics", "string", "typing"),
    )
} | {"np": "numpy"}
_OF_MODULES: Final = {
    "collections": "ChainMap Counter OrderedDict defaultdict deque namedtuple",
    "copy": "deepcopy",
    "datetime": "date timedelta",
    "decimal": "Decimal",
    "fractions": "Fraction",
    "functools": "cmp_to_key partial reduce",
    "itertools": "accumulate chain combinations groupby islice permutations product zip_longest",
    "math": "ceil comb fabs factorial floor fsum gcd inf isclose isinf isnan pi prod sqrt",
    "typing": "Any Callable Dict Iterable Iterator List Optional Set Tuple Union",
}
WELL_KNOWN: Final = MODULES | {
    name: f"{module}.{name}" for module, names in _OF_MODULES.items() for name in names.split()
}


class Names(dict[str, Any]):
    """Global names of a test: its own, and those of the program that it does not define."""

    def __init__(self, ask: Callable[..., Any], given: frozenset[str], source: str) -> None:
        super().__init__({"__name__": "__main__", "__builtins__": builtins, "type": TypeOf})
        self._ask, self._given = ask, given
        wanted = _free_names(source) & given
        # What is tested has a name of Python's only where it is the only one of the program's.
        self._own = wanted if len(wanted) == 1 else ()

    def __missing__(self, name: str) -> Any:
        """Look a name up in the program. Raises KeyError if it is not there either."""
        if hasattr(builtins, name) and name not in self._own:
            raise KeyError(name)
        if name in WELL_KNOWN and name not in self._own:
            if name not in self._given:
                raise KeyError(name)
            module, _, member = WELL_KNOWN[name].partition(".")
            found: Any = importlib.import_module(module)
            return getattr(found, member) if member else found
        value = self._ask("name", name)
        if type(value) is Remote:
            self[name] = value
        return value


def _free_names(source: str) -> set[str]:
    """Names that a test reads and does not bind."""
    read, bound = set(), set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name) | ast.arg(arg=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add(other or name.partition(".")[0])
    return read - bound

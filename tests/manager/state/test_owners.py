"""Each record of the manager is written by its owner alone.

Read off the syntax trees: a function assigns to, deletes from and mutates only `self`, containers
that `self` holds, and what the function itself has made. Everything else is changed by a verb of
the object that it belongs to, which stands where that object's class does.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MANAGER = ROOT / "rlboost_jax" / "manager"
SIMULATOR = ROOT / "rlboost_jax" / "simulator"
READ = [
    *sorted((MANAGER / "state").glob("*.py")),
    *sorted((MANAGER / "reducer").glob("*.py")),
    SIMULATOR / "world.py",
    SIMULATOR / "public_code.py",
]
MUTATORS = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem",
    "popleft", "remove", "reverse", "rotate", "setdefault", "sort", "subtract", "update",
}  # fmt: skip
# What makes something new out of what it is given.
MAKERS = {"dict", "list", "set", "sorted", "bytearray", "deque", "Counter", "copy"}

# (file, class) → why it writes to what is not its own.
ALLOWED = {
    (
        "state/fleet_machines.py",
        "Fleet",
    ): "a Server has no verbs: the fleet makes it and alone counts it",
}


def writes(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """(class or "", line, what is written) of every write to what is another's."""
    for node in tree.body:
        of_class = node.body if isinstance(node, ast.ClassDef) else [node]
        for function in of_class:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for written in _Function(function).foreign():
                    name = node.name if isinstance(node, ast.ClassDef) else ""
                    yield name, written.lineno, ast.unparse(written)


class _Function:
    """What one function has made, and what of it is another's."""

    def __init__(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._function = function
        bound: dict[str, list[ast.expr | None]] = {}
        for node in ast.walk(function):
            for target, value in _bindings(node):
                bound.setdefault(target, []).append(value)
        # Of functions within, too: they see what the whole has made.
        given = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
        self._values = {name: values for name, values in bound.items() if name not in given}

    def foreign(self) -> Iterator[ast.expr]:
        for node in ast.walk(self._function):
            for target in _targets(node):
                if not self._may_write(target):
                    yield target
            if isinstance(node, ast.Call) and not self._may_call(node):
                yield node

    def _may_write(self, target: ast.expr) -> bool:
        if isinstance(target, ast.Attribute):
            return self._own(target.value)
        return not isinstance(target, ast.Subscript) or self._own_container(target.value)

    def _may_call(self, call: ast.Call) -> bool:
        if isinstance(call.func, ast.Name) and call.func.id in ("setattr", "delattr"):
            return self._own(call.args[0])
        if isinstance(call.func, ast.Attribute) and call.func.attr in MUTATORS:
            return self._own_container(call.func.value)
        return True

    def _own(self, value: ast.expr) -> bool:
        """Whether it is `self`, or was made here."""
        if not isinstance(value, ast.Name):
            return False
        made = self._values.get(value.id, ())
        return value.id == "self" or (bool(made) and all(map(_makes, made)))

    def _own_container(self, value: ast.expr) -> bool:
        """The same, or what `self` holds, by its name or by another."""
        if isinstance(value, ast.Subscript):  # containers in a container
            return self._own_container(value.value)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            return value.func.attr == "setdefault" and self._own_container(value.func.value)
        if isinstance(value, ast.Attribute):
            return self._own(value.value)
        if not isinstance(value, ast.Name):
            return False
        made = self._values.get(value.id, ())
        held = bool(made) and all(v is not None and self._held(v) for v in made)
        return self._own(value) or held

    def _held(self, value: ast.expr) -> bool:
        attribute = isinstance(value, ast.Attribute)
        return _makes(value) or (attribute and self._own_container(value))


def _makes(value: ast.expr | None) -> bool:
    """Whether an expression is of a new object."""
    if isinstance(value, ast.Call):
        name = value.func.attr if isinstance(value.func, ast.Attribute) else ""
        name = value.func.id if isinstance(value.func, ast.Name) else name
        return name in MAKERS or name.lstrip("_")[:1].isupper()
    return isinstance(
        value,
        ast.List
        | ast.Dict
        | ast.Set
        | ast.ListComp
        | ast.DictComp
        | ast.SetComp
        | ast.Constant
        | ast.BinOp,
    )


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Names that a statement binds, each with what it stands for then; None: not known."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _bound(target, value)
        case ast.AnnAssign(target=target, value=value) if value is not None:
            yield from _bound(target, value)
        case ast.NamedExpr(target=target, value=value):
            yield from _bound(target, value)
        case ast.For(target=target) | ast.comprehension(target=target):
            yield from _bound(target, None)
        case ast.withitem(optional_vars=target) if target is not None:
            yield from _bound(target, None)
        case ast.MatchAs(name=name) if name is not None:
            yield name, None


def _bound(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        each = value.elts if isinstance(value, ast.Tuple | ast.List) else [None] * len(target.elts)
        for part, its in zip(target.elts, each, strict=True):
            yield from _bound(part, its)


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            found = list(targets)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            found = [target]
        case ast.For(target=target) | ast.NamedExpr(target=target):
            found = [target]
        case _:
            return
    while found:
        target = found.pop()
        if isinstance(target, ast.Tuple | ast.List):
            found += target.elts
        else:
            yield target


@pytest.mark.parametrize("path", READ, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nobody_writes_to_what_is_anothers(path: Path) -> None:
    name = f"{path.parent.name}/{path.name}"
    found = [
        f"{name}:{line}: {what}"
        for owner, line, what in writes(ast.parse(path.read_text(encoding="utf-8")))
        if (name, owner) not in ALLOWED
    ]
    assert not found, "\n".join(["written from outside; give its owner a verb:", *found])


@pytest.mark.parametrize("exception", ALLOWED, ids="-".join)
def test_every_exception_is_still_one(exception: tuple[str, str]) -> None:
    name, owner = exception
    tree = ast.parse((MANAGER / name).read_text(encoding="utf-8"))
    assert owner in {found for found, _, _ in writes(tree)}


FOREIGN = (
    "other.x = 1",
    "other.x += 1",
    "del other.x",
    "other.x, y = 1, 2",
    "other.x[1] = 2",
    "del self._other.x[1]",
    "self._other.x = 1",
    "self._other.x |= {1}",
    "self._other.x.append(1)",
    "self._held[1].x = 2",
    "for other.x in (): pass",
    "xs = other.x; xs.append(1)",
    "xs = self._other.x; xs.pop()",
    "other.update({})",
    "xs = other.found(); xs.clear()",
    "for each in self._held: each.x = 1",
    "setattr(other, 'x', 1)",
    "xs = other.x or []; xs.append(1)",
    "inner = lambda other: other.x.append(1)",
)
OWN = (
    "self.x = 1",
    "self.x[1] = 2",
    "self._held[1].append(2)",
    "self._held.setdefault(1, []).append(2)",
    "xs = []; xs.append(1)",
    "made = Other(); made.x = 1",
    "xs = self._held; xs.pop()",
    "xs = sorted(other.x); xs.pop()",
    "other.receive(1)",
    "xs = other.x.copy(); del xs[1]",
)


@pytest.mark.parametrize(
    ("line", "foreign"), [(x, True) for x in FOREIGN] + [(x, False) for x in OWN]
)
def test_what_counts_as_anothers(line: str, foreign: bool) -> None:
    body = "\n        ".join(line.split("; "))
    tree = ast.parse(f"class A:\n    def f(self, other):\n        {body}\n")
    assert bool(list(writes(tree))) == foreign

"""Imports point one way, and who promises to run without JAX does."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "rlboost_jax"

# A module may import from its own layer and from those above it here. Top-level modules that are
# not named, `cli` and every `__main__` are entry points.
LAYERS = (
    {"sequences", "messages"},
    {"platform"},
    {"settings", "configs", "algorithms"},  # an algorithm is a record of settings
    {"trust"},
    {"models", "observe"},
    {"weights"},
    {"providers"},
    {"engine"},
    {"manager"},
    {"qualification"},
    {"workers"},
    {"rewards", "data", "chat", "environments"},
    {"learner", "rollout"},  # a server that scores for teachers runs a program of the learner
    {"gateway"},
    {"simulator"},
    {"cli"},
)
ENTRY = len(LAYERS) - 1

HEAVY_FOR_SERVERS = {"orbax", "grain", "optax", "tensorboardX"}


def modules() -> dict[str, Path]:
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


MODULES = modules()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> frozenset[str]:
    """Everything that a file imports anywhere in it, as dotted names."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the whole name"
            assert node.module is not None
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def imported_at_once(name: str) -> set[str]:
    """What importing a module imports by itself, as dotted names: not what its functions do."""
    found: set[str] = set()
    ahead: list[ast.AST] = [tree_of(MODULES[name])]
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            ahead.extend(ast.iter_child_nodes(node))
    return found


@cache
def own_imports(name: str) -> set[str]:
    """Modules of ours that a module imports, its enclosing packages included."""
    found = {target for target in imported(MODULES[name]) if target in MODULES}
    return {
        ".".join(parts[:end])
        for parts in (target.split(".") for target in found)
        for end in range(1, len(parts) + 1)
    }


@cache
def foreign_imports(name: str) -> set[str]:
    """Top-level names of other distributions and the standard library."""
    return {target.partition(".")[0] for target in imported(MODULES[name])} - {"rlboost_jax"}


def reachable(start: str) -> set[str]:
    """A module and all of ours that importing it imports in turn."""
    seen, ahead = set(), [start]
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            ahead.extend(own_imports(name))
    return seen


def unit(name: str) -> str:
    """The package or top-level module that a module belongs to; "" for the package itself."""
    return name.split(".")[1] if "." in name else ""


def layer(name: str) -> int:
    if name.endswith(".__main__"):
        return ENTRY
    return next((i for i, units in enumerate(LAYERS) if unit(name) in units), ENTRY)


def test_imports_point_one_way() -> None:
    upwards = [
        f"{name} reaches up to {target}"
        for name in MODULES
        for target in own_imports(name) - {"rlboost_jax"}
        if layer(target) > layer(name)
    ]
    assert not upwards


# Rooms of the manager: each imports from its own floor and from those below. What lies in
# no room are the words that all of them use.
FLOORS = ("", "policies", "state", "reducer", "service", "__main__")
INPUT_OUTPUT = {
    "aiohttp",
    "asyncio",
    "os",
    "pathlib",
    "random",
    "shutil",
    "signal",
    "socket",
    "ssl",
}
INPUT_OUTPUT |= {"subprocess", "tempfile", "threading", "time", "urllib"}
OF_MANAGER = [name for name in MODULES if unit(name) == "manager"]


def floor(name: str) -> int:
    room = (*name.split("."), "")[2]
    return FLOORS.index(room) if room in FLOORS else 0


def test_a_room_of_the_manager_imports_from_lower_floors() -> None:
    upwards = [
        f"{name} reaches up to {target}"
        for name in OF_MANAGER
        for target in own_imports(name) & set(OF_MANAGER)
        if floor(target) > floor(name)
    ]
    assert not upwards


def test_only_the_service_has_to_do_with_the_world() -> None:
    """No clock, file, socket, process or chance where decisions are made."""
    decide = [name for name in OF_MANAGER if floor(name) < FLOORS.index("service")]
    found = {name: foreign_imports(name) & INPUT_OUTPUT for name in decide}
    assert decide and not {name: imports for name, imports in found.items() if imports}


PRODUCT = [
    *MODULES.values(),
    *sorted((ROOT / "kernels" / "rlboost_kernels").rglob("*.py")),
]
SHARED_NAMES = {"__init__.py", "__main__.py", "base.py"}  # the same part of different packages


def test_a_module_name_is_that_of_one_module() -> None:
    """So that a name in an error, a review or a search needs no folder."""
    names = Counter(path.name for path in PRODUCT)
    assert {name for name, count in names.items() if count > 1} <= SHARED_NAMES


def test_a_class_name_is_that_of_one_class() -> None:
    names = Counter(
        node.name
        for path in PRODUCT
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef)
    )
    assert not [name for name, count in names.items() if count > 1]


MOST_LINES = 350
MAY_BE_LONG = {  # one subject each: the wire, a kernel
    "messages.py",
    "attention_mosaic_gpu.py",
    "grouped_mosaic_gpu.py",
    "packed_triton.py",
}


@pytest.mark.parametrize("folder", ["rlboost_jax", "kernels/rlboost_kernels"])
def test_no_module_is_too_long_to_be_read_at_once(folder: str) -> None:
    lines = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in (ROOT / folder).rglob("*.py")
        if path.name not in MAY_BE_LONG
    }
    assert lines and {path: n for path, n in lines.items() if n > MOST_LINES} == {}


def test_the_manager_knows_providers_by_their_seam_only() -> None:
    """And the seam knows nobody: no clock, file or process, and no provider."""
    seam = "rlboost_jax.providers.base"
    for name in OF_MANAGER:
        known = {t for t in own_imports(name) if unit(t) == "providers"} - {"rlboost_jax.providers"}
        assert known <= {seam} or name == "rlboost_jax.manager.__main__", name
    assert own_imports(seam) <= {"rlboost_jax", "rlboost_jax.providers"}
    assert not foreign_imports(seam) & (INPUT_OUTPUT - {"pathlib"})


def test_no_module_imports_itself_in_a_circle() -> None:
    """Not even for types."""
    imports = {name: own_imports(name) - {name} for name in MODULES}
    for name, targets in imports.items():  # a module imports its packages, which import nothing
        imports[name] = {t for t in targets if MODULES[t].name != "__init__.py"}
    while leaves := [name for name, targets in imports.items() if not targets & set(imports)]:
        for name in leaves:
            del imports[name]
    assert not sorted(imports)


WITHOUT_JAX = [
    name
    for name in MODULES
    if unit(name) in ("manager", "providers", "simulator", "sequences", "settings", "messages")
]


def test_needs_no_jax() -> None:
    """Neither by itself nor through ours."""
    heavy = {"jax", "jaxlib", "flax", "optax", "orbax", "grain"}
    found = [
        f"{name} reaches {foreign_imports(module) & heavy} through {module}"
        for name in WITHOUT_JAX
        for module in reachable(name)
        if foreign_imports(module) & heavy
    ]
    assert WITHOUT_JAX and not found


def test_what_is_next_in_a_step_is_decided_without_clock_and_device() -> None:
    """The simulator asks it in virtual time."""
    for name in (n for n in MODULES if n.startswith("rlboost_jax.learner.stream.")):
        if not name.endswith(".stream_driver"):
            found = foreign_imports(name) & {"jax", "time", "asyncio", "threading", "socket", "os"}
            assert not found, f"{name} imports {found}"


@pytest.mark.parametrize("name", [n for n in MODULES if unit(n) == "rollout"])
def test_a_server_imports_little(name: str) -> None:
    """Each of these costs a joiner half a second or more."""
    for module in reachable(name):
        heavy = foreign_imports(module) & HEAVY_FOR_SERVERS
        assert not heavy, f"{name} reaches {heavy} through {module}"


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("rlboost_jax.manager.__main__", {"jax", "flax", "grain", "orbax"}),
        ("rlboost_jax.learner.supervisor", {"jax", "flax", "grain", "orbax"}),
        # flax imports optax by itself
        ("rlboost_jax.rollout.__main__", HEAVY_FOR_SERVERS - {"optax"} | {"torch", "transformers"}),
    ],
)
def test_what_a_process_has_really_imported(module: str, absent: set[str]) -> None:
    """The same in a living process, libraries' own imports included."""
    if module not in MODULES:
        pytest.skip(f"{module} does not exist")
    source = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert not absent & set(done.stdout.split())


def test_kernels_know_nothing_of_us() -> None:
    allowed = {"jax", "jaxlib", "numpy", "rlboost_kernels"} | set(sys.stdlib_module_names)
    for path in sorted((ROOT / "kernels" / "rlboost_kernels").rglob("*.py")):
        names = {target.partition(".")[0] for target in imported(path)}
        assert names <= allowed, f"{path}: {names - allowed}"


OF_EXTRAS = {
    "rlboost_jax.environments.adapters.verifiers_harness",
    "rlboost_jax.observe.mlflow",
    "rlboost_jax.observe.wandb",
    "rlboost_jax.rewards.math_answers",
}  # modules that only functions import


def test_what_needs_an_extra_is_imported_by_functions_only() -> None:
    assert not [name for name in MODULES if OF_EXTRAS & imported_at_once(name)]


def test_every_import_is_a_declared_dependency() -> None:
    """What we import by name is a requirement by name, not only another's requirement.

    What an extra asks for is imported by functions, which tell its absence apart.
    """
    distributions = importlib.metadata.packages_distributions()
    required, extra = _declared(extras=False), _declared(extras=True)
    for name in MODULES:
        for module in foreign_imports(name) - set(sys.stdlib_module_names) - {"configs"}:
            owners = {d.lower().replace("_", "-") for d in distributions.get(module, [module])}
            owners |= {"rlboost-kernels"} if module == "rlboost_kernels" else set()
            owners |= {"mlflow-skinny"} if module == "mlflow" else set()  # all of it that we use
            owners |= {"jax"} if module == "jaxlib" else set()  # jax names its exact version
            at_once = module in {target.partition(".")[0] for target in imported_at_once(name)}
            declared = required if at_once and name not in OF_EXTRAS else required | extra
            assert owners & declared, f"{name} imports {module}, no dependency of ours"


@pytest.mark.parametrize("name", [n for n, path in MODULES.items() if path.name == "__init__.py"])
def test_packages_import_nothing_by_themselves(name: str) -> None:
    assert not imported(MODULES[name])


def test_a_module_at_the_top_is_an_entry_point_or_serves_several_packages() -> None:
    """What one package uses belongs in it."""
    for name, path in MODULES.items():
        if path.parent != PACKAGE or path.name == "__init__.py":
            continue
        users = {unit(other) for other in MODULES if name in own_imports(other)}
        runs = 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
        assert runs or len(users) >= 3, f"{name} is used by {sorted(users)}"


IN_PACKAGES = [
    path
    for folder in (PACKAGE, ROOT / "kernels" / "rlboost_kernels")
    for path in sorted(folder.rglob("__init__.py"))
    if path.parent != PACKAGE / "configs"  # its modules lie in `configs/`
]


@pytest.mark.parametrize("path", IN_PACKAGES, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_a_package_says_what_is_in_it(path: Path) -> None:
    """In its docstring: what it names is a module of it, or is defined in one."""
    text = ast.get_docstring(tree_of(path))
    assert text, "a reader looks here first"
    inside = {other.stem for other in path.parent.glob("*.py")}
    inside |= {other.parent.name for other in path.parent.glob("*/__init__.py")}
    for module in path.parent.rglob("*.py"):
        for node in tree_of(module).body:
            inside |= {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
            inside |= {getattr(node, "name", "")}
    assert not {name for name in re.findall(r"`(\w+)`", text)} - inside


@pytest.mark.parametrize("folder", ["rlboost_jax", "kernels/rlboost_kernels"])
def test_a_docstring_stands_alone(folder: str) -> None:
    """Its first words name what it is about: "Of one step." needs a reader who knows already."""
    with_docstring = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    fragments = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(tree_of(path))
        if isinstance(node, with_docstring) and (text := ast.get_docstring(node))
        if text.split()[0] in {"Of", "That", "Those", "With", "From"}
    ]
    assert not fragments, "begin with a verb or a noun, and say what is not in the name"


def test_every_package_is_in_a_layer() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages <= set().union(*LAYERS)


def _declared(*, extras: bool) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = project["dependencies"]
    if extras:
        requirements = [r for extra in project["optional-dependencies"].values() for r in extra]
    return {re.split(r"[^A-Za-z0-9._-]", r)[0].lower().replace("_", "-") for r in requirements}


@pytest.mark.parametrize("folder", ["rlboost_jax", "kernels/rlboost_kernels"])
def test_w17_nothing_is_ever_unpickled(folder: str) -> None:
    """Bytes of others are decoded into typed records, arrays or JSON, and never executed."""
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "rpyc"}
    for path in sorted((ROOT / folder).rglob("*.py")):
        assert not modules & {name.partition(".")[0] for name in imported(path)}, path
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                assert not (isinstance(node.func, ast.Name) and name in ("eval", "exec")), path
                for keyword in node.keywords:
                    unsafe = keyword.arg == "allow_pickle"
                    assert not unsafe or getattr(keyword.value, "value", True) is False, path


@pytest.mark.parametrize("folder", ["benchmarks", "experiments", "tools"])
def test_what_is_beside_the_package_imports_modules_that_are_there(folder: str) -> None:
    """Most of it is run by hand, long after a module was renamed."""
    wrong = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rlboost_jax."):
                name = node.module or ""
                known = name in MODULES or name.startswith("rlboost_jax.configs")
                wrong += [] if known else [f"{path.relative_to(ROOT)}: {name}"]
    assert not wrong

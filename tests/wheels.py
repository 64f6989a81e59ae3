"""Build both wheels, install them into empty environments outside the checkout, and train there.

    python -m tests.wheels                                       this Python, with a compiler
    python -m tests.wheels --python=python3.12 --compiler=none   another one, and no compiler
    python -m tests.wheels --steps=4                             not all of the quickstart's updates

`--python` and `--compiler` may be given several times; all pairs are tried. Without a compiler
there is none for the build either, and nothing on PATH but the environment. Exit code 1 where
something is not as it should be. Needs an index to install from, 2 GB on the disk for each pair,
and minutes; no part of `python -m tests`.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
OURS: Final = re.compile(r"PYTHON|RLBOOST|VIRTUAL_ENV|CC$|CXX$")  # variables taken out
WIDTH: Final = 100
ACCURACY: Final = 0.8  # of a whole quickstart at least; it ends above 0.9
PROBE: Final = """
import importlib.util, json, rlboost_kernels, jax, sys
print(json.dumps({
    "implementations": list(rlboost_kernels.available_implementations()),
    "configs": importlib.util.find_spec("configs") is not None,
    "jax": jax.__version__, "python": sys.version.split()[0],
}))
"""


class NotAsItShouldBe(Exception):
    """What was expected, and what was there."""


class Place(NamedTuple):
    """A folder outside the checkout, with what its processes find in their environment."""

    folder: Path
    environment: dict[str, str]

    def say(self, *command: str | Path, cwd: Path | None = None) -> str:
        """What a command prints. Raises NotAsItShouldBe where it fails."""
        done = subprocess.run(
            [str(word) for word in command],
            cwd=cwd or self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise NotAsItShouldBe(f"{command}: code {done.returncode}\n{done.stdout[-3000:]}")
        return done.stdout


def check(right: bool, words: str) -> None:
    if not right:
        raise NotAsItShouldBe(words)


def sources(target: Path) -> None:
    """The files of the working tree that git knows or would take, and nothing that was built."""
    listing = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def make_environment(python: str, place: Place, name: str) -> Path:
    """A virtual environment; returns its `bin`."""
    place.say(python, "-m", "venv", place.folder / name)
    return place.folder / name / "bin"


def build(bin: Path, place: Place) -> list[Path]:
    """The wheels, by `python -m build`, which builds them from source distributions."""
    place.say(bin / "python", "-m", "pip", "install", "-q", "build")
    tree, wheels = place.folder / "tree", place.folder / "wheels"
    sources(tree)
    for folder in (tree / "kernels", tree):
        place.say(bin / "python", "-m", "build", "--outdir", wheels, folder)
    return sorted(wheels.glob("*.whl"))


def check_wheel(wheel: Path) -> None:
    """One package of its own name, the licence, and what only a build puts there."""
    names = zipfile.ZipFile(wheel).namelist()
    package = wheel.name.partition("-")[0]
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    check(tops == {package}, f"{wheel.name} has {sorted(tops)} at its top")
    check(any(name.endswith("licenses/LICENSE") for name in names), f"{wheel.name}: no LICENSE")
    if package == "rlboost_jax":
        for path in (*(ROOT / "configs").glob("*.py"), *(ROOT / "configs" / "sim").glob("*.py")):
            name = f"rlboost_jax/{path.relative_to(ROOT).as_posix()}"
            check(zipfile.ZipFile(wheel).read(name) == path.read_bytes(), f"{name} is another")


def check_help(bin: Path, place: Place) -> int:
    """Every command says its options within the width, and completion knows each of them; returns
    how many commands there are."""
    wide = Place(place.folder, {**place.environment, "COLUMNS": "200"})
    listed = wide.say(bin / "rlboost", "--help")
    commands = re.findall(r"^  (\w+) ", listed.partition("commands:\n")[2], re.MULTILINE)
    script = wide.say(bin / "rlboost", "completion", "bash")
    for command in commands:
        text = wide.say(bin / "rlboost", command, "--help")
        widest = max(text.splitlines(), key=len)
        check(len(widest) <= WIDTH, f"rlboost {command} --help: {widest!r}")
        said = set(re.findall(r"^  (?:-h, )?--([\w]+)", text, re.MULTILINE))
        own = script.partition(f"        {command})\n")[2].partition(";;")[0]
        completed = set(re.findall(r"--(\w+)(?=[= \"])", own.partition("settings=")[0]))
        check(said == completed, f"rlboost {command}: {said} in help, {completed} completed")
    for program in ("rlboost-kernels", "rlboost-kernels bench", "rlboost-kernels build"):
        name, *rest = program.split()
        wide.say(bin / name, *rest, "--help")
    return len(commands)


def train(bin: Path, place: Place, steps: int) -> dict[str, Any]:
    """The quickstart, by name; returns its summary."""
    length = [f"--config.num_steps={steps}"] if steps else []
    place.say(bin / "rlboost", "train", "--config=quickstart", "--workdir=run", *length)
    place.say(bin / "rlboost", "verify", "--workdir=run")
    place.say(bin / "rlboost", "report", "--workdir=run")
    summary: dict[str, Any] = json.loads((place.folder / "run" / "summary.json").read_text())
    return summary


def environment_of(bin: Path | None, compiler: bool) -> dict[str, str]:
    """Without what is ours; without a compiler PATH is one folder."""
    kept = {name: value for name, value in os.environ.items() if not OURS.match(name)}
    paths = [str(bin)] if bin else []
    if compiler:
        paths.append(os.environ["PATH"])
    return {**kept, "PATH": os.pathsep.join(paths) or "/nonexistent"}


def attempt(python: str, compiler: bool, steps: int, folder: Path) -> Iterator[tuple[str, str]]:
    """Each thing that was done, with what came of it. Raises NotAsItShouldBe."""
    began = time.monotonic()

    def since() -> str:
        nonlocal began
        seconds, began = time.monotonic() - began, time.monotonic()
        return f"{seconds:.0f} s"

    place = Place(folder, environment_of(None, compiler))
    wheels = build(make_environment(python, place, "builder"), place)
    for wheel in wheels:
        check_wheel(wheel)
    yield "built", f"{', '.join(wheel.name for wheel in wheels)} in {since()}"

    bin = make_environment(python, place, "empty")
    place = Place(folder, environment_of(bin, compiler))
    lock = ("-c", folder / "tree" / "requirements.lock")
    place.say(bin / "python", "-m", "pip", "install", "-q", "--no-compile", *lock, *wheels)
    place.say(bin / "python", "-m", "pip", "check")
    shutil.rmtree(folder / "tree")
    yield "installed", f"in {since()}"

    found = json.loads(place.say(bin / "python", "-c", PROBE))
    check(not found["configs"], "the environment has a module configs")
    compiled = "cpu" in found["implementations"]
    check(compiled == compiler, f"compiler: {compiler}, kernels: {found['implementations']}")
    yield "has", f"Python {found['python']}, jax {found['jax']}, {found['implementations']}"

    yield "help", f"{check_help(bin, place)} commands in {since()}"

    summary = train(bin, place, steps)
    first, last = summary["first_accuracy"], summary["last_accuracy"]
    lost = f"{summary['instances_lost']} servers lost"
    yield "trained", f"in {since()}: {summary['steps']} updates, accuracy {first} to {last}, {lost}"
    check(bool(steps) or last >= ACCURACY, f"accuracy {last}, at least {ACCURACY} expected")


def interpreter(name: str) -> str:
    """Itself rather than a script in its place, as pyenv's, which needs a shell on PATH.

    Raises NotAsItShouldBe where there is none, or where that script knows of none.
    """
    found = shutil.which(name) or name
    ask = [found, "-c", "import sys; print(sys.executable)"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True)
    except OSError as error:
        raise NotAsItShouldBe(f"{found} does not run: {error.strerror}") from error
    check(done.returncode == 0, f"{found} does not run: {done.stderr.strip()}")
    return done.stdout.strip()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", action="append", help="an interpreter; this one if not given")
    parser.add_argument("--compiler", action="append", choices=("any", "none"))
    parser.add_argument("--steps", type=int, default=0, help="updates; 0: all of the quickstart's")
    arguments = parser.parse_args(argv)
    failed = 0
    for python in arguments.python or [sys.executable]:
        for compiler in arguments.compiler or ["any"]:
            print(f"{python}, compiler: {compiler}", flush=True)
            with tempfile.TemporaryDirectory(prefix="rlboost-wheels-") as folder:
                try:
                    for what, words in attempt(
                        interpreter(python),
                        compiler != "none",
                        arguments.steps,
                        Path(folder),
                    ):
                        print(f"  {what:<10} {words}", flush=True)
                except NotAsItShouldBe as error:
                    failed += 1
                    print(f"  FAILED     {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""A stranger's path: `docs/tutorials/bring-your-own.md` from a clean clone, and what it took.

    python -m tests.stranger [--environment=VENV] [--to=FOLDER]

Clones what is committed here, saves the page's file there and gives its commands one after the
other. Prints a line each with its seconds; fails where one does, or where the reward did not rise.
--environment stands in for what the first command makes, which is then left out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean

from tests.tutorial import ROOT, tutorial

RUN = "runs/mine"
STEPS = 5  # at either end of the run, whose rewards are compared
RISE = 0.1


def walk(folder: Path, environment: Path | None) -> None:
    """Raises CalledProcessError, or AssertionError where the reward did not rise."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    page, began = tutorial(), time.monotonic()
    for name, text in page.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    commands = page.commands
    if environment is not None:
        install, *commands = page.commands
        assert install.startswith("python3 -m venv .venv "), install
        (folder / ".venv").symlink_to(environment.resolve())
    own = {"PYTHONPATH", "VIRTUAL_ENV"}  # of the user who runs this
    surroundings = {name: value for name, value in os.environ.items() if name not in own}
    if environment is not None:
        surroundings["PYTHONPATH"] = f"{folder}:{folder / 'kernels'}"
    for command in commands:
        since = time.monotonic()
        subprocess.run(
            ["bash", "-ec", command],
            cwd=folder,
            env=surroundings,
            stdin=subprocess.DEVNULL,
            check=True,
        )
        print(f"{time.monotonic() - since:7.1f} s  {command}", flush=True)
    lines = (folder / RUN / "metrics.jsonl").read_text().splitlines()
    rewards = [row["reward_mean"] for row in map(json.loads, lines) if not row["final"]]
    first, last = mean(rewards[:STEPS]), mean(rewards[-STEPS:])
    print(f"{time.monotonic() - began:7.1f} s  in all; reward {first:.3f} → {last:.3f}")
    assert last > first + RISE, rewards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--environment", type=Path, help="a virtual environment that has it all")
    parser.add_argument("--to", type=Path, help="folder to make; a temporary one if not given")
    options = parser.parse_args()
    try:
        if options.to:
            walk(options.to, options.environment)
        else:
            with tempfile.TemporaryDirectory() as folder:
                walk(Path(folder) / "clone", options.environment)
    except (subprocess.CalledProcessError, AssertionError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

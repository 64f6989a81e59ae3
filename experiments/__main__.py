"""Carry out experiments again: execute their notebooks in place, which writes their results.

    python -m experiments [NAME …] [--jobs=2]

Without names, all that can be carried out without other people's data.
"""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).parent


def notebooks() -> dict[str, Path]:
    return {path.parent.name: path for path in sorted(FOLDER.glob("*/notebook.ipynb"))}


def execute(path: Path) -> float:
    """Returns the seconds that it took. Raises nbclient's CellExecutionError."""
    since = time.monotonic()
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=None,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(FOLDER.parent)}},
    )
    client.execute()
    nbformat.write(notebook, path)
    return time.monotonic() - since


def main() -> None:
    known = notebooks()
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--jobs", type=int, default=1, help="notebooks at a time")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.names if name not in known]:
        parser.error(f"no experiment {unknown[0]!r}; there are {', '.join(known)}")
    names = chosen.names or [*known]
    failed = False
    with ThreadPoolExecutor(chosen.jobs) as pool:
        runs = {name: pool.submit(execute, known[name]) for name in names}
        for name, run in runs.items():
            try:
                print(f"{name}: {run.result():,.0f} s", flush=True)
            except CellExecutionError as error:
                failed = True
                print(f"{name} failed:\n{error}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()

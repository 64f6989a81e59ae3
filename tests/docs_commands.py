"""Run the commands of README and docs/, as somebody who reads them does: in order, in a checkout.

    python -m tests.docs_commands                        all pages; a quarter of an hour or more
    python -m tests.docs_commands docs/how-to/lora.md    some, after the run that they look at
    python -m tests.docs_commands --session=FOLDER       keep the runs there, and go on with them
    python -m tests.docs_commands --list                 what becomes of each block, and run none

All blocks share a copy of the checkout by links, with a `runs/` of its own. `tests/docs_blocks.py`
says how a page marks what is not run, and a unit test that nothing is without a mark or a run.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.docs_blocks import ROOT, Block, blocks_of, pages, with_flags

LONGEST_SECONDS = 3600.0  # for a block: against hanging
QUICKSTART = "runs/quickstart"  # what many pages look at
OWN = ("runs", ".venv", ".git", "build")  # not shared with the checkout
SHOWN_LINES = 30  # of the output of a block that fails


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tests.docs_commands", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.description = __doc__
    parser.add_argument("pages", nargs="*", help="from the root of the repository; default: all")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--session", type=Path, help="kept; default: a folder that is removed")
    options = parser.parse_args(arguments)
    if unknown := set(options.pages) - set(pages()):
        parser.error(f"no page {sorted(unknown)[0]}; there are {', '.join(pages())}")
    if options.list:
        for block in (b for page in options.pages or pages() for b in blocks_of(page)):
            if block.is_shell:
                print(f"{block.place}: {block.fate} {block.reason}".rstrip())
        return 0
    failed = []
    with tempfile.TemporaryDirectory(prefix="rlboost-docs-") as folder:
        session = checkout(options.session or Path(folder))
        for block in to_run(options.pages or pages()):
            began = time.monotonic()
            output = Path(folder) / "output.txt"
            code = carry_out(block, session, output)
            took = f"{time.monotonic() - began:.1f} s"
            if code == 0:
                print(f"ok      {block.place}  {took}", flush=True)
                continue
            failed.append(block.place)
            print(f"FAILED  {block.place}  {took}, code {code}:\n{block.text}\n", flush=True)
            last = output.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
            print("\n".join(f"    {line}" for line in last), flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "all commands of the pages ran")
    return 1 if failed else 0


def to_run(wanted: Sequence[str]) -> Iterator[Block]:
    """Blocks to run or to save, in order, after the run that they look at."""
    chosen = [
        block
        for page in wanted
        for block in blocks_of(page)
        if block.saved_as or (block.is_shell and block.fate not in ("not run", "tested by"))
    ]
    first = next(block for block in blocks_of(pages()[0]) if "make quickstart" in block.text)
    if first not in chosen and any(QUICKSTART in block.text for block in chosen):
        yield first
    yield from chosen


def checkout(folder: Path) -> Path:
    """A folder that looks like this checkout and its environment, and has nothing of its runs."""
    root = folder / "checkout"
    environment = root / ".venv"
    if environment.exists():
        return root  # of an earlier session
    environment.mkdir(parents=True)
    (root / "runs").mkdir()
    for path in ROOT.iterdir():
        if path.name not in OWN:
            (root / path.name).symlink_to(path)
    for name in ("bin", "lib", "include", "pyvenv.cfg"):
        (environment / name).symlink_to(Path(sys.prefix) / name)
    for name in (".installed", ".installed-dev"):
        (environment / name).touch()  # `make` has nothing to install
    return root


def carry_out(block: Block, root: Path, output: Path) -> int:
    """Run a block, or save it; returns its exit code. It leaves no process."""
    if block.saved_as:
        (root / block.saved_as).write_text(block.text + "\n", encoding="utf-8")
        return 0
    command = ["bash", "-euo", "pipefail", "-c", with_flags(block)]
    environment = {
        **os.environ,
        "PATH": f"{root / '.venv' / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": f"{root}:{root / 'kernels'}",
    }
    with output.open("w") as out:
        process = subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            out.write(f"\nstill there after {LONGEST_SECONDS:.0f} s\n")
            return 124
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of `finally`
    sys.exit(main())

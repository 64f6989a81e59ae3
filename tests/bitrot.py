"""Flip single bits in the files of a run that was killed, and see what becomes of it.

    python -m tests.bitrot [--flips=1000] [--resumes=50] [--lost=25] [--seed=1] [--jobs=2]

Two small runs (a whole model with a KL term; adapters whose best checkpoint is kept) are trained
calmly for their digests, and killed in the middle for their files. Then, one at a time:

flips      a random bit of a random file that a start reads: its reader gives the values of before,
           or an error that names the file
resumes    a random bit of a random file of the workdir, or of the compiled programs: the same
           command then gives the digests of the calm run, or ends with a line that names the file
lost       the same of a file that cannot be read any more: its sectors are lost (EIO)

A server works in every fourth of these starts.

Exit status: 0 where all outcomes are as they have to be, 1 where any is not.
"""

import argparse
import random
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from rlboost_jax.cli.verify import FOLDERS, SMALL
from rlboost_jax.learner.checkpoints import reading as checkpoint_reading
from rlboost_jax.learner.checkpoints.folders import steps_in
from rlboost_jax.manager.journal_entries import read_segment
from rlboost_jax.platform import at_rest
from rlboost_jax.platform.durable import Damaged
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import read_run_config, read_run_id
from tests.diskfaults.rules import Rules, faults
from tests.golden import ROOT, Digests, Tree, digests, end_all

RUNS: Final = {
    "tiny": ("algorithm.kl_coefficient=0.1",),
    "lora": (
        *("evaluation.every_steps=1", "evaluation.num_prompts=4"),
        "evaluation.keep_best=True",
    ),
}
KILLED_AT: Final = 2  # rows
WITH_SERVERS: Final = 4  # every such start has some
SHOWN: Final = 240  # letters of a line


def flip(path: Path, draw: random.Random) -> str:
    """Flip a bit in place; returns which."""
    data = bytearray(path.read_bytes())
    offset, bit = draw.randrange(len(data)), draw.randrange(8)
    data[offset] ^= 1 << bit
    mode = path.stat().st_mode
    path.unlink()  # a second name of the file is of another copy
    path.write_bytes(data)
    path.chmod(mode)
    return f"bit {bit} of byte {offset:,} of {len(data):,}"


class Readers:
    """Reads what a start reads of a workdir, file by file.

    Attributes:
        files: all that have a reader.
    """

    def __init__(self, workdir: Path, compiled: Path) -> None:
        self._workdir = workdir
        self._checkpoints = {
            path: (workdir / folder, step)
            for folder in FOLDERS
            for step in steps_in(workdir / folder)
            for path in sorted((workdir / folder / str(step)).rglob("*"))
            if path.is_file()
        }
        small = [workdir / name for name in SMALL if (workdir / name).exists()]
        journal = sorted((workdir / "journal").iterdir())
        programs = sorted(compiled.rglob("*-cache"))
        self.kinds = [list(self._checkpoints), small, journal, programs]

    def read(self, path: Path) -> Any:
        """What a file says. Raises Damaged or ConfigError, whose text names it."""
        if path in self._checkpoints:
            if reason := checkpoint_reading.damage(*self._checkpoints[path]):
                raise Damaged(reason)
            return path.read_bytes()
        if path.name == "config.json":
            return read_run_config(path), read_run_id(path)
        if path.parent.name == "journal":
            segment = read_segment(path.read_bytes())
            if segment.damage:
                raise Damaged(f"{path}: {segment.damage}")
            return segment.records
        if path.suffix == ".json":
            return at_rest.read_sealed(path, "bring it back")
        try:
            return zlib.decompress(path.read_bytes())
        except zlib.error as error:  # costs a compilation
            raise Damaged(f"{path}: {error}") from None


def flips(runs: Sequence[Readers], count: int, draw: random.Random) -> Counter[str]:
    """Flip as many bits, one at a time, and count outcomes."""
    found: Counter[str] = Counter()
    for _ in range(count):
        readers = draw.choice(runs)
        path = draw.choice(draw.choice([kind for kind in readers.kinds if kind]))
        if not path.stat().st_size:
            continue
        before, mode = path.read_bytes(), path.stat().st_mode
        expected = readers.read(path)
        where = flip(path, draw)
        try:
            outcome = "equal" if readers.read(path) == expected else "SILENT"
        except (Damaged, ConfigError) as error:
            outcome = "named" if path.name in str(error) else "NOT NAMED"
        if outcome not in ("equal", "named"):
            print(f"{outcome}: {path}, {where}", flush=True)
        path.write_bytes(before)
        path.chmod(mode)
        found[outcome] += 1
    return found


class Resumes:
    """Starts of copies of the killed runs.

    Args:
        lost: a file is unreadable; else a bit of it is flipped.
    """

    def __init__(
        self, folder: Path, compiled: Path, expected: dict[str, Digests], *, lost: bool
    ) -> None:
        self._folder, self._compiled, self._expected = folder, compiled, expected
        self._lost = lost
        self._library = faults(folder) if lost else None

    def outcome(self, number: int, seed: int) -> str:
        """Outcome of one fault; its first word is "equal", "refused" or a fault of ours."""
        draw = random.Random(f"{seed}-{number}-{self._lost}")
        name = draw.choice(list(RUNS))
        kind = "lost" if self._lost else "resume"
        workdir = self._folder / f"{kind}-{number}"
        compiled = self._folder / f"compiled-{kind}-{number}"
        shutil.copytree(self._folder / name, workdir, symlinks=True)
        shutil.copytree(self._compiled, compiled)
        path = self._drawn(workdir, compiled, draw)
        words, environment = str(path.relative_to(self._folder)), dict[str, str]()
        if self._library is not None:
            place = self._folder / f"rules-{number}"
            rules = Rules(self._folder, place, self._library)
            rules.lose(path, place.with_name(f"{place.name}-held"))
            environment = dict(rules.environment)
        else:
            words += f", {flip(path, draw)}"
        servers = () if number % WITH_SERVERS == 0 else ("fleet.max_instances=0",)
        code = Tree(ROOT, compiled).run(name, workdir, *RUNS[name], *servers, **environment)
        end_all(workdir)
        found = [row for row in digests(workdir) if row[0] >= KILLED_AT]
        said = Path(f"{workdir}.log").read_text(errors="replace").strip().splitlines()
        if code == 0:
            same = found == self._expected[name][KILLED_AT:]
            shutil.rmtree(workdir)
            shutil.rmtree(compiled)
            notes = [line for line in said if "broken" in line or "damaged" in line]
            return f"{'equal' if same else 'SILENT'}: {words} {' '.join(notes)[:SHOWN]}"
        last = next((line for line in reversed(said) if line.startswith("error")), said[-1])
        if "Traceback" in "".join(said):
            return f"TRACEBACK ({code}): {words}: {last[:SHOWN]}"
        named = any(part in last for part in (path.name, str(path.parent.name)))
        return f"{'refused' if named else 'NOT NAMED'} ({code}): {words}: {last[:SHOWN]}"

    def _drawn(self, workdir: Path, compiled: Path, draw: random.Random) -> Path:
        """Three times as often of each folder of the workdir as of each file beside them."""
        folders: dict[str, list[Path]] = {}
        for path in sorted(workdir.rglob("*")):
            if path.is_file() and not path.is_symlink() and path.stat().st_size:
                below = path.relative_to(workdir)
                folders.setdefault(below.parts[0], []).append(path)
        folders["compiled"] = [path for path in sorted(compiled.rglob("*")) if path.is_file()]
        names = sorted(folders)
        weights = [1 if (workdir / name).is_file() else 3 for name in names]
        return draw.choice(folders[draw.choices(names, weights)[0]])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bitrot",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--resumes", type=int, default=50)
    parser.add_argument("--lost", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="resumes at the same time")
    chosen = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="rlboost-bitrot-"))
    compiled = folder / "compiled"
    tree, expected = Tree(ROOT, compiled), {}
    for name, overrides in RUNS.items():
        calm = folder / f"calm-{name}"
        if code := tree.run(name, calm, *overrides):
            raise SystemExit(f"{name} ended with {code}: see {calm}.log")
        expected[name] = digests(calm)
        tree.run_half(name, folder / name, *overrides)
        end_all(folder / name)
    readers = [Readers(folder / name, compiled) for name in RUNS]
    counts = flips(readers, chosen.flips, random.Random(chosen.seed))
    print(f"{chosen.flips} flips before a reader:", dict(counts), flush=True)
    seen = set(counts)
    for count, lost in ((chosen.resumes, False), (chosen.lost, True)):
        resumes = Resumes(folder, compiled, expected, lost=lost)
        outcomes = _outcomes(resumes, count, chosen.seed, chosen.jobs)
        print(f"{count} whole resumes, files {'lost' if lost else 'flipped'}:", dict(outcomes))
        seen |= outcomes.keys()
    print(f"folders of what was not equal: {folder}")
    return 0 if not seen - {"equal", "named", "refused"} else 1


def _outcomes(resumes: Resumes, count: int, seed: int, jobs: int) -> Counter[str]:
    found = Counter[str]()
    with ThreadPoolExecutor(jobs) as threads:
        for line in threads.map(lambda number: resumes.outcome(number, seed), range(count)):
            print(line, flush=True)
            found[line.split()[0].rstrip(":")] += 1
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

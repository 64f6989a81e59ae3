"""Read every digest of a run, and say what is sound, file by file.

    rlboost verify --workdir=RUN

A line for each folder and file that has digests, and one for each file of them that does not hold
what was written. Reads all of it from the disk, changes nothing, needs no accelerator, and may be
run beside a run that is alive. Exit status: 0 where all is sound, 1 where something is not.

What has no digest of its own: tokens and keys (a damaged one opens nothing, and the error names
it), snapshots (made anew at each start; servers check them by the manifest), and what is written
for people (rows, events, samples, report).
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rlboost_jax.data.open import FILE as DATA
from rlboost_jax.learner.checkpoints import base, best, origin
from rlboost_jax.learner.checkpoints.folders import (
    Owner,
    asides_in,
    is_of_before,
    owner_of,
    steps_in,
    why_misplaced,
)
from rlboost_jax.learner.setup import hosts
from rlboost_jax.manager.journal_entries import read_segment
from rlboost_jax.manager.service.journal_files import SUFFIX
from rlboost_jax.platform import at_rest, command_parser
from rlboost_jax.platform.durable import Damaged
from rlboost_jax.platform.mistakes import ConfigError

FOLDERS: Final = ("checkpoints", best.FOLDER, base.FOLDER, "reference")
SMALL: Final = ("config.json", origin.FILE, DATA, hosts.FILE, f"{best.FOLDER}/{best.FILE}")


class Finding(NamedTuple):
    """Result of checking one folder or file of a run."""

    place: str  # below the workdir
    sound: bool
    words: str

    def __str__(self) -> str:
        return f"{'sound ' if self.sound else 'BROKEN'}  {self.place}: {self.words}"


def findings(workdir: Path) -> Iterator[Finding]:
    """Check all that has digests, yielding each finding as it is read."""
    for name in SMALL:
        if (workdir / name).exists():
            yield _of_small(workdir, name)
    for folder in FOLDERS:
        for step in steps_in(workdir / folder):
            yield from _of_checkpoint(workdir, f"{folder}/{step}")
        for _, aside in asides_in(workdir / folder):
            yield Finding(
                f"{folder}/{aside}", True, "put aside by an earlier start; delete it when you like"
            )
    for path in sorted((workdir / "journal").glob(f"*{SUFFIX}")):
        yield _of_journal(workdir, path)


def _of_small(workdir: Path, name: str) -> Finding:
    try:
        values = at_rest.read_sealed(workdir / name, "bring it back from a copy")
    except (Damaged, OSError) as error:
        return Finding(name, False, str(error))
    sealed = at_rest.is_sealed(workdir / name)
    words = "as it was written" if sealed else "readable; an earlier release wrote it, no digest"
    return Finding(name, values is not None, words)


def _of_checkpoint(workdir: Path, name: str) -> Iterator[Finding]:
    place = workdir / name
    try:
        said = at_rest.described(place)
    except Damaged as error:
        yield Finding(f"{name}/{at_rest.FILE}", False, str(error))
        return
    if said is None:
        before = is_of_before(place)
        words = "an earlier release wrote it, without digests" if before else "it is missing"
        yield Finding(name if before else f"{name}/{at_rest.FILE}", before, words)
        return
    files = said["files"]
    faults = [*at_rest.faults(place, files, from_disk=True), *at_rest.strangers(place, files)]
    if reason := why_misplaced(said, int(place.name), _owner(place.parent)):
        yield Finding(f"{name}/{at_rest.FILE}", False, reason)
        return
    for path, reason in faults:
        yield Finding(path.relative_to(workdir).as_posix(), False, reason)
    size = sum(size for size, _ in files.values())
    words = f"{len(files)} files, {size:,} bytes"
    yield Finding(name, not faults, words + (f", {len(faults)} broken" if faults else ""))


def _owner(folder: Path) -> Owner | None:
    """Find the run of a folder; None where `config.json`, with its own finding, is bad."""
    try:
        return owner_of(folder)
    except ConfigError:
        return None


def _of_journal(workdir: Path, path: Path) -> Finding:
    try:
        segment = read_segment(path.read_bytes())
    except OSError as error:
        return Finding(path.relative_to(workdir).as_posix(), False, str(error.strerror))
    words = segment.damage or f"{len(segment.records):,} entries"
    return Finding(path.relative_to(workdir).as_posix(), not segment.damage, words)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command_parser.parser("verify", __doc__)
    parser.add_argument("--workdir", type=Path, required=True, help="folder of a run")
    workdir = parser.parse_args(argv).workdir
    if not (workdir / "config.json").exists():
        print(f"error: {workdir} has no config.json; give the workdir of a run", file=sys.stderr)
        return 2
    broken = 0
    for finding in findings(workdir):
        print(finding, flush=True)
        broken += not finding.sound
    print(f"{broken} broken" if broken else "all is sound")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

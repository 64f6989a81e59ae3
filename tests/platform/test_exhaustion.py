"""What a host has run out of is said in a line, by whichever way the word of it comes."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rlboost_jax.platform import durable
from rlboost_jax.platform.exhaustion import exhausted, passing
from tests.workdirs import begun

COMMANDS = {
    "trainer": ("rlboost_jax.main", "--config=configs/tiny.py", "--workdir={}"),
    "manager": ("rlboost_jax.manager", "--workdir={}"),
}


def of(number: int, name: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), name)


def wrapped(inner: Exception) -> Exception:
    try:
        try:
            raise inner
        except Exception as error:
            raise ImportError("cannot import name 'x'") from error
    except ImportError as error:
        return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (of(errno.ENOSPC, "/run/metrics.jsonl"), "no space (or no inode) is left on the device; "),
        (of(errno.ENOSPC, "/run/metrics.jsonl"), "(/run/metrics.jsonl)"),
        (of(errno.EDQUOT), "quota"),
        (of(errno.EMFILE), "ulimit -n"),
        (of(errno.EAGAIN), "ulimit -u"),
        (of(errno.EROFS, "/run/x"), "can only be read"),
        (of(errno.EIO, "/run/x"), "dmesg"),
        (of(errno.ESTALE), "network file system"),
        (ValueError("Error writing: OS error 30: EROFS Read-only file system"), "only be read"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (wrapped(of(errno.ENOSPC)), "no space"),
        (ImportError("libx.so: cannot open shared object file: Too many open files"), "ulimit -n"),
        (RuntimeError("Error while serializing: No space left on device (os error 28)"), "space"),
        (MemoryError(), "no memory"),
    ],
)
def test_what_is_used_up_is_named(error: Exception, said: str) -> None:
    line = exhausted(error)
    assert said in line and "\n" not in line and line.endswith("the same command goes on")


@pytest.mark.parametrize(
    "error",
    [
        of(errno.ENOENT, "x"),
        of(errno.EACCES, "x"),
        ValueError("no"),
        wrapped(of(errno.EAGAIN)),
    ],
)
def test_other_errors_are_no_matter_of_resources(error: Exception) -> None:
    assert exhausted(error) == ""


def test_what_is_lost_for_good_does_not_pass() -> None:
    assert passing(wrapped(of(errno.ESTALE))) == exhausted(of(errno.ESTALE))
    assert passing(wrapped(of(errno.EIO))) == "" != exhausted(of(errno.EIO))


# Reading config.json fails from here on.
READING = """
import errno, os, runpy, sys
number, opened = int(sys.argv.pop(1)), os.open

def fails(path, *args, **options):
    if os.path.basename(path) in ("config.json", b"config.json"):
        raise OSError(number, os.strerror(number), str(path))
    return opened(path, *args, **options)

os.open = fails
sys.argv[0] = "rlboost_jax.main"
runpy.run_module("rlboost_jax.main", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (errno.ESTALE, 1, "mount it again"),
        (errno.EMFILE, 1, "ulimit -n"),
        (errno.EIO, 2, "bring it back"),
    ],
)
def test_a_file_that_cannot_be_read_now_is_no_mistake(
    tmp_path: Path, number: int, code: int, said: str
) -> None:
    """A supervisor starts the trainer again, unless the file is lost."""
    workdir = tmp_path / "run"
    workdir.mkdir()
    (workdir / "config.json").write_text("{}")
    command = [*COMMANDS["trainer"][1:-1], f"--workdir={workdir}"]
    done = subprocess.run(
        [sys.executable, "-c", READING, str(number), *command],
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert (done.returncode, last.startswith("error: "), said in last) == (code, True, True), last


@pytest.mark.parametrize("component", [pytest.param("trainer", marks=pytest.mark.soak), "manager"])
def test_a_component_that_can_write_no_file_says_so_in_a_line(
    tmp_path: Path, component: str
) -> None:
    """Its exit code is that of what may pass."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))  # bytes: no certificate fits

    begun(tmp_path)
    if component == "trainer":
        (tmp_path / "config.json").unlink()
    command = [part.format(tmp_path) for part in COMMANDS[component]]
    ended = subprocess.run(
        [sys.executable, "-B", "-m", *command],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"},
    )
    assert ended.returncode == 1, ended.stderr
    lines = [line for line in ended.stderr.splitlines() if "the same command goes on" in line]
    assert len(lines) == 1 and "ulimit -f" in lines[0]
    assert "Traceback" not in ended.stderr, ended.stderr


def test_what_could_not_be_written_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise of(errno.ENOSPC)

    (tmp_path / "file").write_bytes(b"before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        durable.write(tmp_path / "file", bytes(1000))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"before"

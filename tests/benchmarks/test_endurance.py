"""What counts as growth, and what a look finds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import endurance
from benchmarks.endurance import Folder, Look, Sample

SLACK = 8.0  # MiB, besides 5 %


def samples(memory: list[float], **more: list[float]) -> list[Sample]:
    columns = {"descriptors": [10.0] * len(memory), "threads": [3.0] * len(memory)} | more
    return [
        Sample(
            seconds=10.0 * n,
            steps=n,
            kinds={
                "manager": Look(
                    memory_mib=each,
                    descriptors=columns["descriptors"][n],
                    threads=columns["threads"][n],
                )
            },
            folder=Folder(files=columns.get("files", memory)[n], bytes=0, record_bytes=100 * n),
        )
        for n, each in enumerate(memory)
    ]


def test_what_a_process_takes_at_first_is_no_growth_and_a_peak_is_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    calm = [10.0, 50.0, 90.0, 100.0] + [100.0] * 11 + [900.0]
    assert not endurance.report(samples(calm, files=[5.0] * 16))
    assert "15 steps" in capsys.readouterr().out


def test_what_goes_on_growing_is_named_with_its_figures() -> None:
    climbing = [100.0 + 5 * n for n in range(16)]
    found = endurance.report(samples(climbing, files=[5.0] * 16))
    assert found == ["manager: memory_mib from 127.5 to 167.5"]
    leaking = [float(10 + n) for n in range(16)]
    found = endurance.report(samples([100.0] * 16, descriptors=leaking, files=[5.0] * 16))
    assert found == ["manager: descriptors from 15.5 to 23.5"]


@pytest.mark.parametrize(("last", "grown"), [(105.0 + SLACK, False), (105.1 + SLACK, True)])
def test_growth_is_what_exceeds_a_share_and_a_number(last: float, grown: bool) -> None:
    assert endurance.has_grown("memory_mib", 100.0, last) is grown


def test_a_kind_that_comes_later_counts_as_nothing_before() -> None:
    late = samples([1.0, 1.0])
    late[1].kinds["servers"] = late[1].kinds["manager"]
    values = {(kind, name): them for kind, name, them in endurance.series(late)}
    assert values["servers", "processes"] == [0.0, 1.0]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_a_look_finds_a_process_and_what_descends_from_it() -> None:
    code = (
        "import subprocess, sys\n"
        "held = b'x' * 30_000_000\n"
        "files = [open('/dev/null') for _ in range(20)]\n"
        "child = subprocess.Popen(['cat'], stdin=subprocess.PIPE)\n"
        "print(flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, "rlboost_jax.manager"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        found = endurance.looks(process.pid)
        process.stdin.close()
    assert set(found) == {"manager", "others"}
    assert found["manager"].memory_mib > 30 > found["others"].memory_mib
    assert found["manager"].descriptors >= 20 and found["others"].processes == 1
    assert endurance.looks(2**22 + os.getpid()) == {}, "nobody has this number"


def test_a_process_that_ends_while_it_is_looked_at_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (python) S 1 7 7")
    (tmp_path / "7" / "cmdline").write_bytes(b"python\0-m\0rlboost_jax.manager\0")
    assert endurance.looks(7, tmp_path) == {}, "it has no status any more"


def test_files_that_grow_by_a_line_are_counted_apart(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.log").write_bytes(b"123")
    (tmp_path / "metrics.jsonl").write_bytes(b"1\n2\n")
    found = endurance.folder_of(tmp_path)
    assert (found.files, found.bytes, found.record_bytes) == (1, 3, 4)
    assert endurance.steps_of(tmp_path) == 2 and endurance.steps_of(tmp_path / "none") == 0


@pytest.mark.parametrize(
    ("command", "parent", "kind"),
    [
        ("python -m rlboost_jax.main --config=x", "", "trainer"),
        ("python -m rlboost_jax.main --config=x", "trainer", "trainer's children"),
        ("python -m rlboost_jax.manager --workdir=x", "trainer", "manager"),
        ("python -m rlboost_jax.manager --workdir=x", "manager", "manager's children"),
        ("python -I -S /x/platform/output_relay_process.py 5.0 5:3", "trainer", "relays"),
        ("python -m rlboost_jax.rollout.zygote", "trainer", "zygote"),
        ("python -m rlboost_jax.rollout.zygote", "zygote", "servers"),
        ("cat", "trainer", "others"),
    ],
)
def test_processes_are_known_by_their_arguments(command: str, parent: str, kind: str) -> None:
    assert endurance.kind_of(command.split(), parent) == kind


def test_a_run_too_short_for_quarters_is_refused_before_it_begins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        endurance.main(["--hours=0.02", "--every=10"])
    assert "--hours=0.02 is less than eight looks of --every=10 s" in capsys.readouterr().err

"""What another user has put where this one looks by name: passed over, or refused by name."""

import grp
import os
import pwd
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs import tiny
from rlboost_jax.learner.workdir import Workdir
from rlboost_jax.platform import code_places, compile_cache
from rlboost_jax.platform.code_places import foreign
from rlboost_jax.platform.private_paths import NotOurs, code_folder, own_folder
from rlboost_jax.qualification import cache
from rlboost_jax.qualification.trial_records import KernelVerdict, Trial
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.trust.run_files import only_manager
from rlboost_jax.weights import wheels
from tests.hostile.nobody import done, needs_root, reachable

VERDICT = KernelVerdict(
    platform="cpu", device="d", trials=(Trial(candidate="c", outcome="crashed"),)
)


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder like /tmp: everybody makes things in it, and only their own go."""
    with reachable() as folder:
        os.chmod(folder, 0o1777)
        yield folder


@needs_root
@pytest.mark.parametrize(
    "made",
    [
        "os.mkdir(place)",
        "os.mkdir(place, 0o700)",
        "os.symlink(sys.argv[2], place)",
    ],
)
def test_what_another_user_made_first_is_not_used(common: Path, made: str) -> None:
    """A folder under the name that is known beforehand, or a link to be turned elsewhere later."""
    place, ours = common / "run", common / "ours"
    ours.mkdir()
    done("place = sys.argv[1]\n" + made, place, ours)
    with pytest.raises(NotOurs, match=r"--workdir .*/run' belongs to user 65534"):
        Workdir(place, run_config(tiny.get_config())).__enter__()
    with pytest.raises(NotOurs, match=r"compile_cache_dir .*/run belongs to user 65534"):
        compile_cache.enable(str(place))
    assert not any(ours.iterdir())


@needs_root
def test_programs_that_another_user_has_put_there_are_not_run(common: Path) -> None:
    """Below a folder that is everybody's the name of the next is known: versions and processor."""
    place = common / compile_cache.fingerprint()
    done("os.mkdir(sys.argv[1])", place)
    with pytest.raises(NotOurs, match="belongs to user 65534"):
        compile_cache.enable(str(common))


@needs_root
@pytest.mark.parametrize(
    ("planted", "place", "said"),
    [
        ("os.mkdir(a)", "a", "a belongs to user 65534 (mode 777)"),
        ("os.mkdir(a); os.mkdir(a + '/b')", "a/b", "belongs to user 65534"),
        ("os.mkdir(a, 0o755)", "a/new/b", "a belongs to user 65534 (mode 755)"),
        ("os.symlink(sys.argv[2], a)", "a", "a belongs to user 65534"),
        ("os.symlink(sys.argv[2], a)", "a/new", "a belongs to user 65534"),
        ("open(sys.argv[2] + '/x-cache', 'w')", "ours", "x-cache belongs to user 65534"),
        ("os.mkdir(sys.argv[2] + '/x', 0o755)", "ours", "x belongs to user 65534"),
        ("os.symlink('/etc', sys.argv[2] + '/x')", "ours", "x belongs to user 65534"),
    ],
)
def test_code_is_run_from_no_place_that_another_user_has_touched(
    common: Path, monkeypatch: pytest.MonkeyPatch, planted: str, place: str, said: str
) -> None:
    """Before the place is made, on the way to it, or in it while all could write it."""
    ours = common / "ours"
    ours.mkdir()
    ours.chmod(0o777)
    done("a = sys.argv[1]\n" + planted, common / "a", ours)
    ours.chmod(0o755)
    had = sorted(common.rglob("*"))
    with pytest.raises(NotOurs, match=re.escape(said)) as refused:
        code_folder(common / place, "compile_cache_dir")
    assert str(refused.value).startswith(f"compile_cache_dir '{common / place}': {common}")
    assert sorted(common.rglob("*")) == had, "it made a folder where another has a say"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(common / place))
    with pytest.raises(NotOurs, match=re.escape(said)):
        compile_cache.enable()
    if (common / place).is_dir():
        with pytest.raises(NotOurs, match=r"^fleet.wheelhouse .*" + re.escape(said)):
            wheels.check_place(str(common / place))


def test_a_new_place_of_code_is_this_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0)
    try:
        place = code_folder(tmp_path / "a" / "b", "x")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (place, place.parent)] == [0o700, 0o700]
    assert code_folder(place, "x") == place
    monkeypatch.chdir(tmp_path)
    assert code_places.replaceable(Path("a/b")) == ""


ME, OTHER = 1000, 1001
DIR, STICKY, LINK, FILE = stat.S_IFDIR, stat.S_IFDIR | stat.S_ISVTX, stat.S_IFLNK, stat.S_IFREG


@pytest.mark.parametrize(
    ("uid", "mode", "above", "said"),
    [
        (ME, DIR | 0o700, False, ""),
        (ME, DIR | 0o755, True, ""),
        (0, DIR | 0o755, True, ""),
        (0, STICKY | 0o777, True, ""),
        (0, LINK | 0o777, False, ""),
        (ME, FILE | 0o644, False, ""),
        (OTHER, DIR | 0o700, False, "belongs to user 1001 (mode 700)"),
        (OTHER, DIR | 0o755, True, "belongs to user 1001 (mode 755)"),
        (OTHER, STICKY | 0o777, True, "belongs to user 1001 (mode 1777)"),
        (OTHER, LINK | 0o777, False, "belongs to user 1001"),
        (OTHER, FILE | 0o644, False, "belongs to user 1001"),
        (0, STICKY | 0o777, False, "(mode 1777) can be written by every user; chmod o-w"),
        (ME, DIR | 0o777, True, "(mode 777) can be written by every user; chmod o-w"),
        (ME, FILE | 0o646, False, "(mode 646) can be written by every user"),
        (ME, DIR | 0o775, True, "(mode 775) can be written by group 2000; chmod g-w"),
        (0, DIR | 0o2775, False, "(mode 2775) can be written by group 2000"),
    ],
)
def test_whose_places_may_hold_code(
    monkeypatch: pytest.MonkeyPatch, uid: int, mode: int, above: bool, said: str
) -> None:
    """For any user, root or not: owners and modes are made up."""
    monkeypatch.setattr(os, "geteuid", lambda: ME)
    monkeypatch.setattr(code_places, "_is_private", lambda group, user: group != 2000)
    found = os.stat_result((mode, 0, 0, 1, uid, 2000, 0, 0, 0, 0))
    objection = code_places._objection(Path("/x"), [(Path("/x/y"), found, above)])
    assert (objection == "") == (said == "") and said in objection
    assert objection == "" or objection.startswith("/x/y ")


def test_a_group_of_ones_own_is_nobody_else() -> None:
    """As most systems give each user one, so that folders are made with mode 775."""
    assert code_places._is_private(0, ME)
    own = pwd.getpwuid(os.geteuid())
    alone = grp.getgrgid(own.pw_gid)
    assert code_places._is_private(own.pw_gid, own.pw_uid) == (
        own.pw_gid == 0 or (alone.gr_name == own.pw_name and not set(alone.gr_mem) - {own.pw_name})
    )
    assert code_places._is_private(2**31 - 2, 2**31 - 2) and not code_places._is_private(
        2**31 - 2, ME
    )


def test_what_is_open_to_all_is_not_used(tmp_path: Path) -> None:
    place = tmp_path / "cache"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(NotOurs, match="every user; chmod o-w"):
        own_folder(place, "x")
    place.chmod(0o1777)  # others cannot take away in it what is ours
    own_folder(place, "x")
    place.chmod(0o775)
    assert foreign(place) == ""


@needs_root
def test_verdicts_of_another_user_are_none(common: Path) -> None:
    """They say which kernels a run is to have."""
    path = cache.place_of(common, "attention", {"a": 1})
    done("os.mkdir(sys.argv[1], 0o777)", path.parent)
    assert "belongs to user 65534" in cache.keep(path, {"a": 1}, VERDICT)
    own = cache.place_of(common / "own", "attention", {"a": 1})
    assert cache.keep(own, {"a": 1}, VERDICT) == ""
    assert cache.kept(own, {"a": 1}, KernelVerdict) == VERDICT
    path.write_bytes(own.read_bytes())
    assert cache.kept(path, {"a": 1}, KernelVerdict) is None


@needs_root
def test_nobody_else_holds_a_lock() -> None:
    """A user who can open a file can lock it, and then no trainer would start, and no manager."""
    with reachable() as workdir:
        with Workdir(workdir, run_config(tiny.get_config())):
            (workdir / "manager.lock").touch(mode=0o644)  # of an earlier release
            with only_manager(workdir):
                pass
        for name in ("lock", "manager.lock"):
            said = done(
                """
try:
    fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
    print("locked")
except PermissionError:
    print("no")
""",
                workdir / name,
            )
            assert said == "no\n", name

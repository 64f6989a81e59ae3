"""What another user has put where this one looks by name: passed over, or refused by name."""

import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from configs import tiny
from rlboost_jax import compile_cache
from rlboost_jax.host.private_paths import NotOurs, foreign, own_folder
from rlboost_jax.manager.service.run_files import only_manager
from rlboost_jax.qualification import cache
from rlboost_jax.qualification.records import Trial, Verdict
from rlboost_jax.settings.load import run_config
from rlboost_jax.storage.workdir import Workdir
from rlboost_jax.weights.spool import PREFIX, Spool
from tests.hostile.nobody import done, needs_root, reachable
from tests.patience import PATIENCE_SECONDS

VERDICT = Verdict(platform="cpu", device="d", trials=(Trial(candidate="c", outcome="crashed"),))


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder like /tmp and /dev/shm: everybody makes things in it, and only their own go."""
    with reachable() as folder:
        os.chmod(folder, 0o1777)
        yield folder


def ended(work: Callable[[], None]) -> bool:
    """Whether it came to its end. A thread that hangs in the system is left where it is."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    return not thread.is_alive()


TRAPS = {
    "a FIFO": "os.mkfifo(place)",
    "a socket": "socket.socket(socket.AF_UNIX).bind(place)",
    "a link to what is ours": "os.symlink(sys.argv[2], place)",
    "a link to a FIFO": "os.mkfifo(place + '-fifo'); os.symlink(place + '-fifo', place)",
    "a link to itself": "os.symlink(place, place)",
    "a folder": "os.mkdir(place, 0o777)",
    "a file": "open(place, 'w').write('x')",
}


@needs_root
@pytest.mark.parametrize("trap", TRAPS)
def test_a_spool_is_made_beside_whatever_has_such_a_name(common: Path, trap: str) -> None:
    """It waits for nothing, follows no link and removes nothing that is not this user's."""
    ours = common / "ours"
    ours.mkdir()
    (ours / "kept").write_text("x")
    done("place = sys.argv[1]\n" + TRAPS[trap], common / f"{PREFIX}trap", ours)
    made: list[Path] = []

    def pull() -> None:
        spool = Spool()
        made.append(spool.make(common, 1))
        assert stat.S_IMODE(made[0].stat().st_mode) == 0o700
        spool.remove()

    assert ended(pull), "it waits for what another user has put there"
    assert made and not made[0].exists()
    assert (common / f"{PREFIX}trap").is_symlink() or (common / f"{PREFIX}trap").exists()
    assert (ours / "kept").exists()


def test_a_spool_of_a_killed_process_still_goes(common: Path) -> None:
    left = common / f"{PREFIX}left"
    (left / "a").mkdir(parents=True)
    spool = Spool()
    spool.make(common, 1)
    spool.remove()
    assert not left.exists()


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
    with pytest.raises(NotOurs, match=r"compile_cache_dir .*/run' belongs to user 65534"):
        compile_cache.enable(str(place))
    assert not any(ours.iterdir())


@needs_root
def test_programs_that_another_user_has_put_there_are_not_run(common: Path) -> None:
    """Below a folder that is everybody's the name of the next is known: versions and processor."""
    place = common / compile_cache.fingerprint()
    done("os.mkdir(sys.argv[1])", place)
    with pytest.raises(NotOurs, match="belongs to user 65534"):
        compile_cache.enable(str(common))


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
    assert cache.kept(own, {"a": 1}) == VERDICT
    path.write_bytes(own.read_bytes())
    assert cache.kept(path, {"a": 1}) is None


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

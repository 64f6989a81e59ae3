"""Small files whose bytes the device has lost, and files that cannot be read for another reason.

The first are made anew where that loses nothing, and named where it does. The second may be sound:
nothing takes their place.
"""

import datetime
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rlboost_jax.platform import at_rest
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.settings.config_loading import read_run_id
from rlboost_jax.trust import authority, seal
from rlboost_jax.trust.run_files import read_tokens

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
LOST = (errno.EIO, errno.EBADMSG)
PASSES = (errno.EMFILE, errno.ENOMEM, errno.ESTALE)


def tokens(root: Path) -> None:
    read_tokens(root)


def certificates(root: Path) -> None:
    authority.prepare(
        authority=root / "authority",
        servers=root / "join",
        trainer=root / "trainer",
        names=(),
        now=NOW,
    )


def seals(root: Path) -> None:
    for folder in (root / "trainer", root / "join"):
        folder.mkdir(parents=True, exist_ok=True)
    seal.prepare_seal(root / "trainer", [root / "join"])


MADE_ANEW = [
    (tokens, "join/token"),
    (tokens, "trainer/token"),
    (certificates, "authority/ca.key"),
    (certificates, "authority/manager.pem"),
    (certificates, "join/client.key"),
    (seals, f"trainer/{seal.SEAL_KEY}"),
]


def fail(monkeypatch: pytest.MonkeyPatch, path: Path, number: int) -> None:
    """Have reading a file fail from here on."""
    for name in ("read_bytes", "read_text"):
        read = getattr(Path, name)

        def refuse(self: Path, *args: str, read: Callable[..., object] = read, **options: str):
            if self == path:
                raise OSError(number, os.strerror(number), str(path))
            return read(self, *args, **options)

        monkeypatch.setattr(Path, name, refuse)
    opened = os.open

    def refuse_to_open(name: object, flags: int, *args: int, **options: int) -> int:
        if name == path and not flags & (os.O_WRONLY | os.O_DIRECTORY):
            raise OSError(number, os.strerror(number), str(path))
        return opened(name, flags, *args, **options)

    monkeypatch.setattr(os, "open", refuse_to_open)


@pytest.mark.parametrize(("make", "name"), MADE_ANEW)
@pytest.mark.parametrize("number", LOST)
def test_a_lost_secret_is_made_anew(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], None],
    name: str,
    number: int,
) -> None:
    make(tmp_path)
    path = tmp_path / name
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        fail(patch, path, number)
        make(tmp_path)
    assert path.read_bytes() not in (b"", before)


@pytest.mark.parametrize(("make", "name"), MADE_ANEW)
@pytest.mark.parametrize("number", PASSES)
def test_one_that_cannot_be_read_now_stays(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], None],
    name: str,
    number: int,
) -> None:
    make(tmp_path)
    path = tmp_path / name
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        fail(patch, path, number)
        with pytest.raises(OSError, match=os.strerror(number)):
            make(tmp_path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["config.json", "data.json"])
def test_what_cannot_be_made_anew_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / name
    at_rest.write_sealed(path, {"run_id": "run"})
    fail(monkeypatch, path, errno.EIO)
    with pytest.raises(Mistake, match=f"{name}.*Input/output error.*bring it back"):
        if name == "config.json":
            read_run_id(tmp_path)
        else:
            at_rest.read_sealed(path, "bring it back")


def test_a_sealed_file_that_cannot_be_read_now_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.json"
    at_rest.write_sealed(path, {"rows": 1})
    fail(monkeypatch, path, errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files") as raised:
        at_rest.read_sealed(path, "")
    assert not isinstance(raised.value, Mistake)

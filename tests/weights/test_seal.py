"""Whose manifest it is."""

import asyncio

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rlboost_jax import messages as m
from rlboost_jax.trust.seal import (
    CONTEXT,
    SEAL_KEY,
    check_seal,
    prepare_seal,
    public_of,
    read_seal_key,
    sealed,
)
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.pull import Puller
from tests.endpoints import SEAL, endpoint

CHECK = public_of(SEAL)
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
MANIFEST = m.Manifest(
    version=7,
    directory="/run/snapshots/7",
    params_digest="d",
    piece_bytes=7,
    list_bytes=90,
    list_sha256="ab",
)


def test_it_is_a_signature_of_what_travels() -> None:
    content = msgspec.msgpack.encode({**msgspec.to_builtins(MANIFEST), "seal": ""})
    seal = bytes.fromhex(sealed(MANIFEST, SEAL).seal)
    SEAL.public_key().verify(seal, CONTEXT + content)  # raises InvalidSignature


def test_it_survives_its_way() -> None:
    frame = m.encode(m.Announce(manifest=sealed(MANIFEST, SEAL)))
    announced = m.decode_to_server(frame)
    assert isinstance(announced, m.Announce)
    check_seal(announced.manifest, CHECK)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 8},
        {"directory": "/elsewhere"},
        {"params_digest": "e"},
        {"piece_bytes": 8},
        {"list_bytes": 91},
        {"list_sha256": "cd"},
        {"seal": ""},
        {"seal": "0" * 64},
        {"seal": "ü"},
    ],
)
def test_nothing_can_be_changed(change: dict[str, object]) -> None:
    changed = msgspec.structs.replace(sealed(MANIFEST, SEAL), **change)
    with pytest.raises(WeightsError, match="not sealed by this run's trainer"):
        check_seal(changed, CHECK)


@pytest.mark.parametrize("public", [b"", bytes(32), public_of(OTHER), CHECK + b" "])
def test_it_is_of_one_key(public: bytes) -> None:
    with pytest.raises(WeightsError, match="version 7"):
        check_seal(sealed(MANIFEST, SEAL), public)
    with pytest.raises(WeightsError, match="version 7"):
        check_seal(sealed(MANIFEST, OTHER), CHECK)


def test_what_servers_hold_seals_nothing(tmp_path) -> None:
    """Their folder has no key, and the bytes that it has are not one that seals for the others."""
    servers, trainer = tmp_path / "join", tmp_path / "trainer"
    for folder in (servers, trainer):
        folder.mkdir()
    prepare_seal(trainer, [servers])
    assert [path.name for path in servers.iterdir()] == ["seal.pub"]
    held = bytes.fromhex((servers / "seal.pub").read_text())
    forged = sealed(MANIFEST, Ed25519PrivateKey.from_private_bytes(held))
    with pytest.raises(WeightsError, match="not sealed"):
        check_seal(forged, held)
    check_seal(sealed(MANIFEST, read_seal_key(trainer)), held)


@pytest.mark.parametrize("damage", [None, "", "zz", "00"])
def test_a_key_is_made_once_and_again_where_it_is_none(tmp_path, damage: str | None) -> None:
    prepare_seal(tmp_path, [])
    first = (tmp_path / SEAL_KEY).read_text()
    if damage is not None:
        (tmp_path / SEAL_KEY).write_text(damage)
    prepare_seal(tmp_path, [])
    assert ((tmp_path / SEAL_KEY).read_text() == first) is (damage is None)
    assert (tmp_path / SEAL_KEY).stat().st_mode & 0o777 == 0o600
    check_seal(
        sealed(MANIFEST, read_seal_key(tmp_path)),
        bytes.fromhex((tmp_path / "seal.pub").read_text()),
    )


def test_a_foreign_manifest_is_not_even_looked_for(manifest, tmp_path) -> None:
    nowhere = msgspec.structs.replace(manifest, directory=str(tmp_path / "nowhere"))
    puller = Puller(source="directory", manager=endpoint("127.0.0.1:9"))
    with pytest.raises(WeightsError, match="not sealed"):
        asyncio.run(puller.pull(nowhere))

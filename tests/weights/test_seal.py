"""Whose manifest it is."""

import asyncio
import hashlib
import hmac

import msgspec
import pytest

from rlboost_jax import messages as m
from rlboost_jax.weights.names import WeightsError
from rlboost_jax.weights.pull import Puller
from rlboost_jax.weights.seal import CONTEXT, check_seal, sealed
from tests.endpoints import endpoint

TOKEN = "the servers' own"
MANIFEST = m.Manifest(
    version=7,
    directory="/run/snapshots/7",
    params_digest="d",
    files=(
        m.FileEntry(path="a/0", size=3, sha256="ab"),
        m.FileEntry(path="b/0", size=4, sha256="cd"),
    ),
    leaves=(m.LeafEntry(name="a", shape=(1, 3), dtype="float32"),),
)


def test_it_is_an_hmac_of_what_travels() -> None:
    content = msgspec.msgpack.encode({**msgspec.to_builtins(MANIFEST), "seal": ""})
    key = hmac.new(TOKEN.encode(), CONTEXT, "sha256").digest()
    by_hand = hmac.new(key, content, hashlib.sha256).hexdigest()
    assert sealed(MANIFEST, TOKEN).seal == by_hand


def test_it_survives_its_way() -> None:
    frame = m.encode(m.Announce(manifest=sealed(MANIFEST, TOKEN)))
    announced = m.decode_to_server(frame)
    assert isinstance(announced, m.Announce)
    check_seal(announced.manifest, TOKEN)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 8},
        {"directory": "/elsewhere"},
        {"params_digest": "e"},
        {"files": MANIFEST.files[:1]},
        {"files": MANIFEST.files[::-1]},
        {"files": (msgspec.structs.replace(MANIFEST.files[0], sha256="cd"), MANIFEST.files[1])},
        {"files": (msgspec.structs.replace(MANIFEST.files[0], size=4), MANIFEST.files[1])},
        {"leaves": ()},
        {"seal": ""},
        {"seal": "0" * 64},
        {"seal": "ü"},
    ],
)
def test_nothing_can_be_changed(change: dict[str, object]) -> None:
    changed = msgspec.structs.replace(sealed(MANIFEST, TOKEN), **change)
    with pytest.raises(WeightsError, match="not sealed with this run's secret"):
        check_seal(changed, TOKEN)


@pytest.mark.parametrize("token", ["", "another", TOKEN + " "])
def test_it_is_of_one_secret(token: str) -> None:
    with pytest.raises(WeightsError, match="version 7"):
        check_seal(sealed(MANIFEST, token), TOKEN)


def test_a_foreign_manifest_is_not_even_looked_for(manifest, tmp_path) -> None:
    nowhere = msgspec.structs.replace(manifest, directory=str(tmp_path / "nowhere"))
    puller = Puller(source="directory", manager=endpoint("127.0.0.1:9", TOKEN), folder=tmp_path)
    with pytest.raises(WeightsError, match="not sealed"):
        asyncio.run(puller.pull(nowhere))
    assert not any(tmp_path.glob("rlboost-*"))

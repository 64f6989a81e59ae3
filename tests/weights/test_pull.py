import asyncio
import hashlib
import itertools
import socket
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rlboost_jax.messages import FileEntry, Manifest, PieceList
from rlboost_jax.trust.seal import sealed
from rlboost_jax.weights import serve, shares
from rlboost_jax.weights.arrivals import ByteCounter, FilesInMemory
from rlboost_jax.weights.connections import (
    DOWNLOADS,
    RETRIES,
    Connections,
    Retries,
    connections_each,
)
from rlboost_jax.weights.file_sources import Files, fetch
from rlboost_jax.weights.piece_lists import list_path, listed, write_list
from rlboost_jax.weights.pieces import MOST_CONNECTIONS
from rlboost_jax.weights.pull import Puller, WeightsError
from rlboost_jax.weights.snapshots import SnapshotStore
from tests.endpoints import SEAL, endpoint
from tests.patience import PATIENCE_SECONDS
from tests.weights.conftest import relisted

AT_ONCE = Retries(first_backoff_seconds=0.0, silence_seconds=PATIENCE_SECONDS)


@asynccontextmanager
async def served(manifest: Manifest, *middlewares, token: str = "secret"):
    """What a manager serves of one snapshot, as (Http, requests seen)."""
    seen: list[tuple[str, str]] = []

    @web.middleware
    async def note(request, handler):
        seen.append((request.path, request.headers.get("Range", "")))
        if request.headers.get("Authorization") != f"Bearer {token}":
            raise web.HTTPUnauthorized
        return await handler(request)

    app = web.Application(middlewares=[note, *middlewares])
    serve.add_routes(app, serve.ServedVersions([serve.served_version(manifest)], 0.0))
    server = TestServer(app)
    await server.start_server()
    yield endpoint(f"{server.host}:{server.port}"), seen
    await server.close()
    await asyncio.sleep(0)  # transports close their sockets in the next turn of the loop


def remote(manifest: Manifest) -> Manifest:
    """The same manifest as seen from a host without the learner's disk."""
    return sealed(msgspec.structs.replace(manifest, directory="/nowhere"), SEAL)


def assert_same(found, params):
    np.testing.assert_array_equal(found["embed"]["table"], params["embed"]["table"])
    kernel = params["layers"]["attention"]["query"]["kernel"]
    np.testing.assert_array_equal(found["layers"]["attention"]["query"]["kernel"], kernel)
    assert not found["layers"]["norm"]["scale"].any()


def pull_directory(manifest):
    return asyncio.run(Puller(source="directory", manager=None).pull(manifest))


def pull_http(manifest, *middlewares, source="http"):
    async def scenario():
        async with served(manifest, *middlewares) as (manager, seen):
            puller = Puller(source=source, manager=manager, retries=AT_ONCE)
            return await puller.pull(remote(manifest)), seen

    return asyncio.run(scenario())


def test_from_the_directory(manifest, params):
    pulled = pull_directory(manifest)
    assert_same(pulled.params, params)
    assert pulled.fetched_bytes == manifest.num_bytes


def test_over_http(manifest, params):
    pulled, seen = pull_http(manifest)
    assert_same(pulled.params, params)
    assert seen == [
        ("/weights/3/list", f"bytes=0-{manifest.list_bytes - 1}"),
        ("/weights/3", f"bytes=0-{manifest.piece_bytes - 1}"),
    ]


@pytest.mark.parametrize("source", ["directory", "http"])
def test_what_has_come_is_counted_from_pull_to_pull(manifest, source):
    async def scenario():
        async with served(manifest) as (manager, _):
            puller = Puller(source=source, manager=manager if source == "http" else None)
            assert puller.pulled.total == 0
            for pulls in (1, 2):  # its list stays
                await puller.pull(remote(manifest) if source == "http" else manifest)
                assert puller.pulled.total == manifest.list_bytes + pulls * manifest.piece_bytes

    asyncio.run(scenario())


def test_auto_goes_where_the_snapshot_can_be_had(manifest, params):
    assert_same(asyncio.run(Puller(source="auto", manager=None).pull(manifest)).params, params)
    pulled, seen = pull_http(manifest, source="auto")
    assert_same(pulled.params, params)
    assert seen


def test_auto_falls_over_to_http(manifest, params, tmp_path):
    """The directory is visible and one of its files is not what it should be."""
    copy = tmp_path / "copy"
    copy.mkdir()
    pieces = listed(manifest)
    list_path(copy).write_bytes(list_path(manifest.directory).read_bytes())
    for entry in pieces.files:
        (copy / entry.path).parent.mkdir(exist_ok=True)
        (copy / entry.path).write_bytes((Path(manifest.directory) / entry.path).read_bytes())
    (copy / pieces.files[1].path).write_bytes(b"")

    async def scenario():
        async with served(manifest) as (manager, _):
            seen_here = sealed(msgspec.structs.replace(manifest, directory=str(copy)), SEAL)
            return await Puller(source="auto", manager=manager).pull(seen_here)

    assert_same(asyncio.run(scenario()).params, params)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("pull", [pull_directory, lambda m: pull_http(m)[0]], ids=["disk", "http"])
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        pytest.param(flip, "SHA-256 .*list says", id="bit"),
        pytest.param(
            lambda path: path.write_bytes(path.read_bytes()[:-1]),
            "1023 bytes, its .* says 1024",
            id="short",
        ),
        pytest.param(
            lambda path: path.write_bytes(b""),
            "0 bytes, its .* says 1024",
            id="lost",
        ),
        pytest.param(
            lambda path: path.write_bytes(path.read_bytes() + b"x"),
            "1025 bytes, its .* says 1024|more than the 1024 bytes that its list says",
            id="long",
        ),
        pytest.param(lambda path: path.unlink(), "No such file|is gone", id="missing"),
    ],
)
def test_w10_damaged_weights_are_refused_and_fetched_again(manifest, params, pull, damage, reason):
    file = Path(manifest.directory) / "layers.attention.query.kernel/0.0.0"
    whole = file.read_bytes()
    assert len(whole) == 1024
    damage(file)
    with pytest.raises(
        WeightsError, match=rf"layers\.attention\.query\.kernel/0\.0\.0.*({reason})"
    ):
        pull(manifest)
    file.write_bytes(whole)
    assert_same(pull(manifest).params, params)


def broken_after(num_bytes: int, times: int, sent: list[int], manifest: Manifest):
    """The first `times` answers break off after `num_bytes`."""
    files = (Path(manifest.directory) / entry.path for entry in listed(manifest).files)
    whole = b"".join(file.read_bytes() for file in files)
    left = [times]

    @web.middleware
    async def middleware(request, handler):
        if request.path.endswith("/list"):
            return await handler(request)
        part = request.http_range
        data = whole[part]
        response = web.StreamResponse(status=206 if part.start else 200)
        response.content_length = len(data)
        await response.prepare(request)
        if left[0]:
            left[0] -= 1
            data = data[:num_bytes]
        await response.write(data)
        sent.append(len(data))
        if len(data) < response.content_length:
            request.transport.close()  # in the middle of the body
        return response

    return middleware


def test_a_broken_download_is_taken_up_where_it_broke(manifest, params):
    sent: list[int] = []
    pulled, seen = pull_http(manifest, broken_after(50, 2, sent, manifest))
    assert_same(pulled.params, params)
    assert sum(sent) == manifest.piece_bytes, "every byte once"
    assert pulled.fetched_bytes == manifest.num_bytes
    last = manifest.piece_bytes - 1
    assert [asked for _, asked in seen[1:]] == [f"bytes={at}-{last}" for at in (0, 50, 100)]


def test_a_server_that_comes_back_is_waited_for(manifest, params):
    failures = iter([True, True])

    @web.middleware
    async def starting(request, handler):
        if next(failures, False):
            raise web.HTTPServiceUnavailable
        return await handler(request)

    pulled, _ = pull_http(manifest, starting)
    assert_same(pulled.params, params)


def test_gives_up_after_so_many_attempts(manifest):
    with pytest.raises(WeightsError, match=f"{RETRIES.attempts} attempts failed with"):
        pull_http(manifest, broken_after(1, 10**6, [], manifest))


def test_a_server_that_ignores_ranges_is_read_from_the_beginning(manifest, params):
    sent: list[int] = []

    @web.middleware
    async def without_ranges(request, handler):
        headers = {k: v for k, v in request.headers.items() if k != "Range"}
        return await handler(request.clone(headers=headers))

    pulled, _ = pull_http(manifest, without_ranges, broken_after(50, 1, sent, manifest))
    assert_same(pulled.params, params)
    assert sum(sent) > manifest.piece_bytes


def test_a_wrong_token_is_reported_at_once(manifest):
    async def scenario():
        async with served(manifest, token="another") as (manager, seen):
            with pytest.raises(WeightsError, match="HTTP 401"):
                await Puller(source="http", manager=manager).pull(remote(manifest))
            assert len(seen) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "a//b", "a/./b", "a/../../b", "", "a\\b", "a\nb", "a/", "\0"]
)
def test_a_name_that_leads_elsewhere_is_refused(manifest, name):
    entry = FileEntry(path=name, size=0, sha256="")
    bad = relisted(manifest, files=(*listed(manifest).files, entry))
    with pytest.raises(WeightsError, match="unsafe file name"):
        pull_directory(bad)


def test_a_leaf_name_that_leads_elsewhere_is_refused(manifest):
    leaf = msgspec.structs.replace(listed(manifest).leaves[0], name="../embed")
    with pytest.raises(WeightsError, match="unsafe leaf name"):
        pull_directory(relisted(manifest, leaves=(leaf,)))


def test_a_name_that_occurs_twice_is_refused(manifest):
    files = listed(manifest).files
    with pytest.raises(WeightsError, match="twice"):
        pull_directory(relisted(manifest, files=(*files, files[0])))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xc1", b"[" * 9_000, b"\x91" * 9_000])
def test_what_is_no_list_is_refused(manifest, data):
    list_path(manifest.directory).write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    bad = msgspec.structs.replace(manifest, list_bytes=len(data), list_sha256=digest)
    with pytest.raises(WeightsError, match="list of pieces"):
        pull_directory(bad)


@pytest.mark.parametrize("pull", [pull_directory, lambda m: pull_http(m)[0]], ids=["disk", "http"])
def test_a_list_that_its_manifest_does_not_name_is_refused(manifest, pull):
    """Neither another version's, nor one with other digests; no file is looked for then."""
    relisted(manifest, files=listed(manifest).files[:-1])
    with pytest.raises(WeightsError, match=r"\.pieces"):
        pull(manifest)


@pytest.mark.parametrize(
    "change", [{"shape": (8, 41)}, {"dtype": "bfloat16"}, {"shape": (40, 8, 1)}]
)
def test_a_leaf_unlike_its_manifest_is_refused(manifest, change):
    first, *others = listed(manifest).leaves
    leaf = msgspec.structs.replace(first, **change)
    with pytest.raises(WeightsError, match=r"leaf embed\.table: its pieces are not those of"):
        pull_directory(relisted(manifest, leaves=(leaf, *others)))


def test_a_leaf_whose_file_no_manifest_names_is_not_read_as_zeros(manifest):
    files = tuple(e for e in listed(manifest).files if e.path != "embed.table/0.0")
    with pytest.raises(WeightsError, match=r"leaf embed\.table"):
        pull_directory(relisted(manifest, files=files))


def test_file_systems_are_touched_in_threads_only(manifest, params, monkeypatch):
    """They may hang, and the event loop renews the lease."""
    touched: list[str] = []

    def apart(owner, name):
        whole = getattr(owner, name)

        def checked(*args, **kwargs):
            assert threading.current_thread() is not threading.main_thread(), name
            touched.append(name)
            return whole(*args, **kwargs)

        monkeypatch.setattr(owner, name, checked)

    names = [(Path, "is_file"), (Path, "open")]
    for owner, name in names:
        apart(owner, name)
    puller = Puller(source="auto", manager=None)
    assert_same(asyncio.run(puller.pull(manifest)).params, params)
    assert {name for _, name in names} == set(touched)


@pytest.mark.parametrize("dtype", ["O", "nonsense", "V0"])
def test_a_dtype_that_is_none_is_refused(manifest, dtype):
    first, *others = listed(manifest).leaves
    leaf = msgspec.structs.replace(first, dtype=dtype)
    with pytest.raises(WeightsError, match=r"leaf embed\.table: no array"):
        pull_directory(relisted(manifest, leaves=(leaf, *others)))


@pytest.mark.parametrize("pull", [pull_directory, lambda m: pull_http(m)[0]], ids=["disk", "http"])
@pytest.mark.parametrize("parts", [(1, 1), (2, 2), (1, 4), (4, 2)])
def test_pieces_of_any_mesh_and_cut_arrive_in_their_places(tmp_path, monkeypatch, pull, parts):
    """Also where the bytes of a piece do not follow each other in the array."""
    monkeypatch.setattr(shares, "MOST_CHUNK_BYTES", 200)
    monkeypatch.setattr(shares, "LEAST_CHUNK_BYTES", 1)
    array = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    rows, columns = (size // count for size, count in zip(array.shape, parts, strict=True))
    share = shares.Share(
        shape=array.shape,
        part_shape=(rows, columns),
        dtype=array.dtype,
        parts={
            (i, j): array[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            for i, j in np.ndindex(*parts)
        },
    )
    tree = {"a": share, "count": np.asarray(7), "scale": np.float32(0.5) * np.ones(())}
    manifest = SnapshotStore(tmp_path, dtype="bfloat16", keep=1).write(3, tree, "d")
    found = pull(manifest).params
    assert found["a"].tobytes() == array.astype("bfloat16").tobytes()
    assert found["count"] == 7 and found["count"].shape == () and found["scale"] == 0.5


def test_a_port_that_cannot_be_reached_is_named(manifest):
    with socket.socket() as bound:  # and nobody listens on it
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        puller = Puller(source="http", manager=endpoint("127.0.0.1:9"), retries=AT_ONCE)
        puller.reach(port)
        with pytest.raises(WeightsError, match=f"127.0.0.1:{port}.*must reach this port"):
            asyncio.run(puller.pull(remote(manifest)))


def test_only_files_of_a_known_manifest_are_served(manifest):
    secret = Path(manifest.directory) / "secret"
    secret.write_text("not in the manifest")

    async def statuses(*paths):
        async with served(manifest) as (manager, _):
            headers = {"Authorization": "Bearer secret"}
            async with aiohttp.ClientSession(manager.url(), headers=headers) as session:
                answers = [await session.get(path) for path in paths]
                return [answer.status for answer in answers]

    found = asyncio.run(
        statuses(
            "/weights/3",
            "/weights/3/secret",
            "/weights/3/..%2f..%2fetc/passwd",
            "/weights/3/embed.table/.zarray",
            "/weights/4",
            "/weights/x",
        )
    )
    assert found == [200, 404, 404, 404, 404, 404]


def test_reading_needs_neither_orbax_nor_jax(manifest, tmp_path):
    (tmp_path / "manifest").write_bytes(msgspec.msgpack.encode(manifest))
    program = f"""
import asyncio, sys, msgspec
from rlboost_jax.messages import Manifest
from rlboost_jax.weights.pull import Puller
manifest = msgspec.msgpack.decode(open({str(tmp_path / "manifest")!r}, "rb").read(), type=Manifest)
pulled = asyncio.run(Puller(source="auto", manager=None).pull(manifest))
print(pulled.params["embed"]["table"].sum())
print(sorted({{name.split(".")[0] for name in sys.modules}} & {{"orbax", "jax", "flax", "grain"}}))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert ran.stdout.splitlines()[1] == "[]"


def large(tmp_path: Path) -> Manifest:
    """A snapshot of a few pieces: files small and long, one of them empty."""
    place = tmp_path / "large"
    place.mkdir()
    random = np.random.default_rng(5)
    files = {"a": 3, "b": 150_000, "c": 0, "d": 100_000, "e": 7}
    entries = []
    for name, size in files.items():
        data = random.bytes(size)
        (place / name).write_bytes(data)
        entries.append(FileEntry(path=name, size=size, sha256=hashlib.sha256(data).hexdigest()))
    pieces = PieceList(files=tuple(entries), leaves=())
    return write_list(place, pieces, version=3, params_digest="d")


async def fetched(manifest: Manifest, manager, connections=None) -> int:
    """Bring all of a snapshot here; how many bytes counted."""
    counter, here, pieces = ByteCounter(), FilesInMemory(), listed(manifest)
    files = Files(place="it", directory=Path("/nowhere"), url="/weights/3", files=pieces.files)
    await fetch(
        files, files.files, here, source="http", server=manager, counter=counter,
        connections=connections or Connections(AT_ONCE),
    )  # fmt: skip
    for entry in pieces.files:
        there = Path(manifest.directory) / entry.path
        assert here.files[entry.path] == there.read_bytes()
    return counter.total


def test_a_snapshot_takes_one_round_trip_and_the_next_one_no_new_connection(tmp_path):
    """All of it is asked for before any of it has come."""
    manifest = large(tmp_path)
    asked, all_asked, peers = set(), asyncio.Event(), set()

    @web.middleware
    async def gathering(request, handler):
        peers.add(request.transport.get_extra_info("peername"))
        part = request.http_range
        asked.update(range(part.start, part.stop))
        if len(asked) == manifest.piece_bytes:
            all_asked.set()
        await all_asked.wait()
        return await handler(request)

    async def scenario():
        async with (
            served(manifest, gathering) as (manager, _),
            Connections(AT_ONCE) as connections,
        ):
            for pull in range(2):
                total = await fetched(manifest, manager, connections)
                assert total == manifest.piece_bytes
                first = len(peers) if pull == 0 else first
            assert len(peers) == first, "connections are kept"

    asyncio.run(scenario())


def test_a_line_that_stalls_and_breaks_delays_and_changes_nothing(tmp_path):
    """Whoever asks first for a byte of the second file gets a few bytes, then none for ever; every
    third of the others is cut off. No byte counts twice."""
    manifest = large(tmp_path)
    data = b"".join(
        (Path(manifest.directory) / entry.path).read_bytes() for entry in listed(manifest).files
    )
    stalled, count = [], itertools.count(1)

    @web.middleware
    async def bad(request, handler):
        part = data[request.http_range]
        response = web.StreamResponse(status=206)
        response.content_length = len(part)
        await response.prepare(request)
        if not stalled:
            stalled.append(request.path)
            await response.write(part[:100])
            await asyncio.Event().wait()
        if next(count) % 3 == 0 and len(part) > 20_000:
            await response.write(part[:17_000])
            request.transport.close()
            return response
        await response.write(part)
        return response

    async def scenario():
        async with served(manifest, bad) as (manager, _):
            assert await fetched(manifest, manager) == manifest.piece_bytes

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS / 2))
    assert stalled


def test_the_connections_of_all_servers_fit_the_listener(tmp_path):
    for servers in (0, 1, 64, 65, 1000):
        each = connections_each(servers)
        assert 1 <= each <= MOST_CONNECTIONS and each * servers <= DOWNLOADS
    assert connections_each(64) == MOST_CONNECTIONS and connections_each(1000) == 2
    manifest, peers = large(tmp_path), set()

    @web.middleware
    async def noted(request, handler):
        peers.add(request.transport.get_extra_info("peername"))
        return await handler(request)

    async def scenario():
        lines = Connections(AT_ONCE, most=2)
        async with served(manifest, noted) as (manager, _), lines as connections:
            total = await fetched(manifest, manager, connections)
            assert total == manifest.piece_bytes

    asyncio.run(scenario())
    assert len(peers) == 2


def test_a_server_that_takes_no_more_connections_is_asked_over_fewer(tmp_path):
    manifest = large(tmp_path)
    most, now, refused = 2, [0], []

    @web.middleware
    async def full(request, handler):
        if now[0] >= most:
            refused.append(request.path)
            raise web.HTTPTooManyRequests(text="as many connections as there may be")
        now[0] += 1
        await asyncio.sleep(0.05)  # others come meanwhile
        try:
            return await handler(request)
        finally:
            now[0] -= 1

    async def scenario():
        async with served(manifest, full) as (manager, _):
            assert await fetched(manifest, manager) == manifest.piece_bytes

    asyncio.run(scenario())
    assert 0 < len(refused) <= 4

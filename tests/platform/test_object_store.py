"""One contract for a folder of this host and for S3 as moto has it, and answers that are errors."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlboost_jax.platform.object_store import BadStore, ObjectStore, StoreFailed, objection_to_url
from tests.object_stores import opened_store, s3_environment

pytest.importorskip("obstore", reason="the extra store")


@pytest.fixture(params=["file", "s3"])
def store(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    return opened_store(request.param, tmp_path, monkeypatch)


def test_what_is_put_is_read_listed_and_deleted(store: ObjectStore):
    assert store.names("") == []
    store.put("a/one", b"1")
    store.put("a/two", iter([b"x" * 2**20] * 11))  # in several parts
    store.put("b", b"")
    assert store.names("") == ["a/one", "a/two", "b"] and store.names("a") == ["a/one", "a/two"]
    assert [store.size(name) for name in ("a/one", "a/two", "b", "c")] == [1, 11 * 2**20, 0, None]
    assert store.read("a/two", 11 * 2**20) == b"x" * 11 * 2**20
    store.put("a/one", b"another")
    assert store.read("a/one", 7) == b"another"
    store.delete(["a/one", "a/one", "never"])
    assert store.names("") == ["a/two", "b"]


def test_only_the_first_claims(store: ObjectStore):
    assert store.claim("run.json", b"first") and not store.claim("run.json", b"second")
    assert store.read("run.json", 10) == b"first"


def test_more_than_was_expected_is_not_taken(store: ObjectStore):
    store.put("large", b"x" * 100)
    with pytest.raises(StoreFailed, match="large has more than 99 bytes"):
        store.read("large", 99)


def test_what_is_not_there_is_an_error_with_its_name(store: ObjectStore):
    with pytest.raises(StoreFailed, match=r"cannot get .*/nothing: .*not found"):
        store.read("nothing", 10)


def test_a_put_that_breaks_off_leaves_nothing(store: ObjectStore):
    def breaks_off() -> Iterator[bytes]:
        yield b"x" * 2**23
        raise OSError("the disk is gone")

    with pytest.raises(StoreFailed, match="cannot put"):
        store.put("half", breaks_off())
    assert store.size("half") is None


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3:///x", "ftp://a/b", "/a/folder", "memory:///", "https://a/b", "", "s3://[/x",
     "s3://a/b?c=d", "s3://key:secret@a/b", "file://host/folder", "file://", "s3://a/../b"],
)  # fmt: skip
def test_other_addresses_are_refused(url: str):
    assert "is no address" in objection_to_url(url)
    with pytest.raises(BadStore, match=r"here .* is no address.*; give s3://BUCKET/PREFIX or"):
        ObjectStore(url, setting="here")


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_errors_of_a_server_are_one_line_and_do_not_take_for_ever(
    status: int, monkeypatch: pytest.MonkeyPatch
):
    asked: list[str] = []

    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        for name, value in s3_environment(address).items():
            monkeypatch.setenv(name, value)
        store = ObjectStore("s3://bucket/x", setting="test", retry_seconds=1.0)
        with pytest.raises(StoreFailed) as failed:
            store.put("one", b"1")
        server.shutdown()
    assert str(failed.value).startswith("cannot put s3://bucket/x/one: ")
    assert "\n" not in str(failed.value) and len(str(failed.value)) < 400
    assert len(asked) == 1 or status >= 500  # what may pass is tried again

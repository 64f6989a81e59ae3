"""Stores that break off, are slow or broken, refuse their caller, or are asked for what is not
below their address: each of the three clouds' own protocol, through a proxy that does the damage.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rlboost_jax.platform.object_store import ObjectStore, StoreFailed
from tests import object_stores
from tests.docs_blocks import blocks_of
from tests.faulty_http import BROKEN, EXPIRED, SLOW_DOWN, WRONG, Answer, Cut, FaultyServer, faulty
from tests.object_stores import BUCKET, address_of, opened_store, s3_client

pytest.importorskip("obstore", reason="the extra store")
DATA = bytes(range(256)) * 50_000  # in two parts
CLOUDS = ("s3", "gs", "az")


@pytest.fixture(params=CLOUDS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def server(kind: str):
    with faulty(address_of(kind)) as server:
        yield server


@pytest.fixture
def store(kind, server: FaultyServer, tmp_path: Path, monkeypatch) -> ObjectStore:
    address = server.address
    more = {"address": address, "setting": "weights.store", "retry_seconds": 30.0}
    return opened_store(kind, tmp_path, monkeypatch, **more)


def test_a_read_goes_on_where_its_connection_broke(store, server):
    store.put("data", iter([DATA[:7_000_000], DATA[7_000_000:]]))
    server.asked.clear()
    server.next_ones([Cut(5_000_000), Cut(3_000_000), Cut(0)], "GET")
    assert store.read("data", len(DATA)) == DATA
    assert 3 <= len(server.asked) <= 5


@pytest.mark.parametrize("fault", [SLOW_DOWN, BROKEN, Answer(502)], ids=["slow", "broken", "none"])
def test_what_passes_is_tried_again(store, server, fault):
    server.next_ones([fault] * 3)
    store.put("data", DATA)
    server.next_ones([fault, fault])
    assert store.read("data", len(DATA)) == DATA
    server.next_ones([fault])
    assert store.names("") == ["data"]
    server.next_ones([fault])
    assert store.size("data") == len(DATA)
    server.next_ones([fault])
    store.delete(["data"])
    assert store.size("data") is None


CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "put": lambda store: store.put("data", b"1"),
    "get": lambda store: store.read("data", 10),
    "list": lambda store: store.names("some"),
    "delete": lambda store: store.delete(["data"]),
    "look for": lambda store: store.size("data"),
}


@pytest.mark.parametrize("fault", [EXPIRED, WRONG], ids=["expired", "wrong"])
@pytest.mark.parametrize("call", CALLS)
def test_refused_credentials_are_one_line_with_the_setting(store, server, call, fault):
    server.fault = lambda method, path: fault
    with pytest.raises(StoreFailed) as failed:
        CALLS[call](store)
    assert re.fullmatch(
        rf"cannot {call} \w+://[\w/.-]+: the credentials (are refused|have expired)[^;]*; "
        r"weights\.store takes credentials that may do so, from (AWS|GOOGLE|AZURE)_… in the "
        r"environment or the machine's role",
        str(failed.value),
    )
    assert len(server.asked) == 1, "what does not pass is not tried again"


@pytest.mark.parametrize("name", ["../other", "a/../../other", "/../other", "a//b", "a/./b"])
@pytest.mark.parametrize("any_kind", object_stores.KINDS)
def test_names_lead_to_nothing_outside(any_kind, name, tmp_path, monkeypatch):
    store = opened_store(any_kind, tmp_path, monkeypatch)
    for call in (lambda: store.read(name, 10), lambda: store.put(name, b"1")):
        with pytest.raises(StoreFailed, match="Could not parse path"):
            call()
    store.put("/absolute", b"1")
    assert store.names("") == ["absolute"]


def test_another_address_of_the_same_bucket_shows_nothing(kind, tmp_path, monkeypatch):
    """`a` is no address of what is below `a-secret`, though its name begins so."""
    (tmp_path / "a").mkdir()
    secret = opened_store(kind, tmp_path / "a-secret", monkeypatch)
    secret.put("key", b"1")
    store = opened_store(kind, tmp_path / "a", monkeypatch)
    assert store.names("") == [] and store.names("-secret") == []


@pytest.fixture
def servers_key(tmp_path: Path, monkeypatch) -> tuple[str, str]:
    """A key with the policy that the docs have for servers, in moto, which then asks for keys."""
    from moto import settings
    from moto.core.authorization import ActionAuthenticatorMixin as Requests

    (policy,) = (b.text for b in blocks_of("docs/how-to/operate.md") if "s3:GetObject" in b.text)
    policy = policy.replace("bucket/mine-weights/", f"{BUCKET}/{tmp_path.name}/")
    iam, name = s3_client("iam"), tmp_path.name
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="servers", PolicyDocument=policy)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    monkeypatch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)
    monkeypatch.setattr(Requests, "request_count", 0)
    return key["AccessKeyId"], key["SecretAccessKey"]


def test_the_policy_for_servers_lets_them_read_there_and_no_more(tmp_path, monkeypatch, request):
    own = opened_store("s3", tmp_path, monkeypatch)
    own.put("weights/one", b"1")
    (tmp_path / "x").mkdir()
    other = opened_store("s3", tmp_path.with_name(tmp_path.name + "-copies"), monkeypatch)
    other.put("run.json", b"secret")
    name, secret = request.getfixturevalue("servers_key")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", name)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    served, others = (ObjectStore(store.url, setting="weights.store") for store in (own, other))
    assert served.read("weights/one", 1) == b"1"
    for refused in (
        lambda: others.read("run.json", 9),
        lambda: served.put("weights/one", b"2"),
        lambda: served.delete(["weights/one"]),
        lambda: served.names("weights"),
        lambda: others.names(""),
    ):
        with pytest.raises(StoreFailed, match=r"refused \(AccessDenied|403"):
            refused()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    wrong = ObjectStore(own.url, setting="weights.store")
    with pytest.raises(StoreFailed, match=r"refused \(SignatureDoesNotMatch\); weights.store"):
        wrong.read("weights/one", 1)

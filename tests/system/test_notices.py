"""Real servers whose machines are to go: they finish what they run, lose nothing and leave."""

import json
import signal
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.system.harness import PATIENT, SHORT, STEADY, Run, running

pytestmark = pytest.mark.system

SETTINGS = (
    *SHORT,
    "num_steps=100000",
    "fleet.max_instances=0",  # the servers here are started by hand
    *PATIENT,
    *STEADY,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with running(tmp_path_factory.mktemp("notices") / "run", *SETTINGS) as run:
        yield run


@pytest.fixture
def run(shared):
    """Run with its trainer's engine only."""
    shared.let_go()
    yield shared
    for server in shared.by_hand:
        server.kill()
    shared.hold()  # until the next test


@contextmanager
def aws_metadata():
    """(URL, what is found under which path): a machine of AWS's with nothing to say as yet."""
    items = {}

    class Imds(BaseHTTPRequestHandler):
        def do_PUT(self):
            self.answer(200, "AQAA==")

        def do_GET(self):
            known = self.path in items and self.headers["X-aws-ec2-metadata-token"] == "AQAA=="
            self.answer(200, items[self.path]) if known else self.answer(404, "")

        def answer(self, status, text):
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Imds) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", items
        server.shutdown()


def events_of(run: Run, kind: str, name: str) -> list[dict]:
    return [event for event in run.events(kind) if event["instance"] == name]


def assert_leaves_with_everything(run: Run, server, name: str, reason: str) -> None:
    assert server.end() == 0, server.errors
    assert f"leaving: {reason}" in server.output
    drained = run.wait_until(lambda: events_of(run, "drained", name), "its goodbye")[0]
    notice = events_of(run, "notice", name)[0]
    assert notice["detail"]["reason"].startswith(reason) and notice["time"] <= drained["time"]
    assert drained["detail"]["tokens_lost"] == 0 == drained["detail"]["count"]
    working = events_of(run, "working", name)
    assert working and working[0]["time"] < notice["time"], "it had no work: nothing was shown"
    assert not events_of(run, "lost", name)
    run.assert_accounts_hold()


@contextmanager
def at_work(run: Run, name: str, *options: str):
    """A server that holds work of a step; it goes on with that afterwards."""
    with run.at_a_standstill(servers=False):
        server = run.serve(f"--name={name}", *options)
        run.wait_until(lambda: events_of(run, "working", name), f"work for {name}")
        yield server


def test_w13_a_cloud_that_takes_its_machine_back_loses_no_token(run):
    with aws_metadata() as (url, items):
        with at_work(run, "spot", "--notices=aws", f"--notices_url={url}") as server:
            gone = {"action": "terminate", "time": "2099-01-01T00:00:00Z"}
            items["/latest/meta-data/spot/instance-action"] = json.dumps(gone)
            run.wait_until(lambda: events_of(run, "notice", "spot"), "its notice")
        assert_leaves_with_everything(run, server, "spot", "aws: terminate")
        assert events_of(run, "notice", "spot")[0]["detail"]["seconds"] == 120.0


def test_a_scheduler_that_signals_ahead(run):
    signals = ("--notices=none", "--notice_signal=SIGUSR1", "--notice_seconds=120")
    with at_work(run, "job", *signals) as server:
        server.send_signal(signal.SIGUSR1)
        run.wait_until(lambda: events_of(run, "notice", "job"), "its notice")
    assert_leaves_with_everything(run, server, "job", "SIGUSR1")

"""What another user gets of a living manager and of a run's folder: nothing."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs import tiny
from rlboost_jax.learner.fleet.link import ManagerLink
from rlboost_jax.learner.fleet.manager_process import ManagerProcess
from rlboost_jax.messages import TrainerHello
from rlboost_jax.platform.event_loop import EventLoopThread
from rlboost_jax.platform.process_liveness import start_time
from rlboost_jax.settings.config_loading import run_config, write_run_config
from rlboost_jax.trust.run_files import ManagerRecord, read_record
from tests.certificates import make_run
from tests.hostile.nobody import NOBODY, done, needs_root, reachable
from tests.patience import PATIENCE_SECONDS

pytestmark = needs_root

# A manager, its file server, and the folder as it is while they live.
Living = tuple[Path, ManagerRecord]


@pytest.fixture(scope="module")
def living() -> Iterator[Living]:
    config = tiny.get_config()
    config.fleet.provider = "none"
    with reachable() as workdir:
        write_run_config(workdir / "config.json", run_config(config), "run")
        process = ManagerProcess(workdir, "run", answer_seconds=PATIENCE_SECONDS)
        thread = EventLoopThread()
        link = ManagerLink(thread, locate=process.locate, answer_seconds=PATIENCE_SECONDS)
        link.connect(TrainerHello(run_id="run", window=None))  # or it leaves after a minute
        record = read_record(workdir)
        assert record is not None
        yield workdir, record
        assert start_time(record.pid) == record.started, "of one that is gone nothing is shown"
        link.end("the test is over", over=True)
        thread.close()
        process.dismiss()


def secrets(workdir: Path) -> list[bytes]:
    """Tokens, keys of certificates by their lines, and the seal's key; the page has two of them."""
    held = [*workdir.glob("*/token"), *workdir.rglob("*.key")]
    assert len(held) == 9, held
    lines = [line for path in held for line in path.read_bytes().splitlines()]
    return [line for line in lines if len(line) > 30 and b"PRIVATE KEY" not in line]


def test_what_lies_in_the_folder_opens_nothing(living: Living) -> None:
    """Everything there that others may read, and all that may be listed."""
    workdir, _ = living
    got = done(
        """
for folder, folders, files in os.walk(sys.argv[1]):
    for name in files:
        try:
            print(open(os.path.join(folder, name), "rb").read().hex())
        except OSError:
            pass
""",
        workdir,
    )
    seen = bytes.fromhex(got.replace("\n", ""))
    assert b'"run_id"' in seen, "it saw nothing at all, so nothing was shown"
    assert not any(secret in seen for secret in secrets(workdir))


@pytest.mark.parametrize("name", ["cmdline", "environ", "mem", "maps", "fd", "task"])
def test_what_the_system_shows_of_a_process_opens_nothing(living: Living, name: str) -> None:
    workdir, record = living
    got = done(
        """
place = f"/proc/{sys.argv[1]}/{sys.argv[2]}"
try:
    if os.path.isdir(place):
        for entry in os.listdir(place):
            print(os.readlink(f"{place}/{entry}").encode().hex() if sys.argv[2] == "fd" else "")
    else:
        print(open(place, "rb").read(2**20).hex())
except OSError:
    pass
""",
        record.pid,
        name,
    )
    seen = bytes.fromhex(got.replace("\n", ""))
    assert not any(secret in seen for secret in secrets(workdir))
    assert seen == b"" or name == "cmdline"


def test_no_rights_over_a_process(living: Living) -> None:
    _, record = living
    assert (
        done(
            """
pid = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
    try:
        os.kill(pid, number)
        print("signalled")
    except PermissionError:
        pass
if libc.ptrace(16, pid, None, None) == 0:  # PTRACE_ATTACH
    print("traced")
""",
            record.pid,
        )
        == ""
    )


CALL = """
def call(port, context, request):
    # What comes back, whether in plain or in TLS.
    with socket.create_connection(("127.0.0.1", port), SECONDS) as plain:
        try:
            with (context.wrap_socket(plain) if context else plain) as caller:
                caller.sendall(request)
                return caller.recv(65536)
        except (ssl.SSLError, ConnectionError):
            return b""

request = b"GET /config HTTP/1.1\\r\\nHost: h\\r\\nAuthorization: Bearer guess\\r\\n\\r\\n"
""".replace("SECONDS", str(PATIENCE_SECONDS))


@pytest.mark.parametrize("port", ["port", "weights_port"])
@pytest.mark.parametrize("shown", ["in plain", "no certificate", "a certificate of another run"])
def test_a_port_says_nothing(living: Living, port: str, shown: str) -> None:
    """Not even that there is HTTP, to who is not of the run."""
    _, record = living
    with reachable() as folder:
        own = make_run(folder / "attacker") / "join"
        for path in (own, *own.iterdir()):
            os.chown(path, NOBODY, NOBODY)
        got = done(
            CALL
            + """
context = None
if sys.argv[2] != "in plain":
    context = ssl._create_unverified_context()
if sys.argv[2] == "a certificate of another run":
    context.load_cert_chain(sys.argv[3] + "/client.pem", sys.argv[3] + "/client.key")
print(call(int(sys.argv[1]), context, request))
""",
            getattr(record, port),
            shown,
            own,
        )
    assert "HTTP" not in got

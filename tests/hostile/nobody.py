"""Attackers: programs of another user of this host, uid 65534, who holds nothing of a run's.

They are strings, run by an interpreter that imports what they need and then drops all rights of
root's for good. What they print is what they got.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.patience import PATIENCE_SECONDS

NOBODY: Final = 65_534

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="attacks as uid 65534, which only root can become"
)

# Modules first: the interpreter's own files may be root's.
_BECOME: Final = f"""
import ctypes, encodings.idna, errno, fcntl, json, mmap, os, pathlib, select, shutil, signal
import socket, ssl, stat, struct, sys, tempfile, threading, time
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
os.umask(0)
os.chdir("/")
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Begin an attack; its standard streams are pipes."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _BECOME + program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        env={},
    )


def done(program: str, *arguments: object) -> str:
    """What an attack printed, once it is over."""
    attacker = start(program, *arguments)
    try:
        printed, errors = attacker.communicate(timeout=PATIENCE_SECONDS)
    finally:
        attacker.kill()
        attacker.wait()
    assert attacker.returncode == 0, errors
    return printed


@contextmanager
def reachable() -> Iterator[Path]:
    """A new folder that every user may look into, as a run's often is."""
    with tempfile.TemporaryDirectory(prefix="rlboost-hostile-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


class Impostor:
    """Listens where a manager did, and takes whatever comes: in plain, or in TLS by a certificate
    with the manager's name of an authority of its own. With `relays` it hands everything on, both
    ways, to a port that is real.

    A context manager; `heard` ends it.
    """

    def __init__(self, port: int, certificates: Path, *, relays: int = 0) -> None:
        self._arguments = (port, certificates / "manager.pem", certificates / "manager.key", relays)

    def __enter__(self) -> "Impostor":
        self._process = start(_IMPOSTOR, *self._arguments)
        assert self._process.stdout is not None and self._process.stderr is not None
        line = self._process.stdout.readline()
        assert line, self._process.stderr.read()
        self.port = int(line)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def heard(self) -> tuple[int, bytes]:
        """How many connections there were, and all that was said on them."""
        printed, _ = self._process.communicate(timeout=PATIENCE_SECONDS)
        count, said = printed.split(maxsplit=1)
        return int(count), bytes.fromhex(said.strip()[1:])


_IMPOSTOR: Final = """
port, certificate, key, relays = sys.argv[1:]
listener = socket.create_server(("127.0.0.1", int(port)))
print(listener.getsockname()[1], flush=True)
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain(certificate, key)
heard, count = [], 0

def forward(source, target):
    try:
        while data := source.recv(65536):
            heard.append(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass

def serve(caller):
    if int(relays):
        real = socket.create_connection(("127.0.0.1", int(relays)))
        threading.Thread(target=forward, args=(real, caller), daemon=True).start()
        return forward(caller, real)
    try:
        if caller.recv(1, socket.MSG_PEEK) == bytes([22]):  # a handshake of TLS
            heard.append(caller.recv(65536, socket.MSG_PEEK))
            caller = tls.wrap_socket(caller, server_side=True)
        heard.append(caller.recv(65536))
        caller.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
    except OSError:
        pass
    finally:
        caller.close()

def accept():
    global count
    while True:
        caller, _ = listener.accept()
        count += 1
        threading.Thread(target=serve, args=(caller,), daemon=True).start()

threading.Thread(target=accept, daemon=True).start()
sys.stdin.read()
print(count, "x" + b"".join(heard).hex(), flush=True)
os._exit(0)
"""

"""A Kubernetes of this host: a real etcd, API server, controllers and scheduler, and a kubelet that
is a stand-in. All in a folder, on free ports of loopback; needs no root.

    python -m tests.kubernetes.cluster FOLDER     until it is interrupted; prints how to reach it
"""

import contextlib
import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from tests.kubernetes.build import programs
from tests.providers.kubernetes_fake import kubeconfig

NODES = 3
START_SECONDS = 300.0
CONTROLLERS = "garbagecollector,podgc,resourcequota,serviceaccount,serviceaccount-token"
# As the trainer's service account is, with the rights that the docs give it.
TRAINER = "system:serviceaccount:rlboost:rlboost-trainer"


class Cluster:
    """
    Attributes:
        url: of the API server.
        admin, trainer: kubeconfig files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pods").mkdir(parents=True)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        _make_certificate(folder)
        with _free_port() as api, _free_port() as etcd, _free_port() as peer:
            self._ports = {"api": api, "etcd": etcd, "peer": peer}
        self.url = f"https://127.0.0.1:{api}"
        (folder / "tokens.csv").write_text(
            f'admin-token,admin,1,"system:masters"\ntrainer-token,{TRAINER},2,""\n'
        )
        self.admin, self.trainer = (
            self.access(name, self.url, authority=str(folder / "tls.crt"))
            for name in ("admin", "trainer")
        )

    def access(self, who: str, url: str, authority: str = "") -> Path:
        """A kubeconfig file."""
        path = self.folder / f"{who}-{url.rpartition(':')[2]}.kubeconfig"
        path.write_text(kubeconfig(url, f"{who}-token", authority))
        return path

    def start(self) -> None:
        self._start(
            "etcd",
            f"--data-dir={self.folder}/etcd",
            f"--listen-client-urls=http://127.0.0.1:{self._ports['etcd']}",
            f"--advertise-client-urls=http://127.0.0.1:{self._ports['etcd']}",
            f"--listen-peer-urls=http://127.0.0.1:{self._ports['peer']}",
            "--unsafe-no-fsync",
        )
        self.start_api()
        self._start(
            "kube-controller-manager",
            *(f"--kubeconfig={self.admin}", f"--controllers={CONTROLLERS}", "--port=0"),
            *("--secure-port=0", "--leader-elect=false"),
            f"--service-account-private-key-file={self.folder}/tls.key",
        )
        scheduler = ("--port=0", "--secure-port=0", "--leader-elect=false")
        self._start("kube-scheduler", f"--kubeconfig={self.admin}", *scheduler)
        self._start(
            sys.executable,
            *("-m", "tests.kubernetes.kubelet"),
            *(str(self.admin), str(self.folder / "pods"), str(NODES)),
            name="kubelet",
        )
        self.wait_until(lambda: "ready" in self._said("kubelet"), "nodes")

    def start_api(self) -> None:
        key, certificate = self.folder / "tls.key", self.folder / "tls.crt"
        self._start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}",
            *("--bind-address=127.0.0.1", f"--secure-port={self._ports['api']}"),
            *(f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}"),
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={key}",
            f"--service-account-key-file={key}",
            *("--authorization-mode=RBAC", f"--token-auth-file={self.folder}/tokens.csv"),
            "--service-cluster-ip-range=10.0.0.0/24",
        )
        self.wait_until(lambda: self.answers, "API server")

    @property
    def answers(self) -> bool:
        return self.kubectl("get", "--raw=/readyz", check=False).strip() == "ok"

    def kubectl(self, *words: str, given: str = "", check: bool = True) -> str:
        """As the cluster's owner; what it printed."""
        ran = subprocess.run(
            self._command(*words),
            env={**os.environ, "HOME": str(self.folder)},
            input=given,
            capture_output=True,
            text=True,
        )
        assert not (check and ran.returncode), ran.stdout + ran.stderr
        return ran.stdout

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        """The same, without waiting for its end."""
        environment = {**os.environ, "HOME": str(self.folder)}
        return subprocess.Popen(self._command(*words), env=environment, stdout=subprocess.DEVNULL)

    def _command(self, *words: str) -> list[str]:
        return [str(programs() / "kubectl"), f"--kubeconfig={self.admin}", *words]

    def items(self, kind: str) -> list[dict[str, Any]]:
        """All of a kind in the namespace of the tests."""
        found = json.loads(self.kubectl("-n=rlboost", "get", kind, "--output=json"))
        items: list[dict[str, Any]] = found["items"]
        return items

    def named(self, kind: str) -> set[str]:
        return {each["metadata"]["name"] for each in self.items(kind)}

    def pid(self, program: str) -> int:
        return self._processes[program].pid

    def signal(self, program: str, number: int) -> None:
        self._processes[program].send_signal(number)
        if number == signal.SIGKILL:
            self._processes[program].wait()

    def stop(self) -> None:
        for name in ("kubelet", "kube-scheduler", "kube-controller-manager"):
            self._end(name, signal.SIGINT)
        for name in ("kube-apiserver", "etcd"):
            self._end(name, signal.SIGKILL)

    def wait_until(self, true: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + START_SECONDS
        while not (value := true()):
            for name, process in self._processes.items():
                assert process.poll() is None, f"{name} ended:\n{self._said(name)[-3000:]}"
            assert time.monotonic() < deadline, f"no {what} in {START_SECONDS:g} s"
            time.sleep(0.1)
        return value

    def _start(self, program: str, *options: str, name: str = "") -> None:
        called = name or program
        path = program if os.path.isabs(program) else str(programs() / program)
        with (self.folder / f"{called}.log").open("ab") as said:
            self._processes[called] = subprocess.Popen(
                [path, *options],
                stdout=said,
                stderr=said,
                stdin=subprocess.DEVNULL,
                cwd=Path(__file__).parents[2],
            )

    def _said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _end(self, name: str, number: int) -> None:
        if (process := self._processes.get(name)) is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(number)
        try:
            process.wait(20.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def _make_certificate(folder: Path) -> None:
    """Make a self-signed certificate for the API server and the kubelet."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now, address = datetime.datetime.now(datetime.UTC), ipaddress.ip_address("127.0.0.1")
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(address)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "tls.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "tls.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )


@contextlib.contextmanager
def _free_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener.getsockname()[1]


if __name__ == "__main__":
    with (
        running_cluster(Path(sys.argv[1]).absolute()) as there,
        contextlib.suppress(KeyboardInterrupt),
    ):
        print(f"export KUBECONFIG={there.admin}", flush=True)
        signal.pause()

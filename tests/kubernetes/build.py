"""A real Kubernetes for tests: built from Debian's source package, kept outside the repository.

    python -m tests.kubernetes.build          what `make kubernetes` runs

The sources are Debian's kubernetes 1.20.2, whose hashes apt checks; they are compiled by Debian's
Go, for 5 to 20 minutes. etcd is Debian's binary, unpacked and not installed: its package would
start a service. The system's own lists of packages are left as they are.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "1.20.2"
COMMIT = "faecb196815e248d3ecfb03c680a4507229c2a56"  # of the tag v1.20.2
BUILT = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
PROGRAMS = (*BUILT, "etcd")
TOOLS = ("go", "dpkg-source", "rsync", "jq", "apt-get", "make")
SUITE = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian"
VERSION_FILE = f"""\
KUBE_GIT_COMMIT='{COMMIT}'
KUBE_GIT_TREE_STATE='archive'
KUBE_GIT_VERSION='v{VERSION}'
KUBE_GIT_MAJOR='1'
KUBE_GIT_MINOR='20'
"""


def programs() -> Path:
    """The folder that they are in, or would be."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "rlboost-tests" / "kubernetes" / VERSION


def missing() -> str:
    """Why there can be no cluster here; "" if there can."""
    absent = [name for name in PROGRAMS if not (programs() / name).exists()]
    return f"no {', '.join(absent)} in {programs()}; make test-kubernetes builds them" * bool(
        absent
    )


def main() -> int:
    if sys.argv[1:] == ["--needed"]:
        return 0 if missing() else 1
    if not missing():
        return 0
    if absent := [name for name in TOOLS if shutil.which(name) is None]:
        print(f"no {', '.join(absent)}; install golang-go, dpkg-dev, rsync, jq and make")
        return 1
    programs().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rlboost-kubernetes-") as made:
        folder = Path(made)
        _fetch(folder)
        print(f"compiling Kubernetes {VERSION}, once; this takes 5 to 20 minutes …", flush=True)
        _compile(folder)
        shutil.copy(next(folder.glob("etcd/usr/bin/etcd")), programs() / "etcd")
    return 1 if missing() else 0


def _fetch(folder: Path) -> None:
    """Sources into `source`, etcd's package into `etcd`."""
    (folder / "lists" / "partial").mkdir(parents=True)
    (folder / "sources.list").write_text(
        f"deb {SUITE} bookworm main\ndeb-src {SUITE} bookworm main\n"
    )
    apt = [
        "apt-get",
        "-qq",
        *("-o", f"Dir::Etc::SourceList={folder}/sources.list"),
        *("-o", "Dir::Etc::SourceParts=/dev/null"),
        *("-o", f"Dir::State::Lists={folder}/lists"),
        *("-o", f"Dir::Cache={folder}"),
        *("-o", "APT::Sandbox::User=root"),
    ]
    _run([*apt, "update"], folder)
    _run([*apt, "source", "--download-only", "kubernetes"], folder)
    _run([*apt, "download", "etcd-server"], folder)
    (description,) = folder.glob("kubernetes_*.dsc")
    _run(["dpkg-source", "--no-check", "-x", str(description), "source"], folder)
    (package,) = folder.glob("etcd-server_*.deb")
    _run(["dpkg-deb", "-x", str(package), "etcd"], folder)


def _compile(folder: Path) -> None:
    source, home = folder / "source", folder / "home"
    home.mkdir()
    place = source / ".go" / "src" / "k8s.io"
    place.mkdir(parents=True)
    (place / "kubernetes").symlink_to(source)
    (folder / "version.sh").write_text(VERSION_FILE)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "GOPATH": str(source / ".go"),
        "GOFLAGS": "-modcacherw",
        "CGO_ENABLED": "0",
        "KUBE_GIT_VERSION_FILE": str(folder / "version.sh"),
    }
    what = " ".join(f"cmd/{name}" for name in BUILT)
    _run(["make", f"WHAT={what}"], source, environment)
    for name in BUILT:
        shutil.copy(source / "_output" / "local" / "go" / "bin" / name, programs() / name)


def _run(words: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    """Its words are shown where it fails. Raises CalledProcessError."""
    nice = ["nice", "-n", "5", *words]
    ran = subprocess.run(nice, cwd=folder, env=environment, capture_output=True, text=True)
    if ran.returncode:
        print(ran.stdout[-4000:] + ran.stderr[-4000:], file=sys.stderr)
    ran.check_returncode()


if __name__ == "__main__":
    sys.exit(main())

"""Start a rollout server from a bare Python: wheels of the run, an environment, the server.

    RLBOOST_MANAGER=HOST:PORT RLBOOST_JOIN=… python3 -P -c "$(cat bootstrap.py)" [options …]

Needs Python 3.11 or later and nothing else: no pip, no index, no package. What is fetched comes
from the run's own file server, which proves itself by the run's certificate; each wheel has the
digest that this server lists. `rlboost wheelhouse --script` prints this file, with the functions
that it imports from the package put in.
"""

import base64
import hashlib
import json
import os
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from rlboost_jax.platform.code_places import Replaceable, code_place

NAME = "manager.rlboost.internal"  # whatever address leads to the manager
PLACE = Path(os.environ.get("RLBOOST_HOME", Path.home() / ".cache" / "rlboost_jax" / "server"))


class _Run(ssl.SSLContext):
    def wrap_socket(self, *args, **options):  # type: ignore[no-untyped-def]
        return super().wrap_socket(*args, **{**options, "server_hostname": NAME})


def _opened(join: dict[str, str]) -> ssl.SSLContext:
    """Make a TLS context that trusts only this run's authority and shows the run's certificate."""
    context = _Run(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=join["ca.pem"])
    with tempfile.TemporaryDirectory() as folder:  # of mode 700
        for name in ("client.pem", "client.key"):
            Path(folder, name).write_text(join[name])
        context.load_cert_chain(Path(folder, "client.pem"), Path(folder, "client.key"))
    return context


def main() -> None:
    manager = os.environ["RLBOOST_MANAGER"]
    join = json.loads(base64.b64decode(os.environ["RLBOOST_JOIN"]))
    headers = {"Authorization": f"Bearer {join['token']}"}
    https = urllib.request.HTTPSHandler(context=_opened(join))
    # The run's own addresses: no proxy of the environment leads there.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)

    def get(address: str, path: str) -> tuple[bytes, str]:
        request = urllib.request.Request(f"https://{address}{path}", headers=headers)
        with direct.open(request, timeout=60) as answer:
            return answer.read(), answer.headers.get("Rlboost-Files-Port", "")

    port = get(manager, "/config")[1]
    files = os.environ.get("RLBOOST_FILES") or f"{manager.rpartition(':')[0]}:{port}"
    listed = json.loads(get(files, "/wheels")[0])
    digest = hashlib.sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()[:16]
    place = PLACE / f"{digest}-{sys.version_info[0]}.{sys.version_info[1]}"
    try:  # anybody who can write it would run code here, with the token at hand
        code_place(PLACE, "RLBOOST_HOME")
        code_place(place, "RLBOOST_HOME")
    except Replaceable as error:
        raise SystemExit(str(error)) from None
    python = place / "bin" / "python"
    if not (place / "complete").exists():
        wheels = place / "wheels"
        wheels.mkdir(mode=0o700, exist_ok=True)
        for wheel in listed:
            name = os.path.basename(wheel["path"])
            data = get(files, f"/wheels/{name}")[0]
            if hashlib.sha256(data).hexdigest() != wheel["sha256"]:
                raise SystemExit(f"{name} is not as the run's file server lists it")
            (wheels / name).write_bytes(data)
        subprocess.run([sys.executable, "-I", "-m", "venv", "--without-pip", place], check=True)
        pip = [*wheels.glob("pip-*.whl")]
        if not pip:
            raise SystemExit("the wheelhouse has no pip; make it anew with `rlboost wheelhouse`")
        # What pip would read of variables and files could name other places of wheels.
        alone = ["--isolated", "--no-cache-dir", "install", "-q", "--no-index"]
        install = [*alone, f"--find-links={wheels}", "rlboost-jax"]
        subprocess.run([python, "-I", pip[0] / "pip", *install], check=True)
        (place / "complete").touch()
    os.environ["PYTHONSAFEPATH"] = "1"  # no modules of the folder that this was started in
    words = [str(python), "-m", "rlboost_jax.rollout", f"--manager={manager}", *sys.argv[1:]]
    os.execv(python, words)


if __name__ == "__main__":
    main()

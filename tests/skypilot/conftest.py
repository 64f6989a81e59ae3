"""A SkyPilot API server of the tests' own, in a folder; its executor is that of `stub`."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

STUB = Path(__file__).parent / "stub"
MISSING = "skypilot is not installed: make test-skypilot"


@pytest.fixture(scope="session")
def sky_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where its machines are; `sky` finds the server by the environment of this process."""
    if not (Path(sys.executable).parent / "sky").exists():
        pytest.skip(MISSING)
    home = tmp_path_factory.mktemp("sky")
    folder = home / "machines"
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        "HOME": str(home),
        "SKYPILOT_API_SERVER_ENDPOINT": f"http://127.0.0.1:{port}",
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        "RLBOOST_TEST_SKY": str(folder),
    }
    path = os.pathsep.join((str(STUB), os.environ.get("PYTHONPATH", "")))
    with pytest.MonkeyPatch.context() as patch, open(home / "server.log", "wb") as log:
        for name, value in environment.items():
            patch.setenv(name, value)
        server = subprocess.Popen(
            (sys.executable, "-m", "sky.server.server", "--host=127.0.0.1", f"--port={port}"),
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            import sky

            while True:
                assert server.poll() is None, (home / "server.log").read_text()[-3000:]
                try:
                    sky.api_info()
                    break
                except Exception:  # it is not there yet
                    continue
            yield folder
        finally:
            import signal

            os.killpg(server.pid, signal.SIGKILL)
            server.wait()

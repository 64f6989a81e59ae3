"""A host with nothing but Python: it gets the wheels of a run, and is a server of it.

The wheels here are made up, so that it takes a second; `make test-wheelhouse` takes the real ones.
"""

import asyncio
import datetime
import ensurepip
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec import to_builtins

from rlboost_jax.cli import bootstrap, wheelhouse
from rlboost_jax.trust import authority
from rlboost_jax.trust.authorization import guarded
from rlboost_jax.trust.credentials import FILES_PORT, JOIN_VARIABLE, packed
from rlboost_jax.trust.run_files import Tokens, token_of
from rlboost_jax.trust.seal import prepare_seal
from rlboost_jax.weights.wheels import Wheelhouse, add_delivery_routes
from tests.hostile.nobody import done, needs_root, reachable
from tests.patience import PATIENCE_SECONDS

SERVER = "import os, sys; print('serving', sys.argv[1:], os.environ['RLBOOST_NONCE'], sys.prefix)"


def wheel(folder: Path, name: str, files: dict[str, str]) -> None:
    """One that pip takes."""
    about, said = f"{name}-1.0.dist-info", name.replace("_", "-")
    own = {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {said}\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, *own, f"{about}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for path, text in {**files, **own, f"{about}/RECORD": record}.items():
            archive.writestr(path, text)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(
        folder,
        "rlboost_jax",
        {"rlboost_jax/__init__.py": "", "rlboost_jax/rollout/__main__.py": SERVER},
    )
    (pip,) = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    (folder / pip.name).write_bytes(pip.read_bytes())
    return folder


def run_of(folder: Path) -> tuple[Path, Tokens]:
    """Credentials of a run: those of servers, and what the run listens with."""
    servers, trainer = folder / "join", folder / "trainer"
    tokens = Tokens(server=token_of(servers), trainer=token_of(trainer))
    authority.prepare(
        authority=folder / "authority",
        servers=servers,
        trainer=trainer,
        names=("localhost",),
        now=datetime.datetime.now(datetime.UTC),
    )
    prepare_seal(trainer, [servers])
    return servers, tokens


def bootstrapped(
    tmp_path: Path,
    wheels: Path,
    change: Callable[[dict[str, str]], None] = lambda environment: None,
    spoil: Callable[[web.Application], None] = lambda app: None,
) -> subprocess.CompletedProcess[str]:
    """What a bare host does, with the run's server on this one."""
    folder = tmp_path / "run"
    join, tokens = run_of(folder)

    async def story() -> subprocess.CompletedProcess[str]:
        app = guarded(tokens, lambda connection, holder: None)
        spoil(app)
        add_delivery_routes(app, compiled="", wheels=str(wheels))

        async def config(request: web.Request) -> web.Response:
            return web.json_response({}, headers={FILES_PORT: str(server.port)})

        app.router.add_get("/config", config)
        server = TestServer(app, scheme="https")
        await server.start_server(ssl=authority.server_tls(folder / "authority"))
        environment = {
            "PATH": "/nonexistent",
            "HOME": str(tmp_path),
            "RLBOOST_MANAGER": f"127.0.0.1:{server.port}",
            "RLBOOST_NONCE": "n1",
            **dict.fromkeys(("https_proxy", "ALL_PROXY"), "http://127.0.0.1:9"),  # lead nowhere
            JOIN_VARIABLE: packed(join),
        }
        change(environment)
        python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        words = (python, "-I", "-c", wheelhouse.script(), "--name=bare")
        try:
            return await asyncio.to_thread(
                subprocess.run,
                words,
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE_SECONDS,
                cwd=tmp_path,
            )
        finally:
            await server.close()

    return asyncio.run(story())


def test_a_bare_python_becomes_a_server(tmp_path: Path, wheels: Path) -> None:
    for _ in range(2):  # the second time what is there is used
        done = bootstrapped(tmp_path, wheels)
        assert done.returncode == 0, done.stderr
        assert "serving ['--manager=127.0.0.1:" in done.stdout
        assert "'--name=bare'] n1" in done.stdout
        home = tmp_path / ".cache" / "rlboost_jax" / "server"
        (place,) = home.iterdir()
        assert str(place) in done.stdout, "it runs in the environment that was made"


PLANTED = """
place = pathlib.Path(sys.argv[1])
(place / "bin").mkdir(parents=True)
(place / "complete").touch()
(place / "bin" / "python").write_text("#!/bin/sh\\necho stolen $RLBOOST_JOIN\\n")
(place / "bin" / "python").chmod(0o755)
"""


@needs_root
@pytest.mark.parametrize("below", ["", "ours/"])
def test_an_environment_that_another_user_made_first_is_not_run(
    tmp_path: Path, wheels: Path, below: str
) -> None:
    """It would have the token: in a folder like /tmp, or in ours while all could write it."""
    listed = to_builtins(Wheelhouse(wheels).entries())
    digest = hashlib.sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()[:16]
    with reachable() as common:
        common.chmod(0o1777)
        (common / "ours").mkdir()
        (common / "ours").chmod(0o777)
        home = common / f"{below}home"
        name = f"{digest}-{sys.version_info[0]}.{sys.version_info[1]}"
        done(PLANTED, home / name)
        (common / "ours").chmod(0o755)
        ended = bootstrapped(
            tmp_path, wheels, lambda environment: environment.update(RLBOOST_HOME=str(home))
        )
    assert ended.returncode != 0 and "stolen" not in ended.stdout
    assert re.fullmatch(r"RLBOOST_HOME '.*/home': .*/home belongs to user 65534 .*\n", ended.stderr)


def test_modules_of_the_folder_it_is_started_in_are_not_imported(
    tmp_path: Path, wheels: Path
) -> None:
    for name in "venv", "pip", "runpy", "rlboost_jax":
        (tmp_path / f"{name}.py").write_text("print('imported here'); raise SystemExit(3)")
    ended = bootstrapped(tmp_path, wheels)
    assert ended.returncode == 0 and "imported here" not in ended.stdout, ended.stderr


def wrong_token(environment: dict[str, str]) -> None:
    files = json.loads(bootstrap.base64.b64decode(environment[JOIN_VARIABLE]))
    files["token"] = "guessed"
    encoded = bootstrap.base64.b64encode(json.dumps(files).encode()).decode()
    environment[JOIN_VARIABLE] = encoded


def another_run(environment: dict[str, str]) -> None:
    join, _ = run_of(Path(environment["HOME"]) / "another")
    environment[JOIN_VARIABLE] = packed(join)


@pytest.mark.parametrize(
    ("change", "said"),
    [(wrong_token, "401"), (another_run, "CERTIFICATE_VERIFY_FAILED")],
)
def test_it_deals_with_its_run_only(
    tmp_path: Path, wheels: Path, change: Callable[[dict[str, str]], None], said: str
) -> None:
    done = bootstrapped(tmp_path, wheels, change)
    assert done.returncode != 0 and said in done.stderr
    assert "serving" not in done.stdout


def test_a_wheel_that_is_not_as_listed_is_not_installed(tmp_path: Path, wheels: Path) -> None:
    def spoil(app: web.Application) -> None:
        async def other(request: web.Request) -> web.Response:
            return web.Response(body=b"something else")

        app.router.add_get("/wheels/rlboost_jax-1.0-py3-none-any.whl", other)

    done = bootstrapped(tmp_path, wheels, spoil=spoil)
    assert done.returncode != 0 and "serving" not in done.stdout
    assert (
        "rlboost_jax-1.0-py3-none-any.whl is not as the run's file server lists it" in done.stderr
    )


def test_only_wheels_are_listed_and_each_with_its_digest(tmp_path: Path, wheels: Path) -> None:
    (wheels / "notes.txt").write_text("not for others")
    (wheels / "sub").mkdir()
    house = Wheelhouse(wheels)
    found: dict[str, Any] = {entry.path: entry for entry in house.entries()}
    assert len(found) == 2 and "notes.txt" not in found
    name = "rlboost_jax-1.0-py3-none-any.whl"
    assert found[name].sha256 == hashlib.sha256((wheels / name).read_bytes()).hexdigest()
    with (wheels / name).open("ab") as file:
        file.write(b"more")
    again = {entry.path: entry for entry in house.entries()}
    assert again[name].sha256 == hashlib.sha256((wheels / name).read_bytes()).hexdigest()

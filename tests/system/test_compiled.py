"""A server with an empty cache gets the engine's programs from the run, and changes no bit.

Nor do proxies that the environment of all processes names: none of the run's addresses is behind
one. Here they lead nowhere.
"""

import os
import ssl
import sys
from pathlib import Path
from urllib.request import Request

import pytest

from rlboost_jax.platform.proxies import opened
from rlboost_jax.weights.compiled import read_index
from tests.patience import PATIENCE_SECONDS
from tests.processes import living
from tests.system.harness import PATIENT, SHORT, Child, Run, prepared

pytestmark = pytest.mark.system

STEPS = ("jit__mixed", "jit__decode", "jit__copy_pages")  # what takes an engine its time

DEAD = "http://127.0.0.1:9"
PROXIES = dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy"), DEAD)


def serve(run: Run, cache: Path, name: str) -> Child:
    """By hand, as on a host of the same kind that has never compiled anything."""
    command = [
        *(sys.executable, "-m", "rlboost_jax.rollout", f"--name={name}"),
        f"--manager={run.manager()['address']}",
        f"--join={run.workdir / 'join'}",
    ]
    cache.mkdir(mode=0o700)
    environment = {**run.environment, "JAX_COMPILATION_CACHE_DIR": str(cache)}
    server = Child(command, run.logs, environment, nonce=name)
    run.by_hand.append(server)
    return server


def page_of(run: Run, patience_seconds: float = PATIENCE_SECONDS) -> bytes:
    """Numbers of the run that its page has for Prometheus."""
    url, _, token = (run.workdir / "page" / "url").read_text().strip().partition("/#")
    asked = Request(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"})
    tls = ssl.create_default_context(cafile=run.workdir / "page" / "ca.pem")
    with opened(asked, timeout=patience_seconds, tls=tls) as answer:
        return answer.read()


def test_programs_come_from_the_run_and_nothing_is_compiled(
    short_and_calm: Run, tmp_path: Path
) -> None:
    # Without a folder of the settings each process goes by its own environment.
    settings = (
        *SHORT,
        *PATIENT,
        "fleet.provider=none",
        "compile_cache_dir=",
        "weights.source=http",
    )
    with prepared(tmp_path / "run", *settings, environment=PROXIES) as run:
        run.hold(version=1).start()
        offered = run.workdir / "compiled" / "index"
        with run.at_a_standstill(version=1, servers=False):
            run.wait_until(offered.exists, "programs of the trainer's engine")
            server = serve(run, tmp_path / "cache", "far")
            run.wait_until(lambda: "far" in {e["instance"] for e in run.events("ready")}, "it")
            said = server.output
            assert "compiled programs fetched" in said, said
            assert b"rlboost_" in page_of(run)
            public = bytes.fromhex((run.workdir / "join" / "seal.pub").read_text())
            (entries,) = read_index(offered.read_bytes(), public).kinds.values()
            found = {path.name for path in (tmp_path / "cache").glob("*-cache")}
            own = found - {entry.path for entry in entries}
            # Casts and the like, which the trainer had made before its engine, are its own.
            steps = {name for name in own if name.startswith(STEPS)}
            assert not steps, (steps, sorted(entry.path for entry in entries))
            secret = (run.workdir / "join" / "token").read_text().strip()
            assert not [each for each in living() if secret in each.command]
        run.wait_until(lambda: run.events("working"), "work for it")
        run.finish()
        log = run.workdir / "logs" / "said" / "far.log"
        assert "compiled programs fetched" in log.read_text()
        assert secret not in log.read_text() and os.access(log, os.R_OK)
    assert run.digests() == short_and_calm.digests()

"""`rlboost gateway` as a process: its token, its certificate, its end."""

import contextlib
import json
import os
import re
import signal
import ssl
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from rlboost_jax.platform.proxies import opened
from rlboost_jax.trust.credentials import MANAGER_NAME
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.system

LINE = re.compile(r"serving (\S+) at (\S+)/v1; its token is in (\S+), its authority is (\S+)\n")


@contextlib.contextmanager
def gateway(*options: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    command = [sys.executable, "-m", "rlboost_jax.gateway", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = LINE.fullmatch(process.stdout.readline())
        assert found, process.communicate(timeout=PATIENCE_SECONDS)[1]
        yield process, list(found.groups())
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, errors


def test_a_checkpoint_is_served(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "gateway"
    options = (f"--checkpoint={checkpoint}", f"--folder={folder}", "--max_tokens=128", "--slots=2")
    options = (*options, f"--allowed_hosts=chat.lan,{MANAGER_NAME}")
    with gateway(*options) as (process, (name, url, token_file, authority)):
        assert name == "checkpoint"
        token = Path(token_file).read_text()
        assert stat.S_IMODE(os.stat(token_file).st_mode) == 0o600
        shown = Path(f"/proc/{process.pid}/cmdline").read_text() + Path(
            f"/proc/{process.pid}/environ"
        ).read_text(errors="replace")
        assert token not in shown
        certificate = x509.load_pem_x509_certificate((folder / "gateway.pem").read_bytes())
        certified = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        known = certified.value.get_values_for_type(x509.DNSName)
        assert "chat.lan" in known and MANAGER_NAME not in known
        trusted = ssl.create_default_context(cafile=authority)
        body = {"messages": [{"role": "user", "content": "3 + 4?"}], "max_tokens": 8}
        said = _post(f"{url}/v1/chat/completions", body, token, trusted)
        assert said["usage"]["completion_tokens"] <= 8
        with pytest.raises(urllib.error.HTTPError) as refused:
            _post(f"{url}/v1/chat/completions", body, "wrong", trusted)
        assert refused.value.code == 401
        with pytest.raises(urllib.error.URLError) as doubted:  # nobody else vouches for it
            _post(f"{url}/v1/chat/completions", body, token, ssl.create_default_context())
        assert isinstance(doubted.value.reason, ssl.SSLCertVerificationError)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "--checkpoint=FOLDER or --workdir=RUN"),
        (("--checkpoint=x", "--plain", "--host=0.0.0.0"), "--plain"),
        (("--checkpoint=/nowhere",), "/nowhere"),
        (("--workdir=/nowhere",), "/nowhere"),
    ],
)
def test_mistakes_are_one_line(options: tuple[str, ...], why: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rlboost_jax.gateway", *options]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, cwd=tmp_path, check=False
    )
    assert done.returncode == 2 and done.stderr.startswith("error: ")
    assert why in done.stderr and done.stderr.count("\n") == 1


def _post(url: str, body: object, token: str, tls: ssl.SSLContext) -> dict:
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with opened(request, tls=tls, timeout=PATIENCE_SECONDS) as answer:
        value: dict = json.load(answer)
        return value

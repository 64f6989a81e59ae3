"""Stores of this host: a folder, S3 as moto has it, a fake of Google's, Azure's own emulator."""

import atexit
import base64
import functools
import hashlib
import hmac
import http.client
import shutil
import socket
import subprocess
import tempfile
import threading
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rlboost_jax.platform.object_store import ObjectStore
from tests.gcs_fake import TOKEN, GcsFake

REGION = "us-east-1"
BUCKET = "copies-of-runs"
KINDS = ("file", "s3", "gs", "az")
# Azure's emulator (npm install azurite) where it is on the PATH; tests of it are skipped elsewhere.
AZURITE = shutil.which("azurite-blob")
_ACCOUNT = "devstoreaccount1"  # Azurite's, with its key, which is public
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@functools.cache
def address_of(kind: str) -> str:
    """Where a store of that kind listens on this host, from the first call on."""
    pytest.importorskip("obstore", reason="the extra store")
    match kind:
        case "s3":
            from moto.server import ThreadedMotoServer

            server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
            server.start()
            host, port = server.get_host_and_port()
            return f"http://{host}:{port}"
        case "gs":
            fake = GcsFake()
            threading.Thread(target=fake.serve_forever, daemon=True).start()
            return fake.address
        case "az":
            return _azurite()
    return ""


def environment_of(kind: str, address: str = "") -> dict[str, str]:
    """Variables with which clients find the store, or what listens in front of it."""
    address = address or address_of(kind)
    match kind:
        case "s3":
            return {
                "AWS_ENDPOINT_URL": address,
                "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": "of-nobody",
                "AWS_SECRET_ACCESS_KEY": "of-nobody",
                "AWS_REGION": REGION,
            }
        case "gs":
            return {"GOOGLE_BASE_URL": address, "GOOGLE_BEARER_TOKEN": TOKEN}
        case "az":
            return {
                "AZURE_STORAGE_ENDPOINT": f"{address}/{_ACCOUNT}",
                "AZURE_ALLOW_HTTP": "true",
                "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
                "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
            }
    return {}


def s3_environment(address: str = "") -> dict[str, str]:
    return environment_of("s3", address)


def opened_store(
    kind: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    address: str = "",
    setting: str = "test",
    retry_seconds: float = 60.0,
) -> ObjectStore:
    """An empty store of a test: "file" in its folder, the others under the folder's name.

    Args:
        address: of what listens in front of the store.
    """
    for name, value in environment_of(kind, address).items():
        monkeypatch.setenv(name, value)
    if kind == "s3":
        s3_bucket()
    url = (
        f"file://{folder}/a folder/of it" if kind == "file" else f"{kind}://{BUCKET}/{folder.name}"
    )
    return ObjectStore(url, setting=setting, retry_seconds=retry_seconds)


def s3_bucket() -> str:
    """Address of a bucket, made where it is missing."""
    s3_client("s3").create_bucket(Bucket=BUCKET)
    return f"s3://{BUCKET}"


def s3_client(service: str):
    import boto3

    return boto3.Session(
        aws_access_key_id="of-nobody", aws_secret_access_key="of-nobody", region_name=REGION
    ).client(service, endpoint_url=address_of("s3"))


def _azurite() -> str:
    if AZURITE is None:
        pytest.skip("azurite-blob is not on the PATH")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry")
    emulator = subprocess.Popen(
        [AZURITE, *options, f"--blobPort={port}"],
        cwd=tempfile.mkdtemp(),
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(emulator.kill)
    assert emulator.stdout
    assert any("successfully listens" in line for line in emulator.stdout)
    threading.Thread(target=emulator.stdout.read, daemon=True).start()
    _create_container(f"http://127.0.0.1:{port}")
    return f"http://127.0.0.1:{port}"


def _create_container(address: str) -> None:
    """Source: learn.microsoft.com, "Authorize with Shared Key"."""
    said = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    place = f"/{_ACCOUNT}/{BUCKET}"
    lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in said.items())]
    text = "\n".join([*lines, f"/{_ACCOUNT}{place}", "restype:container"])
    digest = hmac.new(base64.b64decode(_KEY), text.encode(), hashlib.sha256).digest()
    said["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    connection.request("PUT", f"{place}?restype=container", headers=said)
    assert connection.getresponse().status == 201
    connection.close()

"""A store like S3, from moto, that listens on this host."""

import functools
from pathlib import Path

import pytest

from rlboost_jax.platform.object_store import ObjectStore

REGION = "us-east-1"
BUCKET = "copies-of-runs"


@functools.cache
def _address() -> str:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    return f"http://{host}:{port}"


def s3_environment(address: str = "") -> dict[str, str]:
    """Variables with which clients find the store."""
    return {
        "AWS_ENDPOINT_URL": address or _address(),
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "of-nobody",
        "AWS_SECRET_ACCESS_KEY": "of-nobody",
        "AWS_REGION": REGION,
    }


def opened_store(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """An empty store of a test: "file" in its folder, or "s3" under the folder's name."""
    if kind == "file":
        return ObjectStore(f"file://{folder}/a folder/of it", setting="test")
    for name, value in s3_environment().items():
        monkeypatch.setenv(name, value)
    return ObjectStore(f"{s3_bucket()}/{folder.name}", setting="test")


def s3_bucket() -> str:
    """Address of a bucket, made where it is missing."""
    pytest.importorskip("obstore", reason="the extra store")
    import boto3

    client = boto3.Session(
        aws_access_key_id="of-nobody", aws_secret_access_key="of-nobody", region_name=REGION
    ).client("s3", endpoint_url=_address())
    client.create_bucket(Bucket=BUCKET)
    return f"s3://{BUCKET}"

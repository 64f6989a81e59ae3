"""Runs with an authority of their own, for tests of who may talk to whom."""

import datetime
import shutil
from pathlib import Path

from cryptography.x509.oid import ExtendedKeyUsageOID

from rlboost_jax.trust import authority
from rlboost_jax.trust.credentials import CLIENT_CERTIFICATE, CLIENT_KEY, SERVER
from rlboost_jax.trust.seal import prepare_seal

LONG_AGO = authority.LIFE + datetime.timedelta(days=10)  # when what has expired by now was made


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def make_run(root: Path, *, made: datetime.datetime | None = None, token: str = "secret") -> Path:
    """`authority`, `join` and `trainer` below a folder."""
    servers, trainer = root / "join", root / "trainer"
    authority.prepare(
        authority=root / "authority",
        servers=servers,
        trainer=trainer,
        names=["192.0.2.7"],  # of nobody: tests dial another, as through a translated address
        now=made or now(),
    )
    prepare_seal(trainer, [servers])
    (servers / "token").write_text(token)
    (trainer / "token").write_text(f"{token} of the trainer".replace(" ", "-"))
    return root


def with_certificate_of(client: Path, join: Path, target: Path) -> Path:
    """A copy of `join` that shows another's certificate."""
    shutil.copytree(join, target)
    for name in (CLIENT_CERTIFICATE, CLIENT_KEY):
        shutil.copy(client / name, target / name)
    return target


def with_expired_certificate(run: Path, target: Path) -> Path:
    """A copy of a run's `join` with a certificate of the same authority, of long ago."""
    shutil.copytree(run / "join", target)
    ca = authority._load(run / "authority" / "ca.pem", run / "authority" / "ca.key")
    assert ca is not None
    old = authority._certify(ca, SERVER, now() - LONG_AGO, ExtendedKeyUsageOID.CLIENT_AUTH)
    authority._write(target / CLIENT_KEY, target / CLIENT_CERTIFICATE, old)
    return target

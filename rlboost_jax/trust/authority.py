"""The certificate authority of one run.

It certifies one manager and two kinds of clients, and is trusted by these alone. Its key
never leaves the work directory, so a server's host that falls into other hands can neither
pass for the manager (its certificate says "client") nor for the trainer (it says "server").

authority/   ca.key, ca.pem, manager.key, manager.pem
join/        what a server's host needs: ca.pem, client.pem, client.key
trainer/     the same for the trainer
page/        ca.pem and a certificate for browsers, which has no name of the manager's
"""

import datetime
import ipaddress
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rlboost_jax.platform import durable
from rlboost_jax.platform.bounded_files import read_bytes
from rlboost_jax.trust.credentials import (
    CA_FILE,
    CLIENT_CERTIFICATE,
    CLIENT_KEY,
    MANAGER_NAME,
    SERVER,
    TRAINER,
)

CA_LIFE: Final = datetime.timedelta(days=3650)
LIFE: Final = datetime.timedelta(days=1825)  # of all others
# With less than that, a start makes another: a host's clock may be two years ahead for a year.
LEFT: Final = datetime.timedelta(days=1095)
# Of all: a host may be up before its clock is set, and then a date of today is still to come.
VALID_FROM: Final = datetime.datetime(1990, 1, 1, tzinfo=datetime.UTC)

PAGE: Final = "page"  # what its certificate is made out to

_CA_KEY, _MANAGER_CERTIFICATE, _MANAGER_KEY = "ca.key", "manager.pem", "manager.key"


@dataclass(frozen=True)
class Certified:
    """A certificate and its private key."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def prepare(
    *, authority: Path, servers: Path, trainer: Path, names: Iterable[str], now: datetime.datetime
) -> None:
    """Create missing certificates in the three folders, and renew those that expire soon.

    A new authority makes everything anew; a manager with other addresses gets another
    certificate, and the holders of a client's need not notice.

    Args:
        names: host names and addresses at which the manager may be reached. Clients of ours
            do not depend on them (see `MANAGER_NAME`); other programs may.
    """
    for folder in (servers, trainer):
        durable.make_folder(folder, mode=0o700)
    ca = prepare_listener(authority, names, now)
    for folder, role in ((servers, SERVER), (trainer, TRAINER)):
        prepare_client(ca, folder, role, now)


def prepare_listener(authority: Path, names: Iterable[str], now: datetime.datetime) -> Certified:
    """Create the authority and the listener's certificate (`server_tls`) where missing.

    Args:
        names: see `prepare`.
    """
    ca = prepare_authority(authority, now)
    wanted = {MANAGER_NAME, *names}
    paths = authority / _MANAGER_CERTIFICATE, authority / _MANAGER_KEY
    manager = _load(*paths)
    if manager is None or not _serves(manager, ca, now) or not wanted <= _names(manager):
        manager = _certify(ca, MANAGER_NAME, now, ExtendedKeyUsageOID.SERVER_AUTH, names=wanted)
        _write(paths[1], paths[0], manager)
    return ca


def prepare_client(ca: Certified, folder: Path, role: str, now: datetime.datetime) -> None:
    """Create the certificate of a client with this role, unless a valid one exists."""
    durable.make_folder(folder, mode=0o700)
    paths = folder / CLIENT_CERTIFICATE, folder / CLIENT_KEY
    client = _load(*paths)
    if client is None or not _serves(client, ca, now):
        client = _certify(ca, role, now, ExtendedKeyUsageOID.CLIENT_AUTH)
        _write(paths[1], paths[0], client)
    _replace(folder / CA_FILE, _pem(ca.certificate))


def prepare_authority(authority: Path, now: datetime.datetime) -> Certified:
    """Create the authority alone, unless a valid one exists."""
    durable.make_folder(authority, mode=0o700)
    ca = _load(authority / CA_FILE, authority / _CA_KEY)
    if ca is None or _unfit(ca.certificate, now):
        ca = _authority(now)
        _write(authority / _CA_KEY, authority / CA_FILE, ca)
    return ca


def prepare_site(
    *,
    authority: Path,
    folder: Path,
    files: tuple[str, str],
    names: Iterable[str],
    now: datetime.datetime,
) -> None:
    """Create a certificate for browsers, unless a valid one exists.

    The authority that `prepare` has left signs it; the authority's certificate is put next to it,
    to be imported into a browser.

    Args:
        names: host names and addresses of the site. `MANAGER_NAME` is left out: the certificate
            must not pass for the manager's.
    """
    durable.make_folder(folder, mode=0o700)
    ca = _load(authority / CA_FILE, authority / _CA_KEY)
    if ca is None:
        raise OSError(f"{authority} holds no authority")
    paths, wanted = (folder / files[0], folder / files[1]), set(names) - {MANAGER_NAME}
    site = _load(*paths)
    if site is None or not _serves(site, ca, now) or not wanted <= _names(site):
        site = _certify(ca, PAGE, now, ExtendedKeyUsageOID.SERVER_AUTH, names=wanted)
        _write(paths[1], paths[0], site)
    _replace(folder / CA_FILE, _pem(ca.certificate))


def server_tls(authority: Path) -> ssl.SSLContext:
    """TLS context to listen with: nothing is read from a client without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(authority / _MANAGER_CERTIFICATE, authority / _MANAGER_KEY)
    context.load_verify_locations(authority / CA_FILE)
    return context


def _authority(now: datetime.datetime) -> Certified:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("rlboost-jax run")
    builder = (
        _begin(name, name, key, now, CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return Certified(key, builder.sign(key, hashes.SHA256()))


def _certify(
    ca: Certified,
    common_name: str,
    now: datetime.datetime,
    purpose: x509.ObjectIdentifier,
    *,
    names: Iterable[str] = (),
) -> Certified:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _begin(_name(common_name), ca.certificate.subject, key, now, LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key()), critical=False
        )
    )
    alternatives = [_alternative(name) for name in sorted(names)]
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return Certified(key, builder.sign(ca.key, hashes.SHA256()))


def _begin(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    life: datetime.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(VALID_FROM)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names(certified: Certified) -> set[str]:
    extension = certified.certificate.extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    return {str(name.value) for name in extension.value}


def _unfit(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    """Whether a certificate expires soon, or is of an older kind that begins on a date."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return ends - now < LEFT or begins > now


def _serves(certified: Certified, ca: Certified, now: datetime.datetime) -> bool:
    """Whether a certificate is of that authority and valid for long enough."""
    try:
        certified.certificate.verify_directly_issued_by(ca.certificate)
    except Exception:  # of several kinds: whatever is wrong with it, another is made
        return False
    return not _unfit(certified.certificate, now)


_MOST_BYTES: Final = 2**16  # of a key or certificate


def _load(certificate: Path, key: Path) -> Certified | None:
    """Load a certificate with its key; None if they are missing, damaged, lost or do not match.

    Raises:
        OSError: they cannot be read now, and may be sound.
    """
    try:
        private = serialization.load_pem_private_key(read_bytes(key, _MOST_BYTES), password=None)
        public = x509.load_pem_x509_certificate(read_bytes(certificate, _MOST_BYTES))
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        if durable.is_lost(error):
            return None
        raise
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        return None
    return Certified(private, public) if public.public_key() == private.public_key() else None


def _write(key: Path, certificate: Path, certified: Certified) -> None:
    """Write the key first: a certificate without its key counts as missing."""
    plain = serialization.NoEncryption()
    encoding, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    _replace(key, certified.key.private_bytes(encoding, kind, plain))
    _replace(certificate, _pem(certified.certificate))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _replace(path: Path, content: bytes) -> None:
    """Replace a file durably, readable by its owner only from its first byte on."""
    durable.keep(path, content, mode=0o600)

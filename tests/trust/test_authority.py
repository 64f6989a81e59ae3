"""Certificates of a run, judged by another implementation's path validation."""

import datetime
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509 import verification

from rlboost_jax.trust import authority
from rlboost_jax.trust.credentials import MANAGER_NAME

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


class Folders:
    def __init__(self, root: Path) -> None:
        self.authority, self.servers, self.trainer = root / "a", root / "s", root / "t"

    def prepare(self, *names: str, now: datetime.datetime = NOW) -> "Folders":
        authority.prepare(
            authority=self.authority,
            servers=self.servers,
            trainer=self.trainer,
            names=names,
            now=now,
        )
        return self

    def contents(self) -> dict[Path, bytes]:
        folders = (self.authority, self.servers, self.trainer)
        return {path: path.read_bytes() for folder in folders for path in folder.iterdir()}

    def ca(self) -> x509.Certificate:
        return certificate(self.authority / "ca.pem")


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def policy(ca: x509.Certificate, at: datetime.datetime) -> verification.PolicyBuilder:
    return verification.PolicyBuilder().store(verification.Store([ca])).time(at)


def accepted_as_manager(path: Path, ca: x509.Certificate, at: datetime.datetime = NOW) -> bool:
    verifier = policy(ca, at).build_server_verifier(x509.DNSName(MANAGER_NAME))
    try:
        verifier.verify(certificate(path), [])
    except verification.VerificationError:
        return False
    return True


def names(path: Path) -> set[str]:
    extensions = certificate(path).extensions
    return {
        str(name.value)
        for name in extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    }


def test_secrets_are_their_owners_only(folders: Folders) -> None:
    folders.prepare("10.0.0.1")
    for folder in (folders.authority, folders.servers, folders.trainer):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert {path.name for path in folders.servers.iterdir()} == {
        "ca.pem",
        "client.pem",
        "client.key",
    }
    secret = (folders.authority / "ca.key").read_bytes()
    assert not any(secret in path.read_bytes() for path in folders.servers.iterdir())


def test_the_manager_is_one_for_a_year_and_a_client_never(folders: Folders) -> None:
    folders.prepare("10.0.0.1", "node7", "fe80::1")
    ca, manager = folders.ca(), folders.authority / "manager.pem"
    for at in (NOW - DAY / 2, NOW, NOW + 366 * DAY):
        assert accepted_as_manager(manager, ca, at)
    assert not accepted_as_manager(manager, ca, NOW + 1900 * DAY)
    assert names(manager) == {MANAGER_NAME, "10.0.0.1", "node7", "fe80::1"}
    for folder, role in ((folders.servers, "server"), (folders.trainer, "trainer")):
        client = certificate(folder / "client.pem")
        client.verify_directly_issued_by(ca)
        assert client.subject.rfc4514_string() == f"CN={role}"
        usage = client.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [x509.ExtendedKeyUsageOID.CLIENT_AUTH]
        assert not accepted_as_manager(folder / "client.pem", ca)


def test_a_client_cannot_certify_others(folders: Folders) -> None:
    """A host that an attacker controls has the key of one client."""
    folders.prepare()
    client = authority._load(folders.servers / "client.pem", folders.servers / "client.key")
    forged = authority._certify(
        client, MANAGER_NAME, NOW, x509.ExtendedKeyUsageOID.SERVER_AUTH, names=[MANAGER_NAME]
    )
    verifier = policy(folders.ca(), NOW).build_server_verifier(x509.DNSName(MANAGER_NAME))
    with pytest.raises(verification.VerificationError):
        verifier.verify(forged.certificate, [client.certificate])


def test_a_restart_changes_nothing(folders: Folders) -> None:
    before = folders.prepare("10.0.0.1", "10.0.0.2").contents()
    assert folders.prepare("10.0.0.1", now=NOW + 300 * DAY).contents() == before


def test_other_addresses_change_the_managers_certificate_only(folders: Folders) -> None:
    before = folders.prepare("10.0.0.1").contents()
    after = folders.prepare("10.0.0.2").contents()
    changed = {path.name for path in after if before[path] != after[path]}
    assert changed == {"manager.pem", "manager.key"}
    assert "10.0.0.2" in names(folders.authority / "manager.pem")


def test_what_ends_within_three_years_is_renewed_by_the_same_authority(folders: Folders) -> None:
    before = folders.prepare().contents()
    after = folders.prepare(now=NOW + 800 * DAY).contents()
    kept = {path.name for path in after if before[path] == after[path]}
    assert kept == {"ca.pem", "ca.key"}
    assert accepted_as_manager(folders.authority / "manager.pem", folders.ca(), NOW + 2500 * DAY)


@pytest.mark.parametrize("lost", ["ca.key", "ca.pem"])
@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERTIFICATE-----"])
def test_a_lost_authority_makes_everything_anew(
    folders: Folders, lost: str, content: bytes | None
) -> None:
    before = folders.prepare().contents()
    (folders.authority / lost).unlink()
    if content is not None:
        (folders.authority / lost).write_bytes(content)
    after = folders.prepare().contents()
    assert not any(before[path] == after[path] for path in after)
    assert accepted_as_manager(folders.authority / "manager.pem", folders.ca())
    assert (folders.servers / "ca.pem").read_bytes() == (folders.authority / "ca.pem").read_bytes()


def test_a_key_of_another_certificate_is_no_pair(folders: Folders, tmp_path: Path) -> None:
    other = Folders(tmp_path / "other").prepare()
    folders.prepare()
    stray = (other.servers / "client.key").read_bytes()
    (folders.servers / "client.key").write_bytes(stray)
    folders.prepare()
    assert (folders.servers / "client.key").read_bytes() != stray
    pair = authority._load(folders.servers / "client.pem", folders.servers / "client.key")
    assert pair is not None


@pytest.mark.parametrize(
    "off", [DAY / -12, -DAY, -400 * DAY, -20 * 365 * DAY, DAY / 12, 366 * DAY, 2 * 365 * DAY]
)
def test_hosts_with_other_clocks_take_part(folders: Folders, off: datetime.timedelta) -> None:
    """For a year at least, whichever of the two clocks is wrong; some begin in 1970 plus some."""
    folders.prepare()
    files = (
        certificate(folders.authority / "manager.pem"),
        certificate(folders.servers / "client.pem"),
    )
    for at in (NOW + off, NOW + off + 365 * DAY * (off > -DAY)):
        assert accepted_as_manager(folders.authority / "manager.pem", folders.ca(), at)
        assert all(c.not_valid_before_utc < at < c.not_valid_after_utc for c in files)


def test_a_clock_that_is_set_right_after_a_start_changes_nothing(folders: Folders) -> None:
    before = folders.prepare(now=NOW + 365 * DAY).contents()
    assert folders.prepare(now=NOW).contents() == before
    assert accepted_as_manager(folders.authority / "manager.pem", folders.ca(), NOW)


def test_what_is_not_good_yet_is_made_anew(folders: Folders) -> None:
    before = folders.prepare().contents()
    after = folders.prepare(now=authority.VALID_FROM - DAY).contents()
    assert not any(before[path] == after[path] for path in after)

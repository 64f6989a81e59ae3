"""Folder of a gateway's certificate, and of what its clients need.

token                       the gateway's own, readable by its owner only
gateway.pem, gateway.key    its certificate, by the authority of the run, or of this folder
ca.pem                      that authority, for clients (SSL_CERT_FILE, or curl --cacert)

The certificate does not have the manager's name: it opens no door but the gateway's.
"""

import datetime
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rlboost_jax.trust import authority

CERTIFICATE: Final = "gateway.pem"
KEY: Final = "gateway.key"


def prepare(folder: Path, authorities: Path, names: Iterable[str]) -> ssl.SSLContext:
    """TLS context to listen with; creates the certificate unless one is valid for these names.

    Args:
        authorities: folder of the authority, which is made where there is none.
    """
    now = datetime.datetime.now(datetime.UTC)
    authority.prepare_authority(authorities, now)
    authority.prepare_site(
        authority=authorities, folder=folder, files=(CERTIFICATE, KEY), names=names, now=now
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    return context

"""A manifest that only who knows the run's secret can have made.

The manifest names the digest of every file, so its seal covers a whole snapshot: nobody in
between can announce foreign weights, with TLS or without. It travels with the manifest, from
the trainer that makes it through the manager to every server that pulls.
"""

import hashlib
import hmac
from typing import Final

import msgspec

from rlboost_jax.messages import Manifest
from rlboost_jax.weights.names import WeightsError

# What this key is for: the servers' token is a secret for other things, too.
CONTEXT: Final = b"rlboost-jax: manifest of weights, 1"

_encode = msgspec.msgpack.Encoder().encode


def sealed(manifest: Manifest, token: str) -> Manifest:
    """With the seal of a run.

    Args:
        token: the servers' own, which they check it with.
    """
    return msgspec.structs.replace(manifest, seal=_seal(manifest, token))


def check_seal(manifest: Manifest, token: str) -> None:
    """Raises WeightsError for a manifest that was not sealed with that token, or changed since."""
    if not hmac.compare_digest(manifest.seal.encode(), _seal(manifest, token).encode()):
        raise WeightsError(
            f"manifest of version {manifest.version}: not sealed with this run's secret; somebody "
            "in between has changed it, or this server has the token of another run"
        )


def _seal(manifest: Manifest, token: str) -> str:
    """HMAC-SHA256 over the manifest as it is encoded without a seal."""
    key = hmac.digest(token.encode(), CONTEXT, hashlib.sha256)
    content = _encode(msgspec.structs.replace(manifest, seal=""))
    return hmac.new(key, content, hashlib.sha256).hexdigest()

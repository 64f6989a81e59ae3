"""The answer to a server that joins, and the part of it that `events.jsonl` records."""

from typing import Any

from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.messages import Hello, Welcome


def welcome(instance: Instance, settings: Settings, now: float) -> Welcome:
    return Welcome(
        instance=instance.name,
        renew_seconds=settings.manager.renew_seconds,
        orphan_seconds=settings.fleet.orphan_seconds,
        stamp=now,
        weights_port=settings.weights_port,
        hears_logs=not instance.hello.reserved,
    )


def introduction(hello: Hello) -> dict[str, Any]:
    return {
        "reserved": hello.reserved,
        "slots": hello.slots,
        "device": hello.device,
        "host": hello.host,
        "nonce": hello.nonce,
        "zone": hello.zone,
        "price_per_hour": hello.price_per_hour,
    }

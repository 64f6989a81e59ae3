"""An instance of the fleet: the run's engine, and the message by which it introduces itself."""

import secrets
import socket
from collections.abc import Callable, Sequence

import jax

from rlboost_jax.engine.engine import Engine
from rlboost_jax.messages import Hello, PeerOffer
from rlboost_jax.platform import compile_cache
from rlboost_jax.platform.garbage_collection import seldom_collected
from rlboost_jax.rollout.row_verdicts import check_rows
from rlboost_jax.settings.routing import routing_of
from rlboost_jax.settings.run_config import RunConfig


def engine_of(
    run: RunConfig,
    announce: Callable[[str], None] | None = None,
    *,
    taken_bytes: int = 0,
    devices: Sequence[jax.Device] | None = None,
    build: Callable[..., Engine] = Engine,
) -> Engine:
    """Build a run's engine with every program compiled, checked where equal bits are promised.

    Args:
        announce: called with a line on how memory is divided, and on each program to compile.
        taken_bytes: of the device's memory that others in this process have or will have.
        devices: to run on, as many as `engine.tensor_parallel`; None takes the first.
        build: makes it.

    Raises:
        NotEnoughMemory: the engine does not fit the device.
        NotEnoughDevices: there are too few.
        RowsNotInvariant: this device cannot take part in a deterministic run.
    """
    with seldom_collected():
        engine = build(
            run.model,
            run.engine,
            slot_tokens=run.slot_tokens,
            truncated_sampling=run.truncated_sampling,
            param_dtype=run.weights.rollout_dtype,
            taken_bytes=taken_bytes,
            devices=devices,
            routing=routing_of(run.model, run.algorithm),
            exact=run.deterministic,
            noise=run.sampling.noise,
            drafters=run.speculation.used,
        )
        if announce is not None:
            announce(str(engine.memory))
        with compile_cache.recorded(announce) as programs:
            engine.warm_up(announce)
            if run.deterministic:
                check_rows(engine, programs, announce or (lambda _: None))
    return engine


def hello_of(
    engine: Engine,
    *,
    name: str,
    reserved: bool,
    price_per_hour: float,
    zone: str,
    nonce: str = "",
    peer: PeerOffer | None = None,
) -> Hello:
    """Build the first message of every stream.

    Args:
        nonce: that the provider gave it; "" draws one.
        peer: how others fetch weights from it; None: it takes no part in that.
    """
    return Hello(
        instance=name,
        reserved=reserved,
        slots=engine.slots,
        slot_tokens=engine.slot_tokens,
        price_per_hour=price_per_hour,
        zone=zone,
        host=socket.gethostname(),
        device=engine.device_kind,
        fingerprint=engine.fingerprint,
        nonce=nonce or secrets.token_hex(8),
        cache_tokens=engine.cache_tokens,
        peer=peer,
        fetches_lists=True,
        text_tokens=engine.texts.most_earlier,
    )

"""Real server processes with a real engine, forked, fed over HTTP, killed."""

import asyncio
import json
import os
import signal

import jax
import numpy as np
import pytest
from aiohttp import web

from configs import tiny
from rlboost_jax import messages
from rlboost_jax.messages import (
    FAILED_EXIT_CODE,
    Announce,
    Generate,
    GenerateRequest,
    Goodbye,
    Ready,
    Sampling,
    TokenBatch,
)
from rlboost_jax.models.params import init_params
from rlboost_jax.providers.base import (
    ANY_POOL,
    Exited,
    Granted,
    Listed,
    Rendezvous,
    Started,
)
from rlboost_jax.providers.local import LocalProvider
from rlboost_jax.sequences.identities import Work
from rlboost_jax.settings.config_loading import run_config, to_dict
from rlboost_jax.trust.authority import server_tls
from rlboost_jax.trust.seal import read_seal_key, sealed
from rlboost_jax.weights.snapshots import SnapshotStore
from tests.certificates import make_run
from tests.patience import PATIENCE_SECONDS
from tests.system.harness import PACED

pytestmark = pytest.mark.system
NUM_TOKENS = 40


def request(response: list[int], version: int = 1) -> GenerateRequest:
    return GenerateRequest(
        work=Work(seed=0, batch=0, prompt=0, sample=5),
        request_id=len(response),
        version=version,
        prompt_tokens=messages.pack_tokens([1, 2, 3]),
        response_tokens=messages.pack_tokens(response),
        sampling=Sampling(temperature=1.0, top_p=1.0, top_k=0, max_tokens=NUM_TOKENS, stop_ids=()),
    )


async def tokens_of(stream, count: int) -> list[int]:
    """At least so many tokens of the only request there is."""
    tokens: list[int] = []
    while len(tokens) < count:
        batch = await stream.next()
        assert isinstance(batch, TokenBatch)
        tokens.extend(messages.unpack_tokens(batch.tokens).tolist())
    return tokens


def test_servers_join_work_go_on_for_each_other_and_leave(fakes, tmp_path, monkeypatch):
    """One server makes a rollout whole; two others, the first of them killed in the middle of
    it, make the same one together."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("RLBOOST_TEST_PACE", str(tmp_path / "pace"))  # time for their last words
    monkeypatch.setenv("PYTHONPATH", str(PACED), prepend=os.pathsep)
    config = tiny.get_config()
    config.compile_cache_dir = str(tmp_path / "cache")
    config.weights.source = "http"
    config.model.num_layers = 1
    config.engine.slots = 4
    run = run_config(config)
    params = jax.device_get(init_params(run.model, 0))
    store = SnapshotStore(tmp_path / "snapshots", dtype=run.weights.rollout_dtype, keep=2)
    make_run(tmp_path)
    key = read_seal_key(tmp_path / "trainer")
    manifest = sealed(store.write(1, params, "d"), key)
    poor = jax.tree.map(lambda leaf: leaf * np.nan, params)
    broken = sealed(store.write(2, poor, "b"), key)

    async def scenario():
        tls = server_tls(tmp_path / "authority")
        async with fakes.manager(PATIENCE_SECONDS, tls) as manager:
            manager.config = lambda: web.json_response({"run_id": "r", **to_dict(run)})
            manager.manifest = manifest
            rendezvous = Rendezvous(
                run_id="r",
                workdir=tmp_path,
                address="nowhere:9",
                local_address=manager.address,
                join=tmp_path / "join",
            )
            provider = LocalProvider(
                rendezvous,
                price_per_hour=2.0,
                start_seconds=PATIENCE_SECONDS,
                leave_seconds=PATIENCE_SECONDS,
            )
            heard = provider.events()

            async def join(name: str):
                nonce = f"nonce-of-{name}"
                await provider.request(name, nonce, ANY_POOL)
                assert await anext(heard) == Granted(name, nonce)
                assert await anext(heard) == Started(name, nonce)
                stream, hello = await manager.accept()
                assert (hello.instance, hello.nonce, hello.price_per_hour) == (name, nonce, 2.0)
                assert (hello.slots, hello.slot_tokens) == (run.engine.slots, run.slot_tokens)
                await stream.send(Announce(manifest=manifest))
                assert (await stream.next()).version == 1
                return stream

            async def exited(name: str) -> Exited:
                event = await anext(heard)
                assert isinstance(event, Exited) and event.name == name
                return event

            try:
                whole = await join("whole")
                await whole.send(Generate(params_digest="d", requests=(request([]),)))
                wanted = await tokens_of(whole, NUM_TOKENS)
                assert len(wanted) == NUM_TOKENS
                await whole.send(Generate(params_digest="d", requests=(request([]),)))
                await whole.next()  # it is in the middle of a dispatch
                await provider.terminate("whole", 1e6)
                await whole.until(Goodbye)
                assert await whole.next() is None
                assert (await exited("whole")).code == 0

                killed = await join("killed")
                await killed.send(Generate(params_digest="d", requests=(request([]),)))
                collected = await tokens_of(killed, 8)
                await provider.terminate("killed", 0.0)
                assert (await exited("killed")).code == -signal.SIGKILL

                heir = await join("heir")
                await heir.send(Generate(params_digest="d", requests=(request(collected),)))
                rest = await tokens_of(heir, NUM_TOKENS - len(collected))
                assert collected + rest == wanted

                # Weights that are no numbers: nothing of that dispatch is ever sent.
                manager.manifest = broken
                await heir.send(Announce(manifest=broken))
                await heir.until(Ready)
                await heir.send(Generate(params_digest="b", requests=(request([], version=2),)))
                announced, goodbye = [await heir.next(), await heir.next()]
                assert announced.in_flight and not announced.tokens
                assert goodbye.failed and goodbye.reason.startswith(
                    "failed: NonFiniteLogits: version 2"
                )
                assert (await exited("heir")).code == FAILED_EXIT_CODE
                *_, line = (tmp_path / "logs" / "heir.log").read_text().splitlines()
                assert "failed: NonFiniteLogits: version 2" in line

                manager.manifest = manifest
                await join("last")
                assert await provider.list() == (Listed("last", "nonce-of-last"),)
                pid = json.loads((tmp_path / "servers" / "last").read_text())["pid"]
            finally:
                await provider.close()
            assert (await exited("last")).code == 0
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            assert [event async for event in heard] == []

    asyncio.run(scenario())

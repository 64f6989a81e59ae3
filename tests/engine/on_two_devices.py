"""What `test_tensor_parallel.py` runs in a process with two simulated devices: measures only.

Prints one JSON object, with the measurements of each kind of model.
"""

import json
import sys
from dataclasses import replace

import jax
import numpy as np

from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.invariance import RowsNotInvariant
from rlboost_jax.messages import GenerateRequest, Sampling, pack_tokens
from rlboost_jax.models.parameter_sharding import make_mesh, param_shardings
from rlboost_jax.models.params import init_params, unstack_layers
from rlboost_jax.sequences.identities import Work
from rlboost_jax.settings.routing import Routing
from tests import unoptimized
from tests.engine.conftest import CONFIG, MODEL, SLOT_TOKENS

KINDS = {
    "tied, with biases": {"attention_bias": True, "output_bias": True, "tie_embeddings": True},
    "experts": {"num_experts": 4, "experts_per_token": 2, "expert_dim": 12},
}


def request(number):
    prompt = [number // 2, 7, 1, 8, 2, 8][: 2 + number // 2]
    return GenerateRequest(
        work=Work(seed=5, batch=3, prompt=number // 2, sample=number),
        request_id=number,
        version=1,
        prompt_tokens=pack_tokens(prompt),
        response_tokens=b"",
        sampling=Sampling(temperature=0.8, top_p=1.0, top_k=0, max_tokens=20, stop_ids=()),
    )


def run(model, devices, given):
    """An engine that has sampled: itself, and tokens and log-probabilities by request."""
    routed = {"num_layers": 1, "num_experts": 4, "experts_per_token": 2}
    engine = Engine(
        model,
        replace(CONFIG, tensor_parallel=devices, num_pages=22),
        slot_tokens=SLOT_TOKENS,
        truncated_sampling=False,
        routing=Routing(**routed) if model.num_experts else None,
        drafters=("siblings", "prompt") if devices > 1 else (),
    )
    engine.load(given, 1)
    engine.submit([request(number) for number in range(8)])
    found = {}
    for dispatch in engine.run():
        ends = np.cumsum(dispatch.counts, dtype=int)
        for number, count, end in zip(
            dispatch.request_ids.tolist(), dispatch.counts, ends, strict=True
        ):
            tokens, logprobs = found.setdefault(number, ([], []))
            tokens += dispatch.tokens[end - count : end].tolist()
            logprobs += dispatch.logprobs[end - count : end].tolist()
    return engine, found


def first_difference(engine):
    """What the start-up check has found; "" where a row's bits are its own."""
    try:
        engine.assert_row_invariance()
    except RowsNotInvariant as error:
        return str(error)
    return ""


def moved(leaf):
    """So that biases and scales are not those of a fresh model."""
    return leaf + 0.1 * np.cos(np.arange(leaf.size)).reshape(leaf.shape).astype(np.float32)


def bytes_on(device, engine):
    return sum(leaf.addressable_shards[device].data.nbytes for leaf in engine.parameters.leaves)


def measure(kind):
    model = replace(MODEL, vocab_size=38, num_layers=1, **KINDS[kind])
    params = jax.tree.map(moved, jax.device_get(init_params(model, 0)))
    split = jax.device_put(params, param_shardings(model, make_mesh((1, 1, 2))))
    jax.config.update("jax_disable_most_optimizations", True)  # it is compared to a tolerance
    one, expected = run(model, 1, params)
    jax.config.update("jax_disable_most_optimizations", False)
    two, found = run(model, 2, split)
    stored = jax.tree.leaves(unstack_layers(params))
    yield "requests", len(expected)
    yield "the same tokens", all(found[n][0] == expected[n][0] for n in expected)
    gaps = (np.abs(np.subtract(found[n][1], expected[n][1])).max() for n in expected)
    yield "gap", float(max(gaps))
    yield "first difference of rows", first_difference(two)
    yield (
        "shapes of pools",
        [
            sorted({s.data.shape for s in leaf.addressable_shards})
            for leaf in two.device_state.pools
        ],
    )
    yield (
        "the same weights",
        all(
            np.array_equal(ours, whole)
            for ours, whole in zip(two.parameters.leaves, stored, strict=True)
        ),
    )
    yield "bytes of weights on one", sum(leaf.nbytes for leaf in stored)
    yield "bytes of weights on each", [bytes_on(device, two) for device in (0, 1)]
    yield "bytes of weights as planned", two.memory.sizes.weights
    yield "bytes of a page", [engine.memory.sizes.page for engine in (one, two)]
    yield "fingerprints", [one.fingerprint, two.fingerprint]
    two.load(params, 2)
    yield "version after weights of the host", two.version


def main():
    unoptimized.add_options()
    json.dump({kind: dict(measure(kind)) for kind in KINDS}, sys.stdout)

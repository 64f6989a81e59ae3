"""An engine on two devices against the same on one."""

import pytest

from tests.engine.conftest import CONFIG, MODEL, SLOT_TOKENS

EXPERTS = {"num_experts": 4, "experts_per_token": 2, "expert_dim": 12}
KINDS = {"tied, with biases": {"attention_bias": True, "output_bias": True, "tie_embeddings": True},
         "experts": EXPERTS}  # fmt: skip

SOURCE = f"""
from dataclasses import replace
import jax, numpy as np
from rlboost_jax.config.records import EngineConfig, LoraConfig, ModelConfig
from rlboost_jax.config.routing import Routing
from rlboost_jax.engine.engine import Engine
from rlboost_jax.messages import GenerateRequest, Sampling, pack_tokens
from rlboost_jax.models.params import init_params
from rlboost_jax.models.sharding import make_mesh, param_shardings

model = replace({MODEL!r}, vocab_size=38, num_layers=1, **CHANGES)
routing = Routing(num_layers=1, num_experts=4, experts_per_token=2) if model.num_experts else None
config = {CONFIG!r}
params = jax.device_get(init_params(model, 0))
params = jax.tree.map(lambda leaf: leaf + 0.1 * np.cos(np.arange(leaf.size)).reshape(leaf.shape)
                      .astype(np.float32), params)
split = jax.device_put(params, param_shardings(model, make_mesh((1, 1, 2))))

def request(number):
    prompt = [number // 2, 7, 1, 8, 2, 8][: 2 + number // 2]
    return GenerateRequest(
        request_id=number, step=3, prompt=number // 2, sample=number, version=1, seed=5,
        prompt_tokens=pack_tokens(prompt), response_tokens=b"",
        sampling=Sampling(temperature=0.8, top_p=1.0, top_k=0, max_tokens=20, stop_ids=()),
    )

def run(devices, given):
    engine = Engine(
        model, replace(config, tensor_parallel=devices, num_pages=22), slot_tokens={SLOT_TOKENS},
        truncated_sampling=False, routing=routing,
    )
    engine.load(given, 1)
    engine.submit([request(number) for number in range(8)])
    found = {{}}
    for dispatch in engine.run():
        ends = np.cumsum(dispatch.counts, dtype=int)
        for number, count, end in zip(dispatch.request_ids.tolist(), dispatch.counts, ends):
            tokens, logprobs = found.setdefault(number, ([], []))
            tokens += dispatch.tokens[end - count : end].tolist()
            logprobs += dispatch.logprobs[end - count : end].tolist()
    return engine, found

one, expected = run(1, params)
two, found = run(2, split)
assert all(found[n][0] == expected[n][0] for n in range(8)), "other tokens"
gap = max(np.abs(np.subtract(found[n][1], expected[n][1])).max() for n in range(8))
assert gap < 1e-5, gap
two.assert_row_invariance()
shapes = [sorted({{shard.data.shape for shard in leaf.addressable_shards}}) for leaf in two.pools]
assert all(shape == [(22, 4, 2, 8)] for shape in shapes), shapes
for ours, whole in zip(two.parameters.leaves, one.parameters.leaves):
    np.testing.assert_array_equal(ours, whole)
first, other = (
    sum(leaf.addressable_shards[i].data.nbytes for leaf in two.parameters.leaves) for i in (0, 1)
)
whole = sum(leaf.nbytes for leaf in one.parameters.leaves)
assert first == other < 0.6 * whole, (first, other, whole)
assert abs(two.memory.sizes.weights / first - 1) < 0.1, (two.memory.sizes, first)
assert 2 * two.memory.sizes.page == one.memory.sizes.page
assert one.fingerprint != two.fingerprint
two.load(params, 2)
print("equal")
"""


@pytest.mark.parametrize("kind", KINDS)
def test_two_devices_sample_what_one_samples(run_with_devices, kind):
    """The same tokens, from half of the weights and of the pages each; whoever runs beside them."""
    source = SOURCE.replace("CHANGES", repr(KINDS[kind]))
    assert run_with_devices(source, 2, optimized=True) == "equal\n"

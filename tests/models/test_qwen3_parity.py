"""The decoder against Hugging Face's Qwen3 with the same random weights, in float32."""

import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.models.forward import head, hidden_states
from rlboost_jax.models.params import abstract_params, flatten_params, unflatten_params

torch = pytest.importorskip("torch", reason="the Hugging Face oracle runs on torch")
transformers = pytest.importorskip("transformers", reason="it is the oracle")

LAYER_NAMES = {
    "attention_norm.scale": "input_layernorm.weight",
    "attention.query.kernel": "self_attn.q_proj.weight",
    "attention.key.kernel": "self_attn.k_proj.weight",
    "attention.value.kernel": "self_attn.v_proj.weight",
    "attention.output.kernel": "self_attn.o_proj.weight",
    "attention.query_norm.scale": "self_attn.q_norm.weight",
    "attention.key_norm.scale": "self_attn.k_norm.weight",
    "mlp_norm.scale": "post_attention_layernorm.weight",
    "mlp.gate.kernel": "mlp.gate_proj.weight",
    "mlp.up.kernel": "mlp.up_proj.weight",
    "mlp.down.kernel": "mlp.down_proj.weight",
}
OTHER_NAMES = {
    "embedding.table": "model.embed_tokens.weight",
    "head.norm.scale": "model.norm.weight",
    "head.kernel": "lm_head.weight",
}


def oracle(config):
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            vocab_size=config.vocab_size,
            hidden_size=config.embed_dim,
            intermediate_size=config.hidden_dim,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_query_heads,
            num_key_value_heads=config.num_key_heads,
            head_dim=config.head_dim,
            rope_theta=config.rope_theta,
            rms_norm_eps=config.norm_epsilon,
            tie_word_embeddings=config.tie_embeddings,
            attn_implementation="eager",
            initializer_range=0.2,
        )
    )
    with torch.no_grad():  # scales of 1 would hide a missing norm
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
    return model.eval()


def from_oracle(config, model):
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}

    def leaf(name):
        if name.startswith("layers."):
            theirs = LAYER_NAMES[name.removeprefix("layers.")]
            layers = [weights[f"model.layers.{i}.{theirs}"] for i in range(config.num_layers)]
        else:
            layers = [weights[OTHER_NAMES[name]]]
        stacked = np.stack([x.T if name.endswith("kernel") else x for x in layers])
        return jnp.asarray(stacked if name.startswith("layers.") else stacked[0])

    return unflatten_params({name: leaf(name) for name in flatten_params(abstract_params(config))})


@pytest.mark.parametrize("tied", [False, True])
def test_logits_equal_hugging_face_qwen3(small_model, tied):
    config = small_model(num_layers=3, rope_theta=1_000_000.0, tie_embeddings=tied)
    model = oracle(config)
    tokens = np.random.default_rng(0).integers(config.vocab_size, size=(2, 40))
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens)).logits.numpy()

    positions, segments = np.tile(np.arange(40), (2, 1)), np.ones((2, 40), np.int32)
    params = from_oracle(config, model)
    x = hidden_states(config, params, *map(jnp.asarray, (tokens, positions, segments)), remat=False)
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(
        head(config, params, x).reshape(expected.shape), expected, atol=1e-5, rtol=1e-5
    )

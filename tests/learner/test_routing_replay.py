"""Routes that the learner is given in place of its own choice, against a decoder in float64."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from rlboost_jax.learner.episodes.trajectory import Trajectory, trajectories_digest
from rlboost_jax.learner.packing import fill
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.models.forward import hidden_states_and_experts
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import init_params
from rlboost_jax.sequences.sequence import Sequence
from rlboost_jax.settings.routing import Routing

X, A, LAYERS = 5, 2, 2
ROUTING = Routing(num_layers=LAYERS, num_experts=X, experts_per_token=A)
ROWS, ROW_TOKENS = 2, 16
LENGTHS = ((3, 6), (1, 5), (4, 7), (2, 2))  # of prompts and responses


@pytest.fixture(scope="module")
def model(config):
    return replace(
        config.model, vocab_size=24, num_layers=LAYERS, num_query_heads=2, num_key_heads=1,
        num_experts=X, experts_per_token=A, expert_dim=12,
    )  # fmt: skip


@pytest.fixture(scope="module")
def params(model):
    return jax.tree.map(lambda leaf: 2 * leaf, init_params(model, 0))


@pytest.fixture(scope="module")
def step_of(model, config):
    """The programs with replay and without."""
    return {
        replayed: PolicyPrograms(
            model,
            config.learner,
            replace(config.algorithm, routing_replay=replayed, kl_coefficient=0.1),
            config.sampling,
            num_updates=10,
            mesh=make_mesh((1, 1, 1)),
        )
        for replayed in (True, False)
    }


def own_routes(model, params, sequences) -> list[np.ndarray]:
    """What the routers choose for all tokens but the last of each."""
    tokens = np.zeros((len(sequences), ROW_TOKENS), np.int32)
    for row, sequence in zip(tokens, sequences, strict=True):
        row[: len(sequence)] = sequence
    at = np.tile(np.arange(ROW_TOKENS, dtype=np.int32), (len(tokens), 1)), np.ones_like(tokens)

    @jax.jit
    def chosen(params, *rows):
        return hidden_states_and_experts(model, params, *rows, remat="none", attention="paged")[1]

    routes = np.asarray(chosen(params, tokens, *at)).reshape(LAYERS, *tokens.shape, A)
    routes = routes.transpose(1, 2, 0, 3).astype(np.uint8)
    return [of[: len(s) - 1] for of, s in zip(routes, sequences, strict=True)]


@pytest.fixture(scope="module")
def trajectories(model, params):
    rng = np.random.default_rng(0)
    sequences = [rng.integers(model.vocab_size, size=sum(n), dtype=np.int32) for n in LENGTHS]
    routes = own_routes(model, params, sequences)
    return [
        Trajectory(
            prompt=sample,
            sample=sample,
            sequence=Sequence.of_response(
                sequences[sample][:prompt],
                sequences[sample][prompt:],
                -rng.uniform(2.5, 3.5, response),
                version=0,
                routes=routes[sample],
            ),
            advantage=float(rng.normal()),
        )
        for sample, (prompt, response) in enumerate(LENGTHS)
    ]


def perturbed(trajectories):
    """Every choice another one, of distinct experts."""
    return [with_routes(t, ((t.sequence.routes + 1) % X).astype(np.uint8)) for t in trajectories]


def with_routes(t, routes):
    return replace(t, sequence=replace(t.sequence, routes=routes))


def packed(trajectories, routing=ROUTING):
    batch, left = fill(
        trajectories,
        rows=ROWS,
        row_tokens=ROW_TOKENS,
        loss_aggregation="token_mean",
        routing=routing,
    )
    assert not left
    return batch


class Dense:
    """One sequence at a time, by the formulas; routes are given."""

    def __init__(self, model, params):
        self.model = model
        self.params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

    def norm(self, x, scale):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.model.norm_epsilon) * scale

    def logprobs(self, t: Trajectory) -> np.ndarray:
        """Log-probabilities of the response tokens."""
        p, D = self.params, self.model.head_dim
        tokens = t.sequence.tokens
        T = len(tokens) - 1
        angle = np.arange(T)[:, None] / self.model.rope_theta ** (np.arange(0, D, 2) / D)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

        def turn(x):
            a, b = x[..., : D // 2], x[..., D // 2 :]
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

        x = p["embedding"]["table"][tokens[:-1]]
        for index in range(LAYERS):
            layer = jax.tree.map(lambda leaf, i=index: leaf[i], p["layers"])
            at = layer["attention"]
            h = self.norm(x, layer["attention_norm"]["scale"])
            q, k, v = ((h @ at[n]["kernel"]).reshape(T, -1, D) for n in ("query", "key", "value"))
            q = turn(self.norm(q, at["query_norm"]["scale"]))
            k = turn(self.norm(k, at["key_norm"]["scale"]))
            heads = []
            for head in range(q.shape[1]):
                scores = q[:, head] @ k[:, 0].T / np.sqrt(D)
                scores[np.triu_indices(T, 1)] = -np.inf
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, 0])
            x = x + np.concatenate(heads, -1) @ at["output"]["kernel"]
            x = x + self.experts(layer["mlp"], self.norm(x, layer["mlp_norm"]["scale"]), t, index)
        logits = self.norm(x, p["head"]["norm"]["scale"]) @ p["head"]["kernel"]
        logits -= logits.max(-1, keepdims=True)
        whole = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return whole[np.arange(T), tokens[1:]][-t.sequence.num_sampled :]

    def experts(self, mlp, h, t: Trajectory, index: int):
        """Weights are of today's router, over the experts that it is given."""
        logits, out = h @ mlp["router"]["kernel"], np.zeros_like(h)
        for n, chosen in enumerate(t.sequence.routes[:, index]):
            weights = np.exp(logits[n, chosen] - logits[n, chosen].max())
            for e, weight in zip(chosen, weights / weights.sum(), strict=True):
                gate, up = (h[n] @ mlp["experts"][name][e] for name in ("gate", "up"))
                out[n] += weight * (gate / (1 + np.exp(-gate)) * up @ mlp["experts"]["down"][e])
        return out


def response_logprobs(step, params, batch, reference=None) -> dict[str, np.ndarray]:
    found = step.logprobs(params, reference, batch)
    return {name: np.asarray(values)[batch.response_mask] for name, values in found.items()}


def in_packed_order(batch, by_sample):
    order = dict.fromkeys(batch.samples[batch.response_mask].tolist())
    return np.concatenate([by_sample[sample] for sample in order])


@pytest.mark.optimized
def test_routes_take_the_place_of_the_choice_and_of_nothing_else(
    step_of, model, params, trajectories
):
    """Its own leave every bit as it is, beside places without a token, whose routes are made up.
    Others are taken by the policy, and by the reference model."""
    free = response_logprobs(step_of[False], params, packed(trajectories, None))["policy"]
    reference = jax.tree.map(lambda leaf: 1.5 * leaf, params)
    same = response_logprobs(step_of[True], params, packed(trajectories), reference)["policy"]
    assert same.tobytes() == free.tobytes()
    batch = packed(perturbed(trajectories))
    other = response_logprobs(step_of[True], params, batch, reference)
    assert np.abs(other["policy"] - free).max() > 0.1
    for name, of in (("policy", params), ("reference", reference)):
        dense = Dense(model, of)
        expected = {t.sample: dense.logprobs(t) for t in perturbed(trajectories)}
        np.testing.assert_allclose(other[name], in_packed_order(batch, expected), atol=2e-4)


def test_the_gradient_goes_through_the_weights_of_the_choice(step_of, model, params, trajectories):
    """Its slope along a random direction is a finite difference of the loss in float64."""
    other = perturbed(trajectories)
    batch = packed(other)
    gradients, _ = step_of[True].gradients(params, None, batch)
    algorithm = step_of[True]._algorithm
    rng = np.random.default_rng(1)
    router = np.asarray(params["layers"]["mlp"]["router"]["kernel"], np.float64)
    direction = rng.normal(size=router.shape)

    def loss(distance):
        mlp = params["layers"]["mlp"]
        mlp = {**mlp, "router": {"kernel": router + distance * direction}}
        dense = Dense(model, {**params, "layers": {**params["layers"], "mlp": mlp}})
        total = 0.0
        for t in other:
            ratio = np.exp(dense.logprobs(t) - t.sequence.logprobs)
            bounded = np.clip(ratio, 1 - algorithm.clip_low, 1 + algorithm.clip_high)
            total -= np.minimum(ratio * t.advantage, bounded * t.advantage).sum()
        return total

    slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
    found = (np.asarray(gradients["layers"]["mlp"]["router"]["kernel"]) * direction).sum()
    assert abs(slope) > 1e-2
    np.testing.assert_allclose(found, slope, rtol=1e-3)
    experts = np.asarray(gradients["layers"]["mlp"]["experts"]["gate"])
    assert np.abs(experts).max() > 0


def test_routes_are_part_of_what_was_sampled(trajectories):
    assert trajectories_digest(trajectories) != trajectories_digest(perturbed(trajectories))


def test_packed_routes_lie_beside_their_tokens(trajectories):
    batch = packed(trajectories)
    for t in trajectories:
        row, column = np.argwhere(batch.samples == t.sample)[-1]
        whole = len(t.sequence.tokens) - 1
        here = batch.routes[row, column + 1 - whole : column + 1]
        np.testing.assert_array_equal(here, t.sequence.routes)
    nowhere = batch.routes[batch.segments == 0]
    assert (nowhere == np.arange(A)).all()

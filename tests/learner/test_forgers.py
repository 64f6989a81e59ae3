"""Forged choices of a real engine, whatever is sampled with it, are disputed; honest ones never.

In each group one response is honest and each of the others is a forger's, who holds the weights and
reports the true log-probability of every token that he chooses.
"""

from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rlboost_kernels import noise_keys, token_noise, tokens_from_noise

from rlboost_jax import messages
from rlboost_jax.engine import row_sampling
from rlboost_jax.learner.episodes.collector import sequence_of
from rlboost_jax.learner.episodes.trajectory import Group, Trajectory
from rlboost_jax.learner.evaluation.local_batch import LocalBatch
from rlboost_jax.learner.setup.preparation import programs
from rlboost_jax.learner.state import init_state
from rlboost_jax.learner.update.batch import BatchUpdate
from rlboost_jax.learner.update.learner import learner_of
from rlboost_jax.models.adapters import is_adapter, joined
from rlboost_jax.models.forward import head
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import flatten_params, init_params, unflatten_params
from rlboost_jax.rollout.instance import engine_of
from rlboost_jax.sequences.identities import Batch, Version, noise_seed
from rlboost_jax.settings.model_config import LoraConfig

SEED, BATCH, VERSION = 5, 2, 2
PROMPTS, TOKENS, STOP = 6, 24, 9
FORGERS = (
    "none",
    "greedy",
    "constant noise",
    "noise of another sample",
    "noise of the next position",
    "another temperature",
    "another truncation",
    "best of three",
    "an early end",
    "one token",
)
HABITS = ("greedy", "constant noise", "noise of another sample", "noise of the next position")
EXPERTS = {"num_experts": 4, "experts_per_token": 2, "expert_dim": 16}
VARIANTS = ("plain", "adapters", "experts", "turns", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run of a variant, its learner and its parameters as engines and the learner have them."""

    run: object
    learner: object
    params: object
    whole: object
    turns: bool


@pytest.fixture(scope="module")
def case_of(config):
    @cache
    def made(variant):
        model, weights, engine = config.model, config.weights, config.engine
        algorithm = replace(config.algorithm, group_size=len(FORGERS))
        if variant == "adapters":
            model = replace(model, lora=LoraConfig(rank=3, alpha=6.0))
        elif variant == "experts":
            model = replace(model, **EXPERTS)
            algorithm = replace(algorithm, routing_replay=False)  # no manager keeps the routes
        elif variant == "bfloat16":
            weights = replace(weights, rollout_dtype="bfloat16")
            engine = replace(engine, kv_dtype="bfloat16")
        run = replace(
            config,
            seed=SEED,
            model=model,
            weights=weights,
            engine=replace(engine, slots=16),
            algorithm=algorithm,
            sampling=replace(config.sampling, temperature=0.9, max_response_tokens=TOKENS),
            learner=replace(config.learner, prompts_per_step=PROMPTS, micro_batch_prompts=1),
        )
        policy, _ = programs(run, make_mesh((1, 1, 1)))
        params = whole = sharpened(init_params(replace(model, lora=LoraConfig()), 0))
        if model.lora.rank:
            policy, params = policy.over(whole), moved_adapters(model)
            whole = joined(whole, params)
        return Case(
            run=run,
            learner=learner_of(run, policy=policy, critic=None, reference=None, stop_ids=(STOP,)),
            params=params,
            whole=whole,
            turns=variant == "turns",
        )

    return made


def sharpened(params):
    """Some tokens are likely and some are not; the end is one of many."""
    fresh = jax.device_get(params)
    return {**fresh, "head": {**fresh["head"], "kernel": 10 * fresh["head"]["kernel"]}}


def moved_adapters(model):
    leaves = flatten_params(init_params(model, 0, of=is_adapter))
    rng = np.random.default_rng(0)
    return unflatten_params(
        {n: leaf + 0.2 * rng.standard_normal(leaf.shape, np.float32) for n, leaf in leaves.items()}
    )


def forged_draw(sampler, params, x, keys, positions, controls, needed=None):
    """What each row's forger draws in place of `RowSampler.draw`."""
    rows = len(x)
    R = min(rows, sampler._layout.sampled_rows)
    logits = head(sampler._model, params, x[:R], split=False)
    temperature = controls.temperature[:R]
    tokens = forged(logits, keys[:R], positions[:R], temperature)
    logprobs = jax.nn.log_softmax(logits / temperature[:, None])
    own = jnp.take_along_axis(logprobs, tokens[:, None], axis=1)[:, 0]
    return row_sampling.padded((tokens, own, jnp.zeros(R, jnp.int32)), rows)


def forged(logits, keys, positions, temperature):
    """The token that the forger of each row chooses, by whatever noise it likes."""
    samples = np.arange(PROMPTS * len(FORGERS), dtype=np.uint32)
    seeds = np.repeat([np.uint32(noise_seed(SEED, place)) for place in (0, 1)], len(samples))
    names = (seeds, np.full(len(seeds), np.uint32(BATCH)), np.tile(samples, 2))
    table = noise_keys(*map(jnp.asarray, names))
    known, own = jax.random.key_data(table), jax.random.key_data(keys)
    row = (own[:, None] == known[None]).all(-1).argmax(1)  # sample and sequence

    def noise(keys, positions=positions):
        return token_noise(keys, positions, "inverse_cdf", vocabulary=logits.shape[1])

    def drawn(noise, temperature=temperature, top_p=1.0):
        columns = (temperature, jnp.full_like(noise, top_p), jnp.zeros(len(noise), jnp.int32))
        return tokens_from_noise(logits, noise, *columns)[0]

    honest, others = noise(keys), [noise(table[(row + i) % len(table)]) for i in (1, 2)]
    right = drawn(honest)
    three = jnp.stack([right, *map(drawn, others)], axis=1)
    best = jnp.take_along_axis(logits, three, axis=1).argmax(1)
    choices = {
        "none": right,
        "greedy": logits.argmax(1),
        "constant noise": drawn(jnp.full_like(honest, 0.5)),
        "noise of another sample": drawn(others[0]),
        "noise of the next position": drawn(noise(keys, positions + 1)),
        "another temperature": drawn(honest, 0.6 * temperature),
        "another truncation": drawn(honest, top_p=0.8),
        "best of three": jnp.take_along_axis(three, best[:, None], axis=1)[:, 0],
        "an early end": jnp.where(positions == 2, STOP, right),
        "one token": jnp.where(
            positions == 4, (right + logits.shape[1] // 2) % logits.shape[1], right
        ),
    }
    return jnp.stack([jnp.int32(choices[name]) for name in FORGERS])[
        row % len(FORGERS), jnp.arange(len(row))
    ]


@contextmanager
def forging():
    """Engines that are built and used now are the forgers'."""
    with mock.patch.object(row_sampling.RowSampler, "draw", forged_draw):
        yield


def sampled(case):
    """All groups of a batch, by an engine of the run."""
    run = case.run
    engine = engine_of(replace(run, deterministic=False))
    engine.load(case.whole, Version(VERSION))
    prompts = [np.arange(3 + place, dtype=np.int32) + 20 * place for place in range(PROMPTS)]
    begin = messages.BeginBatch(
        batch=Batch(BATCH),
        version=Version(VERSION),
        params_digest="",
        seed=SEED,
        group_size=len(FORGERS),
        sampling=messages.Sampling(
            temperature=run.sampling.temperature,
            top_p=1.0,
            top_k=0,
            max_tokens=TOKENS // 2 if case.turns else TOKENS,
            stop_ids=(STOP,),
            turn_tokens=6 if case.turns else 0,
        ),
        prompts=tuple(
            messages.PromptRequest(prompt=place, tokens=messages.pack_tokens(prompt))
            for place, prompt in enumerate(prompts)
        ),
        turns=3 if case.turns else 1,
    )

    def answer(parked):
        """A tool's result; after the second turn another sequence."""
        over = parked.turn > 0
        batch.answer(
            messages.Answer(
                work=parked.work,
                attempt=parked.attempt,
                turn=parked.turn,
                tokens=messages.pack_tokens([1, 2]),
                over=over,
                prompt=messages.pack_tokens([7, 8, 9]) if over else b"",
            )
        )

    batch = LocalBatch(engine, begin, ask=answer)
    found = {}
    for rollout in batch.results():
        work = rollout.work
        episode = found.setdefault(work.sample, [])
        episode.append(sequence_of(rollout, prompts[work.prompt]))
    return [
        Group(
            prompt=place,
            trajectories=tuple(
                Trajectory(
                    prompt=place,
                    sample=sample,
                    sequence=found[sample][0],
                    later=tuple(found[sample][1:]),
                    advantage=0.0,
                    batch=BATCH,
                    attempts=(0,) * len(found[sample]),
                )
                for sample in range(place * len(FORGERS), (place + 1) * len(FORGERS))
            ),
        )
        for place in range(PROMPTS)
    ]


@pytest.fixture(scope="module")
def groups_of(case_of):
    """`groups_of("plain")`: the same batch by an honest engine, and by forgers."""

    @cache
    def made(variant):
        honest = sampled(case_of(variant))
        with forging():
            return honest, sampled(case_of(variant))

    return made


def differing(honest, forged):
    """Samples whose response the forger has changed."""
    pairs = zip(responses(honest), responses(forged), strict=True)
    return {a.sample for a, b in pairs if not np.array_equal(a.response, b.response)}


def responses(groups):
    return [t for group in groups for t in group.trajectories]


def forger_of(sample):
    return FORGERS[sample % len(FORGERS)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_honest_response_is_disputed(case_of, groups_of, variant):
    case, (honest, _) = case_of(variant), groups_of(variant)
    assert case.learner.check(case.params, honest) == []
    if case.turns:
        assert any(t.later and len(t.turns) > 2 for t in responses(honest))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_forger_is_seen(case_of, groups_of, variant):
    case, (honest, forged) = case_of(variant), groups_of(variant)
    wrong = differing(honest, forged)
    assert {forger_of(sample) for sample in wrong} == {*FORGERS} - {"none"}
    doubted = {doubt.sample for doubt in case.learner.check(case.params, forged)}
    assert doubted <= wrong, "an honest response is disputed"
    if variant == "bfloat16":  # a choice that rounding could have made is none to dispute
        wrong = {sample for sample in wrong if forger_of(sample) in HABITS}
    assert doubted >= wrong, {(sample, forger_of(sample)) for sample in wrong - doubted}


def test_forgers_are_seen_where_an_older_version_sampled(case_of, groups_of):
    """Checks choices with the parameters of that version, not those of now."""
    case, (honest, forged) = case_of("plain"), groups_of("plain")
    policy = case.learner.policy
    now = init_state(init_params(case.run.model, 1), policy.optimizer, policy.shardings)

    def disputed(groups):
        update = BatchUpdate(
            case.learner,
            now,
            step=VERSION + 1,
            checkpoint=lambda: None,
            version=VERSION,
            sampler=case.params,
        )
        return {doubt.sample for doubt in update.check(groups)}

    assert disputed(honest) == set()
    assert disputed(forged) == differing(honest, forged)

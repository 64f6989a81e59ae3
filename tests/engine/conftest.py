"""A tiny model, engines for it (each kind compiled once), and a second derivation in NumPy."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from rlboost_jax.engine.engine import Engine
from rlboost_jax.messages import GenerateRequest, Sampling, pack_tokens, unpack_tokens
from rlboost_jax.models.params import init_params
from rlboost_jax.sequences.identities import Work
from rlboost_jax.settings.engine_config import EngineConfig
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.speculation_config import Drafter
from tests.small import ENGINE, small_model
from tests.unoptimized import compiles_unoptimized

MODEL, CONFIG = small_model(vocab_size=37, hidden_dim=24), ENGINE
SLOT_TOKENS = 44

Rollouts = dict[int, tuple[list[int], list[int]]]  # tokens and bits of log-probabilities, by id


@pytest.fixture(scope="session")
def model() -> ModelConfig:
    return MODEL


@pytest.fixture(scope="session")
def engine_config() -> EngineConfig:
    return CONFIG


@pytest.fixture(scope="session")
def params() -> dict[str, Any]:
    """Sharper than a fresh model, so that some tokens are likely and some are not."""
    fresh = jax.device_get(init_params(MODEL, 0))
    return {**fresh, "head": {**fresh["head"], "kernel": 25 * fresh["head"]["kernel"]}}


@pytest.fixture(scope="session")
def build_engine(params: dict[str, Any]) -> Callable[..., Engine]:
    @functools.cache
    def build(
        truncated_sampling: bool,
        slot_tokens: int,
        drafters: tuple[Drafter, ...],
        settings: tuple[Any, ...],
        optimized: bool,
    ) -> Engine:
        engine = Engine(
            MODEL,
            replace(CONFIG, **dict(settings)),
            slot_tokens=slot_tokens,
            truncated_sampling=truncated_sampling,
            drafters=drafters,
        )
        engine.load(params, 1)
        return engine

    def get(
        *,
        truncated_sampling: bool = False,
        slot_tokens: int = SLOT_TOKENS,
        drafters: tuple[Drafter, ...] = (),
        **settings: Any,
    ) -> Engine:
        optimized = not compiles_unoptimized()  # programs are compiled as the first test runs them
        engine = build(
            truncated_sampling, slot_tokens, drafters, tuple(sorted(settings.items())), optimized
        )
        assert not engine.held(), "a test left rollouts in a shared engine"
        return engine

    return get


@pytest.fixture
def request_of() -> Callable[..., GenerateRequest]:
    """Requests with defaults; `prompt` is its tokens, `group` its index in the step."""

    def make(
        request_id: int,
        prompt: Iterable[int],
        response: Iterable[int] = (),
        *,
        group: int = 0,
        step: int = 3,
        seed: int = 11,
        version: int = 1,
        sequence: int = 0,
        runs: Iterable[int] = (),
        **sampling: Any,
    ) -> GenerateRequest:
        settings = {
            "temperature": 0.8,
            "top_p": 1.0,
            "top_k": 0,
            "max_tokens": 24,
            "stop_ids": (5, 17, 29),
        }
        return GenerateRequest(
            work=Work(seed=seed, batch=step, prompt=group, sample=request_id, sequence=sequence),
            request_id=request_id,
            version=version,
            prompt_tokens=pack_tokens(list(prompt)),
            response_tokens=pack_tokens(list(response)),
            runs=tuple(runs),
            sampling=Sampling(**{**settings, **sampling}),
        )

    return make


@pytest.fixture
def dispatch() -> Callable[[Engine, Rollouts], int]:
    """Runs one dispatch and adds what it yields to the rollouts. Returns the tokens yielded."""

    def run(engine: Engine, rollouts: Rollouts) -> int:
        most = engine.begin()
        if most == 0:
            return 0
        result = engine.finish()
        assert 0 < len(result.tokens) <= most
        assert result.counts.sum() == len(result.tokens) == len(result.logprobs)
        bits = result.logprobs.view(np.int32)
        ends = np.cumsum(result.counts, dtype=np.int64)
        for request_id, start, end in zip(
            result.request_ids.tolist(), ends - result.counts, ends, strict=True
        ):
            tokens, logprobs = rollouts.setdefault(request_id, ([], []))
            tokens += result.tokens[start:end].tolist()
            logprobs += bits[start:end].tolist()
        assert not set(result.finished) & set(engine.held())
        return len(result.tokens)

    return run


@pytest.fixture
def drain(dispatch: Callable[[Engine, Rollouts], int]) -> Callable[[Engine], Rollouts]:
    """Runs an engine until it holds nothing."""

    def run(engine: Engine) -> Rollouts:
        rollouts: Rollouts = {}
        while dispatch(engine, rollouts):
            pass
        assert not engine.held()
        pool = engine._scheduler.pool
        assert pool.num_free == pool.num_pages, "pages leaked"
        return rollouts

    return run


class Oracle:
    """The same answers from NumPy in float64, without pages, batches or JAX."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

    def logits(self, tokens: list[int]) -> np.ndarray:
        """Logits after the last token, from a dense forward pass over all."""
        p, T, D = self.params, len(tokens), MODEL.head_dim
        angle = np.arange(T)[:, None] / MODEL.rope_theta ** (np.arange(0, D, 2) / D)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

        def norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
            return x / np.sqrt((x * x).mean(-1, keepdims=True) + MODEL.norm_epsilon) * scale

        def turn(x: np.ndarray) -> np.ndarray:
            a, b = x[..., : D // 2], x[..., D // 2 :]
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

        x = p["embedding"]["table"][tokens]
        for index in range(MODEL.num_layers):
            layer = jax.tree.map(lambda leaf, i=index: leaf[i], p["layers"])
            at, mlp = layer["attention"], layer["mlp"]
            h = norm(x, layer["attention_norm"]["scale"])
            q, k, v = ((h @ at[n]["kernel"]).reshape(T, -1, D) for n in ("query", "key", "value"))
            q = turn(norm(q, at["query_norm"]["scale"]))
            k = turn(norm(k, at["key_norm"]["scale"]))
            mixed = []
            for head in range(MODEL.num_query_heads):
                shared = head * MODEL.num_key_heads // MODEL.num_query_heads
                scores = q[:, head] @ k[:, shared].T / np.sqrt(D)
                scores[np.triu_indices(T, 1)] = -np.inf
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                mixed.append(weights / weights.sum(-1, keepdims=True) @ v[:, shared])
            x = x + np.concatenate(mixed, -1) @ at["output"]["kernel"]
            x = x + self.feed_forward(mlp, norm(x, layer["mlp_norm"]["scale"]))
        return norm(x[-1], p["head"]["norm"]["scale"]) @ p["head"]["kernel"]

    def feed_forward(self, mlp: dict[str, Any], h: np.ndarray) -> np.ndarray:
        gate = h @ mlp["gate"]["kernel"]
        gated = gate / (1 + np.exp(-gate)) * (h @ mlp["up"]["kernel"])
        return gated @ mlp["down"]["kernel"]

    def rollout(self, request: GenerateRequest) -> tuple[list[int], list[float]]:
        """Tokens and log-probabilities of the whole response, or of what follows what is known."""
        prompt = unpack_tokens(request.prompt_tokens).tolist()
        known = unpack_tokens(request.response_tokens).tolist()
        given = sum(request.runs[1::2])
        sampling, tokens, logprobs = request.sampling, [], []
        while len(known) - given + len(tokens) < sampling.max_tokens:
            weights = self.distribution(self.logits(prompt + known + tokens), sampling)
            place = len(known) + len(tokens)  # after the prompt
            work = request.work
            noise = self.uniform(work.noise_seed, work.batch, work.sample, place)
            tokens.append(int(np.searchsorted(np.cumsum(weights), noise, side="right")))
            logprobs.append(float(np.log(weights[tokens[-1]])))
            if tokens[-1] in sampling.stop_ids:
                break
        return tokens, logprobs

    @staticmethod
    def distribution(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
        """Temperature, then top-k, then top-p, one entry at a time from the likeliest."""
        logits = np.asarray(logits, np.float64)
        if sampling.temperature == 0:
            return np.eye(len(logits))[np.argmax(logits)]
        weights = np.exp((logits - logits.max()) / sampling.temperature)
        ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
        ranked = ranked[: sampling.top_k or None]
        held, total, kept = 0.0, sum(weights[i] for i in ranked), []
        for i in ranked:
            if kept and sampling.top_p < 1 and held >= sampling.top_p * total:
                break
            kept.append(i)
            held += weights[i]
        out = np.zeros(len(logits))
        out[kept] = weights[kept] / weights[kept].sum()
        return out

    @classmethod
    def uniform(cls, seed: int, step: int, sample: int, position: int) -> float:
        """The number in (0, 1) that the token at this place of the response is drawn with."""
        key = (0, seed)
        for number in (step, sample, position):
            key = cls.threefry(key, (0, number))
        return ((key[0] >> 9) + 0.5) / 2**23

    @staticmethod
    def threefry(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
        """Threefry-2x32 with 20 rounds, from the paper's description."""
        mask = 2**32 - 1
        schedule = [key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA]
        a, b = (counter[0] + schedule[0]) & mask, (counter[1] + schedule[1]) & mask
        for group in range(5):
            for bits in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
                a = (a + b) & mask
                b = ((b << bits) | (b >> (32 - bits))) & mask
                b ^= a
            a = (a + schedule[(group + 1) % 3]) & mask
            b = (b + schedule[(group + 2) % 3] + group + 1) & mask
        return a, b


@pytest.fixture(scope="session")
def oracle(params: dict[str, Any]) -> Oracle:
    return Oracle(params)

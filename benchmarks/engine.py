"""Tokens per second of the engine: against `transformers`, and against what the machine allows.

    python -m benchmarks.engine [--models=10M,50M] [--batches=16,64] [--json=FILE]

Every sequence has a prompt of 64 tokens and gets 256 more, greedily, in float32, with the
same weights on both sides; the first tokens are compared. All that is timed takes turns in
one process. Ceilings are measured in the same run: the fastest linear read, and the fastest
matrix product of the model's own shapes, XLA's or ours.

The price of equal bits is measured against the same engine with XLA's own products over no more
rows than there are sequences, which is what one would run without them. The gain of shared
prompts is that of groups of 8 with one prompt each over as many different prompts.
"""

import argparse
import contextlib
import importlib.util
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import rlboost_kernels
from numpy.typing import NDArray

from benchmarks.turns import median_seconds
from configs import base
from rlboost_jax.engine.engine import Engine
from rlboost_jax.messages import GenerateRequest, Sampling, pack_tokens
from rlboost_jax.models.params import Params, init_params
from rlboost_jax.sequences.identities import Work
from rlboost_jax.settings.config_loading import run_config_from_dict
from rlboost_jax.settings.engine_config import EngineConfig
from rlboost_jax.settings.memory_estimates import num_parameters
from rlboost_jax.settings.model_config import ModelConfig

PROMPT, NEW = 64, 256
LONG_PROMPT, FEW_NEW = 512, 64  # where sharing prompts matters more
GROUP = 8

_shape = partial(
    replace,
    run_config_from_dict(base.get_config().to_dict()).model,  # for all that is not named here
    rope_theta=1e6,
    norm_epsilon=1e-6,
    tie_embeddings=True,
    qk_norm=True,
    dtype="float32",
    head_dim=64,
)
MODELS = {
    "10M": _shape(
        vocab_size=4096,
        embed_dim=384,
        num_layers=6,
        num_query_heads=6,
        num_key_heads=2,
        hidden_dim=1024,
    ),
    "50M": _shape(
        vocab_size=8192,
        embed_dim=640,
        num_layers=10,
        num_query_heads=8,
        num_key_heads=4,
        hidden_dim=1920,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """One model and batch. Rates are tokens per second of wall time, prompts included."""

    model: str
    parameters: int
    batch: int
    engine: float
    any_bits: float  # of the engine with XLA's products over as few rows as the batch has
    transformers: float
    groups: float  # of the engine with prompts shared by groups
    long: float  # of the engine with LONG_PROMPT + FEW_NEW tokens
    long_groups: float
    step_seconds: float  # of decoding, at the mean context
    ideal_seconds: float

    def line(self) -> str:
        return (
            f"{self.model:>5} {self.batch:>5} {self.engine:>9.0f} {self.transformers:>9.0f} "
            f"{self.engine / self.transformers:>7.2f} {self.step_seconds * 1e3:>8.2f} "
            f"{self.ideal_seconds * 1e3:>8.2f} {self.ideal_seconds / self.step_seconds:>6.2f} "
            f"{self.any_bits / self.engine:>6.2f} {self.groups / self.engine:>7.2f} "
            f"{self.long_groups / self.long:>7.2f}"
        )


HEADER = (
    f"{'model':>5} {'batch':>5} {'engine/s':>9} {'torch/s':>9} {'ratio':>7} {'step ms':>8} "
    f"{'ideal ms':>8} {'share':>6} {'price':>6} {'groups':>7} {'long':>7}"
)


def make_engine(
    model: ModelConfig,
    params: Params,
    slots: int,
    rows: int,
    slot_tokens: int = PROMPT + NEW,
    kv_dtype: str = "float32",
) -> Engine:
    config: EngineConfig = run_config_from_dict(base.get_config().to_dict()).engine
    config = replace(config, slots=slots, token_rows=rows, max_prompt_tokens=slot_tokens - 1)
    config = replace(config, kv_dtype=kv_dtype)
    engine = Engine(model, config, slot_tokens=slot_tokens, truncated_sampling=False)
    engine.load(params, 0)
    engine.warm_up()
    return engine


def make_engine_of_any_bits(model: ModelConfig, params: Params, slots: int) -> Engine:
    """Make an engine with XLA's products of matrices as stored, and a row for each slot."""
    xla = partial(rlboost_kernels.matmul, implementation="xla")
    with contextlib.ExitStack() as stack:
        for name in ("decoder", "products"):
            stack.enter_context(mock.patch(f"rlboost_jax.models.{name}.matmul", xla))
        for name in ("engine", "step_programs"):
            no = mock.Mock(return_value=False)
            stack.enter_context(mock.patch(f"rlboost_jax.engine.{name}.reads_panels", no))
        return make_engine(model, params, slots, slots)


def generate(
    engine: Engine, prompts: NDArray[np.int32], new: int = NEW
) -> tuple[NDArray[np.int32], float]:
    """The greedy continuation of all prompts [B, P]: [B, new], and seconds per decode step."""
    engine.submit(requests(prompts, new))
    responses: list[list[int]] = [[] for _ in prompts]
    decoding: list[tuple[float, int]] = []  # (time, tokens so far) once all are decoding
    for dispatch in engine.run():
        tokens = iter(dispatch.tokens.tolist())
        for i, count in zip(dispatch.request_ids, dispatch.counts, strict=True):
            responses[i] += itertools.islice(tokens, int(count))
        if decoding or dispatch.counts.min() > 1:
            decoding.append((time.perf_counter(), sum(map(len, responses))))
    (start, before), (end, after) = decoding[0], decoding[-1]
    return np.array(responses, np.int32), (end - start) * len(prompts) / (after - before)


def requests(prompts: NDArray[np.int32], new: int) -> list[GenerateRequest]:
    """Equal prompts that follow one another are a group."""
    changes = (prompts[1:] != prompts[:-1]).any(axis=1)
    groups = np.concatenate([[0], np.cumsum(changes)])
    sampling = Sampling(temperature=0.0, top_p=1.0, top_k=0, max_tokens=new, stop_ids=())
    return [
        GenerateRequest(
            work=Work(seed=0, batch=0, prompt=int(groups[i]), sample=i),
            request_id=i,
            version=0,
            prompt_tokens=pack_tokens(prompt),
            response_tokens=b"",
            sampling=sampling,
        )
        for i, prompt in enumerate(prompts)
    ]


def read_rate() -> float:
    """Bytes per second of the fastest linear pass over memory that fits no cache."""
    array = jnp.ones(2**28, jnp.float32)
    total = jax.jit(jnp.sum)
    seconds = median_seconds({"sum": lambda: total(array)}, rounds=5)["sum"]
    return array.nbytes / seconds


def product_rate(model: ModelConfig, rows: int) -> float:
    """Operations per second of the model's largest matrix product with so many rows."""
    shape = (model.embed_dim, model.hidden_dim)
    weights = [jnp.ones(shape, jnp.float32) for _ in range(2 * model.num_layers)]
    x = jnp.ones((rows, shape[0]), jnp.float32)

    def products(name: str | None, x: jax.Array, weights: list[jax.Array]) -> list[jax.Array]:
        return [rlboost_kernels.matmul(x, w, implementation=name) for w in weights]

    ways = {name: jax.jit(partial(products, name)) for name in ("xla", None)}
    calls = {str(name): partial(way, x, weights) for name, way in ways.items()}
    seconds = min(median_seconds(calls, rounds=9).values())
    return 2 * rows * shape[0] * shape[1] * len(weights) / seconds


def ideal_step(model: ModelConfig, parameters: int, batch: int, bandwidth: float) -> float:
    """Seconds of a decode step: what has to be read or multiplied, whichever takes longer."""
    context = PROMPT + NEW / 2
    heads = model.num_layers * model.num_key_heads * model.head_dim
    read = 4 * (parameters + 2 * heads * context * batch)
    return max(read / bandwidth, 2 * parameters * batch / product_rate(model, max(16, batch)))


def measure(name: str, batch: int, rounds: int, bandwidth: float) -> Result:
    model = MODELS[name]
    params = init_params(model, 0)
    engine = make_engine(model, params, batch, max(64, batch))
    any_bits = make_engine_of_any_bits(model, params, batch)
    roomy = make_engine(model, params, batch, max(64, batch), LONG_PROMPT + FEW_NEW)
    rng = np.random.default_rng(0)

    def prompts(width: int, copies: int = 1) -> NDArray[np.int32]:
        """New ones every time: an engine would find old ones again."""
        few = rng.integers(model.vocab_size, size=(batch // copies, width)).astype(np.int32)
        return np.repeat(few, copies, axis=0)

    steps: list[float] = []
    calls: dict[str, Callable[[], object]] = {
        "engine": lambda: steps.append(generate(engine, prompts(PROMPT))[1]),
        "any bits": lambda: generate(any_bits, prompts(PROMPT)),
        "groups": lambda: generate(engine, prompts(PROMPT, GROUP)),
        "long": lambda: generate(roomy, prompts(LONG_PROMPT), FEW_NEW),
        "long groups": lambda: generate(roomy, prompts(LONG_PROMPT, GROUP), FEW_NEW),
    }
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        from benchmarks import hugging_face

        peer, given = hugging_face.qwen3(model, params), prompts(PROMPT)
        theirs = partial(hugging_face.generate, peer, given.astype(np.int64), NEW)
        calls["transformers"] = theirs
        check_agreement(generate(engine, given)[0], theirs())
    seconds = median_seconds(calls, rounds)
    rates = {name: batch * NEW / took for name, took in seconds.items()}
    count = num_parameters(model)
    return Result(
        model=name,
        parameters=count,
        batch=batch,
        engine=rates["engine"],
        any_bits=rates["any bits"],
        transformers=rates.get("transformers", math.nan),
        groups=rates["groups"],
        long=rates["long"] * FEW_NEW / NEW,
        long_groups=rates["long groups"] * FEW_NEW / NEW,
        step_seconds=statistics.median(steps[-rounds:]),
        ideal_seconds=ideal_step(model, count, batch, bandwidth),
    )


def check_agreement(ours: NDArray[np.int32], theirs: NDArray[np.integer], head: int = 16) -> None:
    """Both sides must run the same model. Later on, near ties may part them for good."""
    same = (ours[:, :head] == theirs[:, :head]).all(axis=1).mean()
    if same < 0.9:
        raise RuntimeError(f"only {same:.2f} of the sequences agree in their first {head} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="10M,50M", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--batches", default="16,64")
    parser.add_argument("--rounds", type=int, default=3, help="timed turns of each")
    parser.add_argument("--json", type=Path, default=None, help="where to write the results")
    options = parser.parse_args()
    bandwidth = read_rate()
    print(
        f"jax {jax.__version__} on {jax.devices()[0].device_kind}; linear read "
        f"{bandwidth / 1e9:.1f} GB/s; kernels: {rlboost_kernels.available_implementations()}\n"
        f"prompt {PROMPT} + {NEW} tokens, greedy, float32. ratio: to transformers; share: ideal "
        f"over measured decode step; price: speed with\nXLA's products and no more rows than "
        f"sequences, over the engine's; groups: speed with prompts shared by {GROUP} over\nnone "
        f"shared; long: the same with {LONG_PROMPT} + {FEW_NEW} tokens\n\n{HEADER}",
        flush=True,
    )
    results = []
    for name in options.models.split(","):
        for batch in map(int, options.batches.split(",")):
            results.append(measure(name, batch, options.rounds, bandwidth))
            print(results[-1].line(), flush=True)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Tokens per second of the learner, its share of what the machine multiplies, and its memory.

    python -m benchmarks.learner [--model=4M] [--vocab=16384] [--rounds=3] [--json=FILE]

The same trajectories, with lengths from an exponential distribution, are trained in several ways
that take turns in one process: a row for each of them and all logits at once, as one would write
it first; rows that are packed; log-probabilities block by block (`choice_intervals`); rows of
several lengths (`learner.row_lengths`); choices of servers not looked at; layers computed again in
the backward pass (`learner.remat`). Tokens are those of the
trajectories: padding counts as time and not as work.

*Share* is the arithmetic that these tokens need (6 operations for each parameter that multiplies,
and attention over what each token sees; what is computed twice or for padding is not counted)
over the time, against the fastest product of the model's own shapes in the same run. *Working
MiB* is what the gradient program takes besides arguments and results, as its compiler reports.
Batches of a size that would be trained on accelerators are compiled only.
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from rlboost_kernels import choice_intervals

from benchmarks.engine import MODELS, product_rate
from benchmarks.turns import median_seconds
from configs import base
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.packing import PackedBatch, empty, fill, pack
from rlboost_jax.learner.programs.choices import choice_gaps
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.learner.state import init_state
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import abstract_params, init_params
from rlboost_jax.sequences import sequence
from rlboost_jax.settings.config_loading import run_config_from_dict
from rlboost_jax.settings.memory_estimates import learner_bytes, num_parameters, size_text
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.run_config import RunConfig

CHOSEN = "rlboost_jax.learner.programs.passes.choice_gaps"
SELECTED = "rlboost_jax.learner.programs.logprobs.choice_intervals"
PROMPT, LONGEST = 16, 256  # tokens: of every prompt, and of prompt and response together
MEAN_RESPONSE = 48
ROWS = 4  # of a packed batch of the longest rows
LARGE = 16, 1024  # rows and tokens of what is only compiled
SIZES = MODELS | {
    "4M": replace(
        MODELS["10M"],
        embed_dim=192,
        num_layers=4,
        num_query_heads=3,
        num_key_heads=1,
        hidden_dim=512,
    )
}


@dataclass(frozen=True, kw_only=True)
class Way:
    name: str
    packed: bool = True
    selected: bool = True  # `choice_intervals` in place of the logits of all tokens
    row_lengths: int = 1
    checked: bool = True  # whether each token is the one that its noise selects
    remat: str = "none"


WAYS = (
    Way(name="padded rows, all logits", packed=False, selected=False),
    Way(name="padded rows", packed=False),
    Way(name="packed rows, all logits", selected=False),
    Way(name="packed rows"),
    Way(name="packed rows of 3 lengths", row_lengths=3),
    Way(name="packed rows of 3 lengths, choices unchecked", row_lengths=3, checked=False),
    Way(name="packed rows of 3 lengths, dots", row_lengths=3, remat="dots"),
    Way(name="packed rows of 3 lengths, full", row_lengths=3, remat="full"),
)


@dataclass(frozen=True, kw_only=True)
class Result:
    way: str
    tokens_per_second: float
    share: float
    filled: float  # share of the positions computed that hold a token
    working_bytes: int
    gain: float  # over the first way

    def line(self) -> str:
        return (
            f"| {self.way} | {self.tokens_per_second:,.0f} | {self.gain:.2f} | {self.share:.2f} | "
            f"{self.filled:.2f} | {self.working_bytes / 2**20:,.0f} |"
        )


HEADER = "| way | tokens/s | gain | share | filled | working MiB |\n|---|--:|--:|--:|--:|--:|"


def settings(model: ModelConfig) -> RunConfig:
    """The base configuration around a model, with attention as on accelerators and meshes."""
    run = run_config_from_dict(base.get_config().to_dict())
    learner = replace(run.learner, attention="dense", pack_rows=ROWS, row_tokens=LONGEST)
    return replace(run, model=model, learner=learner)


def draw(
    model: ModelConfig,
    count: int,
    *,
    prompt_tokens: int = PROMPT,
    mean_response: int = MEAN_RESPONSE,
    longest: int = LONGEST,
) -> list[Trajectory]:
    """Random ones, with lengths from an exponential distribution that is cut at the longest."""
    rng = np.random.default_rng(0)
    lengths = 1 + rng.exponential(mean_response, count).astype(int)

    def trajectory(sample: int, length: int) -> Trajectory:
        return Trajectory(
            prompt=sample,
            sample=sample,
            sequence=sequence.Sequence.of_response(
                rng.integers(model.vocab_size, size=prompt_tokens, dtype=np.int32),
                rng.integers(model.vocab_size, size=length, dtype=np.int32),
                np.full(length, -math.log(model.vocab_size)),
                version=0,
            ),
            advantage=float(rng.normal()),
        )

    return [trajectory(i, min(int(n), longest - prompt_tokens)) for i, n in enumerate(lengths)]


def batches_of(way: Way, trajectories: Sequence[Trajectory]) -> list[PackedBatch]:
    if way.packed:
        return pack(
            trajectories,
            rows=ROWS,
            row_tokens=LONGEST,
            loss_aggregation="token_mean",
            row_lengths=way.row_lengths,
        )
    rows = [
        fill([t], rows=1, row_tokens=LONGEST, loss_aggregation="token_mean")[0]
        for t in trajectories
    ]
    whole = [rows[i : i + ROWS] for i in range(0, len(rows), ROWS)]
    return [jax.tree.map(lambda *parts: np.concatenate(parts), *part) for part in whole]


def all_logits(
    hidden: jax.Array, unembedding: jax.Array, tokens: jax.Array, *, temperature: float, **_: object
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log-probability, entropy and probability of smaller ids, from all logits at once."""
    logits = jnp.matmul(hidden, unembedding, preferred_element_type=jnp.float32) / temperature
    logp = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(logp, tokens[:, None], axis=1)[:, 0]
    p = jnp.exp(logp)
    below = jnp.where(jnp.arange(p.shape[1])[None, :] < tokens[:, None], p, 0.0).sum(axis=-1)
    return chosen, -(p * logp).sum(axis=-1), jax.lax.stop_gradient(below)


def programs(way: Way, run: RunConfig) -> PolicyPrograms:
    return PolicyPrograms(
        run.model,
        replace(run.learner, remat=way.remat),
        run.algorithm,
        run.sampling,
        num_updates=10,
        mesh=make_mesh((1, 1, 1)),
    )


def operations(model: ModelConfig, trajectories: Sequence[Trajectory]) -> float:
    """Operations of one forward and one backward pass over these trajectories."""
    table = model.vocab_size * model.embed_dim
    multiplying = num_parameters(model) - (0 if model.tie_embeddings else table)
    lengths = [len(t.sequence.tokens) - 1 for t in trajectories]
    pairs = sum(n * (n + 1) / 2 for n in lengths)  # (token, token that it sees)
    scores = 4 * model.num_layers * model.num_query_heads * model.head_dim
    return 3 * (2 * multiplying * sum(lengths) + scores * pairs)


def measure(
    model: ModelConfig, count: int, rounds: int, *, ways: Sequence[Way] = WAYS
) -> tuple[list[Result], str]:
    run = settings(model)
    trajectories = draw(model, count)
    tokens = sum(len(t.sequence.tokens) - 1 for t in trajectories)
    first = programs(ways[0], run)
    state = init_state(init_params(model, 0), first.optimizer, first.shardings)
    calls: dict[str, Callable[[], object]] = {}
    working, filled, sums = {}, {}, {}
    for way in ways:
        step, batches = programs(way, run), batches_of(way, trajectories)
        with mock.patch(SELECTED, logprobs_of(way)), mock.patch(CHOSEN, gaps_of(way)):
            _, found = step.accumulate(state.params, None, batches)  # compiles
            shapes = {batch.tokens.shape: batch for batch in batches}
            compiled = [
                step.gradients.lower(state.params, None, batch).compile()
                for batch in shapes.values()
            ]
        sums[way.name] = float(found["loss"])
        working[way.name] = max(c.memory_analysis().temp_size_in_bytes for c in compiled)
        filled[way.name] = tokens / sum(batch.tokens.size for batch in batches)
        calls[way.name] = partial(step.accumulate, state.params, None, batches)
    np.testing.assert_allclose(list(sums.values()), sums[ways[0].name], rtol=1e-3)
    seconds = median_seconds(calls, rounds)
    ceiling = max(product_rate(model, rows) for rows in (LONGEST, LONGEST * ROWS))
    slowest = seconds[ways[0].name]
    results = [
        Result(
            way=way.name,
            tokens_per_second=tokens / seconds[way.name],
            share=operations(model, trajectories) / seconds[way.name] / ceiling,
            filled=filled[way.name],
            working_bytes=working[way.name],
            gain=slowest / seconds[way.name],
        )
        for way in ways
    ]
    return results, f"{ceiling / 1e9:,.0f} G operations/s; " + memory_text(state, run)


def large_batches(model: ModelConfig) -> list[tuple[str, int]]:
    """Working bytes of gradients over LARGE tokens: compiled, and never run."""
    run = settings(model)
    rows, row_tokens = LARGE
    batch = empty(rows, row_tokens)
    found = []
    for way in (way for way in WAYS if way.packed and way.checked and way.row_lengths in (1, 3)):
        with mock.patch(SELECTED, logprobs_of(way)):
            lowered = programs(way, run).gradients.lower(abstract_params(model), None, batch)
        name = f"{'selected' if way.selected else 'all logits'}, remat {way.remat}"
        taken = lowered.compile().memory_analysis().temp_size_in_bytes
        found.append((name, taken))
    return list(dict(found).items())


def logprobs_of(way: Way) -> Callable[..., tuple[jax.Array, jax.Array, jax.Array]]:
    return choice_intervals if way.selected else all_logits


def unchecked(batch: PackedBatch, logprobs: jax.Array, *_: object) -> jax.Array:
    return jnp.zeros_like(logprobs)


def gaps_of(way: Way) -> Callable[..., jax.Array]:
    return choice_gaps if way.checked else unchecked


def memory_text(state: object, run: RunConfig) -> str:
    """What the state takes, against the plan that a dry run prints."""
    planned = learner_bytes(run)
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    expected = planned["parameters"] + planned["optimizer"]
    return f"state {size_text(held)}, planned {size_text(expected)} (ratio {held / expected:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="4M", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--vocab", type=int, default=16_384, help="entries of its vocabulary")
    parser.add_argument("--count", type=int, default=48, help="trajectories")
    parser.add_argument("--rounds", type=int, default=3, help="timed turns of each")
    parser.add_argument("--json", type=Path, default=None, help="where to write the results")
    options = parser.parse_args()
    model = replace(SIZES[options.model], vocab_size=options.vocab)
    results, facts = measure(model, options.count, options.rounds)
    print(
        f"jax {jax.__version__} on {jax.devices()[0].device_kind}; {num_parameters(model):,} "
        f"parameters, {options.vocab:,} entries; {options.count} trajectories of {PROMPT} + "
        f"{MEAN_RESPONSE} tokens on average, at most {LONGEST}\nproducts: {facts}\n\n{HEADER}"
    )
    for result in results:
        print(result.line())
    rows, row_tokens = LARGE
    large = large_batches(model)
    print(f"\n| working space of {rows} x {row_tokens} tokens | MiB |\n|---|--:|")
    for name, taken in large:
        print(f"| {name} | {taken / 2**20:,.0f} |")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(
            json.dumps({"ways": [asdict(r) for r in results], "large": dict(large)}, indent=1)
            + "\n"
        )


if __name__ == "__main__":
    main()

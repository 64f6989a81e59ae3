"""How far tokens of honest servers are from the learner's choices, and how many it would doubt.

    python -m benchmarks.choices [--config=tiny] [--tokens=1000000] [--dtype=float32] [--forged=0.1]

The engine of a run samples batch after batch as a rollout server does, and the learner's own
program looks at each token: how far its log-probability is, and how far its noise lies from the
interval of the token that was chosen. Nothing is trained; the model is warmed up as the run's is.

*Doubted* are responses that a run with these settings would not believe. *Outside* are tokens that
rounding decided: their noise lies outside of the learner's interval. With `--forged=P` the server
adds P to its noise where that stays below 1, and so chooses tokens of larger ids, none of them
farther than P from its noise: what remains below the bound of a single token. With `--noise=tree`
it shortens the number of each node's first child by that share.
"""

import argparse
import importlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import jax
import jax.numpy as jnp
from rlboost_kernels import token_noise

from rlboost_jax import messages
from rlboost_jax.data.prompt_stream import PromptStream
from rlboost_jax.data.tasks import get_task
from rlboost_jax.engine.engine import Engine
from rlboost_jax.learner.episodes.collector import sequence_of
from rlboost_jax.learner.episodes.trajectory import Group, Trajectory
from rlboost_jax.learner.evaluation.local_batch import LocalBatch
from rlboost_jax.learner.setup.lessons import lessons_of
from rlboost_jax.learner.setup.preparation import programs
from rlboost_jax.learner.setup.warmup import warm_up
from rlboost_jax.learner.tolerated_gaps import NO_GAPS, Gaps
from rlboost_jax.learner.update.learner import Learner, learner_of
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import Params, init_params
from rlboost_jax.rollout.instance import engine_of
from rlboost_jax.sequences.identities import Batch, Version
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.sampling_config import NoiseKind

PROMPTS = 64  # of a batch
NOISE = "rlboost_jax.engine.row_sampling.token_noise"


@dataclass
class CheckResults:
    """What the learner saw of one server."""

    tokens: int = 0
    responses: int = 0
    doubted: int = 0
    by_mean_alone: int = 0  # doubted, though no single token is
    gaps: Gaps = NO_GAPS

    def take(self, tokens: int, gaps: Gaps, tolerated: Gaps) -> None:
        self.tokens, self.responses = self.tokens + tokens, self.responses + 1
        self.gaps = self.gaps.joined(gaps)
        if not gaps.within(tolerated):
            self.doubted += 1
            self.by_mean_alone += gaps.within(tolerated._replace(mean_choice=1.0))

    def line(self, tolerated: Gaps) -> str:
        found = self.gaps
        return (
            f"{self.tokens:,} tokens, {self.responses:,} responses: {self.doubted:,} doubted, "
            f"{self.by_mean_alone:,} of them by their mean alone; largest log-probability gap "
            f"{found.logprob:.2e} (tolerated {tolerated.logprob:.2e}), choice "
            f"{found.choice:.2e} ({tolerated.choice:.2e}), mean choice {found.mean_choice:.2e} "
            f"({tolerated.mean_choice:.2e}); {found.outside:,} tokens outside"
        )


def shifted(keys: Any, positions: Any, kind: Any, *, by: float, vocabulary: int) -> Any:
    noise = token_noise(keys, positions, kind, vocabulary=vocabulary)
    if kind == "tree":
        return noise.at[..., 0].multiply(1 - by)
    return jnp.where(noise + by < 1, noise + by, noise)


def settings(config: str, dtype: str, top_p: float, experts: int, noise: NoiseKind) -> RunConfig:
    run = run_config(importlib.import_module(f"configs.{config}").get_config())
    if experts:
        mixture = {"num_experts": experts, "experts_per_token": 2, "expert_dim": 32}
        algorithm = replace(run.algorithm, routing_replay=False)  # here nobody records routes
        run = replace(run, model=replace(run.model, **mixture), algorithm=algorithm)
    return replace(
        run,
        weights=replace(run.weights, rollout_dtype=dtype),
        engine=replace(run.engine, kv_dtype=dtype, slots=64),
        sampling=replace(run.sampling, top_p=top_p, noise=noise),
        learner=replace(run.learner, prompts_per_step=PROMPTS),
    )


def sampled(run: RunConfig, engine: Engine, batch: int) -> Iterator[Group]:
    """Finished groups of one batch."""
    task, size = get_task(run.task), run.algorithm.group_size
    prompts = PromptStream(task, seed=run.seed).slice(batch * PROMPTS, PROMPTS)
    begin = messages.BeginBatch(
        batch=Batch(batch),
        version=Version(0),
        params_digest="",
        seed=run.seed,
        group_size=size,
        sampling=messages.Sampling(
            temperature=run.sampling.temperature,
            top_p=run.sampling.top_p,
            top_k=run.sampling.top_k,
            max_tokens=run.sampling.max_response_tokens,
            stop_ids=tuple(task.stop_ids),
        ),
        prompts=tuple(
            messages.PromptRequest(prompt=place, tokens=messages.pack_tokens(prompt.tokens))
            for place, prompt in enumerate(prompts)
        ),
    )
    groups: dict[int, list[Trajectory]] = {}
    for rollout in LocalBatch(engine, begin).results():
        work = rollout.work
        members = groups.setdefault(work.prompt, [])
        members.append(
            Trajectory(
                prompt=work.prompt,
                sample=work.sample,
                sequence=sequence_of(rollout, prompts[work.prompt].tokens),
                advantage=0.0,
                batch=work.batch,
            )
        )
        if len(members) == size:
            yield Group(prompt=work.prompt, trajectories=tuple(members))


def look(
    run: RunConfig, learner: Learner, engine: Engine, params: Params, tokens: int
) -> CheckResults:
    """At so many tokens, or a few more."""
    seen, batch = CheckResults(), 0
    while seen.tokens < tokens:
        groups = list(sampled(run, engine, batch))
        found = learner.gaps(params, groups)
        for t in (t for group in groups for t in group.trajectories):
            seen.take(t.num_sampled, found[t.sample], learner.tolerated)
        batch += 1
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", default="tiny", help="of configs/")
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--dtype", default="float32", help="of weights and cache of rollouts")
    parser.add_argument(
        "--noise", choices=get_args(NoiseKind), default="inverse_cdf", help="as sampling.noise"
    )
    parser.add_argument("--top_p", type=float, default=1.0)
    parser.add_argument("--experts", type=int, default=0, help="of each layer; 0: it has none")
    parser.add_argument("--forged", type=float, default=0.0, help="added to the server's noise")
    parser.add_argument("--json", type=Path, default=None, help="where to write the results")
    options = parser.parse_args()
    run = settings(options.config, options.dtype, options.top_p, options.experts, options.noise)
    mesh = make_mesh((1, 1, 1))
    policy, _ = programs(run, mesh)
    learner = learner_of(run, policy=policy, critic=None, reference=None, stop_ids=())
    params = warm_up(run, lessons_of(run), init_params(run.model, run.seed), mesh=mesh)
    noise = partial(shifted, by=options.forged) if options.forged else token_noise
    began = time.perf_counter()
    with mock.patch(NOISE, noise):
        engine = engine_of(run)
        engine.load(params, Version(0))
        seen = look(run, learner, engine, params, options.tokens)
    print(
        f"jax {jax.__version__} on {jax.devices()[0].device_kind}, {options.config}, rollouts in "
        f"{options.dtype}, noise + {options.forged}: {seen.line(learner.tolerated)} "
        f"({time.perf_counter() - began:.0f} s)"
    )
    if options.json is not None:
        found = {**asdict(seen), "gaps": seen.gaps._asdict()}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

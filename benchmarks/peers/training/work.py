"""What every side of the comparison of trainers is given."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.engine import MODELS
from benchmarks.learner import draw
from benchmarks.peers.checkpoint import write_folder
from configs import base, gemma3_270m_words
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.packing import PackedBatch, by_sample, pack
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.models.adapters import base_model, is_adapter
from rlboost_jax.models.checkpoint_reader import read_checkpoint
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import Params, init_params
from rlboost_jax.models.peft_files import read_peft, write_peft
from rlboost_jax.platform import compile_cache
from rlboost_jax.settings.config_loading import run_config_from_dict
from rlboost_jax.settings.huggingface.sources import WEIGHTS, source_fields, source_folder
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.run_config import RunConfig

RANKS: Final = {"270M": 0, "270M-lora": 8}  # of the adapters of Gemma 3 270M
Update = Callable[[], float]  # the norm of its gradient before clipping


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Lengths of the sequences of an update, in tokens, and the batch sizes that sides try."""

    count: int  # sequences, unless asked for otherwise
    prompt: int  # every prompt
    mean_response: int  # of an exponential distribution
    longest: int  # prompt and response
    row_tokens: int  # a row of a packed batch
    rows: tuple[int, ...]  # rows of a packed batch
    padded: tuple[int, ...]  # responses of a padded batch


SMALL = Shape(
    count=48,
    prompt=64,
    mean_response=128,
    longest=512,
    row_tokens=512,
    rows=(1, 2, 4),
    padded=(2, 4, 8),  # 8 is TRL's default
)
WORDS = Shape(  # as `configs/gemma3_270m_words.py` has them
    count=128,
    prompt=28,
    mean_response=2,
    longest=34,
    row_tokens=512,
    rows=(1,),
    padded=(8, 32),  # 8 is the default of TRL, 32 the sequences of a micro-batch of ours
)


@dataclass(frozen=True, kw_only=True)
class Work:
    """One update, as a process can be given it.

    `folder` has the weights that it begins with, and adapters in `adapter`. The sequences are
    random; `logprobs` has the log-probabilities of the sampled tokens of each under those weights,
    in nats. None: not known yet.
    """

    run: RunConfig
    shape: Shape
    count: int  # sequences
    folder: Path
    threads: int
    logprobs: Sequence[NDArray[np.float32]] | None = None

    @property
    def trajectories(self) -> list[Trajectory]:
        drawn = draw(
            self.run.model,
            self.count,
            prompt_tokens=self.shape.prompt,
            mean_response=self.shape.mean_response,
            longest=self.shape.longest,
        )
        if self.logprobs is None:
            return drawn
        return [
            replace(one, sequence=replace(one.sequence, logprobs=logprobs))
            for one, logprobs in zip(drawn, self.logprobs, strict=True)
        ]

    @property
    def tokens(self) -> int:
        """Sampled tokens; the divisor of the loss."""
        return sum(trajectory.num_sampled for trajectory in self.trajectories)

    @property
    def all_tokens(self) -> int:
        """Tokens of prompts and responses."""
        return sum(len(trajectory.sequence.tokens) for trajectory in self.trajectories)

    @property
    def adapter(self) -> Path | None:
        """The folder of the adapters, in PEFT's format; None where all parameters are trained."""
        return self.folder / "adapter" if self.run.model.lora.rank else None

    def packed(self, rows: int) -> list[PackedBatch]:
        return pack(
            self.trajectories,
            rows=rows,
            row_tokens=self.shape.row_tokens,
            loss_aggregation="token_mean",
        )


def work_of(name: str, folder: Path, file: Path, count: int | None) -> Work:
    """The work of a model of `MODELS` or `RANKS`; see `words_work` for the file."""
    compile_cache.enable()
    if name in RANKS:
        return words_work(file, folder, rank=RANKS[name], count=count)
    return small_work(MODELS[name], folder, count=count)


def small_work(model: ModelConfig, folder: Path, *, count: int | None = None) -> Work:
    """Work of a small model with random weights, all of which are trained."""
    settings = run_config_from_dict(base.get_config().to_dict())
    return make_work(replace(settings, model=model), SMALL, init_params(model, 0), folder, count)


def words_work(file: Path, folder: Path, *, rank: int, count: int | None = None) -> Work:
    """Work of `configs/gemma3_270m_words.py` in float32, with random tokens.

    Args:
        file: GGUF file of the weights.
        rank: of the adapters; 0 trains all parameters.
    """
    config = gemma3_270m_words.get_config()
    config.model.lora.rank = rank
    values = config.to_dict()
    fields = source_fields(str(file), weights=True)
    values["model"] |= {**fields, "source": str(file), "dtype": "float32"}
    run = run_config_from_dict(values)
    params = read_checkpoint(base_model(run.model), source_folder(str(file), WEIGHTS))
    return make_work(run, WORDS, params, folder, count)


def make_work(
    run: RunConfig, shape: Shape, params: Params, folder: Path, count: int | None = None
) -> Work:
    """Write the weights that an update begins with, and compute the sequences' log-probabilities.

    Args:
        params: without adapters, which are drawn here where `run` has some.
        count: sequences; None takes the shape's.
    """
    model = run.model
    write_folder(base_model(model), params, folder)
    work = Work(
        run=run,
        shape=shape,
        count=count or shape.count,
        folder=folder,
        threads=len(os.sched_getaffinity(0)),
    )
    if work.adapter is not None:
        work.adapter.mkdir()
        adapters = init_params(model, 0, of=is_adapter)
        write_peft(model, adapters, work.adapter, dtype="float32")
    return replace(work, logprobs=logprobs_of(work))


def learner_programs(work: Work, rows: int) -> tuple[PolicyPrograms, Params]:
    """The learner's programs for packed batches of so many rows, and the parameters to train."""
    run = work.run
    programs = PolicyPrograms(
        run.model,
        replace(run.learner, pack_tokens=0, pack_rows=rows, row_tokens=work.shape.row_tokens),
        run.algorithm,
        run.sampling,
        num_updates=10**6,
        mesh=make_mesh((1, 1, 1)),
    )
    params = read_checkpoint(base_model(run.model), work.folder)
    if work.adapter is None:
        return programs, params
    return programs.over(params), read_peft(run.model, work.adapter)


def logprobs_of(work: Work) -> list[NDArray[np.float32]]:
    """The `logprobs` of a work: [sampled tokens] for each sequence.

    With others nearly all ratios were clipped, and their tokens would have no gradient.
    """
    programs, params = learner_programs(work, 1)
    batches = work.packed(1)
    found = [np.asarray(programs.logprobs(params, None, batch)["policy"]) for batch in batches]
    logprobs = by_sample(batches, found)
    return [logprobs[i] for i in range(work.count)]

"""Opening of a gateway without a run: a Hugging Face checkpoint, or a run's own."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from absl import logging

from rlboost_jax.gateway.engine_thread import EngineThread
from rlboost_jax.gateway.served import EngineBackend, Policy
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.run_config import RunConfig

DEFAULT_TOKENS: Final = 2048  # of a conversation, where nothing says


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Options of `rlboost gateway` that select the policy.

    Attributes:
        slots: sessions that are sampled side by side; more wait their turn.
        max_tokens: longest conversation, with its responses. None: the run's.
    """

    checkpoint: str = ""
    workdir: Path | None = None
    step: int | None = None
    name: str = ""
    seed: int = 0
    slots: int = 0
    max_tokens: int | None = None
    temperature: float | None = None
    turn_tokens: int = 0
    dtype: str = ""
    # A device that is a rollout server's too: its socket, and seconds that we owe those we serve.
    budget_socket: Path | None = None
    first_token_seconds: float = 0.5
    token_seconds: float = 0.05


@contextlib.contextmanager
def opened(wanted: Wanted) -> Iterator[EngineBackend]:
    """Open the engine, warm, in a thread of its own.

    Raises:
        ConfigError, CheckpointNotFound, CheckpointUnusable, NotEnoughMemory: one line.
    """
    from rlboost_jax.chat.conversation_setup import conversation_of
    from rlboost_jax.data.tokenizers import open_tokenizer
    from rlboost_jax.gateway.tenancy import Tenancy
    from rlboost_jax.messages import Sampling
    from rlboost_jax.platform import compile_cache
    from rlboost_jax.platform.jax_switches import check_switches
    from rlboost_jax.qualification.engine_start import reader_run
    from rlboost_jax.rollout.instance import engine_of
    from rlboost_jax.rollout.sharing.tenant_protocol import Promise
    from rlboost_jax.sequences.identities import Version

    check_switches()
    run, step = _run(wanted)
    if wanted.budget_socket is not None:  # a token at a time, each when it is due
        run = replace(run, engine=replace(run.engine, steps_per_dispatch=1))
    run = reader_run(run, say=logging.info)  # before the first device is touched
    tokenizer = open_tokenizer(run.data)
    # What one session's template does is no mistake of a setting: it begins another sequence.
    chat = conversation_of(tokenizer, unstable="new_sequence")
    params = _params(run, wanted, step)
    compile_cache.enable(run.compile_cache_dir)
    engine = engine_of(run, logging.info, build=_built)
    engine.load(params, Version(step))
    temperature = run.sampling.temperature if wanted.temperature is None else wanted.temperature
    policy = Policy(
        name=wanted.name or _name(wanted),
        version=Version(step),
        seed=wanted.seed,
        slot_tokens=run.slot_tokens,
        sampling=Sampling(
            temperature=temperature,
            top_p=run.sampling.top_p,
            top_k=run.sampling.top_k,
            max_tokens=1,
            stop_ids=chat.stop_ids,
            stops=chat.stops,
        ),
        turn_tokens=wanted.turn_tokens,
    )
    tenancy = None
    if wanted.budget_socket is not None:
        promise = Promise(
            first_token_seconds=wanted.first_token_seconds, token_seconds=wanted.token_seconds
        )
        rows = run.engine.token_rows
        tenancy = Tenancy(wanted.budget_socket, promise, token_rows=rows)
    with EngineThread(engine, tenancy) as thread:
        yield EngineBackend(thread, policy, chat, tokenizer)


def _built(*arguments: Any, **options: Any) -> Any:
    """Build an engine that supports top-p and top-k, whatever the run uses."""
    from rlboost_jax.engine.engine import Engine

    return Engine(*arguments, **{**options, "truncated_sampling": True})


def _run(wanted: Wanted) -> tuple[RunConfig, int]:
    """Run configuration, of the run or as one of the checkpoint, and its number of updates."""
    from rlboost_jax.learner.checkpoints.reading import newest_step
    from rlboost_jax.settings.config_loading import read_run_config
    from rlboost_jax.settings.validation.run_checks import check

    if (wanted.workdir is None) == (not wanted.checkpoint):
        raise ConfigError("name what is served: --checkpoint=FOLDER or --workdir=RUN, one of them")
    if wanted.workdir is None:
        return _run_of_checkpoint(wanted), 0
    run = read_run_config(wanted.workdir)
    if wanted.slots:
        run = replace(run, engine=replace(run.engine, slots=wanted.slots))
    if wanted.max_tokens:
        run = _with_slot(run, wanted.max_tokens)
    check(run)
    step = wanted.step
    return run, newest_step(wanted.workdir / "checkpoints") if step is None else step


def _run_of_checkpoint(wanted: Wanted) -> RunConfig:
    """Configuration of a run of the checkpoint. Its data set is never opened."""
    from rlboost_jax.configs import base
    from rlboost_jax.settings.config_loading import run_config_from_dict
    from rlboost_jax.settings.huggingface.sources import source_fields

    tokens = wanted.max_tokens or DEFAULT_TOKENS
    values = base.get_config().to_dict()
    fields = source_fields(wanted.checkpoint, weights=True)
    values["model"] |= {"source": wanted.checkpoint, **fields}
    values["model"]["dtype"] = wanted.dtype or values["model"]["dtype"]
    values["task"]["name"] = "dataset"
    values["data"] |= {"source": "none", "prompt_column": "prompt", "tokenizer": wanted.checkpoint}
    values["rewards"]["functions"] = ({"name": "math"},)
    values["warmup"]["max_updates"] = 0
    values["engine"] |= {
        "slots": wanted.slots or values["engine"]["slots"],
        "max_prompt_tokens": tokens - tokens // 2,
    }
    values["sampling"]["max_response_tokens"] = tokens // 2
    return run_config_from_dict(values)


def _with_slot(run: RunConfig, tokens: int) -> RunConfig:
    response = min(run.sampling.max_response_tokens, tokens // 2)
    return replace(
        run,
        engine=replace(run.engine, max_prompt_tokens=tokens - response),
        sampling=replace(run.sampling, max_response_tokens=response),
    )


def _params(run: RunConfig, wanted: Wanted, step: int) -> dict[str, Any]:
    from rlboost_jax.learner.checkpoints.base import read_policy
    from rlboost_jax.models.checkpoint_reader import read_checkpoint
    from rlboost_jax.settings.huggingface.sources import WEIGHTS, source_folder

    if wanted.workdir is None:
        return read_checkpoint(run.model, source_folder(wanted.checkpoint, WEIGHTS))
    return read_policy(run.model, wanted.workdir, wanted.workdir / "checkpoints", step)


def _name(wanted: Wanted) -> str:
    if wanted.workdir is not None:
        return wanted.workdir.absolute().name
    return Path(wanted.checkpoint).name or wanted.checkpoint

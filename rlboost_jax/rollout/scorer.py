"""Scores of given tokens by the teachers that a server holds.

Each sequence is scored by itself, in one row of one of three lengths, and a token's sums are those
of the engine: by its own row alone. So a score depends on the sequence, the
teacher and the kind of device: not on what else is scored or generated, nor on which server of that
kind does it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import jax
import numpy as np

from rlboost_jax.engine.dispatches import NonFiniteLogits
from rlboost_jax.engine.engine import Engine
from rlboost_jax.engine.shared import SharedEngine
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.packing import PackedBatch, by_sample, empty, pack
from rlboost_jax.learner.programs.passes import scores_of
from rlboost_jax.messages import ScoreTokens, TokenScores, pack_logprobs, unpack_tokens
from rlboost_jax.models.parameter_sharding import (
    batch_sharding,
    engine_mesh,
    param_shardings,
    program_on,
    replicated,
)
from rlboost_jax.models.params import Params, abstract_params
from rlboost_jax.sequences.identities import Version
from rlboost_jax.sequences.sequence import Sequence as Tokens
from rlboost_jax.settings.memory_estimates import server_scoring_bytes, size_text
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.run_config import RunConfig

# The longest, half and a quarter of it. Bits depend on it, so it is not learner.row_lengths: that
# may change from start to start, and servers of before may have stayed.
ROW_LENGTHS: Final = 3


class NoTeacher(RuntimeError):
    """A sequence names a teacher that is not held."""


@dataclass(frozen=True, kw_only=True)
class HeldTeacher:
    """A teacher on the devices of a server."""

    model: ModelConfig
    params: Params


class Scorer:
    """The teachers of a run at one server. To be used by one thread at a time.

    Args:
        device: of the server's engine.
    """

    def __init__(self, run: RunConfig, device: jax.Device) -> None:
        self._run, self._mesh = run, engine_mesh([device])
        self._models = tuple(each.model for each in run.distillation.teachers if each.model)
        self._held: dict[str, HeldTeacher] = {}  # by digest of the parameters
        self._programs: dict[tuple[ModelConfig, float, int], jax.stages.Compiled] = {}

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests of the teachers that are held."""
        return tuple(self._held)

    @cached_property
    def row_lengths(self) -> tuple[int, ...]:
        """Numbers of positions that a row may have, the shortest first."""
        lengths = (self._run.row_tokens // 2**i for i in reversed(range(ROW_LENGTHS)))
        return tuple(length for length in lengths if length)

    def warm_up(self, announce: Callable[[str], None] = lambda line: None) -> None:
        """Compile the programs for the run's temperature, before any teacher is held."""
        for model in self._models:
            announce(f"compiling the scores of a teacher of {model.num_layers} layers")
            for length in self.row_lengths:
                self._program(model, self._run.sampling.temperature, length)

    def hold(self, place: int, digest: str, params: Params) -> None:
        """Put a teacher's parameters on the device.

        Args:
            place: index of the teacher in the run's settings.
            digest: name of the parameters in `ScoreTokens`.
            params: nested arrays in host memory.

        Raises:
            ValueError: it is not the teacher that the run's configuration describes.
        """
        if place >= len(self._models):
            raise ValueError(f"teacher {place} of {len(self._models)}")
        model = self._models[place]
        found = jax.tree.map(np.shape, params)
        expected = jax.tree.map(lambda leaf: leaf.shape, abstract_params(model))
        if found != expected:
            raise ValueError(f"teacher {place} has other parameters than its configuration says")
        dtype = np.dtype(model.dtype)
        params = jax.tree.map(lambda leaf: np.asarray(leaf).astype(dtype, copy=False), params)
        held = jax.device_put(params, param_shardings(model, self._mesh))
        self._held[digest] = HeldTeacher(model=model, params=held)

    def keep(self, digests: Sequence[str]) -> None:
        """Forget all other teachers."""
        self._held = {digest: self._held[digest] for digest in digests if digest in self._held}

    def score(self, item: ScoreTokens) -> TokenScores:
        """Score the tokens of a sequence from `item.first` on.

        Raises:
            NoTeacher: the teacher is not held.
            DoesNotFit: the sequence is longer than the run's rows.
            NonFiniteLogits: the teacher's parameters are broken.
        """
        teacher = self._held.get(item.teacher)
        if teacher is None:
            raise NoTeacher(f"no teacher {item.teacher!r} is held")
        batch = self._row(item)
        program = self._program(teacher.model, item.temperature, batch.tokens.size)
        scores = np.asarray(program(teacher.params, batch))
        (found,) = by_sample([batch], [scores]).values()
        if not np.isfinite(found).all():
            raise NonFiniteLogits("a teacher's log-probability is no number; replace the teacher")
        return TokenScores(number=item.number, logprobs=pack_logprobs(found))

    def _row(self, item: ScoreTokens) -> PackedBatch:
        tokens = unpack_tokens(item.tokens)
        scored = len(tokens) - item.first
        needed = len(tokens) - 1
        length = next((n for n in self.row_lengths if n >= needed), self.row_lengths[-1])
        member = Trajectory(
            prompt=0,
            sample=0,
            sequence=Tokens(
                tokens=tokens,
                runs=(item.first, scored),
                logprobs=np.zeros(scored, np.float32),
                versions=((Version(0), scored),),
            ),
            advantage=0.0,
        )
        (batch,) = pack([member], rows=1, row_tokens=length, loss_aggregation="token_mean")
        return batch

    def _program(self, model: ModelConfig, temperature: float, length: int) -> jax.stages.Compiled:
        """(parameters, one row of that length) → log-probabilities of its targets."""
        key = model, temperature, length
        if key not in self._programs:
            run, mesh = self._run, self._mesh
            learner = replace(run.learner, attention="paged", experts="auto", remat="none")
            sampling = replace(run.sampling, temperature=temperature)
            shardings = param_shardings(model, mesh)
            program = program_on(
                mesh,
                scores_of(model, learner, sampling, mesh),
                in_shardings=(shardings, batch_sharding(mesh)),
                out_shardings=replicated(mesh),
            )
            dtype = np.dtype(model.dtype)
            params = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), abstract_params(model)
            )
            self._programs[key] = program.lower(params, empty(1, length)).compile()
        return self._programs[key]


def scorer_of(run: RunConfig, engine: Engine, say: Callable[[str], None]) -> Scorer | None:
    """Make the scorer of a server, with its programs compiled; None if it is to score nothing.

    A line says why a server scores nothing in a run whose servers score.

    Args:
        engine: the server's engine, which has left `server_scoring_bytes` free if it could.
        say: takes a line for the log.
    """
    if not run.distillation.on_servers:
        return None
    needed = server_scoring_bytes(run)
    reason = ""
    if isinstance(engine, SharedEngine):
        reason = "it shares its device"
    elif engine.memory.memory.taken < needed:
        reason = f"its device has no room for {size_text(needed)} beside the engine"
    if reason:
        say(f"this server scores nothing for teachers: {reason}")
        return None
    scorer = Scorer(run, engine.device)
    scorer.warm_up(say)
    return scorer

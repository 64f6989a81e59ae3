"""The policy's programs: gradients, log-probabilities, gaps, and the update."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from rlboost_jax.learner.packing import PackedBatch, empty
from rlboost_jax.learner.programs.apply import Part, add_up, apply_programs
from rlboost_jax.learner.programs.passes import gaps_of, gradients_of, logprobs_of
from rlboost_jax.learner.state import TrainState, make_optimizer, state_shardings
from rlboost_jax.models.parameter_sharding import batch_sharding, program_on, replicated
from rlboost_jax.models.params import Params
from rlboost_jax.settings.algorithm_config import AlgorithmConfig
from rlboost_jax.settings.learner_config import LearnerConfig
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.routing import routing_of
from rlboost_jax.settings.sampling_config import EvaluationConfig, SamplingConfig


class PolicyPrograms:
    """Programs of one run, each compiled once, at its first use. They hold no state.

    Attributes:
        gradients: (params, reference params or None, packed batch) → (gradients, sums).
        combine, apply: see `apply_programs`.
        logprobs: (params, reference params or None, packed batch) → log-probabilities of each
            target [R, T], without gradients: "policy", as sampled, and with a reference also
            "whole" and "reference", under the whole softmax of either; and what `gaps` has.
        gaps: (params, packed batch) → of each target, 0 outside responses: "logprob", |recomputed
            - behaviour|, "choice" and "mean_choice"; to find out whose they are where the largest
            is too large.
        heldout_gaps: the same of responses to held-out prompts, which are sampled in their own way;
            None where nothing is evaluated.
        shardings: of a TrainState.
        base: what the parameters of the state are added to, where they are adapters: gradients,
            logprobs and gaps take it along, see `over`. None where everything is trained.
        routing: of the routes that batches have to bring; None: routers choose.

    The sums are those of `objective`.
    """

    def __init__(
        self,
        model: ModelConfig,
        learner: LearnerConfig,
        algorithm: AlgorithmConfig,
        sampling: SamplingConfig,
        *,
        num_updates: int,
        mesh: Mesh,
        evaluation: EvaluationConfig | None = None,
        tolerated_choice: float = 0.0,
        teacher_weight: float = 0.0,
    ) -> None:
        """Build the programs without compiling any.

        Args:
            evaluation: how responses to held-out prompts are sampled; None: there are none.
            tolerated_choice: see `sampled_logprobs`.
            teacher_weight: see `objective`.
        """
        self._algorithm, self.routing = algorithm, routing_of(model, algorithm)
        self.base: Params | None = None
        self.optimizer = make_optimizer(learner, num_updates)
        self.shardings = state_shardings(
            model, self.optimizer, mesh, moment_memory=learner.moment_memory
        )
        self.mesh = mesh
        params, whole = self.shardings.params, replicated(mesh)
        rows = batch_sharding(mesh)
        self.gradients = self._on_base(
            gradients_of(
                model,
                learner,
                algorithm,
                sampling,
                mesh,
                tolerated_choice=tolerated_choice,
                teacher_weight=teacher_weight,
            ),
            in_shardings=(params, None, rows),
            out_shardings=(params, whole),
        )
        self.logprobs = self._on_base(
            logprobs_of(model, learner, sampling, mesh, tolerated_choice=tolerated_choice),
            in_shardings=(params, None, rows),
            out_shardings=whole,
        )
        self.gaps = self._on_base(
            gaps_of(model, learner, sampling, mesh, tolerated_choice=tolerated_choice),
            in_shardings=(params, rows),
            out_shardings=whole,
        )
        self.heldout_gaps: _OnBase | None = None
        if evaluation is not None:
            self.heldout_gaps = self._on_base(
                gaps_of(
                    model,
                    learner,
                    replace(
                        sampling,
                        temperature=evaluation.temperature,
                        top_p=evaluation.top_p,
                        top_k=evaluation.top_k,
                    ),
                    mesh,
                    greedy=evaluation.greedy,
                    tolerated_choice=tolerated_choice,
                ),
                in_shardings=(params, rows),
                out_shardings=whole,
            )
        self.combine, self.apply = apply_programs(
            learner, self.optimizer, self.shardings, mesh, num_updates=num_updates
        )

    def _on_base(
        self, function: Callable[..., Any], *, in_shardings: tuple[Any, ...], out_shardings: Any
    ) -> "_OnBase":
        program = program_on(
            self.mesh, function, in_shardings=(None, *in_shardings), out_shardings=out_shardings
        )
        return _OnBase(program, None)

    def over(self, base: Params) -> "PolicyPrograms":
        """The same programs, for adapters of `base`."""
        other = copy(self)
        other.base = base
        other.gradients, other.logprobs, other.gaps = (
            each.over(base) for each in (self.gradients, self.logprobs, self.gaps)
        )
        if self.heldout_gaps is not None:
            other.heldout_gaps = self.heldout_gaps.over(base)
        return other

    def compile(
        self,
        state: TrainState,
        reference: Params | None,
        *,
        shapes: Sequence[tuple[int, int]],
        sampler: Params | None = None,
    ) -> int:
        """Compile everything before the first step, so that no step is slowed by it.

        `apply` would consume the state: its program goes to the compilation cache only.

        Args:
            reference: the KL term's, wherever that is placed.
            shapes: rows and tokens of a row of all packed batches there will be.
            sampler: parameters as an older version has them, where batches are sampled from one.

        Returns:
            Bytes that the hungriest program takes on each device besides its arguments and
            results: activations, for the most part.
        """
        in_loss = None if self._algorithm.kl_in_reward else reference
        in_reward = reference if self._algorithm.kl_in_reward else None
        programs = []
        for rows, row_tokens in shapes:
            batch = empty(rows, row_tokens, self.routing)
            if self._algorithm.has_evaluation_pass:
                self.logprobs(state.params, in_reward, batch)
            self.gaps(state.params, batch)
            if self.heldout_gaps is not None:
                self.heldout_gaps(state.params if sampler is None else sampler, batch)
            if sampler is not None:
                self.gaps(sampler, batch)
                if self._algorithm.has_evaluation_pass:
                    self.logprobs(sampler, in_reward, batch)
            part = self.gradients(state.params, in_loss, batch)
            programs.append(self.gradients.lower(state.params, in_loss, batch).compile())
        gradients, _ = self.combine(part, self.gradients(state.params, in_loss, batch))
        programs.append(self.apply.lower(state, gradients, np.float32(1)).compile())
        return max(map(_working_bytes, programs))

    def accumulate(
        self, params: Params, reference: Params | None, batches: Sequence[PackedBatch]
    ) -> Part:
        """Gradients and sums over the packed batches of a micro-batch, in their order."""
        return add_up((self.gradients(params, reference, b) for b in batches), self.combine)


class _OnBase:
    """A program with its first argument, the base, bound."""

    def __init__(self, program: Any, base: Params | None) -> None:
        self._program, self._base = program, base

    def over(self, base: Params) -> "_OnBase":
        return _OnBase(self._program, base)

    def __call__(self, *args: Any) -> Any:
        return self._program(self._base, *args)

    def lower(self, *args: Any) -> Any:
        return self._program.lower(self._base, *args)


def _working_bytes(program: jax.stages.Compiled) -> int:
    """Bytes of temporary memory of a program; 0 if the backend does not report it."""
    analysis = program.memory_analysis()
    return 0 if analysis is None else int(analysis.temp_size_in_bytes)

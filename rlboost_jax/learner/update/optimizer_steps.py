"""Optimizer steps of a batch: gradients in, the next state out, or an error."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from rlboost_jax.learner.guards import NotFinite, check_counted, check_guards, kept
from rlboost_jax.learner.packing import update_divisor
from rlboost_jax.learner.programs.critic import CriticPrograms
from rlboost_jax.learner.programs.objective import OF_SERVERS
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.learner.state import TrainState
from rlboost_jax.learner.update.accumulation import Accumulation, Members
from rlboost_jax.learner.update.learner import Learner

Figures = dict[str, float]
APPLIED: Final = ("gradient_norm", "learning_rate")  # of an update, out of what `apply` tells


class OptimizerSteps:
    """Optimizer steps, each of which consumes `state` and replaces it by the next.

    An error leaves a state that is of no more use: see `guards.py`.
    """

    def __init__(
        self,
        learner: Learner,
        state: TrainState,
        *,
        step: int,
        checkpoint: Callable[[], int | None],
        culprits: Callable[[], str],
        kl: float | None,
    ) -> None:
        """Start from the state that a batch's updates begin with.

        Args:
            checkpoint: tells the last complete one, for messages.
            culprits: finds out why the policy's gradient is not finite.
            kl: mean of the estimates in the reward, nats per token: of the policy that sampled, in
                every update. None: the KL is of the loss.
        """
        self.state = state
        self._learner, self._step, self._checkpoint = learner, step, checkpoint
        self._culprits, self._kl = culprits, kl

    def policy(self, update: int, accumulated: Accumulation, parts: Sequence[Members]) -> Figures:
        """Do one step of the policy.

        Returns:
            `loss` (divided), `gradient_norm`, `learning_rate`, and sums over response tokens.

        Raises:
            StepNotWhole, NotFinite, GuardTripped
        """
        learner, run = self._learner, self._learner.run
        members = [t for part in parts for t in part]
        sums = accumulated.total(self.state.params, parts)
        figures = {name: float(value) for name, value in sums.items()}
        for name in OF_SERVERS:  # of this update's own policy: no longer the engine's
            del figures[name]
        check_counted(members, figures["tokens"], step=self._step)
        if self._kl is not None:
            figures["kl"] = self._kl * figures["tokens"]
        self._guard({"kl": figures["kl"] / figures["tokens"]})
        divisor = float(
            update_divisor(
                members,
                run.algorithm.loss_aggregation,
                max_response_tokens=run.sampling.max_response_tokens,
            )
        )
        divisor = max(1.0, figures.pop("divisor", divisor))  # less, where some were rejected
        policy = replace(self.state, critic=None)
        state, applied = self._applied(learner.policy, policy, accumulated, divisor)
        if not (applied and math.isfinite(figures["loss"])):
            del state  # room to look for the reason
            raise self._not_finite(update, "the gradient", figures["loss"], self._culprits())
        self.state = replace(state, critic=self.state.critic)
        return {**figures, **applied, "loss": figures["loss"] / divisor}

    def critic(self, update: int, accumulated: Accumulation, parts: Sequence[Members]) -> Figures:
        """Do one step of the critic; its loss is the mean over tokens that are trained on.

        Returns:
            `value_loss` and `value_tokens`, which it is the sum over.

        Raises:
            NotFinite, GuardTripped
        """
        programs, state = self._learner.critic, self.state.critic
        assert programs is not None
        sums = accumulated.total(state.params, parts)
        loss, tokens = float(sums["loss"]), float(sums["tokens"])
        state, applied = self._applied(
            programs, state, accumulated, max(1.0, tokens), whose="the critic's "
        )
        if not (applied and math.isfinite(loss)):
            reason = "of the critic no sample is looked for"
            raise self._not_finite(update, "the critic's gradient", loss, reason)
        self.state = replace(self.state, critic=state)
        return {"value_loss": loss, "value_tokens": tokens}

    def _applied(
        self,
        programs: PolicyPrograms | CriticPrograms,
        state: TrainState,
        accumulated: Accumulation,
        divisor: float,
        *,
        whose: str = "",
    ) -> tuple[TrainState, Figures]:
        """Apply an update; return the state, `gradient_norm` before clipping and `learning_rate`.

        They are missing if the update is not finite.
        """
        state, metrics = programs.apply(state, accumulated.take(), np.float32(divisor))
        if not metrics["finite"]:
            return state, {}
        self._guard({"gradient_norm": float(metrics["gradient_norm"])}, whose)
        return state, {name: float(metrics[name]) for name in APPLIED}

    def _guard(self, measured: Figures, whose: str = "") -> None:
        check_guards(
            self._learner.run.learner,
            measured,
            step=self._step,
            checkpoint=self._checkpoint,
            whose=whose,
        )

    def _not_finite(self, update: int, what: str, loss: float, reason: str) -> NotFinite:
        several = self._learner.run.algorithm.updates_per_batch > 1
        which = f", update {update + 1} of its batch" if several else ""
        return NotFinite(
            f"step {self._step}{which}: {what} is not finite (loss {loss:.4g}); {reason}; "
            f"{kept(self._checkpoint())}"
        )

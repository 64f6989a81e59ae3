"""Whole sessions in a moment: the loop, the manager and the reserved engines are faked."""

import dataclasses
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
from msgspec import structs

from rlboost_jax.learner import training
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.evaluation.measurement import Score
from rlboost_jax.learner.fleet.link import ManagerLink
from rlboost_jax.learner.fleet.manager_process import ManagerProcess
from rlboost_jax.learner.fleet.reserved import ReservedEngines
from rlboost_jax.learner.loop import TrainingLoop
from rlboost_jax.learner.setup.makers import Makers
from rlboost_jax.learner.setup.preparation import programs
from rlboost_jax.learner.step_metrics import FinishedStep
from rlboost_jax.messages import BatchReport, WindowState
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.sequences.identities import Version
from rlboost_jax.sequences.sequence import Sequence
from tests.endpoints import SEAL, endpoint

STEPS = 3
FINAL_ACCURACY = 0.875
FINAL = Score(
    accuracy=FINAL_ACCURACY,
    best=FINAL_ACCURACY,
    prompts=8,
    samples=1,
    response_length_mean=2.0,
    failures=0,
)
FINAL_REPORT = BatchReport(
    batch=STEPS,
    rollout_seconds=0.5,
    remote_wait_seconds=0.0,
    seeding_window_seconds=0.0,
    instances_mean=1.0,
    instances_joined=2,
    instances_lost=1,
    instances_left=1,
    requests_migrated=3,
    tokens_generated=4,
    tokens_delivered=0,
    tokens_lost=4,
    tokens_prefilled_again=5,
    tokens_reserved=1,
    tokens_preemptible=3,
    tokens_measured=16,
    cost_dollars=0.25,
    window=WindowState(seconds=0.0, memory={}, instance_cap=1),
)

NOTHING_COUNTED = BatchReport(
    **{**dict.fromkeys(BatchReport.__struct_fields__, 0), "window": FINAL_REPORT.window}
)


class Manager(ManagerProcess):
    def __init__(self, workdir, run_id):
        self.dismissed = False

    def locate(self):
        return endpoint("127.0.0.1:9")

    def seal_key(self):
        return SEAL

    def close(self):
        pass

    def dismiss(self):
        self.dismissed = True

    def see_off(self):
        pass


class Link(ManagerLink):
    """Double of the manager's link; that of the last run is `Link.last`."""

    def __init__(self, thread, **_):
        Link.last, self.status, self.reason, self.over = self, None, None, None

    def connect(self, hello):
        pass

    def committed(self, step):
        pass

    def publish(self, manifest):
        pass

    def end(self, reason, *, over):
        self.reason, self.over = reason, over
        return True


class Reserved(ReservedEngines):
    def __init__(self, *_, **__):
        pass

    def connect(self, *_):
        pass

    def close(self):
        pass


def finished(step, *, rewards=(0.0, 1.0), kl=0.0, stop_ids=(1,), **facts):
    """A finished step whose only prompt has two responses."""
    tokens = [next(iter(stop_ids))]
    sequence = Sequence.of_response([7], tokens, np.zeros(1), version=step)
    trajectories = tuple(
        Trajectory(
            prompt=0, sample=i, sequence=sequence, verdict=Verdict(reward=reward), advantage=0.0
        )
        for i, reward in enumerate(rewards)
    )
    found = {
        "version": Version(step),
        "trajectories": trajectories,
        "trained": trajectories,
        "figures": defaultdict(float, kl=kl, entropy=1.0),
        "score": dataclasses.replace(FINAL, accuracy=0.5) if step == 0 else None,
        "report": structs.replace(NOTHING_COUNTED, batch=step, tokens_delivered=len(rewards)),
        "prompts_used": step + 1,
        "params_digest": "",
        "durable_step": step,
        "copied_step": None,
        "train_seconds": 0.0,
        "train_wait_seconds": 0.0,
        "publish_seconds": 0.0,
        "step_seconds": 1.0,
    }
    return FinishedStep(step=step, **found | facts)


class Loop(TrainingLoop):
    """Steps that are over at once."""

    def __init__(self, session):
        self.publisher, self.stop_ids = session.publisher, session.exercises.stop_ids

    def step(self, step):
        return finished(step, stop_ids=self.stop_ids)

    def save(self, step):
        pass

    def final_score(self):
        return FINAL, FINAL_REPORT


def quick(run, mesh, working_bytes=0):
    """Programs that are not compiled before they are needed."""
    policy, critic = programs(run, mesh)
    policy.compile = lambda *_, **__: working_bytes
    return policy, critic


MAKERS = Makers(
    programs=quick,
    manager=Manager,
    link=Link,
    reserved=Reserved,
    engine=lambda run, **_: SimpleNamespace(memory="memory: a plan", fingerprint="jax1-cpu-0"),
)


def train(run, workdir, loop=Loop, *, fork="", **makers):
    """Train with a single process."""
    return training.run_training(
        run, workdir, fork=fork, makers=dataclasses.replace(MAKERS, **makers), loop=loop
    )

"""Whole sessions in a moment: the loop, the manager and the reserved engines are faked."""

import dataclasses
from types import SimpleNamespace

from rlboost_jax.learner import training
from rlboost_jax.learner.evaluation.measurement import Score
from rlboost_jax.learner.fleet.link import ManagerLink
from rlboost_jax.learner.fleet.manager_process import ManagerProcess
from rlboost_jax.learner.fleet.reserved import ReservedEngines
from rlboost_jax.learner.loop import TrainingLoop
from rlboost_jax.learner.setup.makers import Makers
from rlboost_jax.learner.setup.preparation import programs
from rlboost_jax.messages import BatchReport, WindowState
from rlboost_jax.observe.metrics import KEYS
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


class Loop(TrainingLoop):
    """Steps that are over at once."""

    def __init__(self, session):
        self.publisher = session.publisher

    def step(self, step):
        accuracy = 0.5 if step == 0 else None
        return {**dict.fromkeys(KEYS), "step": step, "accuracy": accuracy, "step_seconds": 1.0}

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

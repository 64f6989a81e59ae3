"""Batches that are sampled from older versions, by a fleet that says what is true of its tokens.

The fleet is faked: tokens follow from batch and sample, their log-probabilities are those of the
version that the batch is begun with, and they arrive in the order that a test wants.
"""

import asyncio
import random
from copy import copy
from dataclasses import replace

import jax
import msgspec
import numpy as np
import pytest

from rlboost_jax import messages as m
from rlboost_jax.data.tasks import Task
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.fleet.engine_weights import KeptVersionSource, pulled_as_announced
from rlboost_jax.learner.fleet.link import ManagerLink
from rlboost_jax.learner.kept_versions import KeptVersions, restored_versions
from rlboost_jax.learner.loop import TrainingLoop
from rlboost_jax.learner.packing import by_sample
from rlboost_jax.learner.processes.leader import NoFollowers
from rlboost_jax.learner.programs.teachers import Teacher, Teachers
from rlboost_jax.learner.publisher import Publisher
from rlboost_jax.learner.session import Session
from rlboost_jax.learner.state import abstract_state, init_state
from rlboost_jax.learner.step_metrics import row_of
from rlboost_jax.learner.update.learner import learner_of
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import init_params, params_digest
from rlboost_jax.observe.metrics import DISTILLED
from rlboost_jax.sequences.identities import Version, Work, sample_number
from rlboost_jax.sequences.sequence import Sequence
from rlboost_jax.settings.distillation_config import DistillationConfig, TeacherConfig
from rlboost_jax.trust.snapshot_names import WeightsError

STEPS, PROMPTS, GROUP = 5, 2, 4
WINDOW = m.WindowState(seconds=0.5, memory={2: 0.25}, instance_cap=3)
BITS = ("trajectories_digest", "params_digest", "loss", "version", "prompts_used")
ORDERS = {  # batches, oldest first → the one whose response arrives next
    "oldest": lambda batches: batches[0],
    "newest": lambda batches: batches[-1],
    "any": random.Random(3).choice,
}


class Parity(Task):
    """Rewards an odd sum."""

    def reward(self, problem, response_tokens):
        return float(sum(map(int, response_tokens)) % 2)


class Fleet(ManagerLink):
    """Servers that hold every version there was, and the manager before them."""

    def __init__(self, order="oldest"):
        self.choose = ORDERS[order]
        self.versions = {}  # published: (parameters, digest)
        self.begun, self.log = {}, []
        self.status = None  # nobody describes the fleet
        self.pending = {}  # batch → responses
        self.lies = {}  # (batch, sample) → what is added to the second log-probability
        self.dull = set()  # (batch, prompt) to which all responses are alike
        self.prompts = {}  # batch → tokens of the prompts asked for
        self.patience = 1000  # calls of `receive` for nothing

    def begin_batch(self, begin):
        self.log.append(f"begin {begin.batch} of {begin.version}")
        assert begin.params_digest == self.versions[begin.version][1]
        self.begun[begin.batch], self.pending[begin.batch] = begin, []
        self.prompts[begin.batch] = []
        self.respond(begin, begin.prompts, begin.group_size)

    def extend_batch(self, extend):
        self.log.append(f"extend {extend.batch}")
        begin = self.begun[extend.batch]
        self.respond(begin, extend.prompts, extend.samples or begin.group_size, extend.sampling)

    def respond(self, begin, prompts, samples, sampling=None):
        wanted = []
        for request in prompts:
            prompt_tokens = m.unpack_tokens(request.tokens)
            if sampling is None:
                self.prompts[begin.batch].append(prompt_tokens.tolist())
            for place in range(samples):
                sample = sample_number(
                    request.prompt, place, group_size=begin.group_size, purpose=request.purpose
                )
                dull = (begin.batch, request.prompt) in self.dull
                second = 5 if dull else 5 + (3 * begin.batch + 7 * request.prompt + place) % 20
                work = Work(
                    seed=0,
                    batch=begin.batch,
                    purpose=request.purpose,
                    prompt=request.prompt,
                    sample=sample,
                )
                wanted.append((work, prompt_tokens, np.array([5, second, 1], np.int32)))
        logprobs = self.sampled(self.versions[begin.version][0], wanted)
        for work, _, tokens in wanted:
            said = logprobs[work.sample] + [0, self.lies.get((begin.batch, work.sample), 0), 0]
            rollout = m.FinishedRollout(
                work=work,
                tokens=m.pack_tokens(tokens),
                logprobs=m.pack_logprobs(said),
                versions=((begin.version, 3),),
                instances=("a",),
            )
            self.pending[begin.batch].append((rollout, logprobs[work.sample]))

    def sampled(self, params, wanted):
        """What an engine with these parameters records."""
        trajectories = [
            Trajectory(
                prompt=work.prompt,
                sample=work.sample,
                sequence=Sequence.of_response(prompt, tokens, np.zeros(3), version=Version(0)),
                advantage=0.0,
            )
            for work, prompt, tokens in wanted
        ]
        batches = self.learner.pack(trajectories)
        parts = [self.learner.policy.logprobs(params, None, batch)["policy"] for batch in batches]
        return by_sample(batches, [np.asarray(part) for part in parts])

    def doubt(self, batch, doubts):
        """The same responses again, with the truth about them."""
        for doubt in doubts:
            self.log.append(f"doubt {batch} {doubt.sample} {doubt.position}")
            rollout, truth = self.said[batch, doubt.sample]
            assert rollout.attempt == 0, "the truth is disputed"
            again = msgspec.structs.replace(
                rollout, logprobs=m.pack_logprobs(truth), attempt=rollout.attempt + 1
            )
            self.pending[batch].append((again, truth))

    said: dict

    def receive(self, timeout=None):
        batches = sorted(batch for batch, left in self.pending.items() if left)
        if not batches:
            self.patience -= 1
            assert self.patience, "it waits for what never comes"
            return None
        rollout, truth = self.pending[self.choose(batches)].pop(0)
        self.said[rollout.work.batch, rollout.work.sample] = rollout, truth
        return rollout

    def wake(self):
        """Nobody waits here."""

    def trained(self, trained):
        self.log.append(f"trained {trained.batch}")
        assert not self.pending.pop(trained.batch), "all of it was taken"
        names = m.BatchReport.__struct_fields__
        found = {"batch": trained.batch, "window": WINDOW}
        return m.BatchReport(**{**dict.fromkeys(names, 0), **found})


def teacher_scores(params, batch):
    """Log-probabilities that a teacher might give, by token."""
    return np.sin(batch.targets).astype(np.float32) - 4


class Announcer(Publisher):
    unwritten = None  # a version is at hand as soon as it is submitted

    def __init__(self, fleet):
        self.fleet = fleet

    def submit(self, version, host_params, digest, *, oldest):
        self.fleet.log.append(f"publish {version} from {oldest}")
        dtype = self.fleet.learner.run.weights.rollout_dtype
        snapshot = jax.tree.map(lambda leaf: np.asarray(leaf).astype(dtype), host_params)
        self.fleet.versions[version] = (snapshot, digest)


@pytest.fixture
def make(config, learner_step, tmp_path):
    """`make(lag=1)`: a run of 5 steps that saves at each, or that goes on from a checkpoint.

    Its checkpoints are closed when the test is over.
    """
    opened = []

    def made(
        fleet=None,
        resumed=None,
        evaluate=0,
        rollout_dtype="float32",
        gap=1e-3,
        teacher_weight=0.0,
        **algorithm,
    ):
        fleet = fleet or Fleet()
        settings = {"lag": 1, "group_size": GROUP} | algorithm
        policy = copy(learner_step(teacher_weight=teacher_weight, **settings))
        policy.heldout_gaps = policy.gaps  # sampled in the same way
        run = replace(
            config,
            num_steps=STEPS,
            evaluation=replace(
                config.evaluation, every_steps=evaluate, num_prompts=2, temperature=0.8
            ),
            algorithm=replace(config.algorithm, **settings),
            checkpoint=replace(config.checkpoint, every_steps=1),
            weights=replace(config.weights, rollout_dtype=rollout_dtype),
            learner=replace(
                config.learner,
                prompts_per_step=PROMPTS,
                micro_batch_prompts=1,
                tolerated_gap=gap,
                tolerated_choice_gap=1.0,
            ),
        )
        teachers = None
        if teacher_weight:
            teacher = TeacherConfig(source="teacher")
            distillation = DistillationConfig(
                teachers=(teacher,), form="loss", weight=teacher_weight
            )
            run = replace(run, distillation=distillation)
            teachers = Teachers(run, [Teacher(params={}, scores=teacher_scores)])
        exercises = Parity(run.task)
        learner = learner_of(
            run,
            policy=policy,
            critic=None,
            reference=None,
            stop_ids=exercises.stop_ids,
            teachers=teachers,
        )
        fleet.learner, fleet.said = learner, {}
        checkpoints = Checkpoints(tmp_path / str(len(opened)), keep=9)
        opened.append(checkpoints)
        state = init_state(init_params(run.model, 0), policy.optimizer, policy.shardings)
        kept = {"kept": KeptVersions()}
        if resumed is not None:
            before, step = resumed
            abstract = abstract_state(run.model, policy.optimizer, make_mesh((1, 1, 1)))
            before.wait()
            state, extra = before.restore(step, abstract)
            older = restored_versions(before, step, extra, state.params, run)
            kept = {"kept": older, "prompts_used": extra["prompts_used"]}
        session = Session(
            run=run,
            exercises=exercises,
            learner=learner,
            state=state,
            link=fleet,
            load=pulled_as_announced,
            publisher=Announcer(fleet),
            checkpoints=checkpoints,
            followers=NoFollowers(),
            clock=lambda: 0.0,
            **kept,
        )
        loop = TrainingLoop(session)
        loop.fleet = fleet
        return loop

    yield made
    for checkpoints in opened:
        checkpoints.close()


def rows_of(loop, first=0):
    rows = []
    for step in range(first, STEPS):
        rows.append(row_of(loop.step(step), loop._session))
        loop.save(step + 1)
    return rows


def bits(rows):
    return [[row[name] for name in BITS] for row in rows]


def test_with_a_lag_of_one_the_next_batch_is_begun_ahead_from_the_version_before(make):
    loop = make(lag=1)
    rows = rows_of(loop)
    assert loop.fleet.log == [
        *("publish 0 from 0", "begin 0 of 0", "begin 1 of 0"),
        *("publish 1 from 0", "trained 0", "begin 2 of 1"),
        *("publish 2 from 1", "trained 1", "begin 3 of 2"),
        *("publish 3 from 2", "trained 2", "begin 4 of 3"),
        *("trained 3", "trained 4"),
    ]
    assert [row["version"] for row in rows] == [0, 0, 1, 2, 3]
    assert [row["lag"] for row in rows] == [0, 1, 1, 1, 1]


@pytest.mark.parametrize("lag", [1, 2])
def test_reserved_engines_find_what_open_batches_are_sampled_from_at_hand(make, lag):
    """As it was published, at every moment at which the manager may announce it."""
    loop = make(lag=lag, rollout_dtype="bfloat16")
    fleet, at_hand = loop.fleet, KeptVersionSource(loop._session.kept, None)

    def manifest(version, digest):
        return m.Manifest(version=version, directory="", params_digest=digest, list_sha256="list")

    for step in range(STEPS):
        for batch in fleet.pending:
            params, digest = fleet.versions[max(0, batch - lag)]
            pulled = asyncio.run(at_hand.pull(manifest(max(0, batch - lag), digest)))
            assert params_digest(pulled.params) == params_digest(params)
            assert pulled.fetched_bytes == 0
        loop.step(step)
    with pytest.raises(WeightsError, match="version 0 is kept no longer"):
        asyncio.run(at_hand.pull(manifest(0, fleet.versions[0][1])))
    with pytest.raises(WeightsError, match=f"version {STEPS - 1} is kept with other parameters"):
        asyncio.run(at_hand.pull(manifest(STEPS - 1, "another")))


def test_no_more_than_the_versions_of_open_batches_are_kept(make):
    loop = make(lag=2)
    for step in range(STEPS):
        loop.step(step)
        assert len(loop._session.kept) <= 3
    opened = [line for line in loop.fleet.log if line.startswith("begin")]
    assert opened == [f"begin {batch} of {max(0, batch - 2)}" for batch in range(STEPS)]


@pytest.mark.parametrize(("lag", "teacher_weight"), [(1, 0.0), (2, 0.0), (1, 0.5)])
def test_bits_do_not_depend_on_the_order_of_arrival(make, lag, teacher_weight):
    expected = bits(rows_of(make(lag=lag, teacher_weight=teacher_weight)))
    for order in ("newest", "any"):
        rows = rows_of(make(Fleet(order), lag=lag, teacher_weight=teacher_weight))
        assert bits(rows) == expected
        assert all((DISTILLED in row) == bool(teacher_weight) for row in rows)


@pytest.mark.parametrize(
    ("lag", "step", "teacher_weight"),
    [(1, 1, 0.0), (1, 3, 0.0), (2, 1, 0.0), (2, 3, 0.0), (2, 5, 0.0), (1, 3, 0.5)],
)
def test_a_resumed_run_has_the_same_bits_although_no_snapshot_is_left(
    make, lag, step, teacher_weight
):
    loop = make(lag=lag, teacher_weight=teacher_weight)
    rows = rows_of(loop)
    resumed = make(
        lag=lag, teacher_weight=teacher_weight, resumed=(loop._session.checkpoints, step)
    )
    before = {version: digest for version, (_, digest) in loop.fleet.versions.items()}
    again = {version: digest for version, (_, digest) in resumed.fleet.versions.items()}
    assert again.items() <= before.items(), "a version has the digest that it had"
    assert bits(rows_of(resumed, step)) == bits(rows[step:])
    begun = [line for line in resumed.fleet.log if line.startswith("begin")]
    assert begun == [f"begin {b} of {max(0, b - lag)}" for b in range(step, STEPS)]


def test_an_honest_server_is_believed_whatever_the_lag(make):
    """The policy moves by far more than is tolerated, and it is not compared with that policy."""
    loop = make(lag=2)
    rows = rows_of(loop)
    assert not [line for line in loop.fleet.log if line.startswith("doubt")]
    assert all(row["max_logprob_gap"] <= 1e-5 for row in rows)
    assert rows[-1]["behaviour_kl"] > 1e-4 and rows[-1]["ratio_mean"] != 1.0


def test_servers_of_another_precision_are_compared_with_what_they_have(make):
    """What is kept is rounded as snapshots are. Batch 0 is of the learner's own parameters."""
    loop = make(lag=2, rollout_dtype="bfloat16", gap=2.0)
    rows = rows_of(loop)
    assert rows[0]["max_logprob_gap"] > 1e-5
    assert all(row["max_logprob_gap"] <= 1e-5 for row in rows[1:])
    resumed = make(lag=2, rollout_dtype="bfloat16", gap=2.0, resumed=(loop._session.checkpoints, 3))
    assert bits(rows_of(resumed, 3)) == bits(rows[3:])


def test_a_liar_is_suspect_although_the_policy_has_moved_further_than_its_lie(make):
    honest = bits(rows_of(make(lag=2)))
    fleet = Fleet()
    fleet.lies = {(3, 1): 0.01, (4, 6): float("nan")}
    loop = make(fleet, lag=2)
    assert bits(rows_of(loop)) == honest, "nothing of the lies is left"
    doubts = [line for line in fleet.log if line.startswith("doubt")]
    assert doubts == ["doubt 3 1 1", "doubt 4 6 1"]


def test_mini_batches_compose_with_a_lag(make):
    """One batch makes one version, however many updates that takes."""
    loop = make(lag=1, mini_batches=2)
    rows = rows_of(loop)
    assert [row["version"] for row in rows] == [0, 0, 1, 2, 3]
    assert int(loop.state.step) == 2 * STEPS
    assert all(row["max_logprob_gap"] <= 1e-5 for row in rows)
    resumed = make(lag=1, mini_batches=2, resumed=(loop._session.checkpoints, 2))
    assert bits(rows_of(resumed, 2)) == bits(rows[2:])


def test_dynamic_sampling_begins_each_batch_at_a_place_that_is_known_beforehand(make):
    """Two prompts a batch and at most eight tried: batch b has prompts 8 b on to itself."""
    settings = {"lag": 1, "dynamic_sampling": True, "dynamic_sampling_factor": 4.0}
    fleet = Fleet("any")
    fleet.dull = {(0, 0), (2, 1), (2, 2)}
    loop = make(fleet, **settings)
    rows = rows_of(loop)
    stream = [prompt.tokens.tolist() for prompt in loop._prompts.slice(0, 8 * STEPS)]
    tried = {0: 3, 1: 2, 2: 4, 3: 2, 4: 2}
    assert fleet.prompts == {b: stream[8 * b : 8 * b + count] for b, count in tried.items()}
    assert [row["prompts_used"] for row in rows] == [8 * (b + 1) for b in range(STEPS)]
    assert all(row["max_logprob_gap"] <= 1e-5 for row in rows)
    other = Fleet()
    other.dull = fleet.dull
    assert bits(rows_of(make(other, **settings))) == bits(rows)


def test_dynamic_sampling_doubts_a_group_that_it_passes_over(make):
    fleet = Fleet()
    fleet.dull, fleet.lies = {(3, 0)}, {(3, 2): 0.01}
    rows_of(make(fleet, lag=2, dynamic_sampling=True))
    assert "doubt 3 2 1" in fleet.log


def test_what_is_measured_is_the_version_that_samples(make):
    """Every second version, beside the first batch of it, and the last."""
    loop = make(lag=2, evaluate=2)
    rows = rows_of(loop)
    assert [row["accuracy"] is not None for row in rows] == [True, False, False, False, True]
    assert [row["version"] for row in rows] == [0, 0, 0, 1, 2]
    loop.fleet.log.clear()
    loop.final_score()
    assert loop.fleet.log == [f"begin {STEPS} of {STEPS}", f"trained {STEPS}"]


def test_lies_about_held_out_prompts_leave_no_trace_in_a_score(make):
    """Each is compared with the version that is measured: of batch 4 that is version 2, and in the
    end the last. What is doubted is sampled again."""
    honest = make(lag=2, evaluate=2)
    rows, (score, _) = rows_of(honest), honest.final_score()
    fleet = Fleet("any")
    second = sample_number(1, 0, group_size=GROUP, purpose="evaluate")
    fleet.lies = {(4, second): 0.01}
    loop = make(fleet, lag=2, evaluate=2)
    assert bits(rows_of(loop)) == bits(rows)
    assert f"doubt 4 {second} 1" in fleet.log
    last = sample_number(0, 0, group_size=1, purpose="evaluate")
    fleet.lies = {(STEPS, last): float("nan")}
    fleet.log.clear()
    assert loop.final_score()[0] == score
    assert f"doubt {STEPS} {last} 1" in fleet.log and len(fleet.log) == 3


def test_a_resumed_run_of_another_length_has_what_its_next_batches_need(make):
    """The last checkpoint of a run that is over takes its older versions along, too."""
    loop = make(lag=2)
    rows_of(loop)
    resumed = make(lag=2, resumed=(loop._session.checkpoints, STEPS))
    assert sorted(resumed._session.kept) == [STEPS - 2, STEPS - 1, STEPS]

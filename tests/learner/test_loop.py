"""The order of a step and what its seconds are made of, with everybody around it faked."""

import threading
from collections import deque
from concurrent.futures import Future
from copy import copy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import jax
import msgspec
import numpy as np
import pytest

from rlboost_jax import messages as m
from rlboost_jax.data.tasks import Task
from rlboost_jax.learner import wait_lines
from rlboost_jax.learner.checkpoints.extra import window_of
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.fleet.engine_weights import from_devices
from rlboost_jax.learner.fleet.link import ManagerLink
from rlboost_jax.learner.fleet.reserved import ReservedEngines
from rlboost_jax.learner.guards import GuardTripped, NotFinite, RewardsFailed, StepNotWhole
from rlboost_jax.learner.loop import TrainingLoop
from rlboost_jax.learner.processes.leader import NoFollowers
from rlboost_jax.learner.publisher import Publisher
from rlboost_jax.learner.session import Session
from rlboost_jax.learner.state import init_state
from rlboost_jax.learner.step_metrics import row_of
from rlboost_jax.learner.step_observers import sample_table
from rlboost_jax.learner.update.learner import Learner, learner_of
from rlboost_jax.models.params import init_params, params_digest
from rlboost_jax.observe.tracker import Trackers
from rlboost_jax.sequences.identities import Work, sample_number
from tests.patience import PATIENCE_SECONDS

WINDOW = m.WindowState(seconds=0.5, memory={2: 0.25}, instance_cap=3)
COPY, DIGEST, EVALUATION, SAVING, REPORTING = (3.0 * 10.0**n for n in range(6, 11))  # seconds


class Odd(Task):
    """Rewards an odd second token."""

    def reward(self, problem, response_tokens):
        return float(response_tokens[1] % 2)


class World:
    """What happened, in order, and a clock that only the fakes move."""

    def __init__(self):
        self.log, self.now = [], 0.0
        self.digests, self.trained, self.saved, self.waited = {}, [], {}, []


class Link(ManagerLink):
    """Has every response at once, whatever the prompt."""

    def __init__(self, world):
        self.world, self.inbox = world, deque()
        self.delivered = {}  # sample → what was said of it first
        self.truth = {}  # sample → log-probability of each token
        self.lies = {}  # sample → log-probabilities that were made up
        self.dull = {}  # step → prompts to which all responses are alike
        self.prompts = {}  # step → tokens of the prompts asked for
        self.begin = None
        self.status = None  # nobody describes the fleet

    def begin_batch(self, begin):
        self.world.log.append(f"begin {begin.batch}")
        assert begin.params_digest == self.world.digests[begin.version]
        self.begin, self.trained_tokens, self.prompts[begin.batch] = begin, 0, []
        self.respond(begin.prompts, begin.group_size)

    def extend_batch(self, extend):
        self.world.log.append(f"extend {extend.batch}")
        self.respond(extend.prompts, extend.samples or self.begin.group_size, extend.sampling)

    def respond(self, prompts, samples, sampling=None):
        begin = self.begin
        for prompt in prompts:
            if sampling is None:
                self.prompts[begin.batch].append(m.unpack_tokens(prompt.tokens).tolist())
                self.trained_tokens += 3 * samples
            truth = -4.7 if (sampling or begin.sampling).temperature else 0.0
            dull = prompt.prompt in self.dull.get(begin.batch, ())
            for place in range(samples):
                sample = sample_number(
                    prompt.prompt, place, group_size=begin.group_size, purpose=prompt.purpose
                )
                self.delivered[sample] = m.FinishedRollout(
                    work=Work(
                        seed=0,
                        batch=begin.batch,
                        purpose=prompt.purpose,
                        prompt=prompt.prompt,
                        sample=sample,
                    ),
                    tokens=m.pack_tokens([5, 5 + (0 if dull else place), 1]),
                    logprobs=m.pack_logprobs(self.lies.get(sample, [truth] * 3)),
                    versions=((begin.version, 3),),
                    instances=("a",),
                )
                self.inbox.append(self.delivered[sample])
                self.truth[sample] = truth

    def doubt(self, step, doubts):
        """The same responses again, with the truth about them."""
        for doubt in doubts:
            self.world.log.append(f"doubt {step} {doubt.sample} {doubt.position}")
            delivered = self.delivered[doubt.sample]
            self.inbox.append(
                msgspec.structs.replace(
                    delivered, logprobs=m.pack_logprobs([self.truth[doubt.sample]] * 3)
                )
            )

    def receive(self, timeout=None):
        return self.inbox.popleft() if self.inbox else None

    def wake(self):
        """Nobody waits here."""

    def trained(self, trained):
        self.world.log.append(f"trained {trained.batch}")
        self.world.trained.append(trained)
        self.world.now += REPORTING
        names = m.BatchReport.__struct_fields__
        found = {"batch": trained.batch, "window": WINDOW, "tokens_delivered": self.trained_tokens}
        return m.BatchReport(**{**dict.fromkeys(names, 0), **found})


class Reserved(ReservedEngines):
    def __init__(self, world):
        self.world = world

    def load(self, params, version, digest):
        self.world.log.append(f"load {version}")
        assert digest == params_digest(params) == self.world.digests[version]


class Announcer(Publisher):
    unwritten = None  # a version is complete as soon as it is submitted

    def __init__(self, world):
        self.world = world

    def submit(self, version, host_params, digest, *, oldest):
        self.world.log.append(f"publish {version}")
        self.world.digests[version] = digest
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(host_params))


class Cabinet(Checkpoints):
    def __init__(self, world):
        self.world = world

    durable = 41

    def latest(self):
        return 41

    def wait(self, up_to=None):
        self.world.waited.append(up_to)

    def save(self, step, state, extra, versions):
        assert not versions, "without a lag no older one is needed"
        self.world.log.append(f"save {step}")
        self.world.now += SAVING
        self.world.saved[step] = (int(state.step), extra)


@pytest.fixture
def world():
    return World()


class Alone(NoFollowers):
    """Copies and hashes slowly."""

    def __init__(self, world):
        super().__init__()
        self.world = world

    def host_copy(self, params):
        self.world.now += COPY
        return super().host_copy(params)

    def digest(self, *args, **options):
        self.world.now += DIGEST
        return super().digest(*args, **options)


@pytest.fixture
def build(config, learner_step, world):
    """`build(guard_kl=1.0)`: a run of 3 steps that evaluates and saves at every second one."""

    def built(
        task=Odd,
        link=Link,
        evaluation=None,
        algorithm=None,
        accumulate=None,
        learner_type=Learner,
        around=None,
        **settings,
    ):
        """A loop that has not begun.

        Args:
            accumulate: in place of the policy's.
            around: what else the session has.
        """
        run = replace(
            config,
            observe=replace(config.observe, samples_every_steps=2, samples_prompts=1),
            num_steps=3,
            evaluation=replace(config.evaluation, **{"every_steps": 2} | (evaluation or {})),
            algorithm=replace(config.algorithm, **algorithm or {}),
            checkpoint=replace(config.checkpoint, every_steps=2, max_behind=5),
            learner=replace(
                config.learner,
                **{
                    "prompts_per_step": 2,
                    "micro_batch_prompts": 1,
                    "tolerated_gap": 1.0,
                    "tolerated_choice_gap": 1.0,
                }
                | settings,
            ),
        )
        policy, exercises = copy(learner_step()), task(run.task)
        if not run.evaluation.greedy:
            policy.heldout_gaps = policy.gaps  # every distribution is nearly uniform here
        if accumulate is not None:
            policy.accumulate = partial(accumulate, policy.accumulate)
        learner = learner_of(
            run, policy=policy, critic=None, reference=None, stop_ids=exercises.stop_ids
        )
        session = Session(
            run=run,
            exercises=exercises,
            learner=learner_type(**vars(learner)),
            state=init_state(init_params(run.model, 0), policy.optimizer, policy.shardings),
            link=link(world),
            load=from_devices(Reserved(world)),
            publisher=Announcer(world),
            checkpoints=Cabinet(world),
            followers=Alone(world),
            clock=lambda: world.now,
        )
        return TrainingLoop(replace(session, **around or {}))

    return built


@pytest.fixture
def loop(build):
    return build()


def show_samples(loop, finished, shown):
    trackers = Trackers([SimpleNamespace(samples=shown.append)])
    sample_table(loop._session, trackers)(finished)


def test_samples_are_shown_of_steps_that_are_due(build):
    shown = []
    loop = build()
    steps = [loop.step(step) for step in range(3)]
    for finished in steps:
        show_samples(loop, finished, shown)
    assert [{row.step for row in samples} for samples in shown] == [{0}, {2}]
    text = loop._session.exercises.text([5, 8, 1])
    texts = [row.response_text for row in shown[0]]
    assert texts.count(text) == 1 and len(texts) == 8, "the group of one prompt"
    mean = sum(row.reward for row in shown[0]) / len(shown[0])
    assert mean == row_of(steps[0], loop._session)["reward_mean"], "prompts are answered alike"


def test_samples_are_shown_with_the_advantages_that_were_trained_with(build):
    """Half of each group is right. Less the mean of the group that is ±0.5; whitened, ±1."""
    shown = []
    algorithm = {"advantage": "group_mean", "whiten": True}
    loop = build(algorithm=algorithm)
    show_samples(loop, loop.step(0), shown)
    for row in shown[0]:
        assert row.advantage == pytest.approx(1.0 if row.reward else -1.0, abs=1e-3)


def run_all(loop):
    rows = []
    for step in range(3):
        rows.append(row_of(loop.step(step), loop._session))
        loop.save(step + 1)
    return rows


def test_w15_held_out_prompts_are_the_fleets_work_and_a_step_begins_with_its_engine_ready(
    loop, world
):
    rows = run_all(loop)
    assert world.log == [
        *("publish 0", "load 0", "begin 0", "extend 0", "publish 1", "trained 0"),
        *("load 1", "begin 1", "publish 2", "trained 1", "save 2"),
        *("load 2", "begin 2", "extend 2", "publish 3", "trained 2", "save 3"),
    ]
    assert [row["accuracy"] for row in rows] == [1.0, None, 1.0]
    assert [row["pass_at_k"] for row in rows] == [None] * 3


def test_the_last_version_is_measured_when_all_is_over(loop, world):
    run_all(loop)
    world.log.clear()
    score, _ = loop.final_score()
    assert world.log == ["load 3", "begin 3", "trained 3"]
    begin = loop._session.link.begin
    assert begin.sampling.temperature == 0.0
    assert (score.accuracy, score.samples) == (1.0, 1)
    assert score.prompts == len(begin.prompts) == loop._run.evaluation.num_prompts


def test_lies_about_greedy_answers_are_found_beside_a_step_and_in_the_end(build, world):
    """The log-probability of a greedy token is 0, whatever its policy."""
    loop = build(tolerated_gap=3.0)
    beside, last = (sample_number(3, 0, group_size=size, purpose="evaluate") for size in (8, 1))
    loop._session.link.lies = {beside: [0.0, 0.0, -4.7], last: [0.0, -4.7, 0.0]}
    rows = run_all(loop)
    assert [row["accuracy"] for row in rows] == [1.0, None, 1.0]
    doubts = [line for line in world.log if line.startswith("doubt")]
    assert doubts == [f"doubt {step} {beside} 2" for step in (0, 2)]
    world.log.clear()
    assert loop.final_score()[0].accuracy == 1.0
    assert world.log == ["load 3", "begin 3", f"doubt 3 {last} 1", "trained 3"]


def test_more_samples_than_a_group_has_are_generated_in_the_end_too(build, world):
    """Eight go in a group: of 12 the other four of each prompt are asked for under another."""
    loop = build(evaluation={"samples": 12, "temperature": 1.0})
    assert loop._run.algorithm.group_size == 8
    run_all(loop)
    world.log.clear()
    score, _ = loop.final_score()
    assert world.log == ["load 3", "begin 3", "extend 3", "trained 3"]
    assert (score.samples, score.prompts) == (12, loop._run.evaluation.num_prompts)


def test_where_nothing_is_evaluated_the_last_version_is_published_to_no_one(build, world):
    loop = build(evaluation={"every_steps": 0})
    run_all(loop)
    assert loop.final_score() is None
    assert "publish 2" in world.log and "publish 3" not in world.log


def test_the_seconds_of_a_step_follow_on_those_of_the_step_before(loop):
    first, second, third = run_all(loop)
    step = COPY + DIGEST + REPORTING
    assert [row["step_seconds"] for row in (first, second)] == [step, step]
    assert third["step_seconds"] == step + SAVING, "what went on between two steps is in the second"


def test_dynamic_sampling_goes_on_where_the_last_batch_ended(build, world):
    """Two prompts a batch. Of step 0 the first teaches nothing, of step 1 the second and third."""
    loop = build(algorithm={"dynamic_sampling": True})
    loop._session.link.dull = {0: {0}, 1: {1, 2}}
    rows = run_all(loop)
    stream = [prompt.tokens.tolist() for prompt in loop._prompts.slice(0, 9)]
    assert loop._session.link.prompts == {0: stream[:3], 1: stream[3:7], 2: stream[7:9]}
    assert [row["prompts_used"] for row in rows] == [3, 7, 9]
    group = 3 * loop._run.algorithm.group_size  # tokens
    assert [row["tokens_filtered"] for row in rows] == [group, 2 * group, 0]
    assert [row["tokens_delivered"] for row in rows] == [2 * group] * 3
    assert [row["response_tokens"] for row in rows] == [2 * group] * 3
    assert world.saved[2][1]["prompts_used"] == 7


def test_dynamic_sampling_looks_at_groups_that_it_does_not_train_on(build, world):
    """A lie about the group that is passed over is disputed, too."""
    loop = build(algorithm={"dynamic_sampling": True})
    loop._session.link.dull, loop._session.link.lies = {0: {0}}, {2: [-4.7, -0.1, -4.7]}
    run_all(loop)
    assert "doubt 0 2 1" in world.log


def test_publishing_is_the_copy_and_training_is_neither_copy_nor_digest(loop, world):
    rows = run_all(loop)
    assert [row["publish_seconds"] for row in rows] == [COPY] * 3
    assert [row["train_seconds"] for row in rows] == [0.0] * 3
    assert [t.train_seconds for t in world.trained] == [row["train_seconds"] for row in rows]


def test_w14_a_checkpoint_has_the_state_and_the_window_after_the_step_before(loop, world):
    run_all(loop)
    assert {step: updates for step, (updates, _) in world.saved.items()} == {2: 2, 3: 3}
    assert window_of(world.saved[2][1]) == WINDOW


def test_a_row_says_which_checkpoint_is_durable_and_no_save_may_take_too_many_steps(build, world):
    rows = run_all(build())
    assert [row["durable_step"] for row in rows] == [41, 41, 41]
    assert world.waited == [1 - 5, 2 - 5, 3 - 5], "also after steps without a checkpoint"


def test_the_params_digest_of_a_row_names_what_the_next_step_samples_from(loop, world):
    rows = run_all(loop)
    assert [row["params_digest"] for row in rows[:2]] == [world.digests[1], world.digests[2]]
    assert len({row["params_digest"] for row in rows}) == 3


@pytest.mark.parametrize("lie", [[-4.7, -0.1, -4.7], [-4.7, float("nan"), -4.7]])
def test_log_probabilities_that_are_made_up_leave_no_trace(loop, world, lie):
    """Each update is that of a run in which they were true from the start."""
    loop._session.link.lies = {0: [-4.7, -4.7, -0.1], 3: lie}
    lied = run_all(loop)
    doubts = [line for line in world.log if line.startswith("doubt")]
    assert doubts == [f"doubt {step} {what}" for step in range(3) for what in ("0 2", "3 1")]
    world.log.clear()
    loop.state = init_state(
        init_params(loop._run.model, 0),
        loop._session.learner.policy.optimizer,
        loop._session.learner.policy.shardings,
    )
    loop._used = 0
    loop._versions.publish(0, loop.state.params)
    loop._session.link.lies = {}
    honest = run_all(loop)
    for name in ("params_digest", "trajectories_digest", "loss", "max_logprob_gap"):
        assert [row[name] for row in lied] == [row[name] for row in honest]


class Unsure(Odd):
    """Has no number for one of the responses to the second prompt of a step."""

    asked = 0

    def reward(self, problem, response_tokens):
        self.asked += 1
        return float("nan") if self.asked == 11 else super().reward(problem, response_tokens)


class Late(Odd):
    """Judges in a thread of its own, the last response that was asked about first."""

    faults: ClassVar[dict] = {}  # sample's second token → why

    def ask(self, prompt, response_tokens):
        future = Future()
        self.waiting = getattr(self, "waiting", [])
        self.waiting.append((future, prompt, response_tokens))
        if len(self.waiting) == 16:  # all of a step
            answers = threading.Thread(target=self.answer, args=(self.waiting[::-1],))
            self.waiting = []
            answers.start()
        return future

    def answer(self, waiting):
        for future, prompt, tokens in waiting:
            verdict = super().ask(prompt, tokens).result()
            faults = self.faults.get(int(tokens[1]), {})
            future.set_result(replace(verdict, faults=faults))


def test_rewards_that_come_late_leave_no_trace(build):
    at_once = run_all(build())
    late = run_all(build(task=Late))
    for name in ("params_digest", "trajectories_digest", "loss", "reward_mean"):
        assert [row[name] for row in late] == [row[name] for row in at_once]
    assert [row["reward_failures"] for row in late] == [0, 0, 0]


def test_somebody_looks_while_rewards_are_waited_for(build):
    """Who says so when they take long; `test_wait_lines.py` has what is said."""
    names = set()

    class Watched(Late):
        def answer(self, waiting):
            names.update(thread.name for thread in threading.enumerate())
            super().answer(waiting)

    build(task=Watched).step(0)
    assert "wait lines" in names


def test_failed_rewards_are_counted_and_reported(build, monkeypatch):
    monkeypatch.setattr(wait_lines, "PATIENCE_SECONDS", PATIENCE_SECONDS)

    class Failing(Late):
        faults: ClassVar[dict] = {6: {"clock": "returned nan"}}

    notes = []
    loop = build(task=Failing, around={"note": notes.append})
    assert row_of(loop.step(0), loop._session)["reward_failures"] == 2
    first, counted = notes
    assert first.startswith("step 0: reward 'clock' fails: returned nan (sample ")
    assert counted == (
        "step 0: reward 'clock' failed for 2 responses: returned nan (first: prompt 0, sample 1)"
    )


def test_more_than_are_tolerated_end_the_run(build, world):
    class Failing(Late):
        faults: ClassVar[dict] = {token: {"clock": "returned nan"} for token in range(5, 10)}

    loop = build(task=Failing)
    before = params_digest(loop._versions.whole)
    with pytest.raises(RewardsFailed, match=r"failed for 10 of 16 .*checkpoint 41 is sound"):
        loop.step(0)
    assert_nothing_was_applied(loop, world, before)


def assert_nothing_was_applied(loop, world, before):
    assert not world.saved and "publish 1" not in world.log and "trained 0" not in world.log
    assert params_digest(loop._versions.whole) == before


def test_a_reward_that_is_no_number_stops_the_run_with_its_sample(build, world):
    loop = build(task=Unsure)
    before = params_digest(loop._versions.whole)
    with pytest.raises(NotFinite) as caught:
        loop.step(0)
    said = str(caught.value)
    assert "step 0: the gradient is not finite (loss nan); the reward is not finite of" in said
    assert "sample 10 (prompt 1, 3 tokens, reward nan" in said
    assert said.endswith("checkpoint 41 is sound")
    assert_nothing_was_applied(loop, world, before)


@pytest.mark.parametrize(
    ("guard", "reason"),
    [
        ({"guard_gradient_norm": 1e-6}, r"step 0: gradient_norm is .*guard_gradient_norm .*1e-06"),
    ],
)
def test_an_update_beyond_a_guard_is_not_applied(build, world, guard, reason):
    loop = build(**guard)
    before = params_digest(loop._versions.whole)
    with pytest.raises(GuardTripped, match=rf"{reason}; .*checkpoint 41 is sound"):
        loop.step(0)
    assert_nothing_was_applied(loop, world, before)


@pytest.mark.parametrize("guard", [0.4, 0.6])
def test_the_kl_that_is_guarded_is_the_mean_of_all_tokens(build, guard):
    def half_a_nat(accumulate, *args):
        gradients, sums = accumulate(*args)
        return gradients, {**sums, "kl": sums["tokens"] / 2}

    loop = build(guard_kl=guard, accumulate=half_a_nat)
    if guard < 0.5:
        with pytest.raises(GuardTripped, match=r"kl is 0\.5, learner\.guard_kl allows 0\.4"):
            loop.step(0)
    else:
        assert loop.step(0).figures["kl"] == 0.5


def test_guards_that_are_not_reached_change_no_bit(build, world):
    plain = [row["params_digest"] for row in run_all(build())]
    guards = {"guard_gradient_norm": 1e6, "guard_kl": 1e6}
    assert [row["params_digest"] for row in run_all(build(**guards))] == plain


class Broken(Link):
    """Breaks off in the middle of its first step, with micro-batches trained."""

    received = 0

    def receive(self, timeout=None):
        self.received += 1
        if self.received == 12:
            raise ConnectionError("in the middle")
        return super().receive(timeout)


def test_a_step_abandoned_half_way_leaves_no_trace_in_the_next(build):
    whole = row_of((other := build()).step(0), other._session)
    trained = []
    loop = build(
        link=Broken, accumulate=lambda accumulate, *args: trained.append(args) or accumulate(*args)
    )
    loop._session.link.inbox.append(m.WindowClosed(batch=0, seconds=0.0, reason="at once"))
    with pytest.raises(ConnectionError):
        loop.step(0)
    assert len(trained) == 1, "it was half-way"
    loop._session.link.inbox.clear()
    again = row_of(loop.step(0), loop._session)
    for name in ("params_digest", "trajectories_digest", "loss", "response_tokens"):
        assert again[name] == whole[name]


class Short(Learner):
    """Leaves the last trajectory of a micro-batch out."""

    def pack(self, trajectories):
        return super().pack(trajectories[:-1])


def test_gradients_of_other_tokens_than_the_samples_are_not_applied(build):
    loop = build(learner_type=Short)
    with pytest.raises(StepNotWhole, match="of 42 sampled tokens, its samples have 48"):
        loop.step(0)
    assert int(loop.state.step) == 0

"""Sequences of several turns: the same bits wherever, and in however many stays, they are made."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import pytest

from configs import base
from rlboost_jax.engine.engine import Engine
from rlboost_jax.learner.episodes.collector import sequence_of
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.packing import pack
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.learner.tolerated_gaps import EXACT, EXACT_CHOICE
from rlboost_jax.messages import FinishedRollout, GenerateRequest, pack_tokens, unpack_tokens
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.sequences.identities import Version
from rlboost_jax.settings.config_loading import run_config
from tests.engine.conftest import MODEL, Oracle

pytestmark = pytest.mark.optimized(False)  # what is sampled is compared with itself

Build = Callable[..., Engine]
Rollouts = dict[int, tuple[list[int], list[int]]]
STOPS = (5, 17, 29, 3, 8, 11)  # one in six: turns are short
MOST, TURNS = 18, 4


@dataclass
class Episode:
    """What the manager and an environment will know of a sequence."""

    request: GenerateRequest  # to begin with
    tokens: list[int] = field(default_factory=list)  # after the prompt
    sampled: list[bool] = field(default_factory=list)
    bits: list[int] = field(default_factory=list)  # of the log-probabilities of sampled ones

    @property
    def runs(self) -> tuple[int, ...]:
        edges = [i for i in range(1, len(self.sampled)) if self.sampled[i] != self.sampled[i - 1]]
        return tuple(np.diff([0, *edges, len(self.sampled)]).tolist()) if self.tokens else ()

    @property
    def over(self) -> bool:
        return sum(self.sampled) == MOST or (self.turn_over and len(self.runs) // 2 + 1 == TURNS)

    @property
    def turn_over(self) -> bool:
        if not self.tokens or not self.sampled[-1]:
            return False
        return self.tokens[-1] in STOPS or self.runs[-1] == self.request.sampling.turn_tokens

    def take(self, tokens: list[int], bits: list[int]) -> None:
        self.tokens += tokens
        self.sampled += [True] * len(tokens)
        self.bits += bits

    def answer(self) -> None:
        """One to six tokens, which follow from those before; stop ids are among them."""
        count = 1 + sum(self.tokens) % 6
        self.tokens += [(self.tokens[-1] + 3 * i + 9) % 37 for i in range(count - 1)] + [STOPS[0]]
        self.sampled += [False] * count

    def resumed(self) -> GenerateRequest:
        """The request of the next placement."""
        return msgspec.structs.replace(
            self.request, response_tokens=pack_tokens(self.tokens), runs=self.runs
        )


@pytest.fixture
def requests(request_of: Callable[..., GenerateRequest]) -> list[GenerateRequest]:
    """Three to each of four prompts."""
    random = np.random.default_rng(8)
    prompts = [random.integers(0, 37, n).tolist() for n in (1, 3, 4, 8)]
    settings = {"max_tokens": MOST, "stop_ids": STOPS}
    return [
        request_of(3 * group + member, prompt, group=group, **settings)
        for group, prompt in enumerate(prompts)
        for member in range(3)
    ]


def play(
    engines: list[Engine],
    dispatch: Callable[[Engine, Rollouts], int],
    requests: list[GenerateRequest],
    seed: int | None = None,
) -> dict[int, Episode]:
    """All sequences to their ends. Each turn goes to the next engine; with a seed rollouts move
    in mid-turn, too, and engines are lost with a dispatch of tokens that nobody hears of."""
    random = np.random.default_rng(seed)
    episodes = {r.request_id: Episode(r) for r in requests}
    waiting, turn = list(episodes.values()), 0
    while waiting or any(engine.held() for engine in engines):
        turn += 1
        engine = engines[turn % len(engines)]
        count = len(waiting) if seed is None else random.integers(4)
        engine.submit([episode.resumed() for episode in waiting[:count]])
        waiting = waiting[count:]
        held = engine.held()
        yielded: Rollouts = {}
        dispatch(engine, yielded)
        if seed is not None and random.random() < 0.1:
            engine.release(engine.held())
            waiting += [episodes[i] for i in held]
            continue
        for request_id, new in yielded.items():
            episode = episodes[request_id]
            episode.take(*new)
            if request_id not in engine.held() and not episode.over:
                assert episode.turn_over
                episode.answer()
                waiting.append(episode)
        if seed is not None and engine.held() and random.random() < 0.3:
            leaving = random.choice(engine.held(), 1).tolist()
            waiting += [episodes[i] for i in engine.release(leaving)]
    assert all(episode.over for episode in episodes.values())
    return episodes


@pytest.fixture
def alone(
    build_engine: Build,
    dispatch: Callable[[Engine, Rollouts], int],
    requests: list[GenerateRequest],
) -> dict[int, Episode]:
    """Each sequence by itself on one engine, a token a dispatch."""
    engine = build_engine(slots=1, steps_per_dispatch=1)
    episodes = {}
    for request in requests:
        episodes |= play([engine], dispatch, [request])
    turns = [len(episode.runs) // 2 + 1 for episode in episodes.values()]
    assert max(turns) == TURNS and sum(count > 1 for count in turns) > 6
    assert max(len(episode.tokens) for episode in episodes.values()) > MOST
    return episodes


def check(episodes: dict[int, Episode], expected: dict[int, Episode]) -> None:
    for request_id, episode in episodes.items():
        assert episode == expected[request_id]


def test_turns_on_two_engines_are_those_on_one(
    build_engine: Build,
    dispatch: Callable[[Engine, Rollouts], int],
    requests: list[GenerateRequest],
    alone: dict[int, Episode],
) -> None:
    one = build_engine()
    other = build_engine(num_pages=11)  # one longest, for six slots
    check(play([one], dispatch, requests), alone)
    check(play([one, other], dispatch, requests), alone)


@pytest.mark.parametrize("turn_tokens", [1, 5])
def test_a_turn_ends_at_its_limit_wherever_it_is_made(
    build_engine: Build,
    dispatch: Callable[[Engine, Rollouts], int],
    requests: list[GenerateRequest],
    turn_tokens: int,
) -> None:
    """In dispatches of many tokens, which follow each other unseen, as in those of one. Whether a
    turn is as long as it may be is decided here by another rule than in `endings.py`."""
    shorter = [
        msgspec.structs.replace(
            request,
            sampling=msgspec.structs.replace(request.sampling, turn_tokens=turn_tokens),
            work=msgspec.structs.replace(request.work, sequence=request.request_id % 2),
        )
        for request in requests
    ]
    one, quick = build_engine(slots=1, steps_per_dispatch=1), build_engine(slots=24, num_pages=99)
    alone: dict[int, Episode] = {}
    for request in shorter:
        alone |= play([one], dispatch, [request])
    sampled = [count for episode in alone.values() for count in episode.runs[::2]]
    assert max(sampled) == turn_tokens and sampled.count(turn_tokens) > 6
    check(play([quick], dispatch, shorter), alone)
    check(play([build_engine(), build_engine(num_pages=11)], dispatch, shorter, 1), alone)


def test_another_sequence_has_noise_of_its_own(
    build_engine: Build,
    drain: Callable[[Engine], Rollouts],
    request_of: Callable[..., GenerateRequest],
) -> None:
    """The noise is that of the run whose seed is `noise_seed`."""
    engine = build_engine()
    second = request_of(4, [1, 2, 3], sequence=1)
    first = request_of(4, [1, 2, 3])
    named = request_of(4, [1, 2, 3], seed=second.work.noise_seed)
    found = []
    for request in (second, first, named):
        engine.submit([request])
        found.append(drain(engine)[4])
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize("seed", range(3))
def test_moving_in_mid_turn_cannot_show(
    build_engine: Build,
    dispatch: Callable[[Engine, Rollouts], int],
    requests: list[GenerateRequest],
    alone: dict[int, Episode],
    seed: int,
) -> None:
    engines = [
        build_engine(),
        build_engine(num_pages=11),
        build_engine(slots=24, num_pages=40),
    ]
    check(play(engines, dispatch, requests, seed), alone)


def test_every_turn_is_that_of_dense_float64(oracle: Oracle, alone: dict[int, Episode]) -> None:
    """Tokens, log-probabilities, and where a turn ends; noise is named by places after the
    prompt, given tokens included, and what is given counts in no budget."""
    for episode in alone.values():
        expected = Episode(episode.request)
        logprobs: list[float] = []
        while not expected.over:
            if expected.turn_over:
                expected.answer()
            tokens, new = oracle.rollout(expected.resumed())
            expected.take(tokens, [])
            logprobs += new
        assert (expected.tokens, expected.sampled) == (episode.tokens, episode.sampled)
        found = np.array(episode.bits, np.int32).view(np.float32)
        np.testing.assert_allclose(found, logprobs, atol=2e-5)


def test_a_budget_is_of_sampled_tokens(
    build_engine: Build,
    drain: Callable[[Engine], Rollouts],
    request_of: Callable[..., GenerateRequest],
) -> None:
    """20 given tokens leave what two sampled ones leave: 6 of 8, also to a turn that begins with
    a stop id as the newest token."""
    engine = build_engine()
    settings: dict[str, Any] = {"max_tokens": 8, "stop_ids": (5,), "temperature": 0.0}
    given = [7] * 19 + [5]
    engine.submit(
        [
            request_of(0, [1, 2], [3, 5, *given], runs=(2, 20), **settings),
            request_of(1, [1, 2], [3, 4], **settings),
        ]
    )
    rollouts = drain(engine)
    for tokens, _ in rollouts.values():
        assert len(tokens) == 6 or tokens[-1] == 5
    assert len(rollouts[0][0]) > 1


def test_a_learner_finds_what_was_said_of_every_turn(
    alone: dict[int, Episode], params: dict[str, Any]
) -> None:
    """No log-probability or choice is in doubt, from the wire to packed rows.

    That holds for all sampled tokens, whatever was given between them.
    """
    config = run_config(base.get_config())
    sampling = replace(config.sampling, temperature=0.8)
    policy = PolicyPrograms(
        MODEL, config.learner, config.algorithm, sampling, num_updates=1, mesh=make_mesh((1, 1, 1))
    )
    trajectories = []
    for episode in alone.values():
        finished = FinishedRollout(
            work=episode.request.work,
            tokens=pack_tokens(episode.tokens),
            logprobs=np.array(episode.bits, np.int32).tobytes(),
            versions=((Version(1), sum(episode.sampled)),),
            instances=(),
            runs=episode.runs,
        )
        sequence = sequence_of(finished, unpack_tokens(episode.request.prompt_tokens))
        work = episode.request.work
        trajectories.append(
            Trajectory(
                prompt=0,
                sample=work.sample,
                sequence=sequence,
                advantage=0.0,
                batch=None if work.sequence else work.batch,  # noise of a first sequence
            )
        )
    batches = pack(
        trajectories, rows=4, row_tokens=64, loss_aggregation="token_mean", seed=work.seed
    )
    assert sum(batch.noise_known.sum() for batch in batches) > 0
    found = [policy.gaps(params, batch) for batch in batches]
    gaps, choices = (
        np.concatenate([np.ravel(each[name]) for each in found]) for name in ("logprob", "choice")
    )
    mask = np.concatenate([np.ravel(batch.response_mask) for batch in batches])
    assert mask.sum() == sum(sum(episode.sampled) for episode in alone.values())
    assert gaps.max() < EXACT and choices.max() < EXACT_CHOICE

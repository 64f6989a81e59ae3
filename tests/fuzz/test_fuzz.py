"""A few seconds of what `python -m tests.fuzz` does for hours; the soak does a million."""

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import get_args

import msgspec
import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.state.ledger import Ledger
from tests.fuzz import corpus, followers, gateway, in_process, over_sockets
from tests.fuzz.mutators import Mutator
from tests.planted import Plant


@pytest.mark.parametrize("kind", ["server", "trainer"])
def test_the_corpus_is_of_today_and_has_every_message(kind: str) -> None:
    examples = corpus.SERVER if kind == "server" else corpus.TRAINER
    union = m.ServerMessage if kind == "server" else m.TrainerMessage
    assert corpus.frames(kind) == [m.encode(examples[name]) for name in sorted(examples)]
    assert {type(message) for message in examples.values()} == set(get_args(union))


def test_mutants_are_many_and_the_same_for_a_seed() -> None:
    one, other = (Mutator(corpus.frames("server"), Random(3)) for _ in range(2))
    mutants = [one() for _ in range(3_000)]
    assert mutants == [other() for _ in range(3_000)]
    assert len(set(mutants)) > 1_500
    whole = [mutant for mutant in mutants if _decodes(mutant)]
    assert 0.4 < len(whole) / len(mutants) < 0.8, "neither all nonsense nor all valid"
    kinds = {type(m.decode_server(mutant)) for mutant in whole}
    assert kinds == set(get_args(m.ServerMessage))


def _decodes(frame: bytes) -> bool:
    try:
        m.decode_server(frame)
    except msgspec.DecodeError:
        return False
    return True


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x91" * 1_000_000,  # lists in lists
        b"\x92\xa5Hello" + b"\x81\x00" * 100_000,
        b"\xdd\xff\xff\xff\xff",  # a list of 4 billion, and none follows
        b"\x9b\xa5Hello\xdb\xff\xff\xff\xff",
        b"\x92\xa7Goodbye\xa2\xff\xfe",  # text that is no text
        m.encode(corpus.SERVER["renew"]) + b"\x00",
    ],
)
def test_what_cannot_be_decoded_raises_one_exception(frame: bytes) -> None:
    for decode in (m.decode_server, m.decode_trainer, m.decode_to_server, m.decode_to_trainer):
        with pytest.raises(msgspec.DecodeError):
            decode(frame)


def test_a_manager_in_this_process() -> None:
    tally = in_process.fuzz(20_000, seed=1)
    assert tally.frames >= 20_000 and tally.rounds >= 4
    assert min(tally.refused, tally.taken, tally.closed) > 2_000


def test_it_would_find_a_ledger_that_takes_tokens_of_strangers(plant: Plant) -> None:
    """The search itself is worth something: here is what it is looking for."""
    receive = Ledger.receive

    def gullible(self, rows, version, instance, now):
        everyone = {r.placement.request_id: r for r in self.active.rollouts if r.result is None}
        holder = SimpleNamespace(
            name=instance.name, reserved=instance.reserved, hello=instance.hello, held=everyone
        )
        return receive(self, rows, version, holder, now)

    plant(Ledger, "receive", gullible)
    with pytest.raises(AssertionError):
        for seed in (3, 1, 5, 2, 4):  # some find it after 5,000 frames, some not in 60,000
            in_process.fuzz(30_000, seed=seed)


@pytest.mark.system
def test_a_manager_of_its_own(tmp_path: Path) -> None:
    tally = over_sockets.fuzz(tmp_path, 3.0, seed=1)
    assert sum(tally.sent.values()) > 100 and tally.answers > 1


def test_the_socket_of_a_trainers_other_processes() -> None:
    tried = followers.fuzz(0.0, seed=1)
    assert tried["rounds"] >= 1 and min(tried["values"], tried["refused"]) > 100


@pytest.mark.soak
def test_minutes_at_the_socket_of_a_trainers_other_processes() -> None:
    followers.fuzz(180.0, seed=7)


@pytest.mark.soak
def test_a_million_frames() -> None:
    assert in_process.fuzz(1_000_000, seed=7).frames >= 1_000_000


@pytest.mark.soak
def test_minutes_at_the_port(tmp_path: Path) -> None:
    over_sockets.fuzz(tmp_path, 180.0, seed=7)


def test_a_gateway_answers_whatever_comes() -> None:
    answered = gateway.fuzz(600, seed=5)
    assert answered[200] > 30 and answered[400] > 100 and answered[401] > 100

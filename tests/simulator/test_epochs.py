"""Prompts that come again, in a whole simulation: which texts travel, by the law of lengths."""

import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.state.epoch_texts import SHARE, TEXTS, TOKEN_BYTES
from rlboost_jax.simulator.market.simulated_market import static
from rlboost_jax.simulator.response_lengths import prompts_of, response_lengths
from rlboost_jax.simulator.simulated_server import SimulatedServer
from rlboost_jax.simulator.world import World
from tests.simulator.conftest import make_config

DRAFTS = {
    "engine__most_drafts": 7,
    "engine__token_rows": 128,
    "engine__earlier_tokens": 2**21,
    "workload__epoch_prompts": 32,  # two steps
    "policy__siblings_follow": True,
    "num_steps": 4,
}


def simulated(**changes):
    """Simulate two epochs: the steps' rows, and (step, prompt's number, tokens) of every text."""
    config, sent = make_config(**{**DRAFTS, **changes}), []

    class Watched(SimulatedServer):
        def hear(self, message):
            if isinstance(message, m.Generate):
                for text in message.texts:
                    request = message.requests[text.request]
                    number = m.unpack_tokens(request.prompt_tokens)[-1]
                    sent.append((request.work.batch, int(number), len(text.tokens) // 4))
            super().hear(message)

    world = World(config, static(2).changes, seed=0, seconds=1e6, server=Watched)
    return config.workload, world.run(), sent


def test_the_longest_responses_of_the_epoch_before_travel_and_nothing_else():
    work, _, sent = simulated(policy__kept_tokens=2**24)
    longest, most = {}, {}
    for step in (0, 1):
        lengths = response_lengths(work, seed=0, step=step).reshape(-1, work.group_size)
        for number, group in zip(prompts_of(work, seed=0, step=step), lengths, strict=True):
            longest[number] = sorted(group)[-TEXTS:]
            most[number] = SHARE * TOKEN_BYTES / 4 * sum(group)
    assert {step for step, _, _ in sent} == {2, 3}
    assert len({number for _, number, _ in sent}) > work.epoch_prompts / 3  # samplers have theirs
    for _, number, tokens in sent:
        assert tokens in longest[number]
    for number in longest:
        assert sum(tokens for _, other, tokens in sent if other == number) <= most[number]


@pytest.mark.parametrize("kept", [0, 2**24])
def test_they_make_the_second_epoch_faster(kept):
    """The first epoch is the same with and without."""
    _, rows, sent = simulated(policy__kept_tokens=kept)
    _, plain, _ = simulated(engine__earlier_tokens=0)
    seconds = [[row["step_seconds"] for row in each] for each in (rows, plain)]
    assert seconds[0][:2] == seconds[1][:2]
    assert bool(sent) == bool(kept)
    assert sum(seconds[0][2:]) < 0.9 * sum(seconds[1][2:]), "its own texts an engine has anyway"

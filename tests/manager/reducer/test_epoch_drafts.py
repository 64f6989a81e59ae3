"""Responses of an earlier epoch go with the first request of their prompt to each server."""

from typing import Any

import msgspec
import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.state.epoch_texts import SHARE, TOKEN_BYTES
from tests.manager.desk import TRAINER, Desk, trained
from tests.manager.fakes import begin_batch, length, ready, response, settings

A, B = 10, 11
PROMPTS, GROUP = 3, 4
ROOM = {"text_tokens": 1000}


class Epochs(Desk):
    """A run that has the same prompts in every batch."""

    def __init__(self, kept_tokens: int = 1000, servers: tuple[int, ...] = (A,), **hello: Any):
        super().__init__(settings(deterministic=False, kept_tokens=kept_tokens))
        self.open_run(reserved=False)
        self.publish(0)
        for stream in servers:
            self.join(stream, version=0, **{"slots": PROMPTS * GROUP, **ROOM, **hello})
        self.next(0)

    def next(self, step: int) -> None:
        begin = begin_batch(step, step, "d", prompts=PROMPTS, group_size=GROUP)
        prompts = begin_batch(0, 0, "d", prompts=PROMPTS).prompts
        self.trainer(msgspec.structs.replace(begin, prompts=prompts))

    def work(self, step: int) -> None:
        """Sample and train a batch, on the servers that it was given to."""
        given = {s: self.requests(s) for s in self.manager.owners.roster.streams}
        for stream, requests in given.items():
            if requests:
                self.tokens(stream, requests)
        self.trainer(trained(step))

    def follow(self, step: int) -> None:
        """Publish the next version, and begin its batch where the servers hold it."""
        self.publish(step)
        for stream in self.manager.owners.roster.streams:
            self.server(stream, ready(step))
        self.next(step)

    def texts(self, stream: int) -> list[tuple[int, bytes]]:
        """Prompts and responses that come with the last work."""
        return [
            (work.requests[text.request].work.prompt, text.tokens)
            for work in self.sent(m.Generate, stream)
            for text in work.texts
        ]


def longest(step: int) -> set[tuple[int, bytes]]:
    """The two longest responses to each prompt, by the sampler."""
    found = set()
    for prompt in range(PROMPTS):
        samples = sorted(
            range(GROUP * prompt, GROUP * (prompt + 1)), key=lambda s: -length("d", step, s)
        )
        found |= {(prompt, m.pack_tokens(response("d", step, s))) for s in samples[:2]}
    return found


def test_the_two_longest_go_to_another_server_once() -> None:
    desk = Epochs()
    assert not desk.texts(A)
    desk.work(0)
    desk.join(B, **ROOM, slots=GROUP)
    desk.follow(1)
    assert desk.texts(A) == [], "it has sampled them itself"
    sent = desk.texts(B)
    assert sent and set(sent) <= longest(0) and len(set(sent)) == len(sent)
    prompts = {r.work.prompt for r in desk.requests(B)}
    assert {prompt for prompt, _ in sent} == prompts
    assert len(sent) == 2 * len(prompts)
    own = desk.requests(B)
    desk.server(B, m.Goodbye(reason="done"))
    desk.join(12, version=1, **ROOM, slots=GROUP)
    again = desk.texts(12)
    budgets = {p: SHARE * TOKEN_BYTES * of_group(0, p) for p in range(PROMPTS)}
    for prompt in range(PROMPTS):
        spent = sum(len(text) for p, text in [*sent, *again] if p == prompt)
        assert spent <= budgets[prompt]
    assert own and not desk.closed()


def of_group(step: int, prompt: int) -> int:
    """Tokens of all responses to a prompt."""
    return sum(length("d", step, GROUP * prompt + n) for n in range(GROUP))


@pytest.mark.parametrize(
    ("kept", "hello"), [(1000, {"text_tokens": 0}), (0, ROOM)], ids=["old server", "off"]
)
def test_who_wants_none_gets_none(kept: int, hello: dict[str, int]) -> None:
    desk = Epochs(kept)
    desk.work(0)
    desk.join(B, slots=GROUP, **hello)
    desk.follow(1)
    assert desk.requests(B) and not desk.texts(B)
    for work in desk.sent(m.Generate, B):
        assert work == m.Generate(params_digest="d", requests=work.requests)


def test_another_manager_has_none_and_goes_on() -> None:
    desk = Epochs()
    desk.work(0)
    desk.crash(1.0)
    desk.open_run(reserved=False)
    desk.publish(1)
    desk.join(B, version=1, slots=GROUP, **ROOM)
    desk.next(1)
    assert desk.requests(B) and not desk.texts(B)


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    """Room for one prompt of three: only the last of a batch has texts."""
    desk = Epochs()
    texts = {p: [t for q, t in longest(0) if q == p] for p in range(PROMPTS)}
    room = 3 + sum(len(text) // 4 for text in texts[PROMPTS - 1])
    desk = Epochs(room, slots=PROMPTS * GROUP)
    desk.work(0)
    desk.join(B, **ROOM, slots=PROMPTS * GROUP)
    desk.server(A, m.Goodbye(reason="done"))
    desk.follow(1)
    assert {prompt for prompt, _ in desk.texts(B)} <= {PROMPTS - 1}
    memory = desk.manager.components.placements._drafts
    assert memory is not None and memory._texts.num_tokens <= room


def test_the_record_of_a_batch_knows_nothing_of_texts() -> None:
    """A trainer that begins the batch again finds its tokens, and the journal has no text."""
    desk = Epochs()
    desk.work(0)
    desk.join(B, **ROOM, slots=GROUP)
    desk.follow(1)
    assert desk.texts(B)
    plain = Epochs(0)
    plain.work(0)
    plain.join(B, **ROOM, slots=GROUP)
    plain.follow(1)
    assert desk.entries == plain.entries
    desk.next(1)
    assert desk.records("resumed") and not desk.closed(), TRAINER


@pytest.mark.parametrize(
    ("texts", "field"),
    [
        ([m.PromptText(request=1, tokens=b"")], "texts"),
        ([m.PromptText(request=0, tokens=b"abc")], "texts"),
        ([m.PromptText(request=0, tokens=bytes(4 * 2**18 + 4))], r"\[4\]"),
        ([m.PromptText(request=0, tokens=b"")] * (m.MAX_TEXTS + 1), r"\[4\]"),
    ],
    ids=["no such request", "no token", "too long", "too many"],
)
def test_what_no_manager_sends_is_refused(texts: list[m.PromptText], field: str) -> None:
    (request, *_) = Epochs().requests(A)
    blank = msgspec.to_builtins(
        m.Generate(params_digest="d", requests=(request,)), builtin_types=(bytes,)
    )
    said = [*blank[:-1], [[text.request, text.tokens] for text in texts]]
    with pytest.raises(msgspec.ValidationError, match=field):
        m.decode_to_server(msgspec.msgpack.encode(said))
    blank[-1] = [[0, bytes(8)]]
    message = m.decode_to_server(msgspec.msgpack.encode(blank))
    assert isinstance(message, m.Generate)
    assert message.offered == ((request.prompt_tokens, bytes(8)),)

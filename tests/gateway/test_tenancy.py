"""What an engine says that it owes, against running its programs one by one."""

import json
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.engine.costs import Costs
from rlboost_jax.gateway import tenancy
from rlboost_jax.gateway.tenancy import Owed, Tenancy, dues
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.rollout.sharing.tenant_protocol import Promise
from tests.patience import PATIENCE_SECONDS

PROMISE = Promise(first_token_seconds=0.5, token_seconds=0.05)


@given(st.lists(st.integers(1, 40), max_size=6), st.integers(0, 5), st.integers(8, 32))
def test_needs_are_the_programs_until_then(prompts: list[int], decoding: int, rows: int) -> None:
    """Known tokens are run in order, beside a token of each that decodes."""
    mixed, step = 0.02, 0.01
    costs = Costs().mixed_took(mixed).steps_took(1, 1, step)
    backlog = {n: 0 for n in range(decoding)} | {100 + n: p - 1 for n, p in enumerate(prompts)}
    owed = {n: Owed(due=7.0 + n, first=n >= 100) for n in backlog}
    found = dict(zip(backlog, dues(backlog, owed, costs, rows, 5.0), strict=True))
    prefills = any(left > 0 for left in backlog.values())
    samples = sum(left == 0 for left in backlog.values())
    left = {n: tokens + 1 for n, tokens in backlog.items() if tokens}
    programs, ends = 0, {n: 1 for n, tokens in backlog.items() if tokens == 0}
    while left:
        programs, room = programs + 1, max(1, rows - samples)
        for n in list(left):
            took = min(room, left[n])
            left[n], room = left[n] - took, room - took
            if not left[n]:
                del left[n]
                ends[n] = programs
    each = (costs.mixed if prefills else costs.step(1)) if backlog else 0.0
    for n, (due, needs, first) in found.items():
        assert (due, first) == (owed[n].due - 5.0, n >= 100)
        assert needs == pytest.approx(ends[n] * each)


class Server:
    """Answers a promise, keeps the lines."""

    def __init__(self, path: Path, answer: bytes) -> None:
        self.lines: list[dict[str, object]] = []
        self.heard = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._answer = answer
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        connection, _ = self._listener.accept()
        with connection, connection.makefile("rb") as lines:
            for number, line in enumerate(lines):
                if number == 0:
                    connection.sendall(self._answer)
                with self.heard:
                    self.lines.append(json.loads(line))
                    self.heard.notify()

    def queue(self) -> list[list[object]]:
        with self.heard:
            assert self.heard.wait_for(
                lambda: self.lines[-1:] and self.lines[-1]["type"] == "queue", PATIENCE_SECONDS
            )
            return self.lines.pop()["dues"]  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenancy, "_ANSWER_SECONDS", PATIENCE_SECONDS)


STATE = (
    b'{"type":"state","slots":1,"pool_bytes":1,"most_slots":1,"most_pool_bytes":1,"frozen":false}\n'
)


def test_first_tokens_are_due_from_arrival_and_others_from_the_last(tmp_path: Path) -> None:
    now = [10.0]
    path = tmp_path / "s"
    server = Server(path, STATE)
    with Tenancy(path, PROMISE, token_rows=16, clock=lambda: now[0]) as tenancy:
        tenancy.arrived(1)
        now[0] = 10.1
        tenancy.tell({1: 4})
        assert server.queue() == [[pytest.approx(0.4), 0.0, True]]
        now[0] = 10.2
        tenancy.ran([1], prefilled=True, steps=1, seconds=0.02)
        tenancy.tell({1: 0})
        assert server.queue() == [[pytest.approx(0.05), 0.0, False]], "no decode step is known yet"
        tenancy.ran([1], prefilled=False, steps=1, seconds=0.01)
        tenancy.over(1)
        tenancy.tell({})
        assert server.queue() == []


def test_without_a_server_there_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="start the rollout server with --budget_socket"):
        Tenancy(tmp_path / "none", PROMISE, token_rows=16)
    path = tmp_path / "s"
    Server(path, b'{"type":"refused","reason":"another user\'s process"}\n')
    with pytest.raises(ConfigError, match="another user's process"):
        Tenancy(path, PROMISE, token_rows=16)

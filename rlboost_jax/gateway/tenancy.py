"""Reports of an engine that shares its device with a rollout server, to that server.

The other side of `rlboost rollout --budget_socket`: a promise of latencies, and after everything
that changes it the queue: when the next token of each request is due, and how long the device has
to be ours for that. What is said is a hint: a server that does not hear it, or none at all, makes
us slower and nothing else. Called by one thread.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlboost_jax.engine.costs import Costs
from rlboost_jax.platform.closing import ClosingThread
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.rollout.sharing.tenant_protocol import (
    MAX_DUES,
    BudgetOrder,
    OrderRefused,
    Promise,
    TenantQueue,
    decode_answer,
    encode_line,
)

_ANSWER_SECONDS: Final = 10.0
_ALL_ROWS: Final = 1  # of decode steps: whatever they are, one cost


@dataclass(frozen=True, kw_only=True)
class Owed:
    """Next token of one request."""

    due: float  # seconds, on our clock
    first: bool


def dues(
    backlog: Mapping[int, int], owed: Mapping[int, Owed], costs: Costs, token_rows: int, now: float
) -> tuple[tuple[float, float, bool], ...]:
    """Entries of `TenantQueue`: seconds until due, seconds needed before, whether it is a first
    token.

    A program with prefill has `token_rows` rows; each request that samples takes one of them. As
    long as there is prefill, every program has some.

    Args:
        backlog: known tokens that each request has to run, in the order of turns.
        costs: of our programs.
    """
    samples = sum(left == 0 for left in backlog.values())
    prefills = samples < len(backlog)
    each = costs.mixed if prefills else costs.step(_ALL_ROWS)
    rows = max(1, token_rows - samples)
    found, tokens = [], 0
    for request, left in backlog.items():
        tokens += left + (left > 0)  # its newest token is run with the others
        programs = -(-tokens // rows) if left else 1
        mine = owed[request]
        found.append((mine.due - now, programs * each, mine.first))
    return tuple(found[:MAX_DUES])


class Tenancy(ClosingThread):
    """Connection to the rollout server. Use as a context manager, or `close` it."""

    def __init__(
        self,
        path: Path,
        promise: Promise,
        *,
        budget: BudgetOrder | None = None,
        token_rows: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect, send the promise, and order the budget.

        Args:
            budget: what the server is to be left; None: as much as it has.

        Raises:
            ConfigError: no server listens there, or not to us.
        """
        self._promise, self._rows, self._clock = promise, token_rows, clock
        self._owed: dict[int, Owed] = {}
        self._costs = Costs()
        super().__init__("tenancy")
        self._unsaid: bytes | None = None  # the newest replaces earlier ones
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_ANSWER_SECONDS)
        try:
            self._socket.connect(str(path))
            with self._socket.makefile("rb") as answers:
                for order in (promise, budget):
                    if order is not None:
                        self._socket.sendall(encode_line(order) + b"\n")
                        answer = decode_answer(answers.readline())
                        if isinstance(answer, OrderRefused):
                            raise ConfigError(f"{path}: {answer.reason}")
        except (OSError, ValueError) as error:
            self._socket.close()
            raise ConfigError(
                f"{path}: {error}; start the rollout server with --budget_socket={path}"
            ) from None
        self._thread.start()

    def arrived(self, request_id: int) -> None:
        """Record a request that has arrived."""
        due = self._clock() + self._promise.first_token_seconds
        self._owed[request_id] = Owed(due=due, first=True)

    def ran(self, yielded: Iterable[int], *, prefilled: bool, steps: int, seconds: float) -> None:
        """Record a finished program, which yielded tokens to these requests.

        Args:
            prefilled: it ran known tokens too.
            steps: decode steps that it did.
        """
        now = self._clock()
        if prefilled:
            self._costs = self._costs.mixed_took(seconds)
        else:
            self._costs = self._costs.steps_took(_ALL_ROWS, max(1, steps), seconds)
        due = now + self._promise.token_seconds
        for request_id in yielded:
            self._owed[request_id] = Owed(due=due, first=False)

    def over(self, request_id: int) -> None:
        self._owed.pop(request_id, None)

    def tell(self, backlog: Mapping[int, int]) -> None:
        """Send the queue of work."""
        found = dues(backlog, self._owed, self._costs, self._rows, self._clock())
        with self._changed:
            self._unsaid = encode_line(TenantQueue(dues=found)) + b"\n"
            self._changed.notify()

    def _run(self) -> None:
        """Send in a thread: a server that does not read blocks nothing but this thread."""
        with self._socket, contextlib.suppress(OSError):
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or self._unsaid is not None)
                    line, self._unsaid = self._unsaid, None
                    if self._closed:
                        return
                if line is not None:
                    self._socket.sendall(line)

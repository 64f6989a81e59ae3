"""Somebody else who uses the device of a server: how much is left to it changes all the time."""

import random
import socket
import threading
import time

from rlboost_jax.rollout.sharing.tenant_protocol import (
    BudgetOrder,
    State,
    decode_answer,
    encode_line,
)

PAUSE_SECONDS = 0.1  # between two orders: in a step sizes only go down


class Tenant:
    """Orders another budget and another, for as long as it can."""

    def __init__(self, path, seed):
        self.states: list[State] = []
        self.problem = None
        self._path, self._random = path, random.Random(seed)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(str(self._path))
                with line.makefile("rb") as answers:
                    whole = self._ask(line, answers, BudgetOrder())
                    while True:
                        slots, pool = whole.most_slots, whole.most_pool_bytes
                        slots = self._random.choice((slots, slots, slots // 2, 1, 0))
                        pool = self._random.choice((pool, pool, pool // 2, pool // 3))
                        order = BudgetOrder(slots=slots, pool_bytes=pool)
                        self.states.append(self._ask(line, answers, order))
                        time.sleep(PAUSE_SECONDS)
        except (OSError, EOFError):
            pass  # the server has left: the run is over
        except Exception as error:
            self.problem = error

    def _ask(self, line, answers, order):
        line.sendall(encode_line(order) + b"\n")
        if not (answer := answers.readline()):
            raise EOFError
        state = decode_answer(answer)
        assert isinstance(state, State), state
        return state

    def end(self):
        self._thread.join()
        assert self.problem is None

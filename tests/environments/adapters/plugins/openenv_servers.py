"""Servers of OpenEnv's own kind, for its client: `python openenv_servers.py` says its port.

The package has no environments in its wheel; these are five of different manners.
"""

import random
import socket
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastmcp import FastMCP
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation


class Said(Action):
    message: str


class Heard(Observation):
    text: str


class Moved(Action):
    dx: int
    dy: int


class Place(Observation):
    x: int
    y: int


class Seeded(Environment[Any, Any, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.rng, self.turns = random.Random(0), 0
        self.begin()

    def begin(self) -> Any: ...

    def reset(self, seed: int | None = None, episode_id: str | None = None, **row: Any) -> Any:
        self.rng, self.turns = random.Random(seed), 0
        return self.begin()

    @property
    def state(self) -> State:
        return State(step_count=self.turns)


class Echo(Seeded):
    """Says again what was said, three times."""

    def begin(self) -> Heard:
        return Heard(text=f"Say something about {self.rng.randint(1, 999)}.")

    def step(self, action: Said, timeout_s: float | None = None, **_: Any) -> Heard:
        self.turns += 1
        return Heard(text=action.message, reward=0.25, done=self.turns == 3)


class Guess(Seeded):
    """A number from 1 to 50."""

    def begin(self) -> Heard:
        self.number = self.rng.randint(1, 50)
        return Heard(text="A number from 1 to 50?")

    def step(self, action: Said, timeout_s: float | None = None, **_: Any) -> Heard:
        said = int(action.message) if action.message.isdigit() else 0
        if said == self.number:
            return Heard(text="yes", reward=1.0, done=True)
        return Heard(text="higher" if said < self.number else "lower", reward=0.0)


class Walk(Seeded):
    """To a place on a grid, in actions of two fields."""

    def begin(self) -> Place:
        self.x, self.y = self.rng.randint(1, 4), self.rng.randint(1, 4)
        return Place(x=self.x, y=self.y)

    def step(self, action: Moved, timeout_s: float | None = None, **_: Any) -> Place:
        self.x, self.y = self.x + action.dx, self.y + action.dy
        there = (self.x, self.y) == (0, 0)
        return Place(x=self.x, y=self.y, reward=float(there), done=there)


class Dice(Seeded):
    """Each step draws."""

    def begin(self) -> Heard:
        self.total = 0
        return Heard(text="Roll, or stop.")

    def step(self, action: Said, timeout_s: float | None = None, **_: Any) -> Heard:
        if action.message == "stop":
            return Heard(text="over", reward=self.total / 20, done=True)
        self.total += self.rng.randint(1, 6)
        return Heard(text=f"{self.total} so far")


class Counter(MCPEnvironment):
    """Tools with a state of their own; an episode ends with the call that makes it 5."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("counter")
        self.total = 0

        @server.tool
        def add(amount: int) -> str:
            """Add to the total."""
            self.total += amount
            return f"total {self.total}"

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Any:
        self.total = 0
        return Heard(text="Count to 5.")

    def step(self, action: Any, timeout_s: float | None = None, **more: Any) -> Any:
        return self._judged(super().step(action, timeout_s=timeout_s, **more))

    async def step_async(self, action: Any, timeout_s: float | None = None, **more: Any) -> Any:
        return self._judged(await super().step_async(action, timeout_s=timeout_s, **more))

    def _judged(self, observation: Any) -> Any:
        if isinstance(observation, CallToolObservation):
            observation.done = self.total == 5
            observation.reward = float(observation.done)
        return observation

    def _step_impl(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        raise ValueError("nothing but tools is offered")

    @property
    def state(self) -> State:
        return State()


SERVED: dict[str, tuple[Any, Any, Any]] = {
    "echo": (Echo, Said, Heard),
    "guess": (Guess, Said, Heard),
    "walk": (Walk, Moved, Place),
    "dice": (Dice, Said, Heard),
    "counter": (Counter, CallToolAction, CallToolObservation),
}


def main() -> None:
    app = FastAPI()
    for name, (kind, action, observation) in SERVED.items():
        app.mount(f"/{name}", create_fastapi_app(kind, action, observation, max_concurrent_envs=16))
    end = socket.socket()
    end.bind(("127.0.0.1", 0))
    print(end.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="warning")
    uvicorn.Server(config).run(sockets=[end])


if __name__ == "__main__":
    sys.exit(main())

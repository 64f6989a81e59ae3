"""A manager driven by hand, one event at a time, in virtual time."""

from typing import Any, TypeVar

from rlboost_jax import messages as m
from rlboost_jax.manager.events import (
    Action,
    Append,
    Close,
    Event,
    FromServer,
    FromTrainer,
    Record,
    Send,
    Tick,
)
from rlboost_jax.manager.journal_entries import Entry
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.settings import Settings
from rlboost_jax.providers.base import Exited, Granted, Started
from tests.manager.fakes import (
    RUN,
    batch,
    begin_batch,
    hello,
    lead,
    length,
    manifest,
    nonce_of,
    ready,
    settings,
    token,
)

T = TypeVar("T")
TRAINER, RESERVED = 1, 2


class Desk:
    """Keeps the actions of the last event in `actions`, and the time in `now`."""

    def __init__(self, chosen: Settings | None = None) -> None:
        self.now = 0.0
        self.settings = chosen or settings()
        self.manager = Manager(self.settings)
        self._lives = 0
        self.actions: list[Action] = []
        self.entries: list[Entry] = []  # of the journal
        self._sequence: dict[int, int] = {}

    def __call__(self, event: Event, at: float | None = None) -> list[Action]:
        self.now = self.now if at is None else at
        self.actions = self.manager.handle(event, self.now)
        for action in self.actions:
            if isinstance(action, Append):
                assert action is self.actions[0], "kept before anything is said"
                self.entries += action.entries
        return self.actions

    def crash(self, at: float) -> None:
        """The manager is killed; another goes on from what it had written down."""
        self.now = at
        self._lives += 1
        self.manager = Manager(self.settings, at, life=str(self._lives))
        self.actions = self.manager.recover(self.entries, at)
        self._sequence.clear()

    def grant(self, name: str) -> list[Action]:
        """The provider has a server for it that begins."""
        self(Granted(name, nonce_of(name)))
        return self.actions + self(Started(name, nonce_of(name)))

    def exit(self, name: str, reason: str, code: int | None = None) -> list[Action]:
        """The provider's last word on it."""
        return self(Exited(name, nonce_of(name), reason, code))

    def tick(self, at: float) -> list[Action]:
        return self(Tick(), at)

    def server(self, stream: int, message: m.ServerMessage) -> list[Action]:
        return self(FromServer(stream, message))

    def trainer(self, message: m.TrainerMessage, stream: int = TRAINER) -> list[Action]:
        return self(FromTrainer(stream, message))

    # Whole beginnings

    def open_run(self, *, reserved: bool = True, window: m.WindowState | None = None) -> None:
        self.trainer(m.TrainerHello(run_id=RUN, window=window))
        if reserved:
            self.server(RESERVED, hello(instance="trainer", reserved=True))

    def join_granted(self, stream: int, name: str, version: int | None = 0) -> None:
        """One of the provider's."""
        self.join(stream, version, instance=name, nonce=nonce_of(name))

    def join(self, stream: int, version: int | None = None, **changes: Any) -> None:
        """A preemptible server; ready where `version` is given."""
        self.server(stream, hello(**{"instance": f"server-{stream}", **changes}))
        if version is not None:
            self.server(stream, ready(version))

    def begin(self, step: int, digest: str = "d", **sizes: int) -> list[Action]:
        return self.trainer(begin_batch(step, step, digest, **sizes))

    def publish(self, version: int, digest: str = "d") -> list[Action]:
        return self.trainer(m.Publish(manifest=manifest(version, digest)))

    # What servers do

    def tokens(
        self, stream: int, requests: list[m.GenerateRequest], count: int = 99, **values: Any
    ) -> list[Action]:
        """The next `count` tokens of each request, as the sampler has them."""
        rows = []
        for r in requests:
            had = len(r.response_tokens) // 4
            whole = length("d", r.work.batch, r.work.sample)
            rows.append(
                (
                    r.request_id,
                    [
                        token("d", r.work.batch, r.work.sample, i)
                        for i in range(had, min(whole, had + count))
                    ],
                )
            )
        if self.settings.routing and requests:
            values["leads"] = [lead(r) for r in requests]
        sequence = self._sequence.get(stream, 0)
        self._sequence[stream] = sequence + 1
        version = requests[0].version if requests else 0
        return self.server(stream, batch(sequence, version, rows, **values))

    # What the last event led to

    def sent(self, kind: type[T], stream: int | None = None) -> list[T]:
        return [
            a.message
            for a in self.actions
            if isinstance(a, Send) and isinstance(a.message, kind) and stream in (None, a.stream)
        ]

    def requests(self, stream: int | None = None) -> list[m.GenerateRequest]:
        return [r for g in self.sent(m.Generate, stream) for r in g.requests]

    def closed(self) -> dict[int, str]:
        return {a.stream: a.reason for a in self.actions if isinstance(a, Close)}

    def records(self, kind: str) -> list[Record]:
        return [a for a in self.actions if isinstance(a, Record) and a.kind == kind]


def seeded(**changes: object) -> Desk:
    """Batch 0 begun; only the reserved engine has its version, with all it takes."""
    desk = Desk(settings(**changes))
    desk.open_run()
    desk.begin(0)
    desk.server(RESERVED, ready(0))
    return desk


def at_work(
    server: int, *, since: float = 0.0, **changes: Any
) -> tuple[Desk, list[m.GenerateRequest]]:
    """One reserved engine not in use, one preemptible server with all four rollouts of step 0."""
    desk = Desk(settings(manager__seeding=False, **changes))
    desk.now = since
    desk.open_run()
    desk.publish(0)
    desk.join(server, version=0)
    desk.begin(0, prompts=2)
    requests = desk.requests(server)
    assert len(requests) == 4
    desk.server(RESERVED, ready(0))
    return desk, requests


def trained(step: int) -> m.BatchTrained:
    return m.BatchTrained(batch=step, train_wait_seconds=0.0, train_seconds=1.0)

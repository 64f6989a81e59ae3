"""Random schedules of faults in virtual time, checked after every event.

Each schedule is a seed. Whatever happens, the trainer gets every (step, sample) once and
bit for bit as the sampler says, and all steps end once the faults stop.
"""

import itertools

import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import FromServer, MachineAdded, MachineRemoved
from tests.manager.fakes import settings
from tests.manager.invariants import check
from tests.manager.trainer import Trainer
from tests.manager.world import Server, World

FAULTS_END = 4.0  # seconds
SCHEDULES = 2000
SOAKED = 40_000
PARTS = 20


class Schedule:
    """Faults drawn from a world's own random source."""

    def __init__(self, seed: int) -> None:
        seeding = seed % 10 > 0  # some without any reserved engine
        self.world = world = World(settings(deterministic=seeding), seed, check)
        self.random = world.random
        self.seen: set[str] = set()
        self._kept: dict[int, m.TokenBatch] = {}  # per stream, held back to be sent late
        Trainer(world, num_steps=3, seeding=seeding)
        world.transmit = self._transmit
        world.trainer.start()
        for number in range(self.random.randint(0, 3)):
            world.deliver(MachineAdded(f"machine-{number}"))
        if self.random.random() < 0.5 or not seeding:
            Server(world).connect()
        world.later(self.random.expovariate(3.0), self._fault)

    def run(self) -> None:
        self.world.run(lambda: self.world.exit is not None, limit=60.0)

    def _fault(self) -> None:
        if self.world.now > FAULTS_END:
            if not self.world.trainer.seeding:
                Server(self.world).connect()
            return
        kinds = (self._kill, self._freeze, self._join, self._trainer, self._market, self._lend)
        chosen = self.random.choices(kinds, weights=(3, 2, 4, 1, 3, 4))[0]
        chosen()
        self.world.later(self.random.expovariate(3.0), self._fault)

    def _living(self) -> list[Server]:
        return [s for s in self.world.servers if s.alive and not s.reserved and s.stream]

    def _kill(self) -> None:
        if self._living():
            self.seen.add("kill")
            server = self.random.choice(self._living())
            self.random.choice((server.kill, server.notice))()

    def _freeze(self) -> None:
        """For less or more than a lease."""
        awake = [s for s in self._living() if not s.frozen]
        if awake:
            self.seen.add("freeze")
            server = self.random.choice(awake)
            server.freeze()
            self.world.later(self.random.uniform(0.2, 5.0), server.thaw)

    def _join(self) -> None:
        if len(self._living()) < 4:
            Server(self.world).connect()

    def _trainer(self) -> None:
        trainer = self.world.trainer
        if trainer.alive and not trainer.done:
            self.seen.add("trainer")
            trainer.crash(same_bits=self.random.random() < 0.5)
            self.world.later(self.random.uniform(0.1, 2.0), trainer.start)

    def _market(self) -> None:
        self.seen.add("market")
        notice, draw = self.random.random() < 0.5, self.random.random()
        self.world.deliver(MachineRemoved("", notice, draw))

    def _lend(self) -> None:
        self.world.deliver(MachineAdded(""))

    def _transmit(self, server: Server, message: m.TokenBatch) -> None:
        """Now and then a frame comes twice, out of order, or broken."""
        chance = self.random.random() if self.world.now < FAULTS_END else 1.0
        stream = server.stream
        if chance < 0.01:
            self.seen.add("malformed")
            broken = m.TokenBatch(
                **{
                    **{name: getattr(message, name) for name in message.__struct_fields__},
                    "tokens": message.tokens + b"\0",
                }
            )
            self.world.up(stream, FromServer(stream, broken))
        elif chance < 0.02 and stream not in self._kept:
            self.seen.add("late")
            self._kept[stream] = message
            self.world.later(0.3, lambda: self._catch_up(stream))
            return
        server.say(message)
        if chance < 0.08:
            self.seen.add("twice")
            server.say(message)
        self._catch_up(stream)

    def _catch_up(self, stream: int) -> None:
        if stream in self._kept:
            self.world.up(stream, FromServer(stream, self._kept.pop(stream)))


@pytest.mark.parametrize("part", range(PARTS))
def test_every_sample_once_and_right(part: int) -> None:
    run_all(range(part, SCHEDULES, PARTS))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
def test_every_sample_once_and_right_for_long(part: int) -> None:
    run_all(range(SCHEDULES + part, SCHEDULES + SOAKED, PARTS))


def run_all(seeds: range) -> None:
    for seed in seeds:
        schedule = Schedule(seed)
        try:
            schedule.run()
        except Exception as error:
            raise AssertionError(f"schedule {seed}: {error}") from error
        world = schedule.world
        assert world.exit is not None and world.exit.code == 0
        assert {r.step for r in world.trainer.reports} == {0, 1, 2}


def test_schedules_hold_every_fault() -> None:
    """The schedules above would prove little if they were calm."""
    seen = [Schedule(seed) for seed in range(60)]
    for schedule in seen:
        schedule.run()
    kinds = set(itertools.chain.from_iterable(s.seen for s in seen))
    assert kinds == {"kill", "freeze", "trainer", "market", "malformed", "late", "twice"}
    recorded = {r.kind for s in seen for r in s.world.records}
    assert recorded >= {
        *("joined", "ready", "notice", "lost", "drained", "rejected", "pulled", "published"),
        *("migrated", "window_closed", "resumed", "working"),
    }


def test_same_schedule_same_actions() -> None:
    """Nothing in the manager depends on hashes, clocks or chance."""
    first, second = Schedule(5), Schedule(5)
    first.run()
    second.run()
    assert first.world.records == second.world.records
    assert first.world.trainer.reports == second.world.trainer.reports

"""Faults chosen one by one by Hypothesis, which cuts a failing sequence down by itself."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.schedules.faults import KINDS, Fault, Run, Schedule

MOMENTS = st.sampled_from([0.0, 0.01, 0.05, 0.2, 0.7, 2.0])


class Attack(RuleBasedStateMachine):
    """A run under attack. Invariants are checked within, after every event of the manager."""

    run: Run | None = None

    @initialize(
        seed=st.integers(0, 999),
        seeding=st.booleans(),
        extends=st.booleans(),
        servers=st.integers(1, 3),
        machines=st.integers(0, 2),
        lag=st.integers(0, 2),
        lines=st.booleans(),
    )
    def begin(
        self,
        seed: int,
        seeding: bool,
        extends: bool,
        servers: int,
        machines: int,
        lag: int,
        lines: bool,
    ) -> None:
        schedule = Schedule(seed, seeding, extends, servers, machines, (), lag, lines=lines)
        self.run = Run(schedule, calm_at=None)

    @precondition(lambda self: self.run is not None)
    @rule(seconds=MOMENTS)
    def wait(self, seconds: float) -> None:
        assert self.run is not None
        if self.run.world.exit is None:
            self.run.world.pass_time(seconds)

    @precondition(lambda self: self.run is not None)
    @rule(
        kind=st.sampled_from(sorted(KINDS)),
        whom=st.integers(0, 7),
        amount=st.floats(0.0, 0.999),
    )
    def strike(self, kind: str, whom: int, amount: float) -> None:
        assert self.run is not None
        if self.run.world.exit is None:
            KINDS[kind][0](self.run, Fault(self.run.world.now, kind, whom, amount))

    def teardown(self) -> None:
        """Once the faults are over all is done, within a bound."""
        if self.run is not None:
            self.run.calm()
            self.run.finish()


Attack.TestCase.settings = settings(
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestAttack = Attack.TestCase


def test_time_may_pass_after_the_end() -> None:
    state = Attack()
    state.begin(1, seeding=False, extends=False, servers=1, machines=0, lag=0, lines=True)
    state.wait(20.0)
    state.teardown()

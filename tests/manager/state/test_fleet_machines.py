"""How many servers run, which starts where, and whom the market takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.manager.events import MachineRemoved
from rlboost_jax.manager.policies.machines import victim, wanted
from rlboost_jax.manager.state.fleet_machines import ABSENT_SECONDS, Fleet
from rlboost_jax.manager.state.instance_pools import Pools, pool_terms
from rlboost_jax.providers.base import ANY_POOL
from tests.manager.fakes import settings

ANY = [ANY_POOL]


@pytest.mark.parametrize(
    ("machines", "max_instances", "cap", "servers"),
    [(5, 3, None, 3), (2, 3, None, 2), (5, 4, 2, 2), (1, 4, 2, 1), (0, 4, None, 0), (3, 0, 9, 0)],
)
def test_as_many_as_all_limits_allow(
    machines: int, max_instances: int, cap: int | None, servers: int
) -> None:
    assert wanted(machines=machines, max_instances=max_instances, cap=cap) == servers


def test_a_removal_hits_a_working_server() -> None:
    assert victim(["a", "b"], 0.0) == "a"
    assert victim(["a", "b"], 0.999) == "b"
    assert victim([], 0.5) is None


def lent(count: int, *, max_instances: int = 3, capped: bool = False) -> Fleet:
    pools = Pools(pool_terms(settings().fleet))
    fleet = Fleet(max_instances, pools, capped=capped, life="0")
    for number in range(count):
        fleet.lend(f"m{number}")
    return fleet


def test_a_named_machine_goes_with_its_server() -> None:
    fleet = lent(3, max_instances=2)
    assert [s.name for s in fleet.start(ANY * fleet.missing(None))] == ["local-1", "local-2"]
    assert fleet.take("m2") == ""  # nothing ran there
    assert fleet.take("m0") == "local-1"
    assert fleet.standing == ["local-2"] and fleet.missing(None) == 0
    fleet.lend("m7")
    assert [s.name for s in fleet.start(ANY * fleet.missing(None))] == ["local-3"]
    assert fleet.servers["local-3"].machine == "m7"


def test_chaos_returns_only_what_it_took() -> None:
    fleet = lent(2)
    fleet.start(ANY * 2)
    fleet.lend("")
    assert len(fleet.machines) == 2
    fleet.take_under("local-2")
    fleet.exited(fleet.servers["local-2"], 0.0)
    assert list(fleet.machines) == ["m0"] and fleet.missing(None) == 0
    fleet.lend("")
    fleet.lend("")
    assert list(fleet.machines) == ["m0", "m1"] and fleet.missing(None) == 1


def test_a_machine_may_be_returned_before_it_is_taken() -> None:
    fleet = lent(2)
    fleet.start(ANY * 2)
    fleet.removal = MachineRemoved("", notice=False)
    fleet.lend("")
    assert len(fleet.machines) == 2
    fleet.take_under("local-1")
    fleet.exited(fleet.servers["local-1"], 0.0)
    assert fleet.removal is None
    assert sorted(fleet.machines) == ["m0", "m1"] and fleet.missing(None) == 1


def test_a_trace_may_take_for_good_what_chaos_took() -> None:
    fleet = lent(1)
    fleet.start(ANY)
    fleet.take_under("local-1")
    fleet.take("m0")
    fleet.lend("")
    assert not fleet.machines


def test_the_capped_limits_starts_and_ends_nothing() -> None:
    fleet = lent(3, capped=True)
    assert fleet.missing(fleet.cap(2)) == 2
    fleet.start(ANY * 2)
    assert fleet.missing(fleet.cap(1)) == 0 and len(fleet.standing) == 2
    assert fleet.missing(fleet.cap(9)) == 1


def test_servers_that_fail_to_start_are_tried_ever_more_rarely() -> None:
    fleet = lent(1)
    pauses = []
    for number in range(1, 10):
        fleet.start(ANY)
        fleet.exited(fleet.servers[f"local-{number}"], 100.0)
        pauses.append(fleet.pools[ANY_POOL].retry_at - 100.0)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    (server,) = fleet.start(ANY)
    fleet.prove(server)
    fleet.exited(server, 100.0)
    (server,) = fleet.start(ANY)
    fleet.exited(server, 200.0)
    assert fleet.pools[ANY_POOL].retry_at == 200.5


def test_a_server_that_was_taken_has_not_failed() -> None:
    fleet = lent(1)
    fleet.start(ANY)
    fleet.take("m0")
    fleet.exited(fleet.servers["local-1"], 100.0)
    assert fleet.pools[ANY_POOL].retry_at < 100.0


def test_servers_found_take_the_machines_first_lent() -> None:
    fleet = lent(0)
    fleet.found("local-4", "one-4")
    fleet.found("local-2", "one-2")
    for number in range(3):
        fleet.lend(f"m{number}")
    assert fleet.missing(None) == 1
    assert [s.name for s in fleet.start(ANY)] == ["local-5"]  # a name that none of them bears
    assert fleet.machines == {"m0": "local-4", "m1": "local-2", "m2": "local-5"}
    fleet.exited(fleet.servers["local-4"], 100.0)
    assert fleet.missing(None) == 1 and fleet.pools[ANY_POOL].retry_at < 100.0


def test_a_server_that_went_before_it_was_known_to_be_there_is_absent_not_starting() -> None:
    fleet = lent(1)
    fleet.found("local-1", "one-1")
    assert len(fleet.starting) == 1
    fleet.lost_sight_of(fleet.servers["local-1"], 5.0)
    assert fleet.servers["local-1"].joined and not fleet.starting
    assert fleet.abandon(5.0 + ABSENT_SECONDS) == ["local-1"]


def test_a_server_found_without_a_machine_goes_on_and_may_be_taken() -> None:
    fleet = lent(0)
    fleet.found("local-1", "one-1")
    assert fleet.missing(None) == 0 and fleet.standing == ["local-1"]
    fleet.take_under("local-1")
    assert fleet.standing == []
    fleet.lend("m0")
    assert fleet.missing(None) == 1  # the one that is about to end takes no machine


@given(st.lists(st.tuples(st.sampled_from("adkx"), st.integers(0, 3)), max_size=40))
def test_every_machine_has_one_server_at_most(moves: list[tuple[str, int]]) -> None:
    fleet = lent(0, max_instances=2)
    for kind, number in moves:
        if kind == "a":
            fleet.lend(f"m{number}" if number else "")
        elif kind == "d":
            fleet.take(f"m{number}")
        elif kind == "k" and fleet.standing:
            fleet.take_under(fleet.standing[number % len(fleet.standing)])
        elif kind == "x" and fleet.servers:
            fleet.exited(fleet.servers[list(fleet.servers)[number % len(fleet.servers)]], 0.0)
        fleet.start(ANY * fleet.missing(None))
        occupied = [name for name in fleet.machines.values() if name]
        assert len(set(occupied)) == len(occupied)
        assert set(fleet.standing) == set(occupied)
        assert len(occupied) == min(2, len(fleet.machines))

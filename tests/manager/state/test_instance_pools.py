"""Several pools in one manager: whom it asks, what it does when they refuse or kill, its memory."""

import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import MachineAdded, Priced, Request, ServerGone
from rlboost_jax.manager.state.instance_pools import LAST_POOL_RETRY_SECONDS, QUICK_SECONDS
from rlboost_jax.manager.state.pool_record import FIRST_RETRY_SECONDS
from rlboost_jax.providers.base import Listed, Refused
from rlboost_jax.settings.pool_config import PoolConfig
from tests.manager.desk import Desk
from tests.manager.fakes import nonce_of, settings

POOLS = (
    PoolConfig(name="cheap", max_instances=2, price_per_hour=1.0),
    PoolConfig(name="dear", max_instances=2, price_per_hour=4.0),
)
A = 5  # the first stream of a server


def opened(**changes: object) -> Desk:
    desk = Desk(settings(**{"fleet__pools": POOLS, **changes}))
    desk.open_run()
    return desk


def lend(desk: Desk, count: int) -> list[Request]:
    return [
        action
        for number in range(count)
        for action in desk(MachineAdded(f"machine-{number + 1}"))
        if isinstance(action, Request)
    ]


def asked(desk: Desk) -> list[str]:
    return [a.pool for a in desk.actions if isinstance(a, Request)]


def refuse(desk: Desk, name: str, at: float) -> list[str]:
    desk(Refused(name, nonce_of(name), "no capacity"), at)
    return asked(desk)


def test_names_and_requests_say_the_pool() -> None:
    requests = lend(opened(), 4)
    assert [(r.instance, r.pool) for r in requests] == [
        ("cheap-1", "cheap"),
        ("cheap-2", "cheap"),
        ("dear-3", "dear"),
        ("dear-4", "dear"),
    ]
    assert [r.nonce for r in requests] == [nonce_of(r.instance) for r in requests]


def test_no_pool_has_more_than_its_most_and_machines_of_a_pool_are_its_own() -> None:
    desk = opened()
    for number in range(5):
        desk(MachineAdded(f"dear/{number}"))
    servers = desk.manager.view.fleet.servers.values()
    assert [server.pool for server in servers] == ["dear", "dear"]


def test_the_budget_counts_each_pools_own_price() -> None:
    """6 dollars an hour pay for two at 1, and then one at 4."""
    assert [r.pool for r in lend(opened(fleet__max_dollars_per_hour=6.5), 4)] == [
        "cheap",
        "cheap",
        "dear",
    ]


def test_another_pool_is_asked_while_one_refuses() -> None:
    desk = opened()
    assert [r.pool for r in lend(desk, 2)] == ["cheap", "cheap"]
    assert refuse(desk, "cheap-1", 1.0) == ["dear"]
    assert refuse(desk, "cheap-2", 1.0) == ["dear"]
    assert desk.manager.next_deadline() is not None


def test_when_all_refuse_they_are_asked_again_with_pauses_that_grow() -> None:
    desk = opened()
    waiting = [r.instance for r in lend(desk, 4)]
    requests, now = 0, 0.0
    while now < 3600.0:
        for name in waiting:
            refuse(desk, name, now)
        deadline = desk.manager.next_deadline()
        assert deadline is not None and deadline > now, "it keeps trying, and does not spin"
        now = deadline
        desk.tick(now)
        waiting = [a.instance for a in desk.actions if isinstance(a, Request)]
        requests += len(waiting)
        assert len(waiting) <= len(POOLS), "one at a time of each that has refused"
    # Pauses double from half a second to ten minutes: 11 of them, then six an hour.
    assert 20 <= requests <= 2 * (12 + 3600 / LAST_POOL_RETRY_SECONDS)


def test_a_pool_that_kills_at_once_gets_few() -> None:
    """Each is there within a second, works, and is gone after ten more."""
    desk = opened(fleet__pools=POOLS[:1])
    (request,) = lend(desk, 1)
    stream, starts, now = A, 0, 0.0
    name = request.instance
    while now < 3600.0:
        starts, stream = starts + 1, stream + 1
        desk.grant(name)
        desk.now = now + 1.0
        desk.join_granted(stream, name)
        desk(ServerGone(stream, "killed"), now + 11.0)
        desk.exit(name, "the market")
        while not [a for a in desk.actions if isinstance(a, Request)]:
            deadline = desk.manager.next_deadline()
            assert deadline is not None
            desk.tick(deadline)
        (name,) = [a.instance for a in desk.actions if isinstance(a, Request)]
        now = desk.now
    assert starts <= 12 + 3600 / LAST_POOL_RETRY_SECONDS
    assert starts >= 10, "and it is tried again"


def test_one_that_lived_has_its_pool_asked_at_once() -> None:
    desk = opened()
    lend(desk, 4)
    desk.grant("cheap-1")
    desk.join_granted(A, "cheap-1")
    desk.manager.owners.fleet.prove(desk.manager.view.fleet.servers["cheap-1"])
    desk(ServerGone(A, "killed"), QUICK_SECONDS + 1.0)
    desk.exit("cheap-1", "the market")
    assert asked(desk) == ["cheap"]
    cheap = desk.manager.owners.pools["cheap"]
    assert (cheap.asked, cheap.granted, cheap.refused, cheap.lost) == (3, 1, 0, 1)
    assert cheap.alive.total(desk.now) == QUICK_SECONDS + 1.0
    assert cheap.dollars.total(desk.now) == pytest.approx((QUICK_SECONDS + 1.0) / 3600)


def test_events_say_the_pool() -> None:
    desk = opened()
    lend(desk, 1)
    desk.grant("cheap-1")
    desk.join(A, None, instance="cheap-1", nonce=nonce_of("cheap-1"))
    assert [r.detail["pool"] for r in desk.records("joined")] == ["cheap"]
    desk(ServerGone(A, "killed"), 0.5)
    assert [r.detail["pool"] for r in desk.records("lost")] == ["cheap"]


def test_a_new_price_holds_for_running_instances() -> None:
    desk = opened()
    lend(desk, 1)
    desk.grant("cheap-1")
    desk.join(A, None, instance="cheap-1", nonce=nonce_of("cheap-1"), price_per_hour=1.0)
    index = desk.manager.view.roster.index
    assert index.hourly == 1.0
    desk(Priced("cheap", 7.0))
    assert index.hourly == 7.0 and desk.records("price")
    desk(Priced("nobody's", 7.0))
    desk(ServerGone(A, "killed"), 3.0)
    assert index.hourly == 0.0


def test_the_next_manager_knows_its_pools() -> None:
    """What was asked, lost and paid, who is there, and who is to be left alone for a while."""
    desk = opened()
    lend(desk, 4)
    for name, stream in (("cheap-2", A), ("dear-3", A + 1)):
        desk.grant(name)
        desk.join_granted(stream, name)
    for _ in range(4):
        pools = desk.manager.owners.pools
        name = max((s.name for s in desk.manager.view.fleet.servers.values() if s.pool == "cheap"),
                   key=lambda n: int(n.rpartition("-")[2]))  # fmt: skip
        refuse(desk, name, desk.now)
        desk.tick(max(desk.now, pools["cheap"].retry_at))
    before = desk.manager.owners.pools["cheap"]
    paid = before.dollars.total(desk.now)
    counts = before.asked, before.granted, before.refused, before.failures
    retry_at, died = before.retry_at, desk.now
    desk.crash(died + 0.25)
    after = desk.manager.owners.pools["cheap"]
    assert (after.asked, after.granted, after.refused, after.failures) == counts
    assert after.retry_at == pytest.approx(max(retry_at, died + 0.25))
    assert after.dollars.total(desk.now) == pytest.approx(paid + before.paid * 0.25 / 3600)
    for name in ("cheap-2", "dear-3"):
        desk(Listed(name, nonce_of(name)))
    assert [(p.name, p.present, p.standing) for p in desk.manager.owners.pools] == [
        ("cheap", 1, 1),
        ("dear", 1, 1),
    ]


def test_one_pool_is_as_it_was() -> None:
    """No pools: names of the provider, and pauses of half a minute at most."""
    desk = opened(fleet__pools=())
    requests = lend(desk, 3)
    assert [r.instance for r in requests] == ["local-1", "local-2", "local-3"]
    assert {r.pool for r in requests} == {"any"}
    refuse(desk, "local-1", 0.0)
    assert desk.manager.owners.pools["any"].retry_at == FIRST_RETRY_SECONDS
    assert isinstance(desk.manager.status(0.0), m.FleetStatus)

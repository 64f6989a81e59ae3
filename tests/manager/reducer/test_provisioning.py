"""Dollars an hour bound what is started; dollars in all end the preemptible fleet, not the run."""

import pytest

from rlboost_jax.manager.events import MachineAdded, Record, Request, Send, Terminate
from rlboost_jax.messages import Leave
from rlboost_jax.providers.base import Refused
from tests.manager.desk import Desk, hello, nonce_of
from tests.manager.fakes import settings


def lend(desk: Desk, count: int) -> list[str]:
    """Names that the provider was asked for."""
    asked = []
    for number in range(count):
        actions = desk(MachineAdded(f"m{number}"))
        asked += [a.instance for a in actions if isinstance(a, Request)]
    return asked


def test_no_more_are_started_than_an_hour_may_cost() -> None:
    """At 3600 $ an hour each, 8000 leave room for two; one that is cheaper makes room."""
    desk = Desk(settings(fleet__max_dollars_per_hour=8000.0))
    desk.open_run()
    assert lend(desk, 3) == ["local-1", "local-2"]
    cheap = hello(instance="local-1", nonce=nonce_of("local-1"), price_per_hour=600.0)
    actions = desk.server(5, cheap)
    assert [a.instance for a in actions if isinstance(a, Request)] == ["local-3"]


def test_a_run_that_has_cost_what_it_may_goes_on_without_its_fleet() -> None:
    """Reserved devices cost 2 $ a second and each of two instances 1 $."""
    desk = Desk(settings(fleet__max_dollars=30.0, fleet__max_instances=2))
    desk.open_run()
    assert lend(desk, 2) == ["local-1", "local-2"]
    desk.grant("local-1")
    desk.join_granted(5, "local-1")
    desk.grant("local-2")  # has not joined yet
    assert not [a for a in desk.tick(7.0) if isinstance(a, Terminate)]
    actions = desk.tick(8.0)
    ended = {a.instance: a.grace_seconds for a in actions if isinstance(a, Terminate)}
    assert ended.keys() == {"local-1", "local-2"} and min(ended.values()) > 0
    seen = [a for a in actions if isinstance(a, Record) and a.kind == "budget"]
    assert len(seen) == 1 and seen[0].detail["released"] == 2
    assert 30.0 <= seen[0].detail["dollars"] <= 32.0  # 4 $ a second, from 0 s or from 1 s on
    for name in ended:
        actions = desk.exit(name, "asked to leave")
        assert not [a for a in actions if isinstance(a, Request)]
    actions = desk.tick(100.0)
    assert not [a for a in actions if isinstance(a, Request | Terminate)]
    assert not [a for a in actions if isinstance(a, Record) and a.kind == "budget"]
    assert not desk.manager.over


@pytest.mark.parametrize("name", ["local-1", "of-its-own"])
def test_a_server_whose_start_was_refused_and_that_comes_all_the_same_is_sent_away(
    name: str,
) -> None:
    """Its provider had given it up, and nobody would end it: it would be paid for by a run that has
    spent what it may."""
    desk = Desk(settings(fleet__max_dollars=30.0, fleet__max_instances=1))
    desk.open_run()
    assert lend(desk, 1) == ["local-1"]
    desk(Refused("local-1", nonce_of("local-1"), "sbatch did not end in 60 s"))
    desk.tick(20.0)
    actions = desk.server(5, hello(instance=name, nonce=nonce_of("local-1")))
    left = [a.message for a in actions if isinstance(a, Send)]
    assert [type(message) for message in left] == [Leave]
    assert "over" in left[0].reason  # type: ignore[union-attr]
    assert 5 not in desk.manager.view.roster.streams


def test_who_is_called_otherwise_than_asked_for_is_not_sent_away() -> None:
    """A script of the user's may give it another name; and who was started by hand has no nonce."""
    desk = Desk(settings(fleet__max_instances=1))
    desk.open_run()
    assert lend(desk, 1) == ["local-1"]
    for stream, nonce in ((5, nonce_of("local-1")), (6, "")):
        desk.server(stream, hello(instance=f"mine-{stream}", nonce=nonce))
        assert stream in desk.manager.view.roster.streams


def test_the_next_manager_knows_what_was_spent() -> None:
    desk = Desk(settings(fleet__max_dollars=30.0, fleet__max_instances=1))
    desk.open_run()
    lend(desk, 1)
    desk.grant("local-1")
    desk.join_granted(5, "local-1")
    desk.tick(20.0)
    desk.crash(21.0)
    desk.open_run()
    assert not [a for a in desk.actions if isinstance(a, Request)]
    assert lend(desk, 2) == []

"""What holds in the manager after every event, read off its parts and off what was sent to it."""

import math
from collections import Counter

from rlboost_jax.manager.fleet import ABSENT_SECONDS
from tests.simulate.world import World

ROUNDING = 1e-8


def check(world: World) -> None:
    """Raises AssertionError where an account does not balance."""
    manager = world.manager
    assert manager is not None
    limit = world.settings.manager.max_pending
    holders: Counter[int] = Counter()
    in_flight = {False: 0, True: 0}
    for instance in manager.roster:
        held = instance.held
        in_flight[instance.reserved] += instance.in_flight
        assert len(held) <= instance.slots + limit
        releasing = 0
        groups: dict[int, int] = {}
        for request_id, rollout in held.items():
            assert rollout.request_id == request_id
            assert rollout.holder == instance.name
            assert rollout.result is None
            holders[id(rollout)] += 1
            releasing += rollout.releasing
            groups[rollout.prompt] = groups.get(rollout.prompt, 0) + 1
        assert instance.num_releasing == releasing
        assert instance.groups == groups
    assert manager.roster.in_flight == in_flight
    for step in manager.ledger.steps.values():
        waiting = {id(rollout) for rollout in step.waiting()}
        assert len(waiting) == step.num_waiting
        finished = kept = 0
        for rollout in step.rollouts:
            where = (id(rollout) in waiting) + holders[id(rollout)] + (rollout.result is not None)
            assert where == 1, f"sample {rollout.sample} is in {where} places"
            assert sum(count for _, count in rollout.parts) == rollout.num_tokens
            finished += rollout.result is not None
            kept += rollout.num_tokens
        assert step.num_finished == finished
        assert step.books.generated - step.books.lost == kept
    _index(world)
    _leases(world)
    _nothing_idle(world)


def _index(world: World) -> None:
    """What is kept up to date is what looking through the whole fleet would give."""
    manager = world.manager
    assert manager is not None
    roster, index, fleet = manager.roster, manager.roster.index, manager.fleet
    everyone = list(roster)
    for begin in {(i.version, i.digest) for i in everyone}:
        pool = index.pool(*begin)
        ready = [
            i
            for i in everyone
            if not i.reserved and i.state == "ready" and (i.version, i.digest) == begin
        ]
        assert pool.instances == ready
        assert pool.idle == sum(not i.held for i in ready)
        assert not manager.roster.trusting or all(
            i.hello.fingerprint == roster.fingerprint or not world.settings.deterministic
            for i in ready
        )
    assert list(index.reserved.values()) == [i for i in everyone if i.reserved]
    assert index.names == {i.name for i in everyone}
    assert index.claims == Counter(i.hello.instance for i in everyone)
    assert index.prices == Counter(i.hello.price_per_hour for i in everyone if not i.reserved)
    assert index.asked_back == sum(i.num_releasing for i in everyone)
    crowded = [i for i in everyone if len(i.held) - i.num_releasing > 1]
    assert sorted(index.crowded) == sorted(i.stream for i in crowded)
    overfull = [i for i in everyone if len(i.held) - i.num_releasing > i.slots]
    assert sorted(index.overfull) == sorted(i.stream for i in overfull)
    servers = list(fleet.servers.values())
    standing = [s for s in servers if not s.doomed]
    assert [s.name for s in standing] == fleet.standing
    assert fleet.starting == sum(not s.joined for s in standing)
    absent = min((s.absent_since for s in standing), default=math.inf)
    assert fleet.absent_at == absent + ABSENT_SECONDS
    cap = max(len(fleet.machines), 1)
    free = sum(not name for name in fleet.machines.values())
    limit = min(len(fleet.machines), world.settings.fleet.max_instances)
    if world.settings.fleet.sizing == "fixed":
        assert fleet.missing(cap) == max(0, min(limit - len(standing), free))


def _leases(world: World) -> None:
    """A server is in the roster for as long as its lease goes from its last frame, no longer."""
    manager = world.manager
    assert manager is not None
    lease = world.settings.manager.lease_seconds
    for instance in manager.roster:
        assert world.now < world.heard[instance.stream] + lease + ROUNDING, "a lease is over"
    for record in world.records[world.checked :]:
        if record.kind == "quarantined":
            liars = [s for s in world.servers if s.ever_lied]
            named = world.named.get(record.instance)
            assert named is None or any(named in s.streams for s in liars), "it had never lied"
        if record.detail.get("reason", "").startswith("silent for"):
            silent = world.now - world.heard[world.named[record.instance]]
            assert silent >= lease - ROUNDING, "lost within its lease"
    world.checked = len(world.records)
    world.named = {instance.name: instance.stream for instance in manager.roster}


def _nothing_idle(world: World) -> None:
    """A rollout waits only while no eligible instance has room."""
    manager = world.manager
    assert manager is not None
    step = manager.ledger.active
    if step is None or not step.num_waiting or manager.over:
        return
    remote = manager.work.remote(step)
    reserved = manager.work.reserved(step)
    assert manager.work.seeding.open or remote, "no one is eligible"
    for instance in remote + (reserved if manager.work.seeding.open else []):
        assert len(instance.held) >= instance.slots + world.settings.manager.max_pending

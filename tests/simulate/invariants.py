"""What holds in the manager after every event, read off its parts and off what was sent to it."""

import math

from rlboost_jax.manager.state.instances import Instance
from tests.simulate.world import World

ROUNDING = 1e-8
GOOD_LEASE = 2.0  # seconds, of good lines: see `lines.GOOD_SECONDS`


def check(world: World) -> None:
    """Raises AssertionError where an account does not balance."""
    manager = world.manager
    assert manager is not None
    limit = world.settings.manager.max_pending
    holders: set[int] = set()
    in_flight = {False: 0, True: 0}
    for instance in manager.view.roster:
        held, name = instance.held, instance.name
        in_flight[instance.reserved] += instance.activity.in_flight
        assert len(held) <= instance.hello.slots + limit
        releasing = 0
        groups: dict[int, int] = {}
        for request_id, rollout in held.items():
            assert rollout.request_id == request_id
            assert rollout.holder == name
            assert 0 <= rollout.spared <= rollout.length
            assert rollout.result is None
            assert id(rollout) not in holders, f"sample {rollout.sample} is held twice"
            holders.add(id(rollout))
            releasing += rollout.asked_at < math.inf
            groups[rollout.group] = groups.get(rollout.group, 0) + 1
        assert instance.num_releasing == releasing
        assert dict.__eq__(instance.groups, groups)  # a counter's own is slow
    assert manager.view.roster.in_flight == in_flight
    assert list(manager.view.open) == sorted(manager.view.open)
    assert manager.view.open.items() <= manager.view.batches.items()
    ledger = manager.owners.ledger
    assert ledger.active is next(iter(ledger.open.values()), None)
    assert ledger.lagging == any(b.begin.version < n for n, b in ledger.open.items())
    for step in manager.view.batches.values():
        waiting = {id(rollout) for rollout in step.waiting()}
        assert len(waiting) == step.num_waiting
        finished = parked = kept = 0
        for rollout in step.rollouts:
            key, ended = id(rollout), rollout.result is not None
            where = (key in waiting) + (key in holders) + ended + rollout.parked
            assert where == 1, f"sample {rollout.sample} is in {where} places"
            tokens = given = turn = 0
            for name, count in rollout.parts:
                tokens += count
                if not name:
                    given, turn = given + count, turn + 1
            assert (tokens, given, turn) == (rollout.num_tokens, rollout.num_given, rollout.turn)
            assert rollout.parked == (not ended and bool(tokens) and rollout.turn_over)
            before = rollout.ended
            assert rollout.work.sequence == len(before)
            assert rollout.tokens_before == sum(one.num_tokens for one in before)
            said = rollout.results
            assert [one.last for one in said] == [False] * len(before) + [True] * ended
            assert [one.work.sequence for one in said] == list(range(len(said)))
            attempts = [one.attempt for one in said] + [rollout.attempt]
            assert attempts == sorted(attempts)
            assert rollout.all_turns <= step.begin.turns
            finished += ended
            parked += rollout.parked
            kept += tokens - given + sum(len(one.result.logprobs) // 4 for one in before)
        assert (step.num_finished, step.num_parked) == (finished, parked)
        assert step.books.generated - step.books.lost == kept
    _index(world)
    _servers(world)
    _pools(world)
    check_leases(world)
    _nothing_idle(world)
    _versions(world)


def _index(world: World) -> None:
    """What is kept up to date is what looking through the whole roster would give."""
    manager = world.manager
    assert manager is not None
    roster, index = manager.view.roster, manager.view.roster.index
    pools: dict[tuple[int | None, str], list[Instance]] = {}
    reserved: list[Instance] = []
    names: set[str] = set()
    claims: dict[str, int] = {}
    prices: dict[float, int] = {}
    crowded: set[int] = set()
    overfull: set[int] = set()
    free: set[int] = set()
    num_releasing = 0
    for i in roster:
        pool = pools.setdefault((i.parameters.version, i.parameters.digest), [])
        hello = i.hello
        names.add(i.name)
        claims[hello.instance] = claims.get(hello.instance, 0) + 1
        if i.reserved:
            reserved.append(i)
        else:
            of = manager.owners.pools.streams.get(i.stream, "")
            price = world.prices.get(of, hello.price_per_hour)
            prices[price] = prices.get(price, 0) + 1
            if i.state == "ready" and i.slots:
                pool.append(i)
            if not i.held:
                free.add(i.stream)
        num_releasing += i.num_releasing
        staying = len(i.held) - i.num_releasing
        if staying > 1:
            crowded.add(i.stream)
        if staying > i.room:
            overfull.add(i.stream)
    trusting = world.settings.deterministic and roster.trusting
    for begin, ready in pools.items():
        pool = index.pool(*begin)
        assert pool.instances == ready
        idle = 0
        for i in ready:
            idle += not i.held
            assert not trusting or i.hello.fingerprint == roster.fingerprint
        assert pool.idle == idle
    assert list(index.reserved.values()) == reserved
    assert index.names == names
    assert dict.__eq__(index.claims, claims)
    assert dict.__eq__(index.prices, prices)
    assert index.num_releasing == num_releasing
    assert index.num_preemptible == sum(prices.values())
    assert math.isclose(index.hourly, sum(price * n for price, n in prices.items()))
    assert index.crowded.keys() == crowded
    assert index.lent == sum(i.hello.slots - i.slots for i in roster)
    assert index.num_frozen == sum(i.frozen for i in roster)
    assert index.overfull.keys() == overfull
    assert index.free.keys() == free


def _servers(world: World) -> None:
    """The fleet's counts are what looking through all its servers would give."""
    manager = world.manager
    assert manager is not None
    fleet = manager.view.fleet
    standing: list[str] = []
    starting = 0
    absent = False
    for server in fleet.servers.values():
        if not server.doomed:
            standing.append(server.name)
            starting += server.granted and not server.joined
        if server.joined and (server.dismissed or not server.doomed):
            hellos = [(i.hello.instance, i.hello.nonce) for i in manager.view.roster]
            absent |= (server.name, server.nonce) not in hellos
    assert standing == fleet.standing
    assert fleet.starting == starting
    assert (fleet.absent_at < math.inf) == absent
    lent = fleet.machines
    free = list(lent.values()).count("")
    assert fleet.full == (free == 0)
    chosen = world.settings.fleet
    if chosen.sizing == "fixed":
        limit = min(len(lent), chosen.most_instances)
        assert fleet.missing(max(len(lent), 1)) == max(0, min(limit - len(standing), free))


def _pools(world: World) -> None:
    """What is counted of each pool is what looking through all servers and streams would give."""
    manager = world.manager
    assert manager is not None
    fleet, pools = manager.view.fleet, manager.owners.pools
    of_streams = list(pools.streams.values())
    assert pools.streams.keys() <= manager.view.instances.keys()
    for pool in pools:
        own = [server for server in fleet.servers.values() if server.pool == pool.name]
        standing = [server for server in own if not server.doomed]
        assert pool.present == len(own)
        assert pool.standing == len(standing)
        assert pool.waiting == sum(not server.joined for server in standing)
        assert pool.paid == sum(server.granted for server in own)
        assert pool.members == of_streams.count(pool.name)
        asked_for = [server for server in own if server.started_at > -math.inf and server.machine]
        assert len(asked_for) <= max(pool.most, 1) or not pools.several
        if pools.several:
            assert fleet.free_in(pool.name) <= max(0, pool.most - pool.present)


def check_leases(world: World) -> None:
    """A server is in the roster for as long as its lease goes from its last frame, no longer. Who
    was harmed by nothing is not lost for its line or for want of progress."""
    manager = world.manager
    assert manager is not None
    heard, roster = world.heard, manager.view.roster
    shortest = world.settings.manager.lease_seconds
    for stream, instance in manager.view.instances.items():
        lease = shortest if not world.measured else roster.lease(instance)
        assert heard[stream] > world.now - lease - ROUNDING, "a lease is over"
        if world.measured and instance.lease.line.known and not instance.reserved:
            server = world.owner(stream)
            good = server.line is None or server.line.good
            assert lease <= GOOD_LEASE or server.harmed or not good, "a good line's lease is long"
    for record in world.records[world.checked :]:
        if record.kind == "quarantined":
            # Two that a provider has started for one request are one instance, by all they say.
            liars = {(s.name, s.nonce) for s in world.servers if s.ever_lied}
            named = world.named.get(record.instance)
            found = [s for s in world.servers if named in s.streams]
            assert named is None or {(s.name, s.nonce) for s in found} & liars, "it had never lied"
        reason = record.detail.get("reason", "")
        if reason.startswith(("silent for", "unreachable for", "no progress", "gave nothing back")):
            stream = world.named[record.instance]
            assert world.owner(stream).harmed, f"an honest server was lost: {reason}"
            if reason.startswith("silent for"):
                lease = world.leases.get(record.instance, shortest)
                assert world.now - heard[stream] >= lease - ROUNDING, "lost within its lease"
    world.checked = len(world.records)
    world.named = {instance.name: instance.stream for instance in roster}
    if world.measured:
        world.leases = {instance.name: roster.lease(instance) for instance in roster}


def _nothing_idle(world: World) -> None:
    """A rollout waits only while no eligible instance has room."""
    manager = world.manager
    assert manager is not None
    for batch in () if manager.over else manager.view.open.values():
        if not batch.num_waiting:
            continue
        reserved, remote = map(list, manager.view.eligible(batch))
        oldest = batch is manager.view.batch
        if oldest:
            lagging = manager.owners.ledger.lagging  # then somebody comes back for it
            others = remote or (lagging and manager.view.roster.members)
            assert manager.view.window_open or others, "no one is eligible"
        for instance in remote + (reserved if manager.view.window_open else []):
            assert len(instance.held) >= instance.room + world.settings.manager.max_pending


def _versions(world: World) -> None:
    """A newer version takes nobody from an open batch that is not trained yet, unless others stay
    that its last responses are gathered at, and the oldest one is not left by all."""
    manager = world.manager
    assert manager is not None
    newest = manager.owners.versions.newest
    if manager.over or newest is None:
        return
    instances = [i for i in manager.view.roster if not (i.reserved or i.departure.leaving)]
    oldest, seeding = True, manager.view.window_open
    for number, batch in manager.view.open.items():
        begin, found = batch.begin, manager.view.manifests.get(batch.begin.version)
        if not (begin.version <= newest.version <= number):
            continue
        if found is None or found.params_digest != begin.params_digest:
            continue  # its trainer has yet to publish it
        holders = [i for i in instances if i.parameters.announced == found]
        for instance in instances:
            announced = instance.parameters.announced
            if announced is not None and any(r.batch is batch for r in instance.held.values()):
                left = announced.version > begin.version
                assert not left or holders, "work of an older batch is abandoned"
        if oldest and batch.num_waiting and instances:
            engines = [i for i in manager.view.roster if i.reserved] if seeding else []
            holders += [i for i in engines if i.parameters.announced == found]
            assert holders, "nobody is left for the oldest batch"
        oldest = False

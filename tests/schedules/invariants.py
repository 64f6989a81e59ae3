"""What holds in the manager after every event, read off its parts and off what was sent to it.

Most events change one instance and a rollout or two. What follows from a record is worked out
again only where the record is another than at the last check (`Balanced`); what the manager counts
is compared with it every time. Every `WHOLE`-th check, and the last, trust nothing of that.
"""

import math

from rlboost_jax.manager.reducer.score_items import PENDING
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout
from rlboost_jax.manager.state.server_names import identity
from tests.schedules.balanced import (
    HELD,
    MEMBER,
    POOL,
    ROLLOUT,
    SERVER,
    Balanced,
    Batch,
    Fleet,
    Index,
    Loads,
)
from tests.schedules.world import World

ROUNDING = 1e-8
GOOD_LEASE = 2.0  # seconds, of good lines: see `lines.GOOD_SECONDS`
WHOLE = 64  # checks


def check(world: World) -> None:
    """Raises AssertionError where an account does not balance."""
    manager = world.manager
    assert manager is not None
    known = world.balanced
    if known is None or known.manager is not manager or known.checks == WHOLE:
        known = world.balanced = Balanced(manager)
    known.checks += 1
    _instances(world, known)
    ledger = manager.owners.ledger
    assert list(ledger.open) == sorted(ledger.open)
    assert ledger.open.items() <= ledger.batches.items()
    assert ledger.active is next(iter(ledger.open.values()), None)
    assert ledger.lagging == any([b.begin.version < n for n, b in ledger.open.items()])
    for number, step in ledger.batches.items():
        batch = known.batches.get(number)
        if batch is None or batch.step is not step or batch.rollouts != step.rollouts:
            batch = known.batches[number] = Batch(step)
        _batch(batch, known.holders)
    _index(world, known)
    _servers(world, known)
    check_leases(world)
    _nothing_idle(world)
    _scores(world)
    _versions(world)


def check_whole(world: World) -> None:
    """The same, whatever was known."""
    if world.manager is not None:
        world.balanced = None
        check(world)


def check_drafts(world: World) -> None:
    """Reports count drafts that servers have told of, each once, and none where nobody drafts.

    A journal that has lost the end of a batch lets its drafts count in the next one as well, like
    its tokens.
    """
    reports = {report.batch: report for report in world.trainer.reports}.values()
    for report in reports:
        counts = report.tokens_drafted, report.drafts_accepted, report.decode_steps_saved
        if counts == (None, None, None):
            continue
        drafted, accepted, saved = counts
        assert world.drafts and 0 <= saved <= accepted <= drafted
    drafted = sum(report.tokens_drafted or 0 for report in reports)
    told = world.drafted
    assert drafted <= told or world.forgetful, f"{drafted} drafts reported, {told} told of"


def _instances(world: World, known: Balanced) -> None:
    """Rollouts are held by one instance each, which knows what it holds."""
    manager = world.manager
    assert manager is not None
    limit = world.settings.manager.max_pending
    in_flight = {False: 0, True: 0}
    members: list[object] = []
    counts: list[tuple[int, int]] = []
    changed = False
    for stream, instance in manager.view.instances.items():
        held = instance.held
        in_flight[instance.reserved] += instance.activity.in_flight
        members.append(MEMBER(instance))
        counts.append((len(held), instance.num_releasing))
        now = [instance, *held, *map(id, held.values()), *map(HELD, held.values())]
        if known.held.get(stream) != now:
            known.held[stream], changed = now, True
            known.counts[stream] = _held(instance)
        assert len(held) <= instance.hello.slots + limit
        releasing, groups = known.counts[stream]
        assert instance.num_releasing == releasing
        assert dict.__eq__(instance.groups, groups)  # a counter's own is slow
    assert manager.view.roster.in_flight == in_flight
    if members != known.members:
        known.members, known.index, known.fleet, changed = members, None, None, True
    if changed or counts != known.held_counts:
        known.held_counts, known.loads = counts, None
        known.forget_but(manager.view.instances)
        holders: set[int] = set()
        for instance in manager.view.roster:
            for rollout in instance.held.values():
                assert id(rollout) not in holders, f"sample {rollout.sample} is held twice"
                holders.add(id(rollout))
        known.holders = holders


def _held(instance: Instance) -> tuple[int, dict[int, int]]:
    """What is being released of it, and its groups."""
    releasing = 0
    groups: dict[int, int] = {}
    for request_id, rollout in instance.held.items():
        placement = rollout.placement
        assert placement.request_id == request_id
        assert placement.holder == instance.name
        assert 0 <= placement.spared <= rollout.transcript.length
        assert not rollout.finished
        releasing += placement.asked_at < math.inf
        groups[rollout.group] = groups.get(rollout.group, 0) + 1
    return releasing, groups


def _batch(batch: Batch, holders: set[int]) -> None:
    """Each rollout of it is in one place, and all tokens are accounted for."""
    step = batch.step
    now = list(map(ROLLOUT, step.rollouts))
    if now != batch.fields:
        before = batch.fields or [None] * len(now)
        for place, rollout in enumerate(step.rollouts):
            if now[place] != before[place]:
                batch.kept[place] = _rollout(step, rollout)
        batch.look(now)
    waiting = set(map(id, step.waiting()))
    assert len(waiting) == step.num_waiting
    held = batch.resting & holders
    whole = len(waiting) + len(held) == len(batch.resting) and waiting <= batch.resting
    if not whole or not waiting.isdisjoint(held) or not holders.isdisjoint(batch.dormant):
        for rollout in step.rollouts:
            key, ended = id(rollout), rollout.finished
            where = (key in waiting) + (key in holders) + ended + rollout.parked
            assert where == 1, f"sample {rollout.sample} is in {where} places"
        raise AssertionError("a rollout waits that is none of its batch")
    assert (step.num_finished, step.num_parked) == (batch.num_finished, batch.num_parked)
    assert step.books.generated - step.books.lost == batch.all_kept


def _rollout(step: BatchRecord, rollout: Rollout) -> int:
    """Sampled tokens of it that are there."""
    ended, transcript = rollout.finished, rollout.transcript
    tokens = given = turn = 0
    for name, count in transcript.parts:
        tokens += count
        if not name:
            given, turn = given + count, turn + 1
    assert (tokens, given, turn) == (transcript.num_tokens, transcript.num_given, transcript.turn)
    assert (len(transcript.tokens), len(transcript.logprobs)) == (4 * tokens, 4 * (tokens - given))
    assert rollout.parked == (not ended and bool(tokens) and rollout.turn_over)
    before = rollout.sequences.ended
    assert rollout.sequences.work.sequence == len(before)
    assert rollout.sequences.tokens_before == sum([one.transcript.num_tokens for one in before])
    said = rollout.results
    assert [one.last for one in said] == [False] * len(before) + [True] * ended
    assert [one.work.sequence for one in said] == list(range(len(said)))
    attempts = [one.attempt for one in said] + [rollout.sequences.attempt]
    assert attempts == sorted(attempts)
    assert rollout.sequences.num_turns <= step.begin.turns
    return tokens - given + sum([len(one.transcript.logprobs) // 4 for one in before])


def _index(world: World, known: Balanced) -> None:
    """The index, kept up to date, equals one made from the whole roster."""
    manager = world.manager
    assert manager is not None
    roster, index = manager.view.roster, manager.view.roster.index
    streams = manager.owners.pools.streams
    right = known.index
    if right is None or (right.told, right.streams) != (world.prices, streams):
        right = known.index = _index_of(world)
    loads = known.loads
    if loads is None:
        loads = known.loads = _loads_of(world, known.held_counts)
    trusting = world.settings.deterministic and roster.trusting
    for begin, ready in right.pools.items():
        pool = index.pool(*begin)
        assert pool.instances == ready
        assert pool.idle == sum([instance.stream in loads.idle for instance in ready])
    assert not trusting or right.fingerprints <= {roster.fingerprint}
    assert list(index.reserved.values()) == right.reserved
    assert index.names == right.names
    assert dict.__eq__(index.claims, right.claims)
    assert dict.__eq__(index.prices, right.prices)
    assert index.num_releasing == loads.num_releasing
    assert index.num_preemptible == right.num_preemptible
    assert math.isclose(index.hourly, right.hourly)
    assert index.crowded.keys() == loads.crowded
    assert index.lent == right.lent
    assert index.num_frozen == right.num_frozen
    assert index.overfull.keys() == loads.overfull
    assert index.free.keys() == loads.free


def _index_of(world: World) -> Index:
    manager = world.manager
    assert manager is not None
    streams = manager.owners.pools.streams
    right = Index(told=dict(world.prices), streams=dict(streams))
    for i in manager.view.roster:
        begin, hello = (i.parameters.version, i.parameters.digest), i.hello
        pool = right.pools.setdefault(begin, [])
        right.names.add(i.name)
        right.claims[hello.instance] = right.claims.get(hello.instance, 0) + 1
        if i.reserved:
            right.reserved.append(i)
        else:
            price = world.prices.get(streams.get(i.stream, ""), hello.price_per_hour)
            right.prices[price] = right.prices.get(price, 0) + 1
            if i.state == "ready" and i.slots:
                pool.append(i)
                right.fingerprints.add(hello.fingerprint)
        right.lent += hello.slots - i.slots
        right.num_frozen += i.frozen
    right.num_preemptible = sum(right.prices.values())
    right.hourly = sum([price * count for price, count in right.prices.items()])
    return right


def _loads_of(world: World, counts: list[tuple[int, int]]) -> Loads:
    """Args: counts: of rollouts that each instance holds, and of those it is releasing."""
    manager = world.manager
    assert manager is not None
    right = Loads()
    for i, (held, releasing) in zip(manager.view.roster, counts, strict=True):
        if not held:
            right.idle.add(i.stream)
            if not i.reserved:
                right.free.add(i.stream)
        right.num_releasing += releasing
        if held - releasing > 1:
            right.crowded.add(i.stream)
        if held - releasing > i.room:
            right.overfull.add(i.stream)
    return right


def _servers(world: World, known: Balanced) -> None:
    """The fleet's counts, and those of each pool, are what looking through all servers and streams
    would give."""
    manager = world.manager
    assert manager is not None
    fleet, pools = manager.view.fleet, manager.owners.pools
    now, streams = list(map(SERVER, fleet.servers.values())), list(pools.streams.values())
    right = known.fleet
    if right is None or (right.servers, right.streams) != (now, streams):
        right = known.fleet = _fleet_of(world, now, streams)
    assert right.standing == fleet.standing
    assert len(fleet.starting) == right.starting
    waits = fleet.absent_at < math.inf
    assert waits or not right.absent
    assert not waits or right.absent or right.sent_home
    if right.sent_home and not waits:  # they were waited for long enough, and have been ended
        living = {(server.name, server.nonce) for server in world.servers if server.alive}
        assert living.isdisjoint(right.sent_home), "sent home, and waited for by nobody"
    lent = fleet.machines
    assert fleet.full == ("" not in lent.values())
    chosen = world.settings.fleet
    if chosen.sizing == "fixed":
        limit = min(len(lent), chosen.most_instances)
        assert fleet.missing(None) == max(0, limit - len(right.standing))
    assert pools.streams.keys() <= manager.view.instances.keys()
    assert list(map(POOL, pools)) == right.pools
    for pool in pools:
        most = pool.terms.most
        assert right.asked[pool.name] <= most
        assert fleet.free_in(pool.name) <= max(0, most - pool.present)


def _fleet_of(world: World, now: list[object], of_streams: list[str]) -> Fleet:
    manager = world.manager
    assert manager is not None
    right = Fleet(servers=now, streams=of_streams)
    servers = manager.view.fleet.servers.values()
    hellos = {(i.hello.instance, i.hello.nonce) for i in manager.view.roster}
    for server in servers:
        if not server.doomed:
            right.standing.append(server.name)
            right.starting += server.granted and not server.joined
        if server.joined and (server.name, server.nonce) not in hellos:
            right.absent |= not server.doomed
            if server.dismissed:
                right.sent_home.add((server.name, server.nonce))
    for pool in manager.owners.pools:
        own = [server for server in servers if server.pool == pool.name]
        standing = [server for server in own if not server.doomed]
        waiting = sum([not server.joined for server in standing])
        paid = sum([server.granted for server in own])
        members = of_streams.count(pool.name)
        right.pools.append((len(own), len(standing), waiting, paid, members))
        # Those of managers before are welcome, though the provider had said that they were gone.
        right.asked[pool.name] = sum(
            [server.nonce.partition("-")[0] == world.life for server in own]
        )
    return right


def check_leases(world: World) -> None:
    """A server is in the roster for as long as its lease goes from its last frame, no longer. Who
    was harmed by nothing is not lost for its line or for want of progress. A manager that has
    exited watches nobody, though time may pass before the last check."""
    manager = world.manager
    assert manager is not None
    if world.exit is not None:
        return
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
        if reason.startswith(("silent", "unreachable", "no progress", "no byte", "gave nothing")):
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
    newest = manager.owners.versions.newest
    for number, batch in () if manager.over else manager.view.open.items():
        if not batch.num_waiting:
            continue
        if newest is not None and newest.version > number:
            continue  # its update is out, and that it is trained is about to be said again
        reserved, remote = map(list, manager.view.eligible(batch))
        oldest = batch is manager.view.batch
        if oldest:
            lagging = manager.owners.ledger.lagging  # then somebody comes back for it
            others = remote or (lagging and manager.view.roster.members)
            assert manager.view.window_open or others, "no one is eligible"
        for instance in remote + (reserved if manager.view.window_open else []):
            assert len(instance.held) >= instance.room + world.settings.manager.max_pending


def _scores(world: World) -> None:
    """What servers are to score is theirs alone, and nothing waits that one of them could do."""
    manager = world.manager
    assert manager is not None
    scores, free = manager.components.servers.scores, []
    given = {n: (item, who) for item in scores.items for n, who in item.given.items()}
    for instance in () if manager.over else manager.view.roster:
        held = instance.activity.scores.held
        assert len(held) <= PENDING
        assert (instance.activity.scores.progress_at < math.inf) == bool(held)
        who = identity(instance.hello)
        assert all(given.pop(number)[1] == who for number in list(held) if number in given)
        if (
            instance.activity.scores.teachers
            and len(held) < PENDING
            and not instance.departure.leaving
        ):
            free.append(who)
    assert manager.over or not given, "an item is given to nobody who is here"
    if not manager.over and manager.view.roster.trusting:
        for item in scores.items:
            may = item.wanting > 0 and any(map(item.may_ask, free))
            assert not may or item.asked.batch not in manager.view.open, "an item waits"


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

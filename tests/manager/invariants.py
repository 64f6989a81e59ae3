"""What holds in the manager after every event, read off its parts."""

from collections import Counter

from tests.manager.world import World


def check(world: World) -> None:
    """Raises AssertionError where an account does not balance."""
    manager = world.manager
    limit = world.settings.manager.max_pending
    holders: Counter[int] = Counter()
    for instance in manager.roster:
        assert len(instance.held) <= instance.slots + limit
        assert instance.num_releasing == sum(r.releasing for r in instance.held.values())
        assert instance.groups == Counter(r.prompt for r in instance.held.values())
        for request_id, rollout in instance.held.items():
            assert rollout.request_id == request_id
            assert rollout.holder == instance.name
            assert rollout.result is None
            holders[id(rollout)] += 1
    for step in manager.ledger.steps.values():
        waiting = list(step.waiting())
        assert len(waiting) == step.num_waiting == len(set(map(id, waiting)))
        assert all(rollout.waiting for rollout in waiting)
        held = sum(holders[id(rollout)] for rollout in step.rollouts)
        assert all(holders[id(rollout)] <= 1 for rollout in step.rollouts)
        assert held + len(waiting) + step.num_finished == len(step.rollouts)
        assert step.num_finished == sum(r.result is not None for r in step.rollouts)
        kept = sum(r.num_tokens for r in step.rollouts)
        assert step.books.generated - step.books.lost == kept
    _nothing_idle(world)


def _nothing_idle(world: World) -> None:
    """A rollout waits only while no eligible instance has room."""
    manager = world.manager
    step = manager.ledger.active
    if step is None or not step.num_waiting or manager.over:
        return
    remote = manager.work.remote(step)
    reserved = manager.work.reserved(step)
    assert manager.work.seeding.open or remote, "no one is eligible"
    for instance in remote + (reserved if manager.work.seeding.open else []):
        assert len(instance.held) >= instance.slots + world.settings.manager.max_pending

"""The manager in virtual time: limits, bounds, books, losses."""

import itertools
from dataclasses import replace

import pytest

from rlboost_jax.messages import BeginBatch, Ready
from rlboost_jax.observe.metrics import KEYS
from rlboost_jax.simulator.colocated import colocated
from rlboost_jax.simulator.economics import dollars
from rlboost_jax.simulator.market.simulated_market import MachineChange, static
from rlboost_jax.simulator.rates import train_seconds
from rlboost_jax.simulator.response_lengths import response_lengths
from rlboost_jax.simulator.simulated_server import SimulatedServer
from rlboost_jax.simulator.world import World
from tests.simulator.conftest import make_config


def run(config, instances=0, *, seed=0, changes=None, seconds=1e6, **options):
    changes = static(instances).changes if changes is None else changes
    world = World(config, changes, seed=seed, seconds=seconds, **options)
    return world, world.run()


def rate(rows, settled=1):
    rows = rows[settled:]
    return sum(r["response_tokens"] for r in rows) / sum(r["step_seconds"] for r in rows)


@pytest.mark.parametrize("static", [False, True])
def test_zero_instances_are_the_co_located_baseline(static):
    """A single engine leaves no luck in how responses are dealt out."""
    config = make_config(reserved__chips_per_node=2, workload__mean_tokens=2000.0)
    _, rows = run(config)
    alone = colocated(config, seed=0, seconds=1e9, static=static)
    assert rate(rows) == pytest.approx(rate(alone), rel=0.01)


def test_engines_that_take_work_as_they_have_room_are_as_good_as_the_managers():
    config = make_config(
        reserved__chips_per_node=8, engine__slots=6, workload__mean_tokens=1500.0, num_steps=8
    )
    _, rows = run(config)
    balanced = rate(colocated(config, seed=0, seconds=1e9))
    assert rate(rows) == pytest.approx(balanced, rel=0.03)  # six slots are a coarse grain
    assert balanced > 1.02 * rate(colocated(config, seed=0, seconds=1e9, static=True))


def test_more_instances_are_never_slower():
    config = make_config(num_steps=7, settling_steps=3)
    rates = [rate(run(config, k)[1], 3) for k in (0, 1, 2, 4)]
    for less, more in itertools.pairwise(rates):
        assert more > 0.97 * less
    assert rates[-1] > 1.1 * rates[0]


def test_the_same_seed_gives_the_same_rows():
    config = make_config()
    assert run(config, 2)[1] == run(config, 2)[1] != run(config, 2, seed=1)[1]


LOSSES = (
    MachineChange(0.0, True, "a"),
    MachineChange(0.0, True, "b"),
    MachineChange(7.0, False, "a"),
    MachineChange(12.0, True, "c"),
    MachineChange(33.0, False, "b"),
    MachineChange(41.0, False, "c"),
    MachineChange(47.0, True, "d"),
)


@pytest.mark.parametrize("notice", [0.0, 30.0])
def test_every_token_is_delivered_or_lost(notice):
    config = make_config(market__notice_seconds=notice, num_steps=5)
    killed = []  # rollouts in slots, of each machine that is lost

    class Watched(SimulatedServer):
        def kill(self, reason):
            super().kill(reason)
            killed.append(len(self.engine.running))

    _, rows = run(config, changes=LOSSES, server=Watched)
    own = {"begun_at", "billed_instance_seconds", "egress_bytes"}
    own |= {"instance_cap", "window_next_seconds", "instance_dollars", "egress_dollars"}
    assert set(rows[0]) - own <= set(KEYS), "names are those of a run"
    lengths = [int(response_lengths(config.workload, seed=0, step=s).sum()) for s in range(5)]
    for row, length in zip(rows, lengths, strict=True):
        assert row["tokens_generated"] == row["tokens_delivered"] + row["tokens_lost"]
        assert row["tokens_generated"] == row["tokens_reserved"] + row["tokens_preemptible"]
        assert row["tokens_delivered"] == row["response_tokens"] == length
    assert sum(row["instances_lost"] for row in rows) == 3
    assert sum(row["instances_joined"] for row in rows) == 4
    lost = sum(row["tokens_lost"] for row in rows)
    # Without notice each machine takes the dispatch under way along: all that its slots could
    # have yielded, and nothing of the dispatches before.
    assert notice or sum(killed) > 0
    assert lost == (0 if notice else sum(killed) * config.engine.dispatch_tokens)


def test_the_reserved_engines_go_on_when_every_instance_is_lost_after_the_window():
    """Production gives them their weights before it asks for tokens, window or not."""
    config = make_config(num_steps=3, policy__seeding=False)
    changes = (MachineChange(0.0, True, "a"), MachineChange(30.0, False, "a"))
    world, rows = run(config, changes=changes, seconds=3600.0)
    assert len(rows) == 3
    assert rows[-1]["tokens_reserved"] == rows[-1]["tokens_delivered"]
    assert world.clock.now < 3600.0


def test_no_token_is_asked_for_before_the_engines_hold_the_weights():
    config = make_config(num_steps=2, settling_steps=1, trainer__begin_seconds=3.0)
    world = World(config, static(1).changes, seed=0, seconds=1e6)
    heard = []
    deliver = world.deliver

    def listen(event):
        heard.append((world.clock.now, getattr(event, "message", None)))
        deliver(event)

    world.deliver = listen
    world.run()
    for step in (0, 1):
        asked = next(
            i for i, (_, m) in enumerate(heard) if isinstance(m, BeginBatch) and m.batch == step
        )
        before = [m for _, m in heard[:asked] if isinstance(m, Ready) and m.version == step]
        assert sum(not ready.fetched_bytes for ready in before) == config.num_engines
        assert heard[asked][0] >= 3.0


def test_without_migration_a_loss_costs_all_that_was_there():
    kept = run(make_config(num_steps=5), changes=LOSSES)[1]
    again = run(make_config(num_steps=5, policy__migration=False), changes=LOSSES)[1]
    assert sum(r["tokens_lost"] for r in again) > 5 * sum(r["tokens_lost"] for r in kept)


def test_what_is_billed_by_hand():
    """Bills run from the order to the end, boot included: 7 s, 33 s, 29 s and the rest."""
    config = make_config(num_steps=5)
    _, rows = run(config, changes=LOSSES)
    end = rows[-1]["begun_at"] + rows[-1]["step_seconds"]
    assert end > 50.0
    billed = sum(row["billed_instance_seconds"] for row in rows)
    assert billed == pytest.approx(7.0 + 33.0 + 29.0 + end - 47.0)


def test_the_managers_own_bill_agrees_but_for_the_time_to_notice():
    """And for what was sent of pulls that a loss ended."""
    config = make_config(num_steps=5, instance__egress_dollars_per_gb=0.1)
    _, rows = run(config, changes=LOSSES)
    own = sum(dollars(config, row) for row in rows)
    late = 3 * config.instance.detect_seconds / 3600 * config.instance.price_per_hour
    discarded = 3 * 0.1 * 29.54
    reported = sum(row["cost_dollars"] for row in rows)
    assert own - discarded <= reported <= own + late + 1e-9
    free = make_config(num_steps=5)
    assert (
        reported
        > sum(row["cost_dollars"] for row in run(free, changes=LOSSES)[1]) + 5 * 0.1 * 29.54
    )


def test_a_pull_takes_what_the_links_say():
    """29.54 GB at 6.25 GB/s, loaded at 25 GB/s, half a second to begin."""
    config = make_config(num_steps=2, settling_steps=1)
    world = World(config, static(1).changes, seed=0, seconds=1e6)
    heard = []
    deliver = world.deliver

    def listen(event):
        message = getattr(event, "message", None)
        if type(message).__name__ == "Ready" and message.fetched_bytes:
            heard.append(message)
        deliver(event)

    world.deliver = listen
    world.run()
    assert heard[0].fetched_bytes == int(29.54e9)
    assert heard[0].seconds == pytest.approx(0.5 + 29.54e9 / 6.25e9 + 29.54e9 / 25e9, rel=1e-6)


def test_weights_that_come_late_help_less():
    fast, slow = (
        make_config(num_steps=6),
        make_config(num_steps=6, links__receiver_bytes_per_second=0.5e9),
    )
    assert rate(run(fast, 4)[1], 2) > 1.02 * rate(run(slow, 4)[1], 2)


def test_the_cap_holds_the_fleet_to_what_the_manager_wants():
    config = make_config(policy__sizing="paper")
    world, rows = run(config, 40)
    assert rows[-1]["instances_mean"] < 40
    assert len(world.manager.view.fleet.standing) <= max(row["instance_cap"] for row in rows)


def test_without_reserved_engines_the_instances_do_it_all():
    _, rows = run(make_config(policy__seeding=False), 4, reserved_engines=False)
    assert all(row["tokens_reserved"] == 0 for row in rows)
    assert all(row["tokens_delivered"] == row["tokens_preemptible"] for row in rows)


def test_a_market_that_ends_leaves_out_the_step_under_way():
    config = replace(make_config(), num_steps=0)
    _, rows = run(config, 2, seconds=60.0)
    assert rows and all(r["begun_at"] + r["step_seconds"] <= 60.0 for r in rows)


def test_a_step_is_its_parts():
    """Switching, window, waiting, training and publishing follow each other; training by hand."""
    config = make_config()
    _, rows = run(config, 2)
    for row in rows:
        lengths = response_lengths(config.workload, seed=0, step=row["step"]) + 200
        # Hand-over and update: 0.5 s each; 8 micro-batches of 10 ms.
        expected = train_seconds(config, lengths.tolist()) + 0.5 + 0.5 + 8 * 0.01
        assert row["train_seconds"] == pytest.approx(expected)
        parts = ("seeding_window_seconds", "train_wait_seconds", "train_seconds", "publish_seconds")
        # … after 0.5 s in which the devices changed from the learner to the engines.
        assert row["step_seconds"] == pytest.approx(0.5 + sum(row[part] for part in parts))


def test_reserved_engines_stand_still_while_the_learner_works():
    config = make_config(num_steps=5)
    world = World(config, LOSSES, seed=0, seconds=1e6)
    seen = []
    deliver = world.deliver

    def listen(event):
        if world.trainer._busy:
            seen.append(all(server.engine.paused for server in world.reserved))
        deliver(event)

    world.deliver = listen
    world.run()
    assert seen and all(seen)

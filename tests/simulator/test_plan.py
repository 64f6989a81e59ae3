"""`rlboost plan` against an enumerator that knows nothing of bounds, rounds or fronts."""

import random
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.simulator.market.kinds import MachineKind, Machines
from rlboost_jax.simulator.market.simulated_market import MachineChange, static
from rlboost_jax.simulator.plan.mix_bound import Bounds, Least
from rlboost_jax.simulator.plan.mix_market import changes
from rlboost_jax.simulator.plan.mix_run import MixSample, horizon_of, run_mix
from rlboost_jax.simulator.plan.mixes import Mix, Space, space_of
from rlboost_jax.simulator.plan.pareto import front
from rlboost_jax.simulator.plan.plan_report import report
from rlboost_jax.simulator.plan.planning import PlanLimits, plan, processes, settings_of
from rlboost_jax.simulator.plan.price_list import InstanceType, PriceList, ReservedShape
from rlboost_jax.simulator.plan.purchase import as_fast_as_measured, purchase_of
from rlboost_jax.simulator.plan.search import Search, Task, point_of
from rlboost_jax.simulator.rates import EngineRates
from rlboost_jax.simulator.world import World
from tests.simulator.conftest import make_config

FAST = InstanceType(
    name="fast", price_per_hour=6.0, speed=1.5, losses_per_hour=20.0, away_seconds=30.0,
    start_seconds=10.0, max_instances=2, egress_dollars_per_gb=0.05, device="H100", chips=2,
)  # fmt: skip
CHEAP = InstanceType(
    name="cheap", price_per_hour=1.5, speed=0.6, start_seconds=10.0, max_instances=3,
    device="H100", chips=2,
)  # fmt: skip
OTHER = InstanceType(
    name="other", price_per_hour=3.0, device="A100-80GB", chips=2, losses_per_hour=30.0,
    notice_seconds=5.0, start_seconds=5.0, max_instances=2,
)  # fmt: skip
SHAPES = (
    ReservedShape(name="half", price_per_hour=40.0, nodes=1, chips_per_node=4),
    ReservedShape(name="whole", price_per_hour=80.0, nodes=1, chips_per_node=8),
)
HORIZON = horizon_of(run_steps=20, steps=4, settling=2, seeds=(3, 5))


def purchase(*types, shapes=SHAPES[:1], **changed):
    config = make_config(**changed)
    return purchase_of(config, PriceList(instances=types, reserved=shapes), measured=False)


def serial(bought, horizon=HORIZON):
    return lambda tasks: [run_mix(bought, mix, horizon, seed=seed) for mix, seed in tasks]


def by_hand(bought, counts, shape, seed):
    """Hours and dollars of a run of 20 steps: the first two as they are, nine times the others."""
    config = replace(bought.learners[shape], num_steps=4)
    market = changes(bought.prices.instances, counts, seed=seed, seconds=36_000.0)
    world = World(
        config, market, seed=seed, seconds=36_000.0, machines=bought.machines(counts, shape)
    )
    seconds = dollars = 0.0
    for number, row in enumerate(world.run()):
        times = 1 if number < 2 else 9
        seconds += times * row["step_seconds"]
        hourly = config.reserved.nodes * config.reserved.price_per_node_hour
        dollars += times * row["step_seconds"] * hourly / 3600
        dollars += times * (row["instance_dollars"] + row["egress_dollars"])
    return seconds / 3600, dollars


@pytest.mark.parametrize(
    ("types", "shapes"), [((FAST, CHEAP), SHAPES), ((CHEAP, OTHER, FAST), SHAPES[1:])]
)
def test_a_plan_is_what_simulating_everything_gives(types, shapes):
    total = 2
    bought = purchase(*types, shapes=shapes)
    space = space_of(bought.prices, total=total)
    found = plan(bought, space, HORIZON, PlanLimits(), simulate=serial(bought))
    every = {}
    for shape in range(len(shapes)):
        codes = [[]]
        for each in types:
            codes = [
                [*code, n] for code in codes for n in range(min(total, each.max_instances) + 1)
            ]
        for counts in codes:
            if sum(counts) > total:
                continue
            pairs = [by_hand(bought, counts, shape, seed) for seed in (3, 5)]
            hours, dollars = (sum(column) / 2 for column in zip(*pairs, strict=True))
            every[shapes[shape].name, tuple(counts)] = hours, dollars
    assert space.size == len(every) and found.exact
    best = {
        name
        for name, (hours, dollars) in every.items()
        if not any(
            h <= hours and d <= dollars and (h, d) != (hours, dollars) for h, d in every.values()
        )
    }
    assert {(row.shape, row.mix.counts) for row in found.rows if row.best} == best
    for row in found.rows:
        hours, dollars = every[row.shape, row.mix.counts]
        assert row.hours.mean == pytest.approx(hours)
        assert row.dollars.mean == pytest.approx(dollars)
    cheapest = min(every, key=lambda name: every[name][1])
    assert (found.chosen.shape, found.chosen.mix.counts) == cheapest


@example(counts=(2, 2, 2), seed=1, away=True, lag=0, sizing="fixed")
@settings(max_examples=12, deadline=None)
@given(
    counts=st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)),
    seed=st.integers(0, 5),
    away=st.booleans(),
    lag=st.sampled_from([0, 0, 1]),
    sizing=st.sampled_from(["fixed", "fixed", "marginal"]),
)
def test_no_run_beats_its_bound(counts, seed, away, lag, sizing):
    """Neither in time nor in money, so that what is ruled out is ruled out for certain."""
    types = (FAST, CHEAP, replace(OTHER, away_seconds=20.0 if away else 0.0))
    bought = purchase(*types, trainer__lag=lag, policy__sizing=sizing)
    least = Bounds(bought, HORIZON).least(Mix(counts), seed)
    came = run_mix(bought, Mix(counts), HORIZON, seed=seed)
    assert 0 < least.seconds < came.seconds
    assert 0 < least.dollars < came.dollars
    if not lag and sizing == "fixed":  # else it says little
        assert least.seconds > 0.4 * came.seconds


def test_a_bound_of_many_alike_is_that_of_one_kind():
    """Two types that are the same machine bound as one type with as many."""
    twin = replace(CHEAP, name="twin")
    bought = purchase(CHEAP, twin, engine__slots=4)  # so that tails are not all that counts
    bounds = Bounds(bought, HORIZON)
    one, two = bounds.least(Mix((3, 0)), 0), bounds.least(Mix((1, 2)), 0)
    assert (one.seconds, one.dollars) == pytest.approx((two.seconds, two.dollars))
    assert one.seconds < bounds.least(Mix((0, 0)), 0).seconds


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), tight=st.sampled_from([0.3, 0.8, 0.99]))
def test_a_search_finds_the_front_whatever_the_figures(seed, tight):
    """Made-up figures, and bounds anywhere below them; points that are equal are all kept."""
    chance = random.Random(seed)
    space = Space(most=(3, 2, 2), total=4, shapes=2)
    grid = chance.choice([3, 1000])
    figures = {
        (mix, number): MixSample(
            seconds=chance.randint(1, grid), dollars=chance.randint(1, grid), tokens=1.0, losses=0.0
        )
        for mix in space
        for number in (7, 8, 9)
    }

    def bound(mix, number):
        own = figures[mix, number]
        return Least(
            seconds=own.seconds * chance.uniform(tight, 1.0),
            dollars=own.dollars * chance.uniform(tight, 1.0),
        )

    asked = []

    def simulate(tasks):
        asked.extend(tasks)
        return [figures[task] for task in tasks]

    found = Search(space, (7, 8, 9), bound=bound, simulate=simulate).run()
    points = {mix: point_of([figures[mix, n] for n in (7, 8, 9)]) for mix in space}
    naive = [
        mix
        for mix, (seconds, dollars) in points.items()
        if not any(s <= seconds and d <= dollars and (s, d) != (seconds, dollars)
                   for s, d in points.values())
    ]  # fmt: skip
    assert sorted(found.best) == sorted(naive)
    assert len(asked) == len(set(asked)) == found.simulations, "none twice"
    assert found.left == 0 and len(found.samples) + found.ruled_out == space.size
    if tight == 0.99 and grid == 1000:
        assert found.ruled_out > 0


def test_a_budget_leaves_mixes_and_says_so():
    space = Space(most=(3, 3), total=6, shapes=1)

    def simulate(tasks):
        return [
            MixSample(
                seconds=sum(mix.counts) + 1.0, dollars=9.0 - sum(mix.counts), tokens=1, losses=0
            )
            for mix, _ in tasks
        ]

    found = Search(
        space, (0,), bound=lambda mix, seed: Least(seconds=0.1, dollars=0.1), simulate=simulate,
        budget=5,
    ).run()  # fmt: skip
    assert found.simulations == 5 and found.left == 16 - 5


def test_a_space_too_large_is_searched_by_neighbours():
    """A bowl has one bottom, and everything on the way down is a neighbour of what was there."""
    space = Space(most=(9,) * 6, total=30, shapes=1)

    def price(mix):
        return 10.0 + sum((count - 3) ** 2 for count in mix.counts)

    def simulate(tasks):
        return [MixSample(seconds=price(m), dollars=price(m), tokens=1, losses=0) for m, _ in tasks]

    search = Search(
        space, (0,), bound=lambda mix, seed: Least(seconds=1.0, dollars=1.0), simulate=simulate
    )
    found = search.run()
    assert not search.exhaustive and found.left > 0
    assert found.best == (Mix((3,) * 6),)


def test_fronts():
    assert front([(1, 5), (2, 4), (2, 5), (3, 4), (1, 5), (4, 1)]) == [0, 4, 1, 5]
    assert front([]) == []


def test_one_kind_that_is_the_configurations_own_changes_nothing():
    config = make_config(instance__price_per_hour=3.6, instance__egress_dollars_per_gb=0.1)
    kind = Machines.of(config).kinds[""]
    named = Machines(kinds={"own": kind}, reserved_device="simulated")
    losses = (MachineChange(7.0, False, "machine1"), MachineChange(12.0, True, "machine1"))
    market = (*static(2).changes, *losses)
    renamed = [replace(each, machine=f"own/{each.machine}") for each in market]
    plain = World(config, market, seed=0, seconds=1e6).run()
    assert World(config, renamed, seed=0, seconds=1e6, machines=named).run() == plain
    for row in plain:
        assert row["instance_dollars"] == pytest.approx(row["billed_instance_seconds"] * 0.001)
        assert row["egress_dollars"] == pytest.approx(row["egress_bytes"] * 1e-10)


def test_each_machine_has_its_kinds_speed_price_and_start():
    """A kind ten times as fast does nearly all that instances do; each is paid its own price."""
    config = make_config(num_steps=3, policy__seeding=False)
    own = Machines.of(config).kinds[""]
    rates = {"fast": own.rates.slowed(0.1), "slow": own.rates}
    kinds = {
        name: MachineKind(
            rates=rates[name], device=name, zone="z", price_per_hour=price, start_seconds=1.0,
            notice_seconds=0.0, egress_dollars_per_gb=0.0,
        )
        for name, price in (("fast", 36.0), ("slow", 3.6))
    }  # fmt: skip
    machines = Machines(kinds=kinds, reserved_device="learner")

    def run(*names):
        market = [MachineChange(0.0, True, f"{name}/{i}") for i, name in enumerate(names)]
        return World(config, market, seed=0, seconds=1e6, machines=machines).run()

    slow, fast, both = run("slow"), run("fast"), run("slow", "fast")
    assert fast[-1]["step_seconds"] < 0.5 * slow[-1]["step_seconds"]
    assert both[-1]["step_seconds"] < slow[-1]["step_seconds"]
    for rows, dollars in ((slow, 3.6), (fast, 36.0), (both, 39.6)):
        for row in rows:
            paid = row["step_seconds"] / 3600 * dollars
            assert row["instance_dollars"] == pytest.approx(paid)


def test_processes_give_what_one_does_and_a_plan_names_its_settings():
    bought = purchase(CHEAP, OTHER)
    space = space_of(bought.prices, total=1)
    horizon = horizon_of(run_steps=2, steps=4, settling=1, seeds=(0,))
    limits = PlanLimits(hours=100.0, dollars=1e6)
    with processes(bought, horizon, 2) as simulate:
        found = plan(bought, space, horizon, limits, simulate=simulate)
    assert found == plan(bought, space, horizon, limits, simulate=serial(bought, horizon))
    mixed = next((row for row in found.rows if row.mix.counts == (0, 1)), None)
    if mixed is not None:
        assert mixed.mixed and mixed.devices == ("H100", "A100-80GB")
    text = "\n".join(settings_of(bought, mixed or found.chosen))
    assert ("deterministic = False" in text) == (mixed is not None)


def test_limits_choose():
    # So dear that the fastest mix is not the cheapest.
    dear = replace(FAST, losses_per_hour=0.0, speed=6.0, price_per_hour=200.0)
    bought = purchase(dear, shapes=SHAPES[:1])
    space, once = space_of(bought.prices, total=2), serial(bought)
    known: dict[Task, MixSample] = {}

    def simulate(tasks):
        new = [task for task in tasks if task not in known]
        known.update(zip(new, once(new), strict=True))
        return [known[task] for task in tasks]

    free = plan(bought, space, HORIZON, PlanLimits(), simulate=simulate)
    hours = [row.hours.mean for row in free.rows]
    hurried = plan(bought, space, HORIZON, PlanLimits(worth_per_hour=1e6), simulate=simulate)
    assert hurried.chosen.hours.mean == min(hours) < free.chosen.hours.mean
    none = plan(bought, space, HORIZON, PlanLimits(hours=min(hours) / 2), simulate=simulate)
    assert not none.kept and none.chosen.late > 0.95


@pytest.mark.parametrize("price", [2.0, 200.0])
def test_at_the_limit_of_prices_the_learner_alone_is_as_cheap_per_token(price):
    """Simulated again at the prices that the limit says."""
    steady = replace(
        FAST, losses_per_hour=0.0, speed=6.0, price_per_hour=price, egress_dollars_per_gb=0.0
    )
    bought = purchase(steady, shapes=SHAPES[:1])
    space, limits = space_of(bought.prices, total=2), PlanLimits(worth_per_hour=1e6)
    found = plan(bought, space, HORIZON, limits, simulate=serial(bought))
    limit = found.price_limit(bought)
    assert found.chosen.mix.instances and (limit > 1) == (price == 2.0)
    assert f"per dollar until its instances cost {limit:.2f} times as much" in report(
        found, bought, limits, others=0
    )
    dearer = purchase(replace(steady, price_per_hour=price * limit), shapes=SHAPES[:1])
    samples = [run_mix(dearer, found.chosen.mix, HORIZON, seed=seed) for seed in HORIZON.seeds]
    per_dollar = sum(s.tokens for s in samples) / sum(s.dollars for s in samples)
    assert per_dollar == pytest.approx(found.alone.tokens_per_dollar, rel=1e-6)
    free = plan(bought, space_of(bought.prices, total=0), HORIZON, limits, simulate=serial(bought))
    assert free.price_limit(bought) is None and free.alone == free.chosen


def test_what_does_not_fit_or_is_not_known_is_a_line():
    with pytest.raises(ConfigError, match=r"'fast': 1 of L4 have room for .* needs"):
        purchase(replace(FAST, speed=0.0, device="L4", chips=1))
    with pytest.raises(ConfigError, match="device 'TPU' has no data sheet here; give speed, or on"):
        purchase(replace(FAST, speed=0.0, device="TPU"))
    prices = PriceList(instances=(replace(FAST, speed=0.0, device="L4"),), reserved=SHAPES[:1])
    with pytest.raises(ConfigError, match="of no known data sheet; give speed") as caught:
        purchase_of(make_config(), prices, measured=True)
    assert "\n" not in str(caught.value)
    alike = purchase_of(make_config(), as_fast_as_measured(make_config(), prices), measured=True)
    own = EngineRates(make_config())
    assert alike.kinds[0].rates.step_seconds(4, 4000) == own.step_seconds(4, 4000)
    assert alike.learners[0].trainer == make_config().trainer
    with pytest.raises(ConfigError, match="--settling is 4 of 4 simulated steps; lower it"):
        horizon_of(run_steps=9, steps=4, settling=4, seeds=(0,))

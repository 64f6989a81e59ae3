"""Price lists: what is read, and a line for each mistake; what data sheets make of them."""

from dataclasses import replace

import pytest

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.fleet_config import ChaosConfig, FleetConfig
from rlboost_jax.settings.pool_fleets import pool_mistakes
from rlboost_jax.simulator.accelerators import DATA_SHEETS, device_of
from rlboost_jax.simulator.plan.mixes import Mix, space_of
from rlboost_jax.simulator.plan.price_list import (
    EXAMPLE_FILE,
    InstanceType,
    PriceList,
    ReservedShape,
    read_prices,
)
from rlboost_jax.simulator.plan.purchase import purchase_of
from rlboost_jax.simulator.rates import EngineRates, train_seconds
from tests.simulator.conftest import make_config

LEAST = '[[instances]]\nname = "spot"\nprice_per_hour = 2.0\n'


def read(tmp_path, text):
    path = tmp_path / "prices.toml"
    path.write_text(text)
    return read_prices(path)


def test_what_is_left_out_has_a_default(tmp_path):
    found = read(tmp_path, LEAST)
    assert found == PriceList(instances=(InstanceType(name="spot", price_per_hour=2.0),))


def test_the_shipped_example_is_read_and_dated():
    found = read_prices(EXAMPLE_FILE)
    assert found.date == "2026-01-15" and len(found.instances) == 4
    assert "check them yourself" in EXAMPLE_FILE.read_text().lower()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"no \[\[instances\]\]; name one type at least"),
        ("[instances]\nname = 'a'", r"instances is no list of tables; write \[\[instances\]\]"),
        ("instances = 3", "instances is no list of tables"),
        (LEAST + "options = " + "[" * 5000, "lists in lists too deep to be a price list"),
        ("[[instances]", "prices.toml: .* docs/how-to/plan.md has an example"),
        (LEAST + "price = 3", r"price of instances\[0\] does not exist; did you mean"),
        (LEAST + "start_seconds = 'soon'", "Expected `float`, got `str`, at `instances"),
        (LEAST + "losses_per_hour = -1", "losses_per_hour of 'spot' is -1.0; choose 0 to 3,600"),
        (LEAST + "max_instances = 0", "max_instances of 'spot' is 0; choose 1 to 64"),
        (LEAST + "speed = nan", "speed of 'spot' is nan; choose 0 to 1,000"),
        (LEAST + LEAST, "name 'spot' is given 2 times; give it once"),
        (LEAST.replace("spot", "Spot 1"), "name 'Spot 1': up to 24 of a-z, 0-9 and -"),
        (LEAST + "speed = 2\ntokens_per_second = 9", "has speed and tokens_per_second; give one"),
        (LEAST + "trace = 'x.csv'\nlosses_per_hour = 1", "has a trace and losses_per_hour"),
        (
            LEAST + "provider = 'slrum'",
            "provider of 'spot' 'slrum' does not exist; did you mean",
        ),
        (LEAST + "trace = 'x.csv'", "trace of 'spot': cannot read .*x.csv"),
        (LEAST + "[[reserved]]\nname = 'r'\nprice_per_hour = 1\nnodes = 0", "nodes of 'r' is 0"),
    ],
)
def test_a_mistake_is_a_line(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words):
        read(tmp_path, text)


def test_a_missing_list_is_a_line(tmp_path):
    with pytest.raises(ConfigError, match="No such file or directory; name a price list"):
        read_prices(tmp_path / "none.toml")


def test_a_trace_lies_beside_the_list(tmp_path):
    (tmp_path / "t.csv").write_text("0,add,a\n5000,remove,a\n")
    found = read(tmp_path, LEAST + "trace = 't.csv'")
    assert found.instances[0].trace == str(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("0,add,a\n")
    with pytest.raises(ConfigError, match="ends as it begins; give a longer one"):
        read(tmp_path, LEAST + "trace = 't.csv'")


def bought(config, *types, shapes=()):
    return purchase_of(config, PriceList(instances=types, reserved=shapes), measured=False)


def seconds(rates):
    return rates.step_seconds(16, 16 * 1000.0)


SPOT = InstanceType(name="spot", price_per_hour=2.0)


def test_speeds_are_relative_absolute_or_a_data_sheets():
    config = make_config()
    own = EngineRates(config)
    fast = replace(SPOT, speed=2.0)
    kinds = bought(config, SPOT, fast, replace(SPOT, device="H200")).kinds
    assert seconds(kinds[0].rates) == seconds(own)
    assert seconds(kinds[1].rates) == pytest.approx(seconds(own) / 2)
    # At this batch an engine waits for memory, but for its fixed part.
    fixed = config.engine.step_overhead_seconds
    ratio = (seconds(own) - fixed) / (seconds(kinds[2].rates) - fixed)
    assert ratio == pytest.approx(4.8 / 3.35)
    assert kinds[2].rates.kv_tokens > own.kv_tokens
    work = config.workload
    context = work.prompt_tokens + work.mean_tokens / 2
    usual = own.slots / own.step_seconds(own.slots, own.slots * context)
    rated = bought(config, replace(SPOT, tokens_per_second=usual / 3)).kinds[0]
    assert seconds(rated.rates) == pytest.approx(3 * seconds(own))


def test_a_table_of_seconds_is_scaled_by_bandwidth():
    grid = tuple((b, c, 0.01 + b * c * 1e-7) for b in (1.0, 32.0) for c in (0.0, 4000.0))
    config = make_config(engine__table=grid, engine__prefill_token_seconds=1e-5)
    kind = bought(config, replace(SPOT, device="A100-80GB", chips=4)).kinds[0]
    slower = 2 * 3.35 / (4 * 2.039)
    assert seconds(kind.rates) == pytest.approx(slower * seconds(EngineRates(config)))
    assert kind.rates.prefill_seconds == pytest.approx(1e-5 * 2 * 989 / (4 * 312))


@pytest.mark.parametrize("token_seconds", [0.0, 1e-5])
def test_a_learner_scales_with_its_flops_or_as_it_says(token_seconds):
    config = make_config(trainer__token_seconds=token_seconds)
    shapes = (
        ReservedShape(name="same", price_per_hour=10.0, chips_per_node=4),
        ReservedShape(name="twice", price_per_hour=20.0, nodes=2, chips_per_node=4),
        ReservedShape(name="a100", price_per_hour=5.0, chips_per_node=4, device="A100-80GB"),
        ReservedShape(name="priced", price_per_hour=5.0, nodes=2, chips_per_node=4, speed=1.5),
    )
    found = bought(config, SPOT, shapes=shapes)
    own = train_seconds(config, [500] * 8)
    expected = [1.0, 2.0, 312 / 989, 1.5]
    for learner, speed in zip(found.learners, expected, strict=True):
        assert train_seconds(learner, [500] * 8) == pytest.approx(own / speed)
    assert [learner.num_engines for learner in found.learners] == [2, 4, 2, 4]
    hourly = [c.reserved.nodes * c.reserved.price_per_node_hour for c in found.learners]
    assert hourly == pytest.approx([10.0, 20.0, 5.0, 5.0])
    assert found.devices((1,), 2) == ("A100-80GB", "H100")
    assert found.devices((0,), 2) == ("A100-80GB",)


def test_pools_are_those_that_a_run_takes():
    prices = read_prices(EXAMPLE_FILE)
    found = purchase_of(make_config(), prices, measured=False)
    pools = found.machines((1, 1, 2, 1), 0).pools
    assert [(p.name, p.provider, p.max_instances, p.device) for p in pools] == [
        ("h100x2-east", "kubernetes", 1, "H100"),
        ("h100x2-west", "skypilot", 1, "H100"),
        ("a100x4-slurm", "slurm", 2, "A100-80GB"),
        ("l40s-x4", "ec2", 1, "L40S"),
    ]
    fleet = FleetConfig(chaos=ChaosConfig(), pools=pools)
    assert not list(pool_mistakes(fleet, lambda fleet: iter(())))


def test_data_sheets_are_known_by_their_figures():
    assert device_of(make_config().chip) == "H100"
    assert device_of(replace(DATA_SHEETS["H100"], memory_bytes=1e9)) == ""


@pytest.mark.parametrize(("most", "total"), [((2, 3), 4), ((1, 1, 1), 3), ((5,), 2)])
def test_a_space_counts_what_it_yields(most, total):
    types = tuple(
        InstanceType(name=f"t{i}", price_per_hour=1.0, max_instances=n) for i, n in enumerate(most)
    )
    shapes = tuple(ReservedShape(name=f"r{i}", price_per_hour=1.0) for i in range(2))
    space = space_of(PriceList(instances=types, reserved=shapes), total=total)
    mixes = list(space)
    assert space.size == len(mixes) == len(set(mixes))
    assert all(mix in space for mix in mixes)
    assert Mix((9,) * len(most)) not in space
    for mix in mixes:
        around = set(space.neighbours(mix))
        assert mix not in around and around <= set(mixes)
        assert all(mix in set(space.neighbours(other)) for other in around)

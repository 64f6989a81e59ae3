"""Advice against sums by hand."""

import json
import math

import pytest

from rlboost_jax.manager.policies.advice import advise, report
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import write_run_config
from rlboost_jax.simulator.calibration.advice_inputs import of_run, of_simulation
from tests.simulator.conftest import make_config
from tests.simulator.test_calibration import run_config, simulated_run


def prediction(step: int, wanted: int, seconds: float) -> dict[str, object]:
    """Prediction of `seconds` for two instances, and 1.5 times that for one.

    1,000 tokens, 1 $ a second and another for each instance.
    """
    return {
        "step": step,
        "instances": 2,
        "wanted": wanted,
        "sizes": [
            [1, 1.5 * seconds, 0.0, 1000.0, 1.5 * seconds * 2],
            [2, seconds, 0.0, 1000.0, seconds * 3],
        ],
        "losses_per_hour": 0.5,
        "start_seconds": 60.0,
    }


def test_means_over_the_steps_and_how_many_agree() -> None:
    events = [prediction(0, 2, 10.0), prediction(1, 1, 30.0), prediction(2, 2, 20.0)]
    found = advise(events, {1: 10.0, 2: 24.0})
    one, two = found.offers
    assert (one.instances, two.instances, two.steps) == (1, 2, 3)
    assert one.step_seconds == pytest.approx(30.0) and two.step_seconds == pytest.approx(20.0)
    assert two.tokens_per_second == pytest.approx(50.0)
    assert one.dollars_per_step == two.dollars_per_step == pytest.approx(60.0)
    assert found.here == found.wanted == 2
    assert found.sure == pytest.approx(2 / 3)
    # Step 1 came as predicted, step 2 in 24 s instead of 30: errors 0 and a quarter.
    assert found.error == pytest.approx(math.sqrt(0.25**2 / 2))
    text = report(found)
    assert "67% of the steps say so" in text and "as many as there are" in text


def test_nothing_predicted_is_no_advice(tmp_path) -> None:
    with pytest.raises(ValueError, match="nothing"):
        advise([], {})
    write_run_config(tmp_path, run_config(), "a-run")
    with pytest.raises(ConfigError, match="0 whole steps after the first 2"):
        of_run(tmp_path, settling=2)


def test_a_default_run_says_enough(tmp_path) -> None:
    """Its manager predicted nothing, but wrote down what a forecast is made from."""
    _, rows = simulated_run(tmp_path)
    config = run_config(**{"fleet.reserved_price_per_hour": 20.0, "fleet.max_instances": 4})
    write_run_config(tmp_path, config, "a-run")
    lines = [json.dumps({"step": r["step"], "step_seconds": r["step_seconds"]}) for r in rows]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert '"predicted"' not in (tmp_path / "events.jsonl").read_text()
    found = of_run(tmp_path, settling=2)
    assert found.here == 2 and len(found.offers) >= 3
    assert found.error < 0.3
    here = next(offer for offer in found.offers if offer.instances == 2)
    measured = [row["step_seconds"] for row in rows[2:]]
    assert here.step_seconds == pytest.approx(sum(measured) / len(measured), rel=0.15)
    times = [offer.step_seconds for offer in found.offers]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("kind", ["predicted", "foreseen"])  # today's, and of runs of before
def test_a_run_is_read(tmp_path, kind) -> None:
    write_run_config(tmp_path, run_config(), "a-run")
    rows = []
    for step in range(3):
        event = prediction(step, 2, 10.0)
        number = event.pop("step")
        rows.append({"kind": kind, "step": number, "detail": event})
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics = [{"step": step, "step_seconds": 10.0} for step in range(3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    found = of_run(tmp_path, settling=2)
    assert found.error == 0.0 and found.sure == 1.0 and found.wanted == 2


def test_a_simulation_is_asked() -> None:
    found = of_simulation(make_config(market__instances=(0, 2)))
    assert found.here == 2 and len(found.offers) >= 3
    times = [offer.step_seconds for offer in found.offers]
    assert times[0] > times[-1]  # the more, the faster
    assert found.error < 0.3

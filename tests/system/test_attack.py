"""Real processes under attack, with nobody but `--supervise` to help: the bits stay the same."""

import json

import pytest

from tests.system.attack import Strike, attacking, detections, quantile, report
from tests.system.harness import SHORT, Run, complete, running

pytestmark = pytest.mark.system

PATIENCE_SECONDS = 1800


def test_detection_is_measured_from_the_strike_to_the_managers_word():
    strikes = [
        Strike(10.0, "kill", "a", 1),
        Strike(20.0, "stop", "b", 2),
        Strike(20.0, "slow", "c", 3),
        Strike(30.0, "drop", "d", 4),  # a manager dies before it can tell
        Strike(31.0, "manager", "", 5),
        Strike(50.0, "terminate", "e", 6),  # nobody ever tells
    ]
    lost = [("a", 9.0), ("a", 10.25), ("a", 11.0), ("b", 21.5), ("c", 21.0), ("d", 33.0)]
    events = [{"kind": "lost", "instance": name, "time": time} for name, time in lost]
    events.append({"kind": "published", "instance": "", "time": 70.0})
    strikes.append(Strike(69.0, "kill", "f", 7))  # the run ends before anybody can tell
    assert detections(strikes, events) == {
        "kill": [0.25],
        "stop": [1.5],
        "drop": [],
        "terminate": [float("inf")],
    }


def test_quantiles():
    hundred = [float(value) for value in range(1, 101)]
    assert (quantile(hundred, 0.5), quantile(hundred, 0.99), quantile([7.0], 0.99)) == (50, 99, 7)


def attacked(workdir, *settings, **choices) -> Run:
    """A supervised run that was attacked until it ended by itself, and well."""
    with running(workdir, *settings, options=("--supervise",)) as run:
        with attacking(run, **choices) as attack:
            attack.until_over(PATIENCE_SECONDS)
            run.finish()
        figures = report(run, attack)
        print(json.dumps(figures, indent=1))
        done = [strike.kind for strike in attack.strikes]
        assert done.count("manager") == len(choices["manager_at"])
        assert done.count("trainer") == len(choices["trainer_at"])
        run.assert_nothing_is_left()
    return run


@pytest.mark.soak
def test_a_short_run_under_attack_ends_with_the_same_bits(short_and_calm, tmp_path):
    run = attacked(
        tmp_path / "run", *SHORT, seed=1, manager_at=(2,), trainer_at=(2,), num_outposts=1
    )
    assert [row["step"] for row in run.metrics()] == list(range(6))
    assert run.digests() == short_and_calm.digests()
    run.assert_accounts_hold()
    assert run.events("recovered"), "the manager that came knows what the other had known"


@pytest.mark.soak
def test_fifty_steps_under_attack_end_with_the_same_bits(tmp_path):
    """`pytest -s` shows the figures; `attack.json` keeps them."""
    settings = ("seed=11", "num_steps=50")
    run = attacked(
        tmp_path / "run",
        *settings,
        seed=1,
        manager_at=(4, 13, 22, 31, 40),
        trainer_at=(9, 26, 44),
        num_outposts=2,
    )
    calm = complete(tmp_path / "calm", *settings, "fleet.max_instances=0")
    assert [row["step"] for row in run.metrics()] == list(range(50))
    assert run.digests() == calm.digests()
    run.assert_accounts_hold()
    figures = json.loads((run.workdir / "attack.json").read_text())
    assert figures["detection_p99_seconds"] <= 2.0

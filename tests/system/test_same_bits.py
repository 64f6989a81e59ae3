"""The promise: preemptions change the bill, not the model."""

import pytest

from tests.object_stores import s3_bucket, s3_environment
from tests.system.harness import PATIENT, SHORT, SPREAD, complete, prepared

pytestmark = pytest.mark.system


def test_a_calm_run_is_complete(short_and_calm):
    rows = short_and_calm.metrics()
    assert [row["step"] for row in rows] == list(range(len(rows)))
    assert [row["version"] for row in rows] == list(range(len(rows)))
    short_and_calm.assert_accounts_hold()
    for name in ("config.json", "events.jsonl", "report.html", "summary.json"):
        assert (short_and_calm.workdir / name).stat().st_size > 0
    assert not (short_and_calm.workdir / "manager.json").exists()
    assert not short_and_calm.servers()


def test_engine_and_learner_agree_to_rounding(short_and_calm):
    # The learner recomputes what the engine sampled from with the same layers, the same float32
    # weights and the engine's own attention (same blocks, same order of sums). Two things
    # are left: a matrix product of another number of rows may add up in another order, and
    # the sum under the logarithm does. Each moves a logit or its log-sum by a few units in
    # the last place, which for logits of this size is some 1e-6 nats. Anything larger, such
    # as stale weights, a wrong position or another temperature, shows as 1e-3 and more.
    assert all(row["max_logprob_gap"] <= 1e-5 for row in short_and_calm.metrics())


@pytest.mark.soak
def test_they_agree_on_truncated_sampling_too(tmp_path):
    truncated = ("sampling.top_p=0.9", "sampling.top_k=20", "num_steps=2")
    run = complete(tmp_path / "run", *SHORT, *truncated, "fleet.max_instances=1")
    assert all(row["max_logprob_gap"] <= 1e-5 for row in run.metrics())


def test_killed_and_joining_servers_change_no_bit(short_and_calm, tmp_path):
    """Held-out prompts ride on every second step besides."""
    with prepared(tmp_path / "run", *SHORT, *SPREAD, "evaluation.every_steps=2", *PATIENT) as run:
        run.hold(version=1).start()
        run.kill_servers_at_work(1, 2)  # the second time those that came in their place
        run.finish()
    assert run.digests() == short_and_calm.digests()
    run.assert_accounts_hold()
    assert not run.events("compiled"), "whatever arrives, a warm engine compiles nothing"


def test_versions_that_come_from_a_store_change_no_bit(short_and_calm, tmp_path):
    store = f"{s3_bucket()}/{tmp_path.name}"
    settings = (f"weights.store={store}", "weights.source=store", "fleet.max_instances=1")
    environment = s3_environment()
    with prepared(tmp_path / "run", *SHORT, *settings, *PATIENT, environment=environment) as run:
        run.start().finish()
    assert run.digests() == short_and_calm.digests()
    assert run.events("pulled") and not run.events("rejected")


def test_versions_that_come_from_other_servers_change_no_bit(short_and_calm, tmp_path):
    """Servers are killed while others fetch from them."""
    peers = ("weights.peers=True", "weights.source=http", "fleet.max_instances=3")
    with prepared(tmp_path / "run", *SHORT, *peers, *PATIENT) as run:
        run.hold(version=1).start()
        run.kill_servers_at_work(1, 2)
        run.finish()
    assert run.digests() == short_and_calm.digests()
    assert run.events("exchanged") and not run.events("rejected")
    assert sum(event["detail"]["peer_bytes"] for event in run.events("exchanged")) > 0


def test_versions_that_come_as_differences_change_no_bit(short_and_calm, tmp_path):
    """Float32 and a large learning rate: all entries change, but not in their highest bytes."""
    deltas = ("weights.deltas=(1,2,3,4,5)", "weights.source=http", "fleet.max_instances=1")
    with prepared(tmp_path / "run", *SHORT, *deltas, *PATIENT) as run:
        run.hold(version=1).start()
        with run.at_a_standstill(version=1, then=3):
            pass  # the server has a version by now
        with run.at_a_standstill(version=3):
            pass  # and another one
        run.finish()
    assert run.digests() == short_and_calm.digests()
    pulls = [event["detail"] for event in run.events("pulled")]
    (whole,) = {each["fetched_bytes"] + each["saved_bytes"] for each in pulls}
    # The first version of a server comes whole, but it need not be reported: a newer one may follow
    # at once.
    assert any(each["saved_bytes"] > 0.05 * whole for each in pulls)


@pytest.mark.soak
def test_dynamic_sampling_fills_the_same_batches_under_kills(tmp_path):
    """Held-out prompts ride on every second step besides."""
    dapo = (
        *(*SHORT, "algorithm.name=dapo", "evaluation.every_steps=2", "num_steps=4"),
        *("algorithm.advantage=group_std", "warmup.habit_updates=12"),  # a few answers are right
    )
    alone = complete(tmp_path / "alone", *dapo, "fleet.max_instances=0")
    with prepared(tmp_path / "chaos", *dapo, *SPREAD, *PATIENT) as chaos:
        chaos.hold(version=1).start()
        chaos.kill_servers_at_work(1, 3)
        chaos.finish()
    assert chaos.digests() == alone.digests()
    for name in ("prompts_used", "tokens_filtered", "accuracy", "tokens_measured"):
        assert [row[name] for row in chaos.metrics()] == [row[name] for row in alone.metrics()]
    rows = alone.metrics()
    assert any(row["tokens_filtered"] for row in rows), "nothing was passed over"
    assert rows[-1]["prompts_used"] > 4 * 16
    chaos.assert_accounts_hold()


@pytest.mark.soak
def test_a_replayed_trace_changes_no_bit(short_and_calm, tmp_path):
    # Two machines at first; then every second one of them is taken, and back 1.5 s later.
    lines = ["0,add,east", "0,add,west"]
    for second in range(1, 2000):
        machine = ("east", "west")[second % 2]
        lines += [f"{second}000,remove,{machine}", f"{second + 1}500,add,{machine}"]
    lines.sort(key=lambda line: int(line.partition(",")[0]))
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(lines) + "\n")
    market = (f"fleet.trace={trace}", "fleet.trace_speed=1.0")
    with prepared(tmp_path / "run", *SHORT, *SPREAD, *PATIENT, *market) as replayed:
        replayed.hold(version=1).start()
        with replayed.at_a_standstill(version=1, servers=False):
            replayed.wait_until(lambda: replayed.events("lost"), "a loss")
        replayed.finish()
    assert replayed.digests() == short_and_calm.digests()
    replayed.assert_accounts_hold()
    assert not replayed.events("compiled"), "whatever arrives, a warm engine compiles nothing"


@pytest.mark.soak
def test_no_server_at_all_changes_no_bit(short_and_calm, tmp_path):
    alone = complete(tmp_path / "run", *SHORT, "fleet.max_instances=0")
    assert not [e for e in alone.events("joined") if "reserved" not in e["instance"]]
    assert alone.digests() == short_and_calm.digests()
    assert all(row["tokens_preemptible"] == 0 for row in alone.metrics())


@pytest.mark.soak
def test_another_seed_gives_other_bits(short_and_calm, tmp_path):
    other = complete(tmp_path / "run", *SHORT, "seed=12", "num_steps=1", "fleet.max_instances=0")
    step, trajectories, params = other.digests()[0]
    assert (step, trajectories) != short_and_calm.digests()[0][:2]
    assert params != short_and_calm.digests()[0][2]

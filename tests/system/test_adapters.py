"""Adapters trained with servers and trainer being killed: the same bits, and little to fetch."""

import pytest

from tests.system.harness import PATIENT, SHORT, complete, prepared

pytestmark = pytest.mark.system

ADAPTERS = (
    *SHORT,
    "num_steps=3",
    "warmup.max_updates=16",  # of the base, so that some answers are right
    "model.lora.rank=4",
    "learner.learning_rate=3e-3",
    "algorithm.kl_coefficient=0.01",
)


@pytest.mark.soak
def test_kills_of_servers_and_trainer_change_no_bit(tmp_path):
    calm = complete(tmp_path / "calm", *ADAPTERS, "fleet.max_instances=0")
    digests = calm.digests()
    assert len({params for _, _, params in digests}) == 3, "adapters did not move"
    assert all(row["max_logprob_gap"] <= 1e-5 for row in calm.metrics())
    assert calm.metrics()[-1]["kl"] > 0

    with prepared(tmp_path / "run", *ADAPTERS, *PATIENT) as attacked:
        attacked.hold(version=1).start()
        attacked.kill_servers_at_work(1, then=2)
        with attacked.at_a_standstill(version=2):
            attacked.kill()
        attacked.start().finish()
    assert attacked.digests() == digests
    attacked.assert_accounts_hold()
    assert not attacked.events("compiled"), "whatever arrives, a warm engine compiles nothing"

    # Each server fetches the base, of 88,448 parameters, once; from then on 8,192 of adapters.
    fetched: dict[str, list[int]] = {}
    for event in attacked.events("pulled"):
        fetched.setdefault(event["instance"], []).append(event["detail"]["fetched_bytes"])
    assert fetched
    for first, *later in fetched.values():
        assert first > 4 * (88_448 + 8_192)
        assert all(0 <= each < 4 * 8_192 + 4_096 for each in later)
    assert (
        sum(
            path.stat().st_size
            for path in (calm.workdir / "checkpoints").rglob("*")
            if path.is_file()
        )
        < 2 * 4 * 88_448
    ), "checkpoints hold no base"  # two of them

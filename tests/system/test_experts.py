"""A mixture of experts whose routes are replayed: kills change neither them nor the model."""

import pytest

from tests.system.harness import PATIENT, SHORT, complete, prepared

pytestmark = [pytest.mark.system, pytest.mark.soak]  # two runs: half a minute of two cores

EXPERTS = (
    *(*SHORT, "num_steps=3", "warmup.max_updates=40", "algorithm.epochs=2"),
    *("model.num_experts=6", "model.experts_per_token=2", "model.expert_dim=32"),
)


def test_kills_change_no_route_and_no_bit(tmp_path):
    alone = complete(tmp_path / "alone", *EXPERTS, "fleet.max_instances=0")
    with prepared(tmp_path / "chaos", *EXPERTS, *PATIENT) as chaos:
        chaos.hold(version=1).start()
        chaos.kill_servers_at_work(1)
        chaos.finish()
    assert chaos.digests() == alone.digests()
    assert len({params for _, _, params in alone.digests()}) == 3, "updates change something"
    assert all(row["max_logprob_gap"] <= 1e-5 for row in alone.metrics())
    chaos.assert_accounts_hold()

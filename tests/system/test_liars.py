"""A server that lies costs only itself: the run ends with the bits of one that never met it."""

from pathlib import Path

import pytest

from tests.system.harness import PATIENT, SHORT, STEADY, Run, prepared

pytestmark = pytest.mark.system
SOAKED = ("shift", "invent", "stale", "constant", "shifted")


@pytest.mark.parametrize(
    "kind",
    ["seldom", *(pytest.param(kind, marks=pytest.mark.soak) for kind in SOAKED)],
)
def test_a_lying_server_is_quarantined_and_its_work_done_again(
    short_and_calm: Run, tmp_path: Path, kind: str
) -> None:
    settings = (*SHORT, "fleet.max_instances=1", *PATIENT, *STEADY)
    with prepared(tmp_path / "run", *settings) as run:
        run.hold(version=1).start()
        with run.at_a_standstill(version=1):
            liar = run.serve("--name=liar", program=f"tests.system.liar {kind}")
            run.wait_until(lambda: worked(run), "work for the liar")
        liar.end()
        run.finish()
    working = worked(run)
    (caught,) = run.events("quarantined")
    assert caught["instance"] == "liar"
    assert "nats from the learner's" in caught["detail"]["reason"]
    if kind != "stale":  # which is honest about its first version
        assert caught["step"] == min(working), "within the step"
    outcome = "quarantined" if not rejected(run) else "sent away before"
    assert outcome in liar.output + liar.errors
    assert run.digests() == short_and_calm.digests()
    run.assert_accounts_hold()
    assert all(row["max_logprob_gap"] <= 1e-5 for row in run.metrics())


def rejected(run: Run) -> bool:
    """Whether the manager has sent the liar away before it worked."""
    return any(event["instance"] == "liar" for event in run.events("rejected"))


def worked(run: Run) -> set[int]:
    """Steps in which the liar was given work."""
    return {event["step"] for event in run.events("working") if event["instance"] == "liar"}

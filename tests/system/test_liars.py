"""A server that lies costs only itself: the run ends with the bits of one that never met it."""

from pathlib import Path

import pytest

from tests.system.harness import PATIENT, SHORT, STEADY, Run, complete, prepared

pytestmark = pytest.mark.system
SOAKED = ("shift", "invent", "stale", "constant", "shifted")


@pytest.mark.parametrize(
    "kind",
    ["seldom", *(pytest.param(kind, marks=pytest.mark.soak) for kind in SOAKED)],
)
def test_a_lying_server_is_quarantined_and_its_work_done_again(
    short_and_calm: Run, tmp_path: Path, kind: str
) -> None:
    run, output = with_a_liar(tmp_path / "run", kind, *SHORT, "fleet.max_instances=1")
    working = worked(run)
    (caught,) = run.events("quarantined")
    if kind != "stale":  # which is honest about its first version
        assert caught["step"] == min(working), "within the step"
    outcome = "quarantined" if not rejected(run) else "sent away before"
    assert outcome in output
    assert run.digests() == short_and_calm.digests()


@pytest.mark.soak
def test_a_liar_is_caught_where_the_noise_is_that_of_a_tree(tmp_path: Path) -> None:
    settings = (*SHORT, "sampling.noise=tree")
    calm = complete(tmp_path / "calm", *settings, "fleet.max_instances=0")
    run, _ = with_a_liar(tmp_path / "run", "seldom", *settings, "fleet.max_instances=1")
    assert run.digests() == calm.digests()


@pytest.mark.soak
def test_a_server_that_forges_held_out_answers_alone_is_quarantined(tmp_path: Path) -> None:
    """And the scores are those of a run that never met it."""
    settings = (*SHORT, "evaluation.every_steps=2")
    calm = complete(tmp_path / "calm", *settings, "fleet.max_instances=0")
    run, _ = with_a_liar(tmp_path / "run", "heldout", *settings, "fleet.max_instances=1")
    assert run.digests() == calm.digests()
    accuracies = [[row["accuracy"] for row in each.metrics()] for each in (run, calm)]
    assert accuracies[0] == accuracies[1] and any(each is not None for each in accuracies[0])


def with_a_liar(workdir: Path, kind: str, *settings: str) -> tuple[Run, str]:
    """A run that a liar has worked for, and no other server is suspected; what the liar said."""
    with prepared(workdir, *settings, *PATIENT, *STEADY) as run:
        run.hold(version=1).start()
        with run.at_a_standstill(version=1):
            liar = run.serve("--name=liar", program=f"tests.system.liar {kind}")
            run.wait_until(lambda: worked(run), "work for the liar")
        liar.end()
        run.finish()
    (caught,) = run.events("quarantined")
    assert caught["instance"] == "liar"
    assert "nats from the learner's" in caught["detail"]["reason"]
    run.assert_accounts_hold()
    assert all(row["max_logprob_gap"] <= 1e-5 for row in run.metrics())
    return run, liar.output + liar.errors


def rejected(run: Run) -> bool:
    """Whether the manager has sent the liar away before it worked."""
    return any(event["instance"] == "liar" for event in run.events("rejected"))


def worked(run: Run) -> set[int]:
    """Steps in which the liar was given work."""
    return {event["step"] for event in run.events("working") if event["instance"] == "liar"}

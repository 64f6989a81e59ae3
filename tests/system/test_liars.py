"""A server that lies costs only itself: the run ends with the bits of one that never met it."""

from pathlib import Path

import pytest

from tests.system.harness import PATIENT, SHORT, STEADY, TINY, Run, complete, prepared

pytestmark = pytest.mark.system
SOAKED = ("shift", "invent", "stale", "constant", "shifted")
VARIANTS = {
    "lag": ("algorithm.lag=1", "num_steps=5"),
    "adapters": ("num_steps=4", "model.lora.rank=4", "learner.learning_rate=3e-3"),
    "experts": (
        *("num_steps=4", "model.num_experts=6", "model.experts_per_token=2"),
        "model.expert_dim=32",
    ),
    "turns": ("num_steps=4", "warmup.max_updates=0", "warmup.habit_updates=0"),
    "bfloat16": ("num_steps=4", "weights.rollout_dtype=bfloat16", "engine.kv_dtype=bfloat16"),
}


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


@pytest.mark.soak
@pytest.mark.parametrize("variant", VARIANTS)
def test_forged_choices_are_seen_in_every_kind_of_run(tmp_path: Path, variant: str) -> None:
    """One token in twenty; where rounding may choose, too, every token."""
    settings, config, kind = (*SHORT, *VARIANTS[variant]), TINY, "seldom"
    if variant == "turns":
        config = Path(__file__).with_name("calculating.py")
    if variant == "bfloat16":
        kind = "constant"
    calls = {name: f"environment.options.log={tmp_path / name}.calls" for name in ("calm", "run")}
    own = calls if variant == "turns" else dict.fromkeys(calls, "seed=11")
    calm = complete(
        tmp_path / "calm", *settings, own["calm"], "fleet.max_instances=0", config=config
    )
    run, _ = with_a_liar(
        tmp_path / "run",
        kind,
        *(*settings, own["run"], "fleet.max_instances=1"),
        config=config,
        largest_gap=1.0 if variant == "bfloat16" else 1e-5,
    )
    (caught,) = run.events("quarantined")
    assert caught["step"] <= min(worked(run)) + 1, "within two steps"
    assert run.digests() == calm.digests()
    assert len({params for _, _, params in calm.digests()}) > 1, "updates change something"


def with_a_liar(
    workdir: Path, kind: str, *settings: str, config: Path = TINY, largest_gap: float = 1e-5
) -> tuple[Run, str]:
    """A run that a liar has worked for, and no other server is suspected; what the liar said."""
    with prepared(workdir, *settings, *PATIENT, *STEADY, config=config) as run:
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
    assert all(row["max_logprob_gap"] <= largest_gap for row in run.metrics())
    return run, liar.output + liar.errors


def rejected(run: Run) -> bool:
    """Whether the manager has sent the liar away before it worked."""
    return any(event["instance"] == "liar" for event in run.events("rejected"))


def worked(run: Run) -> set[int]:
    """Steps in which the liar was given work."""
    return {event["step"] for event in run.events("working") if event["instance"] == "liar"}

"""The acceptance of drafts is found again in the records of runs that drafted with a known one."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from rlboost_jax.engine import drafts
from rlboost_jax.manager.state.engine_usage import Usage
from rlboost_jax.messages import DraftCounts
from rlboost_jax.observe.events_file import FILE, EventsWriter, read_events
from rlboost_jax.simulator.calibration.acceptance import by_position, drafting
from rlboost_jax.simulator.calibration.observed import MOST_DRAFTS, EngineUsage, observed
from rlboost_jax.simulator.calibration.run_calibration import calibrate
from tests.simulator.test_calibration import BASE, run_config, simulated_run

SEQUENCES = 6


def drafted(p: float, width: int, steps: int, seed: int = 0) -> EngineUsage:
    """What an engine records whose every draft is right with the chance p, token by token."""
    random, usage, saved = np.random.default_rng(seed), Usage(), 0.0
    for _ in range(steps // 50):  # a dispatch of fifty decode steps, then a renewal
        right = random.random((50, SEQUENCES, width)) < p
        accepted = np.cumprod(right, axis=2).sum(axis=2)
        counts = (1 + accepted).sum(axis=0)
        usage.dispatched(counts.tolist(), seconds=1.0, context=100.0)
        before, saved = int(saved), saved + accepted.sum() / SEQUENCES
        usage.draft(
            DraftCounts(
                drafted=right.size, accepted=int(accepted.sum()), steps_saved=int(saved) - before
            )
        )
    return EngineUsage(reserved=False, **asdict(usage))


@pytest.mark.parametrize("p", [0.05, 0.5, 0.65, 0.9])
@pytest.mark.parametrize("width", [1, 3, 7])
def test_a_known_acceptance_is_found(p: float, width: int) -> None:
    found = drafting([drafted(p, width, 5_000), drafted(p, width, 5_000, seed=1)])
    assert found is not None
    assert found.acceptance == pytest.approx(p, rel=0.02, abs=0.003)
    assert found.width == pytest.approx(width)
    assert found.sequences == pytest.approx(SEQUENCES, rel=0.01)


def test_without_drafts_there_is_none_and_of_useless_ones_none_is_right() -> None:
    plain = replace(drafted(0.5, 3, 500), drafted=0.0, drafts_accepted=0.0, steps_saved=0.0)
    assert drafting([plain]) is None
    useless = drafting([drafted(0.0, 3, 500)])
    assert useless is not None and useless.acceptance < 1e-9


def test_most_drafts_are_the_engines() -> None:
    assert MOST_DRAFTS == drafts.MOST_DRAFTS


@pytest.mark.soak  # a minute of a core
def test_a_run_is_simulated_with_its_drafts(tmp_path: Path) -> None:
    """Its acceptance rises in the course of the training."""
    simulated_run(tmp_path)
    rising = [0.3] * 6 + [0.8] * 4
    with_drafts(tmp_path, lambda step: drafted(rising[step], 3, 2_000, seed=step))
    found = calibrate(run_config(), tmp_path, base=BASE, settling=2)
    engine = found["settings"]["engine"]
    assert engine["most_drafts"] == MOST_DRAFTS and 0.3 < engine["draft_acceptance"] < 0.8
    assert engine["token_rows"] >= 4 * SEQUENCES * 0.8
    steps, acceptances = zip(*by_position(observed(tmp_path, settling=2).steps), strict=True)
    assert steps == tuple(range(2, 10))
    assert acceptances == pytest.approx(rising[2:], rel=0.05)
    assert found["acceptance"] == list(zip(steps, acceptances, strict=True))


def with_drafts(folder: Path, work: Callable[[int], EngineUsage]) -> None:
    """Add drafts to the events of a run, for each engine and step."""
    events = read_events(folder)
    (folder / FILE).unlink()
    with EventsWriter(folder) as writer:
        for event in events:
            if event["kind"] == "worked" and event["step"] >= 0:
                own = work(event["step"])
                detail = {name: getattr(own, name) for name in ("drafted", "drafts_accepted")}
                detail["tokens"] = own.tokens
                event["detail"] |= {**detail, "steps_saved": own.steps_saved, "steps": own.steps}
            writer.write(**event)

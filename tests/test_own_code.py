"""Every file that docs/how-to/extending.md has for a package of one's own does what it says."""

import asyncio
import runpy
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs import tiny
from rlboost_jax.algorithms.advantages import group_advantages
from rlboost_jax.algorithms.outside_functions import check_outside_functions
from rlboost_jax.environments.factories import check_made, maker_of
from rlboost_jax.environments.protocol import Turn
from rlboost_jax.learner.programs.objective import check_traced
from rlboost_jax.providers.base import Rendezvous
from rlboost_jax.providers.local import LocalProvider
from rlboost_jax.providers.provider_choice import open_provider
from rlboost_jax.rewards.functions import load
from rlboost_jax.rewards.reward_frames import RewardJob, RewardResponse
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.outside import Outside
from rlboost_jax.settings.presets import PRESETS
from rlboost_jax.settings.rewards_config import RewardConfig
from tests.docs_blocks import blocks_of

PAGE = "docs/how-to/extending.md"


@pytest.fixture(autouse=True)
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that all of the page's files are saved in."""
    names = []
    for block in blocks_of(PAGE):
        if block.saved_as:
            place = tmp_path / block.saved_as
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(block.text)
            names.append(place.stem)
    assert names == ["ranks", "both_sides", "renting", "parrot", "brevity", "lost"]
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in names:
        sys.modules.pop(name, None)


def test_an_advantage() -> None:
    check_outside_functions(replace(PRESETS["grpo"], advantage="ranks:ranked"))
    ranked = Outside("algorithm.advantage", "ranks:ranked")
    found = group_advantages(np.array([0.0, 9.0, 1.0, 1.0]), advantage=ranked)
    np.testing.assert_allclose(found, [-1.0, 1.0, 0.0, 0.0])


def test_a_loss() -> None:
    algorithm = replace(PRESETS["grpo"], surrogate="both_sides:stopped")
    check_outside_functions(algorithm)
    check_traced(algorithm)


def test_a_provider(saved: Path) -> None:
    fleet = replace(
        run_config(tiny.get_config()).fleet, provider="renting:rented", options={"price": 0.5}
    )
    rendezvous = Rendezvous(
        run_id="run", workdir=saved, address="a:1", local_address="a:1", join=saved / "join"
    )

    async def opened() -> None:
        provider = open_provider(fleet, rendezvous)
        assert isinstance(provider, LocalProvider)
        await provider.close()

    asyncio.run(opened())


def test_an_environment() -> None:
    parrot: Any = maker_of("parrot:Parrot", {})()
    check_made("parrot:Parrot", parrot)
    assert parrot.reset({"index": 0}, 4) == "Say green."
    step = parrot.step(Turn(index=0, tokens=(1, 2), text=" green\n"))
    assert (step.reward, step.done) == (1.0, True)


def test_a_reward() -> None:
    call = load(RewardConfig(name="brevity:short", options={"most": 80}), ())
    response = RewardResponse(completion="four", completion_ids=(1,), finished=True)
    (found,) = call(RewardJob(prompt="p", responses=(response,), columns={}))
    assert found.value == 0.95


def test_a_command(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (saved / "metrics.jsonl").write_text('{"step": 3, "tokens_lost": 17}\n')
    main = runpy.run_path(str(saved / "rlboost_jax" / "cli" / "lost.py"))["main"]
    assert main([str(saved)]) == 0
    assert capsys.readouterr().out == "3 17\n"

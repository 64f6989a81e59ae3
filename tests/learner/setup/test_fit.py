"""What does not fit is refused by the plan, and by nobody else's rule than the engine's own."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import Mock

import jax
import pytest

from configs import base
from rlboost_jax import main
from rlboost_jax.engine.device_memory import (
    DeviceMemory,
    NotEnoughMemory,
    engine_sizes,
    plan_memory,
)
from rlboost_jax.engine.layouts import make_layout
from rlboost_jax.learner import training
from rlboost_jax.learner.setup import fit
from rlboost_jax.learner.setup.makers import Makers
from rlboost_jax.platform import exits
from rlboost_jax.settings import memory_estimates
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.run_config import RunConfig

GPU = "gpu"


@pytest.fixture
def config() -> RunConfig:
    return run_config(base.get_config())


def with_learner(run: RunConfig, **changes: Any) -> RunConfig:
    return dataclasses.replace(run, learner=dataclasses.replace(run.learner, **changes))


def with_engine(run: RunConfig, **changes: Any) -> RunConfig:
    return dataclasses.replace(run, engine=dataclasses.replace(run.engine, **changes))


@pytest.mark.parametrize("num_pages", [0, 700])
@pytest.mark.parametrize("fraction", [0.3, 0.9, 1.0])
def test_the_least_limit_is_where_the_engine_can_start(
    config: RunConfig, num_pages: int, fraction: float
) -> None:
    """A byte less, and its own plan beside the learner refuses, after all was compiled."""
    run = with_engine(config, num_pages=num_pages, memory_fraction=fraction)
    sizes = engine_sizes(
        run.model,
        run.engine,
        slot_tokens=run.slot_tokens,
        param_dtype=run.weights.rollout_dtype,
        truncated_sampling=False,
        sampled_rows=make_layout(run.engine, run.slot_tokens, any_rows=False).sampled_rows,
        products="xla",
        platform=GPU,
    )
    taken = memory_estimates.learner_bytes_per_device(
        run
    ) + memory_estimates.gradient_bytes_per_device(run)
    least = fit.needs(run).total
    fit.check(run, fit.needs(run), least)
    plan_memory(sizes, DeviceMemory(limit=least, taken=taken), fraction)
    with pytest.raises(NotEnoughMemory, match=r"by its plan the run needs"):
        fit.check(run, fit.needs(run), least - 1)
    with pytest.raises(NotEnoughMemory):
        plan_memory(sizes, DeviceMemory(limit=least - 2, taken=taken), fraction)


def test_an_update_may_take_more_than_a_gradient(config: RunConfig) -> None:
    """Moments that lie on the host are all there while an update is computed."""
    assert fit.needs(config).working == memory_estimates.gradient_bytes_per_device(config)
    wide = dataclasses.replace(config.model, embed_dim=1024, hidden_dim=4096)
    few = with_learner(dataclasses.replace(config, model=wide), remat="full", pack_rows=1)
    on_host = with_learner(few, moment_memory="host")
    assert fit.needs(on_host).working == 2 * 4 * memory_estimates.num_parameters(wide)
    halves = with_learner(on_host, mesh=(1, 2, 1))
    assert fit.needs(halves).working == memory_estimates.num_parameters(wide) * 4


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda run: with_learner(run, mesh=(2, 1, 1)), r"learner\.mesh \(2, 1, 1\) more devices"),
        (lambda run: with_learner(run, pack_rows=64), r"lower learner\.pack_rows \(64\)"),
        (lambda run: with_learner(run, pack_tokens=9_999), r"learner\.pack_tokens \(9999\)"),
        (
            lambda run: with_learner(run, pack_rows=1),
            r"lower sampling\.max_response_tokens \(200\) and learner\.row_tokens \(0\)",
        ),
        (lambda run: with_learner(run, remat="dots"), r"learner\.remat \('dots'\) to 'full'"),
        (lambda run: run, r"learner\.moment_memory to 'host'"),
        (lambda run: run, r"raise learner\.micro_batch_prompts \(6\)"),
        (lambda run: with_engine(run, num_pages=99), r"lower engine\.num_pages \(99\)"),
        (lambda run: run, r"raise engine\.memory_fraction \(0\.9\)"),
        (lambda run: with_learner(run, mesh=(1, 2, 1)), r"raise engine\.tensor_parallel \(1\)"),
        (lambda run: run, r"train adapters alone \(model\.lora\.rank\)"),
    ],
)
def test_the_line_names_what_there_is_and_what_to_change(
    config: RunConfig, change: Callable[[RunConfig], RunConfig], named: str
) -> None:
    run = change(config)
    needed = fit.needs(run)
    with pytest.raises(NotEnoughMemory, match=named) as caught:
        fit.check(run, needed, 2**20)
    line = str(caught.value)
    assert "\n" not in line
    for value in (needed.total, 2**20, needed.trees, needed.working, needed.engine):
        assert memory_estimates.size_text(value) in line


def test_what_is_done_already_is_not_asked_for(config: RunConfig) -> None:
    model = dataclasses.replace(config.model, lora=dataclasses.replace(config.model.lora, rank=8))
    run = dataclasses.replace(config, model=model)
    run = with_learner(run, remat="full", moment_memory="host", micro_batch_prompts=24)
    with pytest.raises(NotEnoughMemory) as caught:
        fit.check(with_engine(run, memory_fraction=1.0), fit.needs(run), 1)
    done = ("remat", "moment_memory", "micro_batch", "num_pages", "memory_fraction", "kl_", "lora")
    for name in (*done, "engine.tensor_parallel"):
        assert name not in str(caught.value)


@pytest.fixture
def on_gpus() -> Callable[..., list[str]]:
    """Check a run on devices that say they have so many bytes; what is said."""

    def checked(run: RunConfig, *limits: int | None) -> list[str]:
        devices = [Mock(jax.Device, platform=GPU, process_index=0) for _ in limits]
        memory = dict(zip(map(id, devices), limits, strict=True))
        lines: list[str] = []
        memory_of = lambda d: DeviceMemory(limit=memory[id(d)])  # noqa: E731
        fit.check_devices(run, devices, lines.append, memory_of=memory_of)
        return lines

    return checked


def test_a_device_is_asked_what_it_has(
    config: RunConfig, on_gpus: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    total = fit.needs(config).total
    assert on_gpus(config, 2 * total) == []
    assert on_gpus(config, None) == [], "nobody tells"
    assert on_gpus(config, int(total / 0.89)) == []
    (line,) = on_gpus(config, int(total / 0.91))
    assert line.startswith("memory of a reserved device: 91 % of")
    hint = "set XLA_PYTHON_CLIENT_MEM_FRACTION=0.92"
    with pytest.raises(NotEnoughMemory, match=hint):
        on_gpus(config, 2 * total, total - 1)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    with pytest.raises(NotEnoughMemory) as caught:
        on_gpus(config, total - 1)
    assert hint not in str(caught.value)


def test_a_host_has_to_hold_what_lies_there_between_programs(config: RunConfig) -> None:
    """On CPU: learner and weights of each device of the mesh, and no working space."""
    devices = [Mock(jax.Device, platform="cpu", process_index=i) for i in (0, 0, 1)]
    run = with_learner(config, mesh=(2, 1, 1))
    each = memory_estimates.learner_bytes_per_device(run) + memory_estimates.weight_bytes(
        run.model, "float32"
    )
    fit.check_devices(run, devices, pytest.fail, memory_here=lambda: 2 * each)
    with pytest.raises(NotEnoughMemory):
        fit.check_devices(run, devices, pytest.fail, memory_here=lambda: 2 * each - 1)


def test_a_run_that_does_not_fit_ends_before_anything_is_there(
    config: RunConfig, tmp_path: Any
) -> None:
    fits = partial(fit.check_devices, memory_here=lambda: 1000)
    with pytest.raises(NotEnoughMemory, match=r"which has 1000 B"):
        training.run_training(
            config, tmp_path / "run", makers=Makers(fits=fits, programs=pytest.fail)
        )
    assert not (tmp_path / "run").exists()


def test_the_dry_run_goes_by_what_the_configuration_says(
    config: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    main._plan(config, "")
    assert "memory  " not in capsys.readouterr().out
    main._plan(with_learner(config, device_gb=4.0), "")
    assert "memory      " in capsys.readouterr().out
    with pytest.raises(NotEnoughMemory, match=r"which has 976\.6 KiB") as caught:
        main._plan(with_learner(config, device_gb=1e-3), "")
    assert "engine  " in capsys.readouterr().out, "the plan is shown all the same"
    assert exits.of_error(caught.value) == exits.MISTAKE

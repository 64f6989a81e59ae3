"""What a learner starts with: chosen as an engine's attention is, for it alone, and kept."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs import base
from rlboost_jax.learner.workdir import Workdir
from rlboost_jax.qualification import engine_start
from rlboost_jax.qualification.learner_start import KernelNotAvailable
from rlboost_jax.qualification.trial_host import Host
from rlboost_jax.qualification.trial_records import KernelVerdict, Outcome, Spec, Trial
from rlboost_jax.settings.config_loading import read_run_config, run_config
from rlboost_jax.settings.run_config import RunConfig

DEVICE = "NVIDIA H100 80GB HBM3"
SECONDS = {
    "learner_attention": {"cudnn": 1e-3, "triton": 2e-3, "chunked": 0.1},
    "learner_experts": {"mosaic_gpu": 1e-3, "blocks": 3e-3},
    "engine_attention": {"mosaic_gpu": 1e-5, "triton": 2e-5, "xla": 9e-3},
}
WRONG: tuple[Outcome, str] = ("wrong", "a row is off")


class Machine:
    """A host with a GPU on which candidates come to what is said here, by problem and name."""

    def __init__(self) -> None:
        self.outcomes: dict[tuple[str, str], tuple[Outcome, str]] = {}
        self.specs: list[Spec] = []
        self.platform, self.driver = "gpu", "old"
        self.host = Host(
            gpu_expected=lambda: True,
            facts=lambda: {"device": DEVICE, "driver": self.driver},
            verdict_of=self.verdict_of,
        )

    def verdict_of(self, spec: Spec) -> KernelVerdict:
        self.specs.append(spec)
        trials = []
        for name in spec.candidates:
            refused = spec.shape.get("refused", {}).get(name, "")
            given: tuple[Outcome, str] = ("unavailable", refused) if refused else ("right", "")
            outcome, reason = self.outcomes.get((spec.problem, name), given)
            time = SECONDS[spec.problem][name] if outcome == "right" else None
            trials.append(Trial(candidate=name, outcome=outcome, reason=reason, seconds=time))
        return KernelVerdict(platform=self.platform, device=DEVICE, trials=tuple(trials))

    @property
    def problems(self) -> list[str]:
        return [spec.problem for spec in self.specs]


@pytest.fixture
def host() -> Machine:
    return Machine()


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., RunConfig]:
    def make(*, deterministic: bool = True, **learner: Any) -> RunConfig:
        config = base.get_config()
        config.deterministic, config.compile_cache_dir = deterministic, str(tmp_path / "cache")
        config.model.dtype = config.engine.kv_dtype = "bfloat16"
        config.model.head_dim, config.model.num_experts = 64, 4
        config.model.experts_per_token, config.model.expert_dim = 2, 128
        config.learner.row_tokens = 4096
        config.learner.update(learner)
        return run_config(config)

    return make


def begin(host: Machine, run: RunConfig, workdir: Path) -> tuple[RunConfig, list[str]]:
    """As `run_training` does: the trainer's own run, and the lines that it shows."""
    lines: list[str] = []
    own = engine_start.trainer_run(run, workdir, lines.append, host=host.host)
    with Workdir(workdir, engine_start.published_run(run, own)):
        pass
    return own, lines


def choices(run: RunConfig) -> tuple[str, str]:
    return run.learner.attention, run.learner.experts


def test_the_fastest_of_each_is_taken_and_said(host: Machine, run: Any, tmp_path: Path) -> None:
    own, lines = begin(host, run(deterministic=False), tmp_path / "run")
    assert choices(own) == ("cudnn", "mosaic_gpu")
    clues = (
        f"learner.attention on {DEVICE}: cudnn, 1 ms (triton 2 ms, chunked 100 ms); kept in ",
        f"learner.experts on {DEVICE}: mosaic_gpu, 1 ms (blocks 3 ms); kept in ",
        "engine.attention on ",
    )
    assert len(lines) == 3
    for line, clue in zip(lines, clues, strict=True):
        assert line.startswith(clue), line
    assert not any(spec.invariant for spec in host.specs)
    assert choices(read_run_config(tmp_path / "run")) == ("auto", "auto")
    begin(host, run(deterministic=False), tmp_path / "run")
    assert len(host.specs) == 3  # verdicts were kept


def test_a_deterministic_run_takes_what_repeats_its_bits_and_stays_with_it(
    host: Machine, run: Any, tmp_path: Path
) -> None:
    host.outcomes["learner_experts", "mosaic_gpu"] = ("dependent", "other bits at a second call")
    own, lines = begin(host, run(), tmp_path / "run")
    assert choices(own) == ("triton", "blocks") and all(spec.invariant for spec in host.specs)
    assert "cudnn cannot run this (its gradients are added up in any order)" in lines[0]
    assert "mosaic_gpu does not repeat its bits (other bits at a second call)" in lines[1]
    assert choices(read_run_config(tmp_path / "run")) == ("triton", "blocks")

    host.outcomes, host.driver = {}, "newer"  # by now another one would be faster
    own, lines = begin(host, run(), tmp_path / "run")
    assert choices(own) == ("triton", "blocks")
    assert lines[0].startswith(f"learner.attention on {DEVICE}: triton, as the run has it")

    host.outcomes["learner_attention", "triton"], host.driver = WRONG, "newest"
    with pytest.raises(KernelNotAvailable, match=r"learner.attention .*'triton'.*\(a row is off\)"):
        begin(host, run(), tmp_path / "run")


def test_where_nothing_is_right_the_plain_forms_run(
    host: Machine, run: Any, tmp_path: Path
) -> None:
    for problem, seconds in SECONDS.items():
        host.outcomes |= dict.fromkeys(((problem, name) for name in seconds), WRONG)
    own, lines = begin(host, run(deterministic=False), tmp_path / "run")
    assert choices(own) == ("chunked", "blocks")
    assert all("the plain path, since no candidate passed" in line for line in lines)


def test_what_a_person_names_is_taken_as_it_is(host: Machine, run: Any, tmp_path: Path) -> None:
    named = run(deterministic=False, attention="triton", experts="xla")
    assert choices(begin(host, named, tmp_path / "run")[0]) == ("triton", "xla")
    assert host.problems == ["engine_attention"]


def test_a_deterministic_run_has_what_a_person_names_checked(
    host: Machine, run: Any, tmp_path: Path
) -> None:
    host.outcomes["learner_experts", "mosaic_gpu"] = WRONG
    with pytest.raises(KernelNotAvailable, match=r"begin a run with --config.learner.experts="):
        begin(host, run(attention="chunked", experts="mosaic_gpu"), tmp_path / "run")
    assert host.problems == ["learner_experts"]  # the plain form is trusted


def test_a_run_that_began_before_there_was_a_choice_stays_without(
    host: Machine, run: Any, tmp_path: Path
) -> None:
    with Workdir(tmp_path / "run", run()):
        pass
    assert choices(begin(host, run(), tmp_path / "run")[0]) == ("auto", "auto") and not host.specs


def test_only_what_is_needed_is_tried(host: Machine, run: Any, tmp_path: Path) -> None:
    own, _ = begin(
        host, run(row_tokens=256), tmp_path / "run"
    )  # scores of short rows are made at once
    assert choices(own) == ("auto", "mosaic_gpu")
    assert host.problems == ["learner_experts", "engine_attention"]


def forbidden(*args: Any, **options: Any) -> Any:
    raise AssertionError("a process was started")


def test_without_a_gpu_nothing_is_tried(run: Any, tmp_path: Path) -> None:
    host = Host(verdict_of=forbidden)
    for given in (run(), run(deterministic=False), run(attention="triton", experts="mosaic_gpu")):
        assert engine_start.trainer_run(given, tmp_path, forbidden, host=host) == given


def test_a_gpu_that_jax_does_not_find_is_none(host: Machine, run: Any, tmp_path: Path) -> None:
    host.platform = "cpu"
    own, lines = begin(host, run(), tmp_path / "run")
    assert choices(own) == ("auto", "auto") and not lines


def test_servers_try_nothing_of_a_learner(host: Machine, run: Any) -> None:
    engine_start.server_run(run(deterministic=False), lambda line: None, host=host.host)
    assert host.problems == ["engine_attention"]

"""What starts run: chosen once in a deterministic run, on GPUs only, kept on disk."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import pytest

from configs import base
from rlboost_jax.engine.step_programs import AttentionNotAvailable
from rlboost_jax.learner.workdir import Workdir
from rlboost_jax.qualification import engine_start, machine
from rlboost_jax.qualification.trial_host import Host
from rlboost_jax.qualification.trial_records import KernelVerdict, Outcome, Spec, Trial
from rlboost_jax.settings.config_loading import run_config, write_run_config
from rlboost_jax.settings.run_config import RunConfig

DEVICE = "NVIDIA H100 80GB HBM3"
FACTS = {"device": DEVICE, "jaxlib": "0.12.0"}


class Machine:
    """A host with a GPU on which each candidate comes to what is said here."""

    def __init__(self, **outcomes: tuple[Outcome, str]) -> None:
        self.outcomes, self.specs = outcomes, list[Spec]()
        self.facts: dict[str, str] | None = dict(FACTS)
        self.platform = "gpu"
        self.host = Host(
            gpu_expected=lambda: True, facts=lambda: self.facts, verdict_of=self.verdict_of
        )

    def verdict_of(self, spec: Spec) -> KernelVerdict:
        self.specs.append(spec)
        seconds = {"mosaic_gpu": 1e-5, "triton": 2e-5, "xla": 9e-3}
        trials = []
        for name in spec.candidates:
            outcome, reason = self.outcomes.get(name, ("right", ""))
            time = seconds[name] if outcome == "right" else None
            trials.append(Trial(candidate=name, outcome=outcome, reason=reason, seconds=time))
        return KernelVerdict(platform=self.platform, device=DEVICE, trials=tuple(trials))


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., RunConfig]:
    def make(*, deterministic: bool = True, attention: str = "auto") -> RunConfig:
        config = base.get_config()
        config.deterministic, config.engine.attention = deterministic, attention
        config.compile_cache_dir = str(tmp_path / "cache")
        return run_config(config)

    return make


def begin(found: Machine, run: RunConfig, workdir: Path) -> tuple[RunConfig, str]:
    """As `run_training` does: the trainer's own run, and the line that it shows."""
    lines: list[str] = []
    own = engine_start.trainer_run(run, workdir, lines.append, host=found.host)
    with Workdir(workdir, engine_start.published_run(run, own)):
        pass
    return own, "".join(lines)


CRASH: tuple[Outcome, str] = ("crashed", "SIGSEGV")


def test_the_fastest_is_taken_and_said(run: Any, tmp_path: Path) -> None:
    found = Machine()
    own, line = begin(found, run(), tmp_path / "run")
    assert own.engine.attention == "mosaic_gpu"
    assert line.startswith(
        f"engine.attention on {DEVICE}: mosaic_gpu, 0.01 ms (triton 0.02 ms, xla 9 ms); kept in "
    )
    assert [spec.candidates for spec in found.specs] == [("mosaic_gpu", "triton", "xla")]


def test_the_next_best_is_taken_and_why_is_said(run: Any, tmp_path: Path) -> None:
    found = Machine(mosaic_gpu=CRASH)
    own, line = begin(found, run(), tmp_path / "run")
    assert own.engine.attention == "triton"
    assert "passed over: mosaic_gpu ended its process (SIGSEGV)" in line


def test_where_nothing_is_right_the_plain_path_runs(run: Any, tmp_path: Path) -> None:
    names = ("mosaic_gpu", "triton", "xla")
    found = Machine(**dict.fromkeys(names, ("raised", "no PTX for sm_130")))
    for folder in ("one", "two"):  # and is not kept: the next start may be luckier
        own, line = begin(found, run(), tmp_path / folder)
        assert own.engine.attention == "xla"
        assert "the plain path" in line and line.count("no PTX for sm_130") == 3
    assert len(found.specs) == 2


def test_a_kept_verdict_is_used_until_something_changes(run: Any, tmp_path: Path) -> None:
    found = Machine(mosaic_gpu=CRASH)
    _, first = begin(found, run(), tmp_path / "1")
    own, again = begin(found, run(), tmp_path / "2")
    assert len(found.specs) == 1 and own.engine.attention == "triton"
    assert "; kept in " in first and "; as kept in " in again and "SIGSEGV" in again
    found.facts["jaxlib"] = "0.12.1"
    found.outcomes = {}
    own, _ = begin(found, run(), tmp_path / "3")
    assert len(found.specs) == 2 and own.engine.attention == "mosaic_gpu"
    begin(found, run(deterministic=False), tmp_path / "4")  # rows were not checked for this one
    assert len(found.specs) == 3 and not found.specs[-1].invariant
    for file in (tmp_path / "cache" / "qualification").iterdir():
        file.write_text(file.read_text()[:-9])
    begin(found, run(), tmp_path / "5")
    assert len(found.specs) == 4


def test_nothing_is_kept_of_a_device_that_nobody_names(run: Any, tmp_path: Path) -> None:
    found = Machine()
    found.facts = None
    for folder in ("1", "2"):
        begin(found, run(), tmp_path / folder)
    assert len(found.specs) == 2 and not (tmp_path / "cache").exists()


def test_a_deterministic_run_keeps_its_choice(run: Any, tmp_path: Path) -> None:
    """Also where another one would be faster by now."""
    found = Machine(mosaic_gpu=CRASH)
    begin(found, run(), tmp_path / "run")
    found.outcomes, found.facts = {}, {**FACTS, "driver": "newer"}
    own, line = begin(found, run(), tmp_path / "run")
    assert own.engine.attention == "triton" and "as the run has it" in line
    found.outcomes, found.facts = {"triton": ("wrong", "off")}, {**FACTS, "driver": "newest"}
    with pytest.raises(AttentionNotAvailable, match=r"'triton', .* triton is wrong \(off\)"):
        begin(found, run(), tmp_path / "run")


def test_another_run_chooses_at_every_start(run: Any, tmp_path: Path) -> None:
    found = Machine(mosaic_gpu=CRASH)
    free = run(deterministic=False)
    assert begin(found, free, tmp_path / "run")[0].engine.attention == "triton"
    found.outcomes, found.facts = {}, {**FACTS, "driver": "newer"}
    assert (
        begin(found, run(deterministic=False), tmp_path / "run")[0].engine.attention == "mosaic_gpu"
    )
    published = engine_start.published_run(run(deterministic=False), own=run(attention="triton"))
    assert published.engine.attention == "auto"  # servers choose for their own devices


def test_a_run_that_began_with_the_plain_path_stays_with_it(run: Any, tmp_path: Path) -> None:
    """It began before there was a choice, or on a CPU."""
    found = Machine()
    (tmp_path / "run").mkdir()
    write_run_config(tmp_path / "run" / "config.json", run(), "id")
    own, line = begin(found, run(), tmp_path / "run")
    assert own.engine.attention == "auto" and not line and not found.specs


def test_a_server_runs_the_choice_of_the_run(run: Any) -> None:
    found, lines = Machine(), list[str]()
    served = engine_start.server_run(run(attention="triton"), lines.append, host=found.host)
    assert served.engine.attention == "triton" and "as the run has it" in lines[0]
    assert engine_start.server_run(run(), lines.append, host=found.host).engine.attention == "auto"
    assert len(found.specs) == 1


def test_a_server_that_cannot_run_it_says_why(run: Any) -> None:
    found = Machine(
        mosaic_gpu=("unavailable", "A100 has compute capability 8.0; it takes 9.x (Hopper)")
    )
    with pytest.raises(AttentionNotAvailable, match=r"mosaic_gpu cannot run this \(A100 has"):
        engine_start.server_run(run(attention="mosaic_gpu"), print, host=found.host)


@pytest.mark.parametrize(
    ("outcome", "tries"), [("hung", 2), ("crashed", 2), ("raised", 2), ("wrong", 1)]
)
def test_what_failed_once_is_tried_again_where_the_run_must_have_it(
    run: Any, outcome: Outcome, tries: int
) -> None:
    """A host that was overloaded at its first start would else never serve the run."""
    found = Machine(triton=(outcome, "once"))
    for _ in range(2):
        with pytest.raises(AttentionNotAvailable, match="once"):
            engine_start.server_run(run(attention="triton"), print, host=found.host)
    assert len(found.specs) == tries
    found.outcomes = {}
    if tries == 2:
        lines: list[str] = []
        engine_start.server_run(run(attention="triton"), lines.append, host=found.host)
        assert "; kept in " in lines[0]


def test_a_server_of_another_run_chooses_for_itself(run: Any) -> None:
    found = Machine(mosaic_gpu=CRASH)
    served = engine_start.server_run(run(deterministic=False), lambda line: None, host=found.host)
    assert served.engine.attention == "triton"


def test_what_a_person_names_is_taken_as_it_is(run: Any, tmp_path: Path) -> None:
    found = Machine(triton=CRASH)
    pinned = run(deterministic=False, attention="triton")
    assert begin(found, pinned, tmp_path / "run")[0] == pinned and not found.specs


def test_a_reader_takes_what_its_own_device_can(run: Any) -> None:
    found = Machine(mosaic_gpu=CRASH)
    read = engine_start.reader_run(run(attention="mosaic_gpu"), lambda line: None, host=found.host)
    assert read.engine.attention == "triton"


def forbidden(*args: Any, **options: Any) -> Any:
    raise AssertionError("a process was started")


@pytest.mark.parametrize("attention", ["auto", "xla", "mosaic_gpu"])
def test_without_a_gpu_nothing_is_tried(run: Any, attention: str, tmp_path: Path) -> None:
    host, given = Host(verdict_of=forbidden), run(attention=attention)
    assert not machine.gpu_expected()
    assert engine_start.trainer_run(given, tmp_path, forbidden, host=host) == given
    assert engine_start.server_run(given, forbidden, host=host) == given
    read = engine_start.reader_run(given, forbidden, host=host).engine.attention
    assert read == ("xla" if attention == "xla" else "auto")


def test_a_gpu_that_jax_does_not_find_is_none(run: Any, tmp_path: Path) -> None:
    found = Machine()
    found.platform = "cpu"
    own, line = begin(found, run(), tmp_path / "run")
    assert own.engine.attention == "auto" and not line


@pytest.mark.parametrize(
    ("platforms", "plugins", "node", "expected"),
    [
        (None, ["xla_cuda12"], "nvidia0", True),
        ("", ["xla_cuda13"], "dxg", True),
        ("cuda,cpu", ["xla_cuda12"], "nvidia3", True),
        ("cpu", ["xla_cuda12"], "nvidia0", False),
        (None, [], "nvidia0", False),
        (None, ["xla_cuda12"], "null", False),
    ],
)
def test_when_a_gpu_is_expected(
    platforms: str | None,
    plugins: list[str],
    node: str,
    expected: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = tmp_path / "jax_plugins"
    site.mkdir()
    for name in plugins:
        (site / name).mkdir()
        (site / name / "__init__.py").write_text("")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / node).touch()
    before = jax.config.jax_platforms
    jax.config.update("jax_platforms", platforms)
    try:
        assert machine.gpu_expected(tmp_path / "dev", [str(site)]) is expected
    finally:
        jax.config.update("jax_platforms", before)


def test_the_driver_says_what_the_device_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts_of = partial(machine.facts, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert facts_of() is None
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA L4, 550.54'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    facts = facts_of()
    assert facts is not None and facts["device"] == "NVIDIA L4, 550.54"
    (tmp_path / "gpus" / "0").mkdir(parents=True)
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX Kernel Module  560.35\nGCC\n")
    (tmp_path / "gpus" / "0" / "information").write_text("Model: \t NVIDIA H100\nIRQ: 5\n")
    facts = facts_of()
    assert facts is not None
    assert facts["device"] == "NVIDIA H100; NVRM version: NVIDIA UNIX Kernel Module  560.35"
    assert facts["jax"] == jax.__version__ and facts["jaxlib"] and len(facts["kernels"]) == 64


def test_a_pinned_choice_is_another_run(run: Any, tmp_path: Path) -> None:
    found = Machine()
    begin(found, run(), tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "1").mkdir(parents=True)  # an update was made
    with pytest.raises(RuntimeError, match=r"engine.attention: 'mosaic_gpu' → 'triton'"):
        begin(found, run(attention="triton"), tmp_path / "run")

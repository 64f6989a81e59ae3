"""The stages of benchmarks/gpu.py run in reduced sizes, each by every way that it measures."""

import json
from types import SimpleNamespace

import pytest

from benchmarks import gpu, gpu_fire, gpu_table
from benchmarks.gpu_figures import beats_its_bound, figure
from benchmarks.h100.jobs import MESHES
from rlboost_jax.qualification.trial_host import Host
from rlboost_jax.qualification.trial_records import KernelVerdict, Trial

# Beginnings of names of figures: one for each way that a stage measures.
WAYS = {
    "ceilings": ("copy", "product of 8,192³, timed"),
    "engine_8b": ("64 sequences of 640, 256",),
    "engine_06b": ("64 sequences, 64 + 256 tokens, products",),
    "attention": ("",),
    "gradients": ("Qwen3-0.6B, 4 x 2,048, products", "Qwen3-8B, adapters"),
    "experts": ("experts",),
    "transfers": ("weights of 8B, page", "update of 8B of 4 layers, moments in"),
    "correctness": ("",),
    "kernels": ("qwen3_06b_gsm8k matmul", "qwen3_06b_gsm8k copy"),
    "bandwidth": ("",),
    "latency": ("",),
    "products": ("",),
}
ELSEWHERE = {"paths", "under_fire", "qualification", "table"}  # the tests below, and soak


def ran(cases):
    """The figures of cases by their names, as JSON has them."""
    return json.loads(json.dumps({name: measure() for name, measure in cases.items()}))


@pytest.mark.optimized(False)
@pytest.mark.parametrize("stage", WAYS)
def test_each_way_of_a_stage_runs(stage):
    cases = gpu.cases_of(stage)(tiny=True)
    found = ran({name: case for name, case in cases.items() if name.startswith(WAYS[stage])})
    assert all(any(name.startswith(way) for name in found) for way in WAYS[stage])
    for one in found.values():
        assert one["bound"] is None  # a CPU has no data sheet here
        assert one["value"] or one["value"] in (0, False)


def test_every_stage_is_run_by_a_test():
    assert {*WAYS, *ELSEWHERE} == {*gpu.STAGES}


@pytest.mark.soak
@pytest.mark.optimized(False)
@pytest.mark.parametrize("stage", sorted(ELSEWHERE - {"under_fire"}))
def test_long_stages_run(stage):
    found = ran(gpu.cases_of(stage)(tiny=True))
    assert found and not any(str(one["value"]).startswith("failed") for one in found.values())


def rows(*digests):
    return [
        {
            "step": step,
            "trajectories_digest": digest,
            "params_digest": digest,
            "tokens_delivered": 100,
            "step_seconds": 2.0,
            "train_wait_seconds": 0.5,
            "instances_lost": 1,
            "instances_joined": 2,
        }
        for step, digest in enumerate(digests)
    ]


@pytest.mark.parametrize(("fire", "equal"), [("abc", True), ("abd", False)])
def test_a_run_under_fire_is_compared_with_a_calm_one(fire, equal):
    commands = []

    def execute(command, **_):
        commands.append(command)
        folder = next(word for word in command if word.startswith("--workdir="))
        text = fire if "--config.fleet.chaos.enabled=True" in command else "abc"
        write(folder.removeprefix("--workdir="), rows(*text))
        return SimpleNamespace(returncode=0)

    def write(folder, lines):
        from pathlib import Path

        Path(folder).mkdir()
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (Path(folder) / "metrics.jsonl").write_text(text)

    found = ran(gpu_fire.under_fire(tiny=False, execute=execute))
    values = {name.partition(": ")[2]: one["value"] for name, one in found.items()}
    assert values == {
        "equal digests, calm and under fire": equal,
        "servers lost under fire": 3,
        "servers joined under fire": 6,
        "tokens trained on, calm": 50.0,
        "the learner waits, calm": 0.25,
    }
    assert len(commands) == 2  # one run each, whatever is asked of it


def test_a_run_that_fails_says_why():
    def execute(command, **_):
        return SimpleNamespace(returncode=3, stderr="first\nno device\n", stdout="")

    cases = gpu_fire.under_fire(tiny=False, execute=execute)
    with pytest.raises(RuntimeError, match="a run ended with 3: no device"):
        next(iter(cases.values()))()


def test_what_learners_would_choose_is_listed_beside_engines():
    """Each preset asks for attention, and the mixture for experts too."""
    asked = []

    def verdict_of(spec):
        asked.append(spec.problem)
        trials = [Trial(candidate=name, outcome="right", seconds=1e-3) for name in spec.candidates]
        return KernelVerdict(platform="gpu", device="H100", trials=tuple(trials))

    cases = gpu_table.qualification(tiny=False, host=Host(verdict_of=verdict_of))
    figures = ran(cases)
    assert asked.count("engine_attention") == asked.count("learner_attention") == len(MESHES)
    assert asked.count("learner_experts") == 1
    moe = figures["qwen3_30b_a3b_moe learner.experts"]
    assert moe["line"].startswith("learner.experts on H100: mosaic_gpu, 1 ms (blocks 1 ms)")
    attention = figures["qwen3_8b_openr1 learner.attention"]
    assert attention["trials"]["chunked"] == 1.0 and "a half" in attention["assumed"]
    assert figures["qwen3_8b_openr1 engine.attention"]["trials"]["xla"] == 1.0


# The command.


class Clock:
    """Moves when a measurement says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def command(tmp_path, clock, monkeypatch):
    """Runs stages that a test makes up, and returns the exit code and what is written."""
    path = tmp_path / "gpu.json"
    monkeypatch.setattr(gpu, "machine", lambda: {"device": "NVIDIA H200"})
    monkeypatch.setattr(
        gpu, "STAGES", {name: gpu.Stage("", 50.0, name) for name in ("first", "second", "third")}
    )

    def run(stages, *arguments):
        code = gpu.main(
            [f"--json={path}", *arguments],
            cases_of=lambda name: lambda tiny: stages[name],
            clock=clock,
        )
        return code, json.loads(path.read_text())["stages"]

    run.path = path
    return run


def one(name, value=1.0, unit="ms", **more):
    return {name: lambda: figure(value, unit, **more)}


def breaks(error):
    def measure():
        raise error

    return measure


def test_what_breaks_leaves_the_rest_alone(command, capsys):
    stages = {
        "first": {"bad": breaks(RuntimeError("CUDA_ERROR\nand more")), **one("good")},
        "second": {"absent": breaks(ModuleNotFoundError(name="torch"))},
        "third": one("last"),
    }
    code, found = command(stages)
    assert code == 1
    assert [stage["status"] for stage in found.values()] == ["failed", "ok", "ok"]
    bad, good = found["first"]["figures"]
    assert (bad["value"], good["value"]) == ("failed: RuntimeError: CUDA_ERROR", 1.0)
    assert found["second"]["figures"][0]["value"] == "left out: torch is not installed"
    assert "first: failed: bad" in capsys.readouterr().out


def test_a_stage_that_cannot_begin_leaves_the_rest_alone(command):
    class Broken(dict):
        def __getitem__(self, name):
            if name == "first":
                raise ImportError("no such function")
            return one("figure")

    code, found = command(Broken())
    assert code == 1
    assert found["first"]["status"] == "failed" and "no such function" in found["first"]["reason"]
    assert [found[name]["status"] for name in ("second", "third")] == ["ok", "ok"]


def test_each_figure_is_written_as_it_comes(command):
    def second():
        before = json.loads(command.path.read_text())["stages"]["first"]
        assert [known["name"] for known in before["figures"]] == ["a"]
        assert before["reason"] == "the process ended in 'b'"  # if it does now
        return figure(2.0, "ms")

    code, found = command({"first": {**one("a"), "b": second}}, "--stages=first")
    assert code == 0 and [known["value"] for known in found["first"]["figures"]] == [1.0, 2.0]


def test_stages_that_do_not_fit_are_passed_over(command, clock, capsys):
    def slow():
        clock.now += 100.0
        return figure(1.0, "ms")

    stages = {"first": {"slow": slow, **one("late")}, "second": one("a"), "third": one("b")}
    code, found = command(stages, "--minutes=1.5")
    assert code == 0 and list(found) == ["first"]
    assert found["first"]["status"] == "stopped" and "'late'" in found["first"]["reason"]
    assert [known["name"] for known in found["first"]["figures"]] == ["slow"]
    assert "second: passed over; 50 s needed, -10 s left" in capsys.readouterr().out


def test_what_was_measured_elsewhere_stays_with_its_machine(command, monkeypatch):
    stages = {name: one(name) for name in ("first", "second", "third")}
    command(stages)
    monkeypatch.setattr(gpu, "machine", lambda: {"device": "NVIDIA H100 80GB HBM3"})
    _, found = command({"second": one("second", 3.0)}, "--stages=second")
    assert [stage["figures"][0]["value"] for stage in found.values()] == [1.0, 3.0, 1.0]
    devices = [stage["machine"]["device"] for stage in found.values()]
    assert devices == ["NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H200"]


def test_a_resumed_command_takes_what_failed_last(command):
    order = []

    def noted(name, fails=False):
        def measure():
            order.append(name)
            if fails:
                raise RuntimeError("no")
            return figure(1.0, "ms")

        return {name: measure}

    stages = {"first": noted("first", fails=True), "second": noted("second")}
    command(stages, "--stages=first,second")
    order.clear()
    stages = {name: noted(name) for name in ("first", "second", "third")}
    code, found = command(stages, "--resume")
    assert code == 0 and order == ["third", "first"]
    assert {stage["status"] for stage in found.values()} == {"ok"}


def test_a_stage_that_is_not_there_is_refused(command, capsys):
    with pytest.raises(SystemExit):
        command({}, "--stages=first,fourth")
    assert "no stage fourth; there are first, second, third" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("unit", "value", "impossible"),
    [("ms", 1.9, True), ("ms", 2.1, False), ("TB/s", 2.1, True), ("TB/s", 1.9, False)],
)
def test_a_figure_that_beats_its_bound_is_no_figure(command, unit, value, impossible):
    assert beats_its_bound(figure(value, unit, bound=2.0)) is impossible
    _, found = command({"first": one("a", value, unit, bound=2.0)}, "--stages=first")
    written = found["first"]["figures"][0]["value"]
    word = f"impossible: {value} {unit} beats its bound"
    assert written == (word if impossible else value)


@pytest.mark.parametrize("value", [True, "left out", 1.0])
def test_words_and_figures_without_a_bound_beat_nothing(value):
    assert not beats_its_bound(figure(value, "", bound=None if value == 1.0 else 2.0))


def test_a_dry_run_writes_no_results(monkeypatch, tmp_path, clock, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu, "machine", lambda: {"device": "cpu"})
    arguments = ["--dry_run", "--stages=ceilings"]
    assert gpu.main(arguments, cases_of=lambda _: lambda tiny: one("a"), clock=clock) == 0
    assert not list(tmp_path.iterdir())
    assert "no data sheet of cpu: its figures stand without bounds" in capsys.readouterr().out

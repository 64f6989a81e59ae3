"""One step of a real run, seen from every process on one time axis."""

import pytest

from rlboost_jax.observe.chrome_trace import spans_path
from rlboost_jax.observe.json_lines import read_lines
from tests.observe.traces import Trace, load
from tests.system.harness import PATIENT, SHORT, STEADY, Run, prepared

pytestmark = pytest.mark.system

STEP = 7


def test_a_step_of_all_processes_on_one_time_axis(short_and_calm, tmp_path):
    profiled = (f"observe.profile_step={STEP}", f"num_steps={STEP + 2}")
    with prepared(tmp_path / "run", *SHORT, *PATIENT, *STEADY, *profiled) as run:
        run.hold(version=STEP).start()
        # Servers work in this step, and have the next version when they are seen in its step.
        with (
            run.at_a_standstill(version=STEP),
            run.at_a_standstill(version=STEP + 1) as next_step,
        ):
            # Of what a server did the manager hears with its next renewal.
            run.wait_until(lambda: next_step.at_work.keys() <= pulled(run), "word of their pulls")
        run.finish()
    calm = short_and_calm.digests()
    assert run.digests()[: len(calm)] == calm, "to be watched changes no bit"

    trace = Trace(load(run.workdir / "profile" / f"step_{STEP}.trace.json.gz"))
    assert set(trace.other["dropped_spans"].values()) == {0}
    (step,) = trace.spans("trainer", "learner", "step")
    (managed,) = trace.spans("manager", "step", f"step {STEP}")
    assert inside(managed, step, trace.error("trainer"))
    for name in ("stream", "update", "copy parameters"):
        (part,) = trace.spans("trainer", "learner", name)
        assert inside(part, step, 0.01)
    assert len(trace.spans("trainer", "learner", "micro-batch")) == 4
    versions = [s["args"]["version"] for s in trace.spans("trainer", "publisher", "write snapshot")]
    assert STEP + 1 in versions
    assert trace.spans("manager", "seeding window") and trace.spans("manager", "placement")

    servers = {process for process, lane in trace.lanes if lane == "engine"} - {"trainer"}
    assert servers, "no server took part, so nothing was shown"
    for server in servers:
        assert_between(trace, server, server)
        pulls = [s["args"]["version"] for s in trace.spans(server, "weights", "pull")]
        assert pulls[0] == STEP, "that which it worked with"
        assert pulls[1:] == [STEP + 1] * (len(pulls) - 1)
    for server in next_step.at_work:
        pulls = [s["args"]["version"] for s in trace.spans(server, "weights", "pull")]
        assert pulls[-1] == STEP + 1
    if trace.spans("trainer", "engine", "dispatch"):
        assert_between(trace, "trainer", "reserved")


def pulled(run: Run) -> set[str]:
    """Servers that have said that they pulled the version after the step."""
    lines = read_lines(spans_path(run.workdir, STEP))
    pulls = (line for line in lines if line.get("name") == "pull")
    return {pull["process"] for pull in pulls if pull["args"]["version"] == STEP + 1}


def inside(span, around, error):
    """Whether a span lies in another, as far as their clocks are known."""
    begins = around["ts"] - error <= span["ts"]
    return begins and span["ts"] + span["dur"] <= around["ts"] + around["dur"] + error


def assert_between(trace, process, instance):
    """Each dispatch lies between the manager's sending of work and the receipt of its tokens."""
    error = trace.error(process)
    work = trace.spans("manager", instance, "work")
    received = {s["args"]["sequence"]: s for s in trace.spans("manager", instance, "tokens")}
    dispatches = trace.spans(process, "engine", "dispatch")
    assert dispatches
    for dispatch in dispatches:
        assert work[0]["ts"] <= dispatch["ts"] + error
        if not dispatch["args"]["tokens"]:  # nothing was sent
            continue
        receipt = received[dispatch["args"]["sequence"]]
        assert receipt["args"]["tokens"] == dispatch["args"]["tokens"]
        assert dispatch["ts"] + dispatch["dur"] <= receipt["ts"] + receipt["dur"] + error

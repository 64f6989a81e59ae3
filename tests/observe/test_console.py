import io
import re
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console as RichConsole
from rich.console import ConsoleDimensions

from rlboost_jax.messages import FleetStatus, InstanceStatus
from rlboost_jax.observe.console import Console, _over, step_line
from rlboost_jax.observe.live_view import spark
from rlboost_jax.observe.metrics import KEYS
from rlboost_jax.observe.samples import SampleCall, SamplePart
from tests.observe.conftest import row, sample


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def console(file: io.StringIO, *, live: bool = True) -> Console:
    return Console(num_steps=60, live=live, file=file)


def status(*states: str, joined: int, lost: int) -> FleetStatus:
    instances = tuple(
        InstanceStatus(
            instance=f"local-{index}",
            reserved=False,
            state=state,
            version=7,
            running=31,
            waiting=4,
            tokens=12_345,
            price_per_hour=2.66,
            seconds=75.0,
            round_trip=0.304,
            losses=0.094,
            lease_seconds=52.0,
        )
        for index, state in enumerate(states)
    )
    return FleetStatus(
        instances=instances,
        finished=150,
        total=192,
        window_open=False,
        window_seconds=0.4,
        joined=joined,
        lost=lost,
        versions_in_use=(7,),
        cost_dollars=0.0123,
    )


def metrics(**values: Any) -> dict[str, Any]:
    measured = {
        "step": 11,
        "reward_mean": 0.85,
        "response_length_mean": 31.0,
        "step_seconds": 2.0,
        "tokens_generated": 6000,
        "tokens_reserved": 1000,
        "tokens_preemptible": 5000,
        "instances_mean": 2.5,
        "instances_joined": 1,
        "instances_lost": 2,
        "tokens_lost": 9,
    }
    return dict.fromkeys(KEYS) | measured | values


def test_without_a_terminal_a_step_is_a_line() -> None:
    file = io.StringIO()
    with console(file) as view:
        view.step(metrics(accuracy=0.5))
    (line,) = file.getvalue().splitlines()
    for part in (
        "step 11 (12/60)",
        "reward 0.850",
        "accuracy 0.500",
        "3,000 tokens/s (500 reserved + 2,500 preemptible)",
        "servers 2.5 +1 -2",
        "9 tokens lost",
    ):
        assert part in line
    assert "\x1b" not in line


def test_what_was_not_measured_is_a_dash() -> None:
    file = io.StringIO()
    with console(file) as view:
        view.step(dict.fromkeys(KEYS) | {"step": 0})
    assert "reward –" in file.getvalue()


def test_phases_are_announced_and_timed() -> None:
    file = io.StringIO()
    with console(file) as view, view.phase("compiling the train step"):
        assert file.getvalue() == "compiling the train step …\n"
    assert re.fullmatch(r"compiling the train step: \d+\.\d s", file.getvalue().splitlines()[1])


def test_a_phase_ends_when_it_fails() -> None:
    view = console(io.StringIO())
    with pytest.raises(RuntimeError), view.phase("compiling"):
        raise RuntimeError
    assert not view._phases


def test_arrivals_and_losses_are_lines_and_silence_is_not() -> None:
    file = io.StringIO()
    with console(file) as view:
        view.fleet(status("ready", "pulling", joined=2, lost=0))
        view.fleet(status("ready", "ready", joined=2, lost=0))
        view.fleet(status("ready", joined=2, lost=1))
    lines = file.getvalue().splitlines()
    assert lines == ["  fleet: +2 joined, -0 lost, 1 ready", "  fleet: +0 joined, -1 lost, 1 ready"]


def test_long_lines_are_not_folded() -> None:
    file = io.StringIO()
    with console(file) as view:
        view.note("x" * 500)
    assert file.getvalue() == "x" * 500 + "\n"


def test_markup_in_a_note_is_text() -> None:
    file = io.StringIO()
    with console(file) as view:
        view.note("[red]7[/red] [9] 3")
    assert file.getvalue() == "[red]7[/red] [9] 3\n"


def test_live_can_be_switched_off() -> None:
    file = Terminal()
    with console(file, live=False) as view:
        view.step(metrics())
    assert "step 11 (12/60)" in file.getvalue()


def test_quarantined_servers_are_said_once() -> None:
    file = io.StringIO()
    with console(file) as view:
        for caught in (0, 1, 1, 3, 0):  # the last by another manager
            view.fleet(replace(status("ready", joined=0, lost=0), quarantined=caught))
    lines = [line for line in file.getvalue().splitlines() if "quarantined" in line]
    assert [line.split()[1] for line in lines] == ["1", "2"]


def test_the_view_shows_step_fleet_and_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    file = Terminal()
    with console(file) as view:
        view.step(metrics(accuracy=0.5, requests_migrated=40))
        view.fleet(status("ready", "leaving", joined=5, lost=3))
        with view.phase("compiling the train step"):
            shown = drawn(view)
    for part in (
        "12/60 steps",
        "0.850",
        "0.500",
        "local-0",
        "leaving",
        "12,345",
        "150/192 responses",
        "5 joined, 3 lost",
        "40 migrated",
        "compiling the train step …",
    ):
        assert part in shown, shown
    assert "\x1b" in file.getvalue()


def test_the_view_before_anything_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    with console(Terminal()) as view:
        assert "0/60 steps" in drawn(view)
        view.fleet(status(joined=0, lost=0))
        assert "no server yet" in drawn(view)


def test_the_dollars_are_those_of_the_bill() -> None:
    """Rows of before, rows of this start, and what the manager has counted since."""
    view = console(io.StringIO())
    view.earlier([metrics(cost_dollars=2.0), metrics(cost_dollars=None)])
    assert view._bill.dollars == pytest.approx(2.0)
    for counted, shown in ((0.5, 2.0), (0.75, 2.25)):  # by a manager that was there already
        view.fleet(replace(status(joined=0, lost=0), cost_dollars=counted))
        assert view._bill.dollars == pytest.approx(shown)
    view.step(metrics(cost_dollars=0.5))  # 0.25 of it from before it was seen
    assert view._bill.dollars == pytest.approx(2.5)
    view.fleet(replace(status(joined=0, lost=0), cost_dollars=0.0))  # another manager
    view.fleet(replace(status(joined=0, lost=0), cost_dollars=0.125))
    assert view._bill.dollars == pytest.approx(2.625)


def test_a_view_that_a_narrower_terminal_has_wrapped_is_drawn_over() -> None:
    """A line of 100 cells takes three rows of 40, so that there are two more to go up."""
    assert _over([100, 40, 0], 40) == "\x1b[2A\r\x1b[J"
    assert _over([40, 12], 40) == ""


def test_each_drawing_asks_how_wide_the_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    file = Terminal()
    view = console(file)
    view.step(metrics(accuracy=0.5))
    wide = drawn(view)
    view._console.size = ConsoleDimensions(40, 30)  # as a terminal of another size would say
    before = len(file.getvalue())
    narrow = drawn(view)
    assert max(map(len, narrow.splitlines())) <= 40 < max(map(len, wide.splitlines()))
    assert "\x1b[J" in file.getvalue()[before:]


def drawn(view: Console) -> str:
    file = io.StringIO()
    RichConsole(file=file, width=100).print(view._view())
    return file.getvalue()


def test_bars_follow_the_values() -> None:
    assert spark([0.0, 0.5, 1.0, -3.0, 7.0]) == "▁▅█▁█"


def test_a_sample_is_one_line_whatever_the_model_wrote() -> None:
    file = io.StringIO()
    response = "\x1b[2J so\n\tthen\u2028" + "9" * 200
    console(file).samples([sample(response_text=response), sample(response_text="second")])
    (line,) = file.getvalue().splitlines()
    assert "<begin> 5 2 [10] = → [2J so then 999" in line and "second" not in line
    assert line.endswith("…  (reward 1)") and "\x1b" not in line


def test_a_sample_of_an_environment_says_how_it_went() -> None:
    file = io.StringIO()
    call = SampleCall(name="add", failed=True)
    turns = (
        SamplePart(sampled=True, text="5", calls=(call, call)),
        SamplePart(sampled=False, text="6"),
        SamplePart(sampled=True, text="7"),
    )
    shown = console(file)
    shown.samples([sample(turns=turns)])
    shown.samples([sample(turns=turns[:1], left_out="its tool\n\x1b[2J is gone")])
    first, second = file.getvalue().splitlines()
    assert first.endswith("(reward 1, 2 turns, 2 tool calls)")
    assert second.endswith("(left out: its tool [2J is gone, 2 tool calls)")


def test_a_step_of_an_environment_says_how_it_went() -> None:
    plain = step_line(row(3), 60)
    assert "turn" not in plain and "tool" not in plain
    several = {"turns_mean": 2.25, "tool_calls": 9, "tool_failures": 2, "episodes_left_out": 1}
    assert "1 left out  turns 2.2  9 tool calls (2 failed)  $" in step_line(row(3, **several), 60)
    quiet = {"turns_mean": 1.0, "tool_calls": 0, "tool_failures": 0, "episodes_left_out": 0}
    assert "turns 1.0  $" in step_line(row(3, **quiet), 60)


def test_a_step_that_dynamic_sampling_filled_up_says_so() -> None:
    filled = step_line(row(3, groups_filled_up=5, episodes_left_out=0), 60)
    assert "lost  5 groups of equal rewards not trained  $" in filled
    assert "not trained" not in step_line(row(3, groups_filled_up=0), 60)


def test_the_fleet_table_shows_each_line() -> None:
    file = Terminal()
    with console(file) as shown:
        shown.fleet(status("ready", joined=1, lost=0))
    assert "304 ms 9% lost, 52 s" in file.getvalue()

"""Lines of the view: none wider than the terminal, no word or number cut in two."""

import itertools
import re

import pytest

from rlboost_jax.messages import FleetStatus, InstanceStatus
from rlboost_jax.observe.live_view import Shown, fleet_table, folded, seconds_left, view_lines
from rlboost_jax.observe.metrics import KEYS

WIDTHS = (20, 32, 40, 60, 80, 100, 140)


def server(index: int, *, state: str = "ready", version: int = 1207) -> InstanceStatus:
    return InstanceStatus(
        instance=f"a-server-of-zone-{index}",
        reserved=index == 0,
        state=state,
        version=version,
        running=31,
        waiting=4,
        tokens=1_234_567,
        price_per_hour=12.66,
        seconds=4000.0,
        round_trip=0.304,
        losses=0.094,
        lease_seconds=52.0,
    )


def shown(servers: int = 3) -> Shown:
    row = dict.fromkeys(KEYS) | {
        "reward_mean": 0.85,
        "loss": -0.0123,
        "kl": 0.00045,
        "response_length_mean": 1312.5,
        "step_seconds": 61.5,
        "tokens_generated": 6_150_000,
        "tokens_reserved": 1_230_000,
        "tokens_preemptible": 4_920_000,
        "cost_forecast_dollars": 1234.5678,
    }
    return Shown(
        num_steps=1000,
        seconds=3723.0,
        rows=[{**row, "step": 0, "step_seconds": 600.0}, {**row, "step": 1}, {**row, "step": 2}],
        accuracy=0.4375,
        status=FleetStatus(
            instances=tuple(map(server, range(servers))),
            finished=150,
            total=1920,
            window_open=True,
            window_seconds=12.5,
            joined=31,
            lost=29,
            versions_in_use=(),
            cost_dollars=3.0,
        ),
        dollars=617.2839,
        phases=[("compiling the learner's programs for packed rows", 75.0)],
    )


def drawn(width: int, height: int = 60, servers: int = 3) -> list[str]:
    return [line.plain for line in view_lines(shown(servers), width=width, height=height)]


def words(lines: list[str]) -> set[str]:
    return {word for line in lines for word in line.split() if not set(word) <= set("━─▁▂▃▄▅▆▇█")}


@pytest.mark.parametrize("width", WIDTHS)
def test_lines_fit_and_words_are_whole(width: int) -> None:
    lines = drawn(width)
    assert max(map(len, lines)) <= width
    assert words(lines) <= words(drawn(200)), "a word that only this width has was cut"


def test_all_is_there_where_there_is_room() -> None:
    text = "\n".join(drawn(140))
    for part in (
        "3/1000 steps",
        "about 17:01:55 left",  # 997 steps of 61.5 s, by hand
        "loss -0.0123",
        "KL 0.00045",
        "$617.2839",
        "of about $1234.5678",
        "held-out accuracy 0.438",
        "304 ms 9% lost, 52 s",
        "150/1920 responses",
    ):
        assert part in text, text


def test_narrow_terminals_lose_columns_and_not_digits() -> None:
    heads = [set(fleet_table([server(1)], width, most=9)[0].plain.split()) for width in WIDTHS]
    assert len(heads[-1]) == 9 and {"policy", "tokens", "line", "$/h"} <= heads[-1]
    assert all(narrow <= wide for narrow, wide in itertools.pairwise(heads))
    assert heads[0] == {"server"} and "line" not in heads[4]
    for width, head in zip(WIDTHS, heads, strict=True):
        (row,) = fleet_table([server(1)], width, most=9)[1:]
        assert ("tokens" in head) == ("1,234,567" in row.plain)
        assert ("policy" in head) == ("1207" in row.plain)


def test_a_server_that_joins_has_no_policy_yet() -> None:
    (row,) = fleet_table([server(1, state="joining", version=-1)], 140, most=9)[1:]
    assert " – " in row.plain and " -1 " not in row.plain


@pytest.mark.parametrize("height", [14, 24, 60])
def test_servers_that_have_no_line_are_counted(height: int) -> None:
    lines = drawn(100, height, servers=40)
    named = sum("a-server-of-zone-" in line for line in lines)
    if height == 60:
        assert named == 40
    else:
        (more,) = [line for line in lines if re.fullmatch(r" and \d+ more", line)]
        assert named + int(more.split()[1]) == 40


def test_time_left_is_not_that_of_the_first_step() -> None:
    rows = [{"step": 0, "step_seconds": 600.0}]
    assert seconds_left(rows, 3) == 1200.0, "it is all there is"
    assert seconds_left([*rows, {"step": 1, "step_seconds": 10.0}], 4) == 20.0
    assert seconds_left([], 4) is None


def test_pieces_stay_together_and_wide_ones_break_at_spaces() -> None:
    lines = folded([" one two", "three", "a piece that is wider than all of it"], 16)
    assert [line.plain for line in lines] == [
        " one two   three",
        " a piece that is",
        " wider than all",
        " of it",
    ]

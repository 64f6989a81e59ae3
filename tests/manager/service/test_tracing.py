"""Spans of the manager's own work, of a step driven by hand in virtual time."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import Action, Event, FromServer, FromTrainer, Stalled
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.service.manager_driver import Driver
from rlboost_jax.manager.service.tracing import StepTracer
from rlboost_jax.observe.chrome_trace import Doubtful, read_spans, spans_path
from tests.manager.desk import RESERVED, Desk, trained
from tests.manager.fakes import begin_batch, ready, settings

A = 10
TAKES = 2**-10  # seconds from an event to the end of what is done about it
DISPATCH = m.Span(name="dispatch", lane="engine", start=10.75, seconds=0.125, args={"tokens": 8})


class Watched(Desk):
    def __init__(self, watch: StepTracer) -> None:
        super().__init__(settings(manager__lease_seconds=60.0))
        self.watch = watch

    def __call__(self, event: Event, at: float | None = None) -> list[Action]:
        actions: Sequence[Action] = super().__call__(event, at)
        self.watch(event, actions, self.now, self.now + TAKES)
        return list(actions)


def lines(workdir: Path, step: int) -> list[dict[str, Any]]:
    path = workdir / "profile" / f"step_{step}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def desk(tmp_path: Path) -> Watched:
    """Batch 1, begun at 10 s by the reserved engine; at 10.5 s server A gets the work, and all its
    tokens come at 11 s; the update is applied at 12 s, and step 2 begins."""
    desk = Watched(StepTracer(tmp_path, 1))
    desk.open_run()
    desk.publish(1)
    desk.begin(0)  # abandoned: not of interest
    desk.now = 10.0
    desk.begin(1)
    desk.server(RESERVED, ready(1))
    requests = desk.requests(RESERVED)
    desk.now = 10.25
    desk.join(A)
    desk.now = 10.5
    desk.server(A, ready(1))
    held = desk.requests(A)
    (release,) = desk.sent(m.Release, RESERVED)
    desk.tokens(RESERVED, requests, 1)
    desk.server(RESERVED, m.Released(request_ids=release.request_ids))
    held += desk.requests(A)
    desk.now = 11.0
    desk.server(A, m.Renew())
    desk.server(A, m.Spans(spans=(DISPATCH,), clock_error=0.25, dropped=3))
    while held:
        desk.tokens(A, held)
        held = desk.requests(A)
    desk.now = 12.0
    desk.trainer(trained(1))
    desk.now = 13.0
    desk.begin(2)
    desk.publish(2)
    desk.server(A, ready(2))
    desk.server(A, m.Spans(spans=(DISPATCH,), clock_error=0.125))
    desk.watch.close()
    return desk


def spans(workdir: Path, process: str, lane: str) -> list[dict[str, Any]]:
    found = [line for line in lines(workdir, 1) if "name" in line]
    return [line for line in found if (line["process"], line["lane"]) == (process, lane)]


def test_the_step_and_its_window(desk: Watched, tmp_path: Path) -> None:
    (step,) = spans(tmp_path, "manager", "step")
    assert (step["name"], step["start"], step["seconds"]) == ("step 1", 10.0, 2.0 + TAKES)
    (window,) = spans(tmp_path, "manager", "seeding window")
    assert (window["start"], window["seconds"]) == (10.0, 0.5)
    assert window["args"] == {"reason": "the window is over"}


def test_work_that_leaves_and_tokens_that_come_on_the_lane_of_the_server(
    desk: Watched, tmp_path: Path
) -> None:
    reserved, server = (spans(tmp_path, "manager", lane) for lane in ("trainer", f"server-{A}"))
    assert [(line["name"], line["start"]) for line in reserved][:4] == [
        ("ready", 10.0),
        ("work", 10.0 + TAKES),
        ("recall", 10.5 + TAKES),
        ("tokens", 10.5),
    ]
    work, *_, tokens = (line for line in server if line["name"] in ("work", "tokens"))
    assert (work["seconds"], work["start"]) == (0.0, 10.5 + TAKES), "a moment, after it is decided"
    assert (tokens["seconds"], tokens["start"]) == (pytest.approx(TAKES), 11.0)
    assert tokens["args"]["sequence"] >= 0 and tokens["args"]["tokens"] > 0
    assert not [line for line in server if line["name"] == "renew"]


def test_decisions_and_what_happened_to_the_fleet(desk: Watched, tmp_path: Path) -> None:
    placed = spans(tmp_path, "manager", "placement")
    assert sum(line["args"]["placed"] for line in placed) >= 6
    assert [line["args"]["recalled"] for line in placed if line["args"]["recalled"]]
    events = {line["name"] for line in spans(tmp_path, "manager", "fleet")}
    assert {f"joined server-{A}", f"ready server-{A}", "window_closed"} <= events
    assert f"migrated server-{A}" in events


def test_what_servers_say_is_kept_under_their_name_also_after_the_step(
    desk: Watched, tmp_path: Path
) -> None:
    found = spans(tmp_path, f"server-{A}", "engine")
    assert found == [{"process": f"server-{A}", **m.msgspec.structs.asdict(DISPATCH)}] * 2
    doubts = [line for line in lines(tmp_path, 1) if "clock_error" in line]
    assert [(d["clock_error"], d["dropped"]) for d in doubts] == [(0.25, 3), (0.125, 0)]


def test_nothing_of_other_steps_is_kept(desk: Watched, tmp_path: Path) -> None:
    own = [line for line in lines(tmp_path, 1) if line["process"] == "manager"]
    assert min(line["start"] for line in own) == 10.0
    assert max(line["start"] for line in own) < 13.0
    assert [path.name for path in (tmp_path / "profile").iterdir()] == ["step_1.jsonl"]


def test_what_there_is_no_room_for_is_counted(tmp_path: Path) -> None:
    """Drops of the server itself are added, however often it reports them."""
    watch = StepTracer(tmp_path, 1, max_lines=10)
    said = FromServer(3, m.Spans(spans=(DISPATCH,) * 4, clock_error=0.0, dropped=2))
    for _ in range(50):
        watch(said, [], 0.0, 0.0)
    assert len(lines(tmp_path, 1)) <= 11
    watch.close()
    kept, doubts = read_spans(spans_path(tmp_path, 1))
    assert 0 < len(kept) <= 10
    assert doubts == {"?": Doubtful(dropped=50 * (4 + 2) - len(kept))}


def test_the_managers_own_spans_are_counted_too(tmp_path: Path) -> None:
    watch = StepTracer(tmp_path, 1, max_lines=3)
    for event in (FromTrainer(1, begin_batch(1, 1, "d")), *[FromServer(3, ready(1))] * 10):
        watch(event, [], 0.0, 0.0)
    watch(FromTrainer(1, trained(1)), [], 1.0, 1.0)
    kept, doubts = read_spans(spans_path(tmp_path, 1))
    assert len(kept) == 3 and doubts["manager"].dropped == 10 + 1 - 3


def test_a_step_that_is_done_again_has_room_again(tmp_path: Path) -> None:
    watch = StepTracer(tmp_path, 1, max_lines=3)
    for _ in range(2):
        spans_path(tmp_path, 1).unlink(missing_ok=True)  # as a trainer does that begins anew
        for event in (FromTrainer(1, begin_batch(1, 1, "d")), *[FromServer(3, ready(1))] * 10):
            watch(event, [], 0.0, 0.0)
    watch.close()
    assert len(read_spans(spans_path(tmp_path, 1))[0]) == 3


def test_once_the_trace_is_made_nothing_is_kept(tmp_path: Path) -> None:
    watch = StepTracer(tmp_path, 1)
    said = FromServer(3, m.Spans(spans=(DISPATCH,), clock_error=0.0))
    for step in (1, 2, 3):
        watch(FromTrainer(1, begin_batch(step, step, "d")), [], 0.0, 0.0)
        watch(said, [], 0.0, 0.0)
    watch.close()
    assert len([line for line in lines(tmp_path, 1) if line["process"] == "?"]) == 2 * 2


def test_a_full_disk_costs_the_profile_only(tmp_path: Path) -> None:
    (tmp_path / "profile").write_text("not a folder")
    watch = StepTracer(tmp_path, 1)
    for _ in range(2):
        watch(FromServer(3, m.Spans(spans=(DISPATCH,), clock_error=0.0)), [], 0.0, 0.0)
    assert watch._file.full


def test_the_driver_shows_every_event_with_what_came_of_it(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def story() -> None:
        manager = Manager(settings(), asyncio.get_running_loop().time())
        driver = Driver(manager, lambda *_: None, watch=lambda *shown: seen.append(shown))
        driver.apply(FromServer(3, m.Renew()))
        await driver.close()

    asyncio.run(story())
    ((event, actions, began, ended),) = (s for s in seen if not isinstance(s[0], Stalled))
    assert event == FromServer(3, m.Renew()) and began <= ended
    assert {"Send", "Close", "Record"} <= {type(action).__name__ for action in actions}


def test_with_a_lag_a_step_is_traced_in_its_turn(tmp_path: Path) -> None:
    """Batch 1 is begun ahead, at 0 s; it is the oldest from 2 s on, and batch 2 is begun then."""
    desk = Watched(StepTracer(tmp_path, 1))
    desk.open_run()
    desk.publish(0)
    desk.server(RESERVED, ready(0))
    desk.trainer(begin_batch(0, 0, "d", prompts=1))
    requests = desk.requests(RESERVED)
    desk.trainer(begin_batch(1, 0, "d", prompts=1))
    desk.tokens(RESERVED, requests)
    assert not lines(tmp_path, 1)
    desk.now = 2.0
    desk.trainer(trained(0))
    requests = desk.requests(RESERVED)
    desk.trainer(begin_batch(2, 1, "d", prompts=1))
    desk.tokens(RESERVED, requests)
    desk.now = 3.0
    desk.trainer(trained(1))
    desk.now = 4.0
    desk.trainer(trained(2))
    (step,) = [line for line in lines(tmp_path, 1) if line["name"] == "step 1"]
    assert (step["start"], step["seconds"]) == (2.0 + TAKES, 1.0)

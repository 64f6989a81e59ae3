"""Draw the simulated figures of docs/: a step, a kill and its resume, cost by the fleet's size.

    python -m experiments.pictures

writes `step.svg`, `resume.svg` and `cost.svg` in docs/images, the same files each time. The first
two are one simulation of Qwen3-14B on a reserved node of eight H100s and three servers of two. The
third needs none: it has the simulated speed-ups from which presets know where a fleet pays.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

from configs import qwen3_14b_openr1
from configs.sim.h100_speedups import SPEEDUPS
from experiments.plots import COLOURS, Drawing, panels
from experiments.simulated import config_of
from rlboost_jax import messages as m
from rlboost_jax.manager.events import Action, Event, FromServer, Send, Terminate
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.sequences.identities import Work
from rlboost_jax.simulator.market.simulated_market import MachineChange, static
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.simulated_server import SimulatedServer
from rlboost_jax.simulator.world import World

IMAGES: Final = Path(__file__).parents[1] / "docs" / "images"
BLUE, RED, GREEN, _, AMBER, PALE = COLOURS
GREY: Final = "#667085"
SERVERS: Final = 3
STEP: Final = 4  # is drawn: its window has settled. In the next one a server is killed
KILL_AT: Final = 0.4  # of a step
HOURS: Final = 100  # that the reserved node alone takes for the tokens whose cost is drawn
DISCOUNTS: Final = {0.25: RED, 0.50: AMBER, 0.75: GREEN}


@dataclass(kw_only=True)
class Recording:
    """What a simulated manager received and sent. Times are seconds since the run's beginning.

    Attributes:
        rows: metrics of each step.
        killed: the server that is lost, and when.
        names: of servers, by stream; "" for engines on the reserved devices.
        running: server → (time, responses in its slots), at each change.
        pulls: server → (from, to) of each pull of new weights.
        trains: (from, to) of work of the learner on the reserved devices.
        placed: request id → (sequence, server, time, tokens that were known by then).
        reports: sequence → (time, server, new tokens).
        finished: (time, response) of each that went to the trainer.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    killed: tuple[str, float] = "", 0.0
    names: dict[int, str] = field(default_factory=dict)
    running: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    pulls: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    trains: list[tuple[float, float]] = field(default_factory=list)
    placed: dict[int, tuple[Work, str, float, int]] = field(default_factory=dict)
    reports: dict[Work, list[tuple[float, str, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    finished: list[tuple[float, m.FinishedRollout]] = field(default_factory=list)

    def received(self, event: Event, now: float) -> None:
        match event:
            case FromServer(stream, m.Hello(instance=name)):
                self.names[stream] = name
            case FromServer(stream, m.Ready(seconds=seconds)):
                self.pulls[self.names[stream]].append((now - seconds, now))
            case FromServer(stream, m.TokenBatch() as batch):
                name = self.names[stream]
                if not self.running[name] or self.running[name][-1][1] != batch.running:
                    self.running[name].append((now, batch.running))
                ids, counts = m.unpack_ids(batch.request_ids), m.unpack_counts(batch.counts)
                for request, count in zip(ids.tolist(), counts.tolist(), strict=True):
                    self.reports[self.placed[request][0]].append((now, name, count))

    def sent(self, action: Action, now: float) -> None:
        match action:
            case Send(stream, m.Generate(requests=requests)):
                for each in requests:
                    known = len(m.unpack_tokens(each.response_tokens))
                    self.placed[each.request_id] = each.work, self.names[stream], now, known
            case Send(_, m.FinishedRollout() as response):
                self.finished.append((now, response))
            case Terminate(name):
                self.killed = name, now


def record(**changes: Any) -> Recording:
    """Simulate a calm run, and the same one with a server killed in step `STEP + 1`.

    Args:
        changes: as `config_of` takes them.
    """
    config = config_of("14b", num_steps=STEP + 2, settling_steps=1, **changes)
    row = _simulate(config, ()).rows[STEP + 1]
    at = row["begun_at"] + KILL_AT * row["step_seconds"]
    return _simulate(config, (MachineChange(at, False, "machine1"),))


def _simulate(config: SimConfig, losses: Sequence[MachineChange]) -> Recording:
    found = Recording()

    class RecordedManager(Manager):
        def handle(self, event: Event, now: float) -> list[Action]:
            found.received(event, now)
            actions = super().handle(event, now)
            for action in actions:
                found.sent(action, now)
            return actions

    class RecordedServer(SimulatedServer):
        def pause(self, paused: bool) -> None:
            super().pause(paused)
            now = world.clock.now
            if self is not world.reserved[0]:
                return
            if not paused:
                found.trains[-1] = found.trains[-1][0], now
            elif not found.trains or found.trains[-1][1] < now:
                found.trains.append((now, now))

    world = World(
        config,
        (*static(SERVERS).changes, *losses),
        seed=0,
        seconds=1e9,
        manager=RecordedManager,
        server=RecordedServer,
    )
    found.rows = world.run()
    return found


def step(found: Recording) -> Drawing:
    """Who does what in a step, in a lane each."""
    row, after = found.rows[STEP : STEP + 2]
    begun, end = row["begun_at"], after["begun_at"]
    window = row["seeding_window_seconds"]
    drawn, (axes,) = panels(1, width=8.2, height=2.7)
    axes.axvspan(0, window, color=PALE, alpha=0.25, lw=0)
    axes.text(window / 2, SERVERS + 1.12, f"seeding window, {window:.0f} s", ha="center")
    axes.broken_barh([(0, window)], (SERVERS, 0.7), color=BLUE, label="generates")
    trains = [(a - begun, b - a) for a, b in found.trains if begun <= a < end]
    axes.broken_barh(trains, (SERVERS, 0.7), color=RED, label="trains, updates")
    names = sorted(name for name in found.running if name.startswith("local"))[:SERVERS]
    for lane, name in enumerate(reversed(names)):
        pulls = [(a - begun, b - a) for a, b in found.pulls[name] if begun <= a <= end]
        axes.broken_barh(pulls, (lane, 0.7), color=AMBER, label="" if lane else "pulls weights")
        points = [(0.0, 0)] + [(t - begun, n) for t, n in found.running[name] if begun < t <= end]
        most = max(count for _, count in points)
        heights = [lane + 0.7 * count / most for _, count in points]
        axes.fill_between([t for t, _ in points], lane, heights, step="post", color=BLUE, lw=0)
    axes.set_yticks(
        [lane + 0.35 for lane in range(SERVERS + 1)],
        [*(f"server {SERVERS - lane}" for lane in range(SERVERS)), "reserved GPUs"],
    )
    axes.set_ylim(-0.1, SERVERS + 1.45)
    axes.set_xlim(0, end - begun + 12)
    axes.set_xlabel("seconds since the step began")
    axes.grid(visible=False)
    axes.axvline(end - begun, color=GREY, ls=":", lw=1)
    drawn.legend(loc="outside lower center", ncols=3, frameon=False)
    return drawn


def migrated(found: Recording) -> m.FinishedRollout:
    """The first response to end that both the killed server and another one reported twice."""
    name, _ = found.killed
    for _, response in found.finished:
        reporters = [server for _, server, _ in found.reports[response.work]]
        others = {server for server in reporters if server not in ("", name)}
        reported = min(reporters.count(server) for server in (name, *others))
        if reporters[0] == name and len(others) == 1 and reported >= 2:
            return response
    raise ValueError("no response was moved from the killed server")


def resume(found: Recording) -> Drawing:
    """The messages about one response whose server is killed, downwards in time."""
    response = migrated(found)
    name, killed = found.killed
    drawn, (axes,) = panels(1, width=7.4, height=4.6)
    reports = found.reports[response.work]
    other = reports[-1][1]
    lifelines = {"trainer": 0.0, "manager": 1.0, name: 2.0, other: 3.0}
    placed = [each for each in found.placed.values() if each[0] == response.work]
    finished = next(time for time, one in found.finished if one.work == response.work)
    first, last = placed[0][2] - killed - 6, finished - killed + 4

    def arrow(time: float, sender: str, receiver: str, text: str, colour: str = BLUE) -> None:
        begin, end, y = lifelines[sender], lifelines[receiver], time - killed
        axes.annotate(
            "", (end, y), (begin, y), arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.4}
        )
        middle = (begin + end) / 2 if 3.0 not in (begin, end) else 2.5
        axes.text(middle, y - 0.6, text, ha="center", va="bottom", fontsize=8)

    for title, x in zip(("trainer", "manager", "server 1", "server 2"), range(4), strict=True):
        axes.plot([x, x], [first, 0 if lifelines[name] == x else last], color=GREY, lw=0.8)
        axes.text(x, first - 1, title, ha="center", va="bottom", weight="bold")
    for _, server, time, known in placed:
        arrow(time, "manager", server, f"prompt and {known:,} tokens" if known else "prompt")
    for time, server, count in reports:
        arrow(time, server, "manager", f"{count} tokens", GREEN)
    arrow(finished, "manager", "trainer", f"one response, {len(response.tokens) // 4:,} tokens")
    axes.plot([2], [0], "x", color=RED, ms=11, mew=2.5)
    axes.text(2.1, -1, "killed", color=RED, va="bottom")
    axes.set_ylim(last, first)
    axes.set_xlim(-0.4, 3.4)
    axes.set_ylabel("seconds after the kill")
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.grid(visible=False)
    return drawn


def cost() -> Drawing:
    """Dollars and hours for the same tokens, by the number of servers."""
    fleet = qwen3_14b_openr1.get_config().fleet
    figures: Mapping[str, Any] = SPEEDUPS["qwen3_14b_openr1"]
    reserved, share = fleet.reserved_price_per_hour, figures["tensor_parallel"] / 8
    hours = [HOURS / speed for speed in (1.0, *figures["speedups"])]
    drawn, (left, right) = panels(2, width=3.8)
    for discount, colour in DISCOUNTS.items():
        price = share * reserved * (1 - discount)
        dollars = [h * (reserved + count * price) for count, h in enumerate(hours)]
        label = f"servers at {discount * 100:.0f} % off"
        left.plot(range(len(hours)), dollars, "o-", ms=3, color=colour, label=label)
    left.axhline(HOURS * reserved, color=GREY, lw=0.8, label="reserved GPUs alone")
    right.plot(range(len(hours)), hours, "o-", ms=3, color=BLUE)
    left.yaxis.set_major_formatter("${x:,.0f}")
    left.set_ylabel("dollars for the same tokens")
    right.set_ylabel("hours for the same tokens")
    left.legend(fontsize=8, frameon=False)
    for axes in (left, right):
        axes.set_xlabel("servers of two H100s beside eight reserved")
        axes.set_ylim(bottom=0)
    return drawn


def svg(drawn: Drawing) -> str:
    """Draw an SVG whose letters are text: a tenth of the size of outlines, and searchable."""
    with mpl.rc_context({"svg.fonttype": "none"}):
        return drawn._repr_svg_()


def main() -> None:
    found = record()
    for name, drawn in {"step": step(found), "resume": resume(found), "cost": cost()}.items():
        (IMAGES / f"{name}.svg").write_text(svg(drawn))


if __name__ == "__main__":
    main()

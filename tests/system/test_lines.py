"""A fleet behind bad lines: slower, and of the same bits."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

import pytest

from benchmarks.lines.relay import Line, relay
from benchmarks.lines.tcp import Way
from benchmarks.wan import LINES
from tests.system.harness import PATIENT, SHORT, Run, prepared

pytestmark = pytest.mark.system

MBIT = 125_000.0  # bytes
UP = Way(delay=0.05, jitter=0.05, loss=0.02, reordering=0.02, bytes_per_second=MBIT)
DOWN = Way(delay=0.02, loss=0.02, bytes_per_second=8 * MBIT)
SERVERS = 2


@contextmanager
def lines(up: Way, down: Way, *targets: str) -> Iterator[list[list[str]]]:
    """For each server a line, and addresses that lead over it to the targets."""
    loop, stack = asyncio.new_event_loop(), AsyncExitStack()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def lay(seed: int) -> list[str]:
        line = Line(up, down, seed=seed)
        return [await stack.enter_async_context(relay(line, target)) for target in targets]

    try:
        yield [asyncio.run_coroutine_threadsafe(lay(n), loop).result() for n in range(SERVERS)]
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def delivered(run: Run) -> int:
    """Tokens that the manager has of servers."""
    found = run.status().get("instances", ())
    return sum(each["tokens"] for each in found if not each["reserved"])


WAYS = [
    pytest.param(UP, DOWN, id="bad"),
    *(
        pytest.param(*LINES[name], id=name, marks=pytest.mark.soak)
        for name in ("far", "lossy", "narrow", "lopsided")
    ),
]


@pytest.mark.parametrize(("up", "down"), WAYS)
def test_servers_behind_bad_lines_change_no_bit(short_and_calm, tmp_path, up, down):
    settings = (*SHORT, *PATIENT, "fleet.provider=none", "weights.source=http")
    with prepared(tmp_path / "run", *settings) as run:
        run.hold(dispatches=2, version=0).start()
        run.wait_until(lambda: (run.workdir / "manager.json").exists(), "a manager")
        here = run.manager()
        weights = f"{here['address'].rpartition(':')[0]}:{here['weights_port']}"
        with lines(up, down, here["address"], weights) as ways:
            for to_manager, to_weights in ways:
                run.serve(f"--manager={to_manager}", f"--weights={to_weights}")
            run.wait_until(lambda: len(run.events("ready")) >= SERVERS, "servers at work")
            run.wait_until(lambda: delivered(run), "tokens of one")
            run.let_go()
            run.finish()
    assert run.digests() == short_and_calm.digests()
    reasons = [event["detail"]["reason"] for event in run.events("lost")]
    # That nobody is lost to a line is in seconds, which a busy machine adds to: `benchmarks.wan`.
    waited = ("stream closed", "silent for", "unreachable for")  # the first: the trainer ends
    assert all(reason.startswith(waited) for reason in reasons), reasons
    assert sum(row["tokens_preemptible"] for row in run.metrics()) > 0
    run.assert_accounts_hold()

"""What a list of jobs says becomes events, whatever launchers do: lie, lag, forget, start twice."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlboost_jax.providers.base import (
    ANY_POOL,
    Exited,
    Granted,
    Listed,
    Refused,
    Started,
    Withdrawn,
)
from rlboost_jax.providers.launcher import Job, LaunchFailed
from rlboost_jax.providers.polled import PolledProvider
from tests.providers.test_contract import Ear
from tests.virtual_time import play


@dataclass
class Desk:
    """A launcher that does as the test says.

    Attributes:
        state: of jobs as they are started.
        loses: starts come to nothing, and are reported as done.
        held: while it is not set, starts are under way.
        ignores: stops are taken, and nothing ends.
        stubborn: servers do not leave within their grace.
        echoes: how often a list has each job.
        stopped: handle and grace of each stop.
    """

    pools: tuple[str, ...] = ("big",)
    state: str = "running"
    loses: bool = False
    held: asyncio.Event | None = None
    start_fails: LaunchFailed | None = None
    list_fails: str = ""
    stop_fails: str = ""
    ignores: bool = False
    stubborn: bool = False
    copies: int = 1
    echoes: int = 1
    jobs: dict[str, Job] = field(default_factory=dict)
    stopped: list[tuple[str, float]] = field(default_factory=list)
    lists: int = 0

    async def start(self, name: str, nonce: str, pool: str) -> None:
        if self.held is not None:
            await self.held.wait()
        if not self.loses:
            for copy in range(self.copies):
                self.put(f"{name}.{copy}", name, nonce)
        if self.start_fails is not None:
            raise self.start_fails

    def put(self, handle: str, name: str, nonce: str, run: str = "run") -> None:
        self.jobs[handle] = Job(handle=handle, run=run, name=name, nonce=nonce, state=self.state)

    def set(self, handle: str, **values: object) -> None:
        self.jobs[handle] = replace(self.jobs[handle], **values)  # type: ignore[arg-type]

    async def stop(self, job: Job, grace_seconds: float) -> None:
        self.stopped.append((job.handle, grace_seconds))
        if self.stop_fails:
            raise LaunchFailed(self.stop_fails)
        if not self.ignores and not (self.stubborn and grace_seconds):
            self.jobs.pop(job.handle, None)

    async def list(self) -> tuple[Job, ...]:
        self.lists += 1
        await asyncio.sleep(0)
        if self.list_fails:
            raise LaunchFailed(self.list_fails)
        return tuple(self.jobs.values()) * self.echoes


def provider_of(desk: Desk, **options: float) -> PolledProvider:
    times = {"poll_seconds": 0.005, "settle_seconds": 0.0, **options}
    return PolledProvider(desk, "run", **times)


async def asked(desk: Desk, **options: float) -> tuple[PolledProvider, Ear]:
    """For one instance, `a`, with the nonce `n`."""
    provider = provider_of(desk, **options)
    ear = Ear(provider)
    await provider.request("a", "n", ANY_POOL)
    return provider, ear


async def one_of(desk: Desk, **options: float) -> tuple[PolledProvider, Ear]:
    """Make a provider with one instance, `a`, that has started."""
    provider, ear = await asked(desk, **options)
    await ear.of("a", Started)
    return provider, ear


async def some_of(desk: Desk, names: str, **options: float) -> tuple[PolledProvider, Ear]:
    """Make a provider with instances of these one-letter names, started one after the other."""
    provider = provider_of(desk, **options)
    await provider.list()
    ear = Ear(provider)
    for name in names:
        await provider.request(name, f"nonce-{name}", ANY_POOL)
        await ear.of(name, Started)
    return provider, ear


async def seen(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.001)


def kinds(ear: Ear, name: str = "a") -> list[type]:
    return [type(event) for event in ear.heard if event.name == name]


def test_a_start_may_be_late() -> None:
    async def story() -> None:
        desk = Desk(state="waiting")
        provider = provider_of(desk)
        ear = Ear(provider)
        await provider.request("a", "n", "big")
        await seen(lambda: desk.lists > 3)
        assert kinds(ear) == [] and await provider.list() == ()
        desk.set("a.0", state="running")
        await ear.of("a", Started)
        assert await provider.list() == (Listed("a", "n"),)
        await provider.close()
        assert [*(await ear.whole())["a"]][-1] == Exited("a", "n", "it is not listed any more")

    play(story)


def test_one_that_waits_can_be_terminated() -> None:
    async def story() -> None:
        desk = Desk(state="waiting")
        provider, ear = await asked(desk)
        await provider.terminate("a", 0.0)
        await ear.of("a", Refused | Exited)
        assert not desk.jobs
        await provider.close()

    play(story)


@pytest.mark.parametrize("grace", [0.0, 5.0])
def test_a_start_under_way_can_be_terminated(grace: float) -> None:
    async def story() -> None:
        desk = Desk(held=asyncio.Event())
        provider = provider_of(desk)
        ear = Ear(provider)
        request = asyncio.create_task(provider.request("a", "n", ANY_POOL))
        await asyncio.sleep(0)
        await provider.terminate("a", grace)
        assert desk.held is not None
        desk.held.set()
        await request
        await seen(lambda: bool(desk.stopped))
        assert desk.stopped[0][0] == "a.0" and desk.stopped[0][1] <= grace
        await provider.close()
        await ear.whole()
        assert not desk.jobs

    play(story)


def test_what_comes_of_a_start_that_timed_out_is_stopped_without_a_word() -> None:
    async def story() -> None:
        desk = Desk(start_fails=LaunchFailed("sbatch did not end in 60 s"))
        provider, ear = await asked(desk)
        assert await ear.of("a", Refused) == Refused("a", "n", "sbatch did not end in 60 s")
        await seen(lambda: not desk.jobs)
        await provider.close()
        assert (await ear.whole()).keys() == {"a"} and kinds(ear) == [Refused]

    play(story)


def test_of_two_jobs_with_one_nonce_one_goes_on() -> None:
    async def story() -> None:
        desk = Desk(copies=3)
        provider, ear = await asked(desk)
        await seen(lambda: len(desk.jobs) == 1)
        assert kinds(ear) == [Granted, Started]
        await provider.close()
        assert kinds(ear) == [Granted, Started, Exited]

    play(story)


def test_a_job_that_a_list_has_twice_is_one() -> None:
    """A user's script may name a host twice, for instance."""

    async def story() -> None:
        desk = Desk(echoes=2)
        provider, ear = await one_of(desk)
        before = desk.lists
        await seen(lambda: desk.lists > before + 3)
        assert not desk.stopped and kinds(ear) == [Granted, Started]
        await provider.terminate("a", 1e6)
        assert [handle for handle, _ in desk.stopped] == ["a.0"]
        await provider.close()
        assert kinds(ear) == [Granted, Started, Exited]

    play(story)


def test_a_start_that_no_list_ever_has_is_refused() -> None:
    async def story() -> None:
        provider, ear = await asked(Desk(loses=True), settle_seconds=0.02)
        refused = await ear.of("a", Refused)
        assert isinstance(refused, Refused) and "a list never had it" in refused.reason
        await provider.close()

    play(story)


def test_a_list_may_lag_behind_a_start() -> None:
    async def story() -> None:
        desk = Desk(loses=True)
        provider, ear = await asked(desk, settle_seconds=1e6)
        await seen(lambda: desk.lists > 3)
        desk.put("a.0", "a", "n")
        await ear.of("a", Started)
        await provider.close()

    play(story)


def test_nothing_ends_because_a_list_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        desk = Desk()
        provider, ear = await one_of(desk)
        desk.list_fails, before = "connection refused", desk.lists
        await provider.terminate("a", 1e6)
        await seen(lambda: desk.lists > before + 3)
        assert kinds(ear) == [Granted, Started]
        desk.list_fails = ""
        await provider.close()
        await ear.whole()

    play(story)
    assert sum("connection refused" in r.getMessage() for r in caplog.records) == 1


def test_a_list_waits_until_it_knows() -> None:
    async def story() -> None:
        desk = Desk(list_fails="away")
        desk.put("7", "a", "n")
        desk.put("8", "b", "m", run="of somebody else")
        provider = provider_of(desk)
        asking = asyncio.create_task(provider.list())
        await seen(lambda: desk.lists > 3)
        assert not asking.done()
        desk.list_fails = ""
        assert await asking == (Listed("a", "n"),)
        await provider.close()
        assert set(desk.jobs) == {"8"}

    play(story)


def test_one_that_waits_since_an_earlier_manager_is_adopted_too() -> None:
    async def story() -> None:
        desk = Desk(state="waiting")
        desk.put("7", "a", "n")
        provider = provider_of(desk)
        assert await provider.list() == (Listed("a", "n"),)
        ear = Ear(provider)
        desk.set("7", state="running")
        await provider.terminate("a", 0.0)
        assert (await ear.of("a", Exited)).nonce == "n"
        await provider.close()
        assert kinds(ear) == [Exited]

    play(story)


def test_one_of_an_earlier_manager_that_comes_too_late_is_stopped() -> None:
    async def story() -> None:
        desk = Desk()
        provider = provider_of(desk)
        assert await provider.list() == ()
        ear = Ear(provider)
        await provider.request("a", "n", ANY_POOL)
        desk.put("7", "x", "old")
        await seen(lambda: "7" not in desk.jobs)
        assert "a.0" in desk.jobs
        await provider.close()
        assert (await ear.whole()).keys() == {"a"}

    play(story)


def test_one_that_a_list_forgot_is_over_and_does_not_go_on() -> None:
    async def story() -> None:
        desk = Desk()
        provider, ear = await some_of(desk, "ab")
        forgotten = desk.jobs.pop("a.0")
        await ear.of("a", Exited)
        desk.jobs["a.0"] = forgotten
        await seen(lambda: "a.0" not in desk.jobs)
        await provider.close()
        assert kinds(ear) == [Granted, Started, Exited]

    play(story)


def test_an_end_says_what_the_launcher_knows() -> None:
    async def story() -> None:
        desk = Desk()
        provider, ear = await one_of(desk)
        desk.set("a.0", state="over", code=3, reason="failed (NonZeroExitCode)")
        over = await ear.of("a", Exited)
        assert over == Exited("a", "n", "exit code 3: failed (NonZeroExitCode)", 3)
        await provider.close()

    play(story)


def test_one_that_was_over_before_any_list_had_it_has_a_whole_story() -> None:
    async def story() -> None:
        desk = Desk(state="over")
        provider, ear = await asked(desk)
        await ear.of("a", Exited)
        await provider.close()
        assert kinds(ear) == [Granted, Started, Exited]

    play(story)


def test_a_stop_that_fails_is_done_again() -> None:
    async def story() -> None:
        desk = Desk(stop_fails="busy")
        provider, ear = await one_of(desk)
        await provider.terminate("a", 0.0)
        await seen(lambda: len(desk.stopped) > 3)
        desk.stop_fails = ""
        await ear.of("a", Exited)
        await provider.close()

    play(story)


def test_a_grace_is_given_once_and_then_the_end() -> None:
    async def story() -> None:
        desk = Desk(stubborn=True)
        provider, ear = await one_of(desk)
        await provider.terminate("a", 0.03)
        await ear.of("a", Exited)
        graces = [grace for _, grace in desk.stopped]
        assert len(graces) == 2 and 0 < graces[0] <= 0.03 and graces[1] == 0
        await provider.close()

    play(story)


def test_each_grace_ends_in_its_time_beside_one_that_does_not_leave() -> None:
    async def story() -> None:
        desk = Desk(stubborn=True)
        provider, ear = await one_of(desk, poll_seconds=1000.0)
        await provider.request("b", "m", ANY_POOL)
        await ear.of("b", Started)
        desk.ignores = True
        began = asyncio.get_running_loop().time()
        await provider.terminate("a", 1.0)
        await provider.terminate("b", 20.0)
        await seen(lambda: ("b.0", 0.0) in desk.stopped)
        assert asyncio.get_running_loop().time() - began < 21.0
        desk.ignores = False
        await provider.close()

    play(story)


def test_whom_no_list_shows_gone_close_leaves_to_the_reaper(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        desk = Desk(ignores=True)
        provider, _ = await one_of(desk, close_seconds=0.02)
        await provider.close()

    play(story)
    assert [r for r in caplog.records if r.levelno == logging.ERROR and "reap" in r.getMessage()]


def test_a_mistake_of_a_launcher_reaches_the_reader() -> None:
    async def story() -> None:
        desk = Desk()
        provider = provider_of(desk)
        await provider.request("a", "n", ANY_POOL)
        desk.jobs = None  # type: ignore[assignment]
        with pytest.raises(AttributeError):
            async for _ in provider.events():
                pass
        await provider.close()

    with pytest.raises(AttributeError):
        play(story)


def test_nobody_is_asked_while_there_are_no_instances() -> None:
    async def story() -> None:
        desk = Desk()
        provider, ear = await one_of(desk)
        await provider.terminate("a", 0.0)
        await ear.of("a", Exited)
        for _ in range(100):
            await asyncio.sleep(0)
        lists = desk.lists
        for _ in range(100):
            await asyncio.sleep(0.0002)
        assert desk.lists == lists
        await provider.close()

    play(story)


def test_one_that_goes_back_to_the_queue_is_over_and_does_not_come_again() -> None:
    async def story() -> None:
        desk = Desk()
        provider, ear = await some_of(desk, "ab")
        desk.set("a.0", state="waiting")
        assert await ear.of("a", Exited) == Exited("a", "nonce-a", "it went back to the queue")
        await seen(lambda: "a.0" not in desk.jobs)
        await provider.close()

    play(story)


def test_what_is_terminated_before_its_turn_is_never_started() -> None:
    """Starts wait for each other, a few at a time."""

    async def story() -> None:
        desk = Desk(held=asyncio.Event())
        provider = provider_of(desk)
        ear = Ear(provider)
        first = [asyncio.create_task(provider.request(f"{n}", f"n{n}", ANY_POOL)) for n in range(8)]
        await asyncio.sleep(0)
        last = asyncio.create_task(provider.request("last", "n", ANY_POOL))
        await asyncio.sleep(0)
        await provider.terminate("last", 5.0)
        assert desk.held is not None
        desk.held.set()
        await asyncio.gather(*first, last)
        refused = await ear.of("last", Refused)
        assert isinstance(refused, Refused) and "before it was started" in refused.reason
        assert not [job for job in desk.jobs.values() if job.name == "last"]
        assert not [handle for handle, _ in desk.stopped if handle.startswith("last")]
        await provider.close()

    play(story)


def test_no_stop_waits_for_another_to_end() -> None:
    """A stop may take a minute, as that of a cloud's machine does; a run does not end by the sum
    of them."""

    class Slow(Desk):
        under_way = 0
        all_are = asyncio.Event()

        async def stop(self, job: Job, grace_seconds: float) -> None:
            self.under_way += 1
            if self.under_way == 4:
                self.all_are.set()
            await self.all_are.wait()
            await super().stop(job, grace_seconds)

    async def story() -> None:
        desk = Slow()
        provider, _ = await some_of(desk, "abcd", close_seconds=20.0)
        await provider.close()
        assert not desk.jobs

    play(story)


def test_one_that_never_began_is_refused_and_removed() -> None:
    async def story() -> None:
        desk = Desk(state="waiting")
        provider, ear = await asked(desk)
        desk.set("a.0", state="over", refused=True, remains=True, reason="no such image")
        assert await ear.of("a", Refused) == Refused("a", "n", "no such image")
        await seen(lambda: not desk.jobs)
        await provider.close()
        assert (await ear.whole())["a"] == [Refused("a", "n", "no such image")]

    play(story)


def test_one_that_ran_is_not_refused_any_more() -> None:
    async def story() -> None:
        desk = Desk()
        provider, ear = await one_of(desk)
        desk.set("a.0", state="over", refused=True, reason="lost")
        assert await ear.of("a", Exited) == Exited("a", "n", "lost")
        await provider.close()

    play(story)


@pytest.mark.parametrize("remains", [False, True])
def test_what_is_over_and_remains_is_removed_once_it_was_reported(remains: bool) -> None:
    async def story() -> None:
        desk = Desk()
        provider, ear = await some_of(desk, "ab")
        desk.set("a.0", state="over", code=3, remains=remains)
        assert await ear.of("a", Exited) == Exited("a", "nonce-a", "exit code 3", 3)
        before = desk.lists
        await seen(lambda: desk.lists > before + 2)
        assert ("a.0" in desk.jobs) != remains and "b.0" in desk.jobs
        await provider.close()

    play(story)


def test_the_end_of_the_run_waits_for_what_remains() -> None:
    async def story() -> None:
        desk = Desk(state="waiting", ignores=True)
        provider, ear = await asked(desk)
        desk.set("a.0", state="over", refused=True, remains=True)
        await ear.of("a", Refused)
        closing = asyncio.create_task(provider.close())
        stops = len(desk.stopped)
        await seen(lambda: len(desk.stopped) > stops + 2)
        assert not closing.done()
        desk.jobs.clear()
        await closing

    play(story)


def test_what_its_owner_takes_back_is_said_once_and_is_the_reason_of_its_end() -> None:
    async def story() -> None:
        desk = Desk()
        provider, ear = await some_of(desk, "ab")
        desk.ignores = True
        await provider.terminate("b", 60.0)
        for name in "ab":
            desk.set(f"{name}.0", withdrawn_in=25.0, reason="a drain")
        assert await ear.of("a", Withdrawn) == Withdrawn("a", "nonce-a", 25.0, "a drain")
        before = desk.lists
        await seen(lambda: desk.lists > before + 2)
        desk.jobs.clear()
        assert await ear.of("a", Exited) == Exited("a", "nonce-a", "a drain")
        await provider.close()
        stories = await ear.whole()
        assert [type(event) for event in stories["a"]] == [Granted, Started, Withdrawn, Exited]
        assert [type(event) for event in stories["b"]] == [Granted, Started, Exited]

    play(story)


@dataclass
class LoggedDesk(Desk):
    """Desk that keeps logs as well, or cannot give them."""

    fails: str = ""

    async def log(self, name: str, nonce: str) -> tuple[str, ...]:
        if self.fails:
            raise LaunchFailed(self.fails)
        return ("looking around", f"no manager for {name} {nonce}")


@pytest.mark.parametrize("fails", ["", "the host is gone"])
def test_a_log_that_a_launcher_keeps_stands_with_the_end(fails: str) -> None:
    async def story() -> None:
        desk = LoggedDesk(fails=fails)
        provider = provider_of(desk)
        await provider.request("a", "n", ANY_POOL)
        heard = provider.events()
        while not isinstance(await anext(heard), Started):
            pass
        desk.jobs.clear()
        event = await anext(heard)
        line = f"its log cannot be had: {fails}" if fails else "no manager for a n"
        assert isinstance(event, Exited) and event.log[-1] == line
        assert event.reason == f"it is not listed any more: {line}"
        await provider.close()

    play(story)


def test_lines_that_a_list_has_are_not_asked_for_again() -> None:
    async def story() -> None:
        desk = LoggedDesk(fails="it is not asked")
        provider = provider_of(desk)
        await provider.request("a", "n", ANY_POOL)
        heard = provider.events()
        while not isinstance(await anext(heard), Started):
            pass
        desk.set("a.0", state="over", code=2, reason="failed", log=("why",))
        event = await anext(heard)
        assert isinstance(event, Exited) and event.log == ("why",)
        assert event.reason == "exit code 2: failed"
        await provider.close()

    play(story)


LOOKS = ("absent", "waiting", "running", "over", "fails")


@dataclass
class Script(Desk):
    """A launcher whose lists are written down: what each of them has of the only instance.

    Attributes:
        looks: from the end of its start on; behind the last one nothing is listed any more.
        takes: seconds that each list takes, in which a start may end.
    """

    looks: tuple[str, ...] = ()
    takes: float = 0.0
    started: bool = False
    shown: list[str] = field(default_factory=list)

    async def start(self, name: str, nonce: str, pool: str) -> None:
        await asyncio.sleep(self.takes)
        self.started = True

    async def stop(self, job: Job, grace_seconds: float) -> None:
        self.stopped.append((job.handle, grace_seconds))

    async def list(self) -> tuple[Job, ...]:
        number = len(self.shown)
        look = self.looks[number] if self.started and number < len(self.looks) else "absent"
        if self.started:
            self.shown.append(look)
        await asyncio.sleep(self.takes)
        if look == "fails":
            raise LaunchFailed("no answer")
        job = Job(handle="a.0", run="run", name="a", nonce="n", state="waiting")
        return () if look == "absent" else (replace(job, state=look),)


@settings(max_examples=200, deadline=None)
@given(
    looks=st.lists(st.sampled_from(LOOKS), max_size=7).map(tuple),
    takes=st.sampled_from((0.0, 0.07, 0.5)),
    settle_seconds=st.sampled_from((0.0, 0.2, 2.0)),
    ended_at=st.none() | st.floats(0.0, 3.0),
    grace=st.sampled_from((0.0, 0.3)),
)
def test_an_end_is_heard_of_once_whatever_was_seen_between_two_looks(
    looks: tuple[str, ...],
    takes: float,
    settle_seconds: float,
    ended_at: float | None,
    grace: float,
) -> None:
    """It may begin and end unseen, be listed late, be forgotten and come again."""
    script = Script(looks=looks, takes=takes)

    async def story() -> None:
        provider = provider_of(script, settle_seconds=settle_seconds)
        ear = Ear(provider)
        asking = asyncio.create_task(provider.request("a", "n", ANY_POOL))
        if ended_at is not None:
            await asyncio.sleep(ended_at)
            await provider.terminate("a", grace)
        end = await ear.of("a", Refused | Exited)
        await asking
        # Looks go on while there are instances: another one has them do so.
        before = len(script.shown)
        await provider.request("b", "n-b", ANY_POOL)
        await ear.of("b", Refused | Exited)
        assert len(script.shown) > before
        await provider.close()
        told = (await ear.whole())["a"]
        assert told[-1] == end and sum(isinstance(e, Refused | Exited) for e in told) == 1
        seen = script.shown[:before]
        if "running" in seen or "over" in seen:
            assert isinstance(end, Exited), f"{seen} was {told}"

    play(story)

"""Judge of responses: calls all reward functions of a run and adds up their values."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

import msgspec

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.rewards.http_rewards import RewardService
from rlboost_jax.rewards.reward_frames import Found, RewardJob, RewardOutcome, RewardSetup
from rlboost_jax.rewards.reward_kind import judged, reward_kind
from rlboost_jax.rewards.reward_queue import RewardQueue
from rlboost_jax.rewards.verdict import UNJUDGED, Verdict
from rlboost_jax.settings.rewards_config import Per, RewardConfig, RewardsConfig
from rlboost_jax.workers.futures import seen, when_all
from rlboost_jax.workers.sandbox import MEMORY_MB, SECONDS
from rlboost_jax.workers.service_thread import ServiceThread
from rlboost_jax.workers.worker_pool import WorkerPool
from rlboost_jax.workers.worker_process import START_SECONDS

HTTP = "http"
SILENT: Final = "no reward function says anything about it"
Made = TypeVar("Made")


class _Called(NamedTuple):
    """Functions that are called in one place: a pool or a service."""

    places: tuple[int, ...]  # of the functions, in the order of their answers
    queue: RewardQueue


class Judge:
    """Judge of a run. Raises ConfigError, when made, for functions that cannot be used."""

    def __init__(
        self,
        functions: Sequence[RewardConfig],
        settings: RewardsConfig,
        *,
        columns: Collection[str],
        seed: int,
        start_seconds: float = START_SECONDS,
    ) -> None:
        """Start the functions' processes and the clients of services.

        Args:
            columns: that every response comes with.
            seed: of functions that draw random numbers.
            start_seconds: within which a process imports its functions.
        """
        self._functions = tuple(
            replace(f, time_limit_seconds=f.time_limit_seconds or settings.time_limit_seconds)
            for f in functions
        )
        for function in self._functions:
            if function.name == "code":
                _check_limits(function, settings)
        self._fallback = settings.fallback
        self._thread = ServiceThread("rewards")
        self._open: list[RewardService | WorkerPool] = []
        self._called: dict[Per, list[_Called]] = {"response": [], "group": []}
        setup = RewardSetup(
            functions=tuple(f for f in self._functions if _shares_workers(f)),
            columns=tuple(columns),
            memory_mb=settings.memory_mb,
            sandbox_required=settings.sandbox == "required",
            seed=seed,
        )
        try:
            self._start(setup, settings.workers, start_seconds)
        except BaseException:  # whatever it was, it goes on upwards
            self.close()
            raise

    @property
    def sees_groups(self) -> bool:
        """Whether a response has its reward only after `ask_group`."""
        return bool(self._called["group"])

    def ask(self, job: RewardJob) -> Future[Verdict]:
        """Judge a response by the functions that take one response.

        Never blocks. An exception in the future says that nobody can be asked any more.
        """

        def made(said: Collection[tuple[int, Found]]) -> Verdict:
            verdict = self._verdict({place: found[0] for place, found in said})
            return verdict if self.sees_groups else _left_out_if_silent(verdict)

        return self._asked(job, made)

    def ask_group(
        self, jobs: Sequence[RewardJob], alone: Sequence[Future[Verdict]]
    ) -> Future[tuple[Verdict, ...]]:
        """Judge a group by all functions.

        Args:
            jobs: of all responses to a prompt, in the order of their samples.
            alone: the future of `ask` for each, which cancelling the group does not cancel.
        """
        responses = tuple(chain.from_iterable(job.responses for job in jobs))
        job = msgspec.structs.replace(jobs[0], responses=responses, per="group")
        group = self._asked(job, dict)
        return when_all([group, *map(seen, alone)], lambda r: self._together(r[0], r[1:]))

    def close(self) -> None:
        """End all workers; unanswered jobs are cancelled or fail."""
        queues = [called.queue for called in chain.from_iterable(self._called.values())]
        for queue in queues:
            queue.close()

        async def end() -> None:
            await asyncio.gather(*(each.close() for each in self._open))

        if self._thread.lives:
            self._thread.run(end())
            self._thread.close()
        for queue in queues:
            queue.abandon()

    def _start(self, setup: RewardSetup, workers: int, start_seconds: float) -> None:
        for place, function in enumerate(self._functions):
            if _shares_workers(function):
                continue
            if function.name == HTTP:
                service = RewardService(function)
                self._open.append(service)
                queue = RewardQueue(self._thread, service.judged, most=service.max_concurrent)
            else:
                alone, most = (
                    msgspec.structs.replace(setup, functions=(function,)),
                    function.max_concurrent,
                )
                queue = self._queue(alone, 1, most, start_seconds)
            self._called[function.per].append(_Called((place,), queue))
        if setup.functions:
            queue = self._queue(setup, workers, 1, start_seconds)
            for per, called in self._called.items():
                places = tuple(
                    i for i, f in enumerate(self._functions) if _shares_workers(f) and f.per == per
                )
                if places:
                    called.append(_Called(places, queue))

    def _queue(
        self, setup: RewardSetup, workers: int, sessions: int, start_seconds: float
    ) -> RewardQueue:
        """Start a pool of workers, each with so many jobs at a time."""
        kind = reward_kind(setup, workers=workers, sessions=sessions)
        pool = WorkerPool(kind, start_seconds=start_seconds)
        self._open.append(pool)
        self._thread.run(pool.start())
        return RewardQueue(self._thread, partial(judged, pool, setup), most=workers * sessions)

    def _asked(
        self, job: RewardJob, made: Callable[[Collection[tuple[int, Found]]], Made]
    ) -> Future[Made]:
        """Call all functions of the job, and combine their outcomes by place."""
        called = self._called[job.per]

        def said(results: list[tuple[Found, ...]]) -> Made:
            pairs = (zip(c.places, r, strict=True) for c, r in zip(called, results, strict=True))
            return made(tuple(chain.from_iterable(pairs)))

        return when_all([each.queue.ask(job) for each in called], said)

    def _together(
        self, of_group: Mapping[int, Found], alone: Sequence[Verdict]
    ) -> tuple[Verdict, ...]:
        return tuple(
            _left_out_if_silent(
                self._verdict({place: found[member] for place, found in of_group.items()}, verdict)
            )
            for member, verdict in enumerate(alone)
        )

    def _verdict(
        self, outcomes: Mapping[int, RewardOutcome], before: Verdict = UNJUDGED
    ) -> Verdict:
        """Add up outcomes in the order of the configuration, so that the sum has the same bits.

        Args:
            outcomes: by place.
            before: the verdict of the other functions.
        """
        components: dict[str, float] = {}
        faults: dict[str, str] = {}
        total = 0.0
        for place, function in enumerate(self._functions):
            name = function.shown_as
            if place in outcomes:
                value, fault = outcomes[place].value, outcomes[place].fault
                value = self._fallback if fault else value
            else:
                value, fault = before.components.get(name), before.faults.get(name, "")
            if fault:
                faults[name] = fault
            if value is not None:
                components[name] = value
                total += function.weight * value
        first = components.get(self._functions[0].shown_as)
        return Verdict(
            reward=total,
            accuracy=first,
            outcome=first,
            components=MappingProxyType(components),
            faults=MappingProxyType(faults),
        )


def _left_out_if_silent(verdict: Verdict) -> Verdict:
    """Leave a response out if no function has a value for it."""
    return verdict if verdict.components else replace(verdict, left_out=SILENT)


def _shares_workers(function: RewardConfig) -> bool:
    """Whether the function is called by the workers that take one job at a time."""
    return function.name != HTTP and not function.max_concurrent


def _check_limits(code: RewardConfig, settings: RewardsConfig) -> None:
    """Raise ConfigError if programs are allowed more than the function that runs them."""
    place = f"rewards.functions {code.shown_as!r}"
    seconds, memory_mb = (
        value if isinstance(value, int | float) else 0  # a worker refuses other types
        for value in (
            code.options.get("seconds", SECONDS),
            code.options.get("memory_mb", MEMORY_MB),
        )
    )
    if seconds >= code.time_limit_seconds:
        raise ConfigError(
            f"{place}: its programs have {seconds:g} s (option seconds) and it itself "
            f"{code.time_limit_seconds:g} (time_limit_seconds); lower the first or raise the second"
        )
    if memory_mb > settings.memory_mb:
        raise ConfigError(
            f"{place}: its programs have {memory_mb:g} MiB (option memory_mb) and it itself "
            f"{settings.memory_mb} (rewards.memory_mb); lower the first or raise the second"
        )

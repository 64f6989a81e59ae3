"""Ask all reward functions of a run about a response, and add up what they say."""

import functools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from types import MappingProxyType

from rlboost_jax.rewards.frames import Job, Outcome, Setup
from rlboost_jax.rewards.pool import START_SECONDS, RewardPool
from rlboost_jax.rewards.sandbox import MEMORY_MB, SECONDS
from rlboost_jax.rewards.service import RewardService
from rlboost_jax.rewards.verdict import Answered, Verdict
from rlboost_jax.settings.errors import ConfigError
from rlboost_jax.settings.rewards import RewardConfig, RewardsConfig

HTTP = "http"


class Judge:
    """Raises ConfigError, when made, for functions that cannot be used."""

    def __init__(
        self,
        functions: Sequence[RewardConfig],
        settings: RewardsConfig,
        *,
        columns: Collection[str],
        seed: int,
        start_seconds: float = START_SECONDS,
    ) -> None:
        """Start what the functions run in: processes, and clients of services.

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
        self._service_places = [i for i, f in enumerate(self._functions) if f.name == HTTP]
        self._pool_places = [i for i, f in enumerate(self._functions) if f.name != HTTP]
        self._services: list[RewardService] = []
        self._pool: RewardPool | None = None
        setup = Setup(
            functions=tuple(self._functions[i] for i in self._pool_places),
            columns=tuple(columns),
            memory_mb=settings.memory_mb,
            sandbox_required=settings.sandbox == "required",
            seed=seed,
        )
        try:
            for place in self._service_places:
                self._services.append(RewardService(self._functions[place]))
            if self._pool_places:
                self._pool = RewardPool(
                    setup, workers=settings.workers, start_seconds=start_seconds
                )
        except BaseException:  # whatever it was, it goes on upwards
            self.close()
            raise

    def ask(self, answered: Answered) -> Future[Verdict]:
        """Never blocks. An exception in the future says that nobody can be asked any more."""
        job = Job(
            prompt=answered.prompt,
            completion=answered.completion,
            completion_ids=answered.completion_ids,
            finished=answered.finished,
            columns=dict(answered.columns),
        )
        asked: list[tuple[list[int], Future[tuple[Outcome, ...]]]] = []
        if self._pool is not None:
            asked.append((self._pool_places, self._pool.ask(job)))
        for place, service in zip(self._service_places, self._services, strict=True):
            asked.append(([place], service.ask(job)))
        return _when_all(asked, self._verdict)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        for service in self._services:
            service.close()

    def _verdict(self, outcomes: Mapping[int, Outcome]) -> Verdict:
        """In the order of the configuration, so that the sum has the same bits every time."""
        components: dict[str, float] = {}
        faults: dict[str, str] = {}
        total = 0.0
        for place, function in enumerate(self._functions):
            outcome = outcomes[place]
            value = outcome.value
            if outcome.fault:
                faults[function.shown_as] = outcome.fault
                value = self._fallback
            if value is not None:
                components[function.shown_as] = value
                total += function.weight * value
        return Verdict(
            reward=total,
            accuracy=components.get(self._functions[0].shown_as, 0.0),
            components=MappingProxyType(components),
            faults=MappingProxyType(faults),
        )


def _check_limits(code: RewardConfig, settings: RewardsConfig) -> None:
    """Raise ConfigError where programs are allowed more than the function that runs them."""
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


def _when_all(
    asked: Sequence[tuple[Sequence[int], Future[tuple[Outcome, ...]]]],
    verdict: Callable[[Mapping[int, Outcome]], Verdict],
) -> Future[Verdict]:
    """Done when the last of `asked` is; whichever thread that happens in.

    Cancelled, it has those cancelled that nobody works on yet.
    """
    result: Future[Verdict] = Future()
    outcomes: dict[int, Outcome] = {}
    lock, left = threading.Lock(), len(asked)

    def arrived(places: Sequence[int], future: Future[tuple[Outcome, ...]]) -> None:
        nonlocal left
        try:
            found = future.result()
        except (Exception, CancelledError) as error:
            with lock:
                left = -1  # whatever else comes
                if not result.done() and result.set_running_or_notify_cancel():
                    result.set_exception(error)
            return
        with lock:
            outcomes.update(zip(places, found, strict=True))
            left -= 1
            last = left == 0
        if last and result.set_running_or_notify_cancel():  # else nobody wants it any more
            result.set_result(verdict(outcomes))

    def unwanted(result: Future[Verdict]) -> None:
        if result.cancelled():
            for _, future in asked:
                future.cancel()

    for places, future in asked:
        future.add_done_callback(functools.partial(arrived, places))
    result.add_done_callback(unwanted)
    return result

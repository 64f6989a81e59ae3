"""Ask all reward functions of a run about responses, and add up what they say."""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from rlboost_jax.rewards.concurrent import ConcurrentPool
from rlboost_jax.rewards.frames import Found, Job, Outcome, Response, Setup
from rlboost_jax.rewards.futures import seen, when_all
from rlboost_jax.rewards.pool import START_SECONDS, RewardPool
from rlboost_jax.rewards.sandbox import MEMORY_MB, SECONDS
from rlboost_jax.rewards.service import RewardService
from rlboost_jax.rewards.verdict import Answered, Verdict
from rlboost_jax.settings.errors import ConfigError
from rlboost_jax.settings.rewards import Per, RewardConfig, RewardsConfig

HTTP = "http"
NOTHING: Final = Verdict(reward=0.0, accuracy=None)
SILENT: Final = "no reward function says anything about it"
Made = TypeVar("Made")


class _Desk(NamedTuple):
    """Where some functions are asked."""

    places: tuple[int, ...]  # of the functions, in the order of their answers
    ask: Callable[[Job], Future[tuple[Found, ...]]]


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
        self._open: list[RewardService | ConcurrentPool] = []
        self._pool: RewardPool | None = None
        self._desks: dict[Per, list[_Desk]] = {"response": [], "group": []}
        setup = Setup(
            functions=tuple(f for f in self._functions if _in_pool(f)),
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
        """Whether a response has its reward only once `ask_group` has said so."""
        return bool(self._desks["group"])

    def ask(self, answered: Answered) -> Future[Verdict]:
        """What the functions say that judge each response by itself.

        Never blocks. An exception in the future says that nobody can be asked any more.
        """

        def made(said: Collection[tuple[int, Found]]) -> Verdict:
            verdict = self._verdict({place: found[0] for place, found in said})
            return verdict if self.sees_groups else _left_out_if_silent(verdict)

        return self._asked(_job([answered], "response"), made)

    def ask_group(
        self, answered: Sequence[Answered], alone: Sequence[Future[Verdict]]
    ) -> Future[tuple[Verdict, ...]]:
        """What all functions say, as `ask` does.

        Args:
            answered: all responses to a prompt, in the order of their samples.
            alone: what `ask` has given for each. To cancel the group leaves it as it is.
        """
        group = self._asked(_job(answered, "group"), dict)
        return when_all([group, *map(seen, alone)], lambda r: self._together(r[0], r[1:]))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        for each in self._open:
            each.close()

    def _start(self, setup: Setup, workers: int, start_seconds: float) -> None:
        for place, function in enumerate(self._functions):
            if _in_pool(function):
                continue
            opened: RewardService | ConcurrentPool
            if function.name == HTTP:
                opened = RewardService(function)
            else:
                alone = Setup(
                    functions=(function,),
                    columns=setup.columns,
                    memory_mb=setup.memory_mb,
                    sandbox_required=setup.sandbox_required,
                    seed=setup.seed,
                    at_once=True,
                )
                opened = ConcurrentPool(alone, start_seconds=start_seconds)
            self._open.append(opened)
            self._desks[function.per].append(_Desk((place,), opened.ask))
        if setup.functions:
            self._pool = RewardPool(setup, workers=workers, start_seconds=start_seconds)
            for per, desks in self._desks.items():
                places = tuple(
                    i for i, f in enumerate(self._functions) if _in_pool(f) and f.per == per
                )
                if places:
                    desks.append(_Desk(places, self._pool.ask))

    def _asked(
        self, job: Job, made: Callable[[Collection[tuple[int, Found]]], Made]
    ) -> Future[Made]:
        """Ask all functions of the job, and make something of what they said, by place."""
        desks = self._desks[job.per]

        def said(results: list[tuple[Found, ...]]) -> Made:
            pairs = (zip(d.places, r, strict=True) for d, r in zip(desks, results, strict=True))
            return made(tuple(chain.from_iterable(pairs)))

        return when_all([desk.ask(job) for desk in desks], said)

    def _together(
        self, of_group: Mapping[int, Found], alone: Sequence[Verdict]
    ) -> tuple[Verdict, ...]:
        return tuple(
            _left_out_if_silent(
                self._verdict({place: found[member] for place, found in of_group.items()}, verdict)
            )
            for member, verdict in enumerate(alone)
        )

    def _verdict(self, outcomes: Mapping[int, Outcome], before: Verdict = NOTHING) -> Verdict:
        """In the order of the configuration, so that the sum has the same bits every time.

        Args:
            outcomes: by place.
            before: what the other functions said.
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
    """What all functions said: a response about which none says anything has no reward at all."""
    return verdict if verdict.components else replace(verdict, left_out=SILENT)


def _in_pool(function: RewardConfig) -> bool:
    """Asked one call at a time in each worker."""
    return function.name != HTTP and not function.max_concurrent


def _job(answered: Sequence[Answered], per: Per) -> Job:
    """The prompt and its columns are the same for all."""
    first = answered[0]
    responses = tuple(
        Response(completion=a.completion, completion_ids=a.completion_ids, finished=a.finished)
        for a in answered
    )
    return Job(prompt=first.prompt, responses=responses, columns=dict(first.columns), per=per)


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

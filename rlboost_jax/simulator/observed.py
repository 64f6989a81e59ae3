"""What a real run's `events.jsonl` says of its steps, its engines and its fleet."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlboost_jax.observe.events import FILE, read_events
from rlboost_jax.settings.errors import ConfigError
from rlboost_jax.simulator.markets import Change


@dataclass(frozen=True, kw_only=True)
class EngineUsage:
    """One engine in one step: see `rlboost_jax.manager.state.usage.Usage`."""

    reserved: bool
    seconds: float
    steps: float
    tokens: float
    context: float
    prefilled: float


@dataclass(frozen=True, kw_only=True)
class ObservedStep:
    """One step from the end of the one before to its own. Times in seconds."""

    step: int
    seconds: float
    beginning: float  # from the end of the step before to the first request
    publishing: float  # learner work that is neither training nor waiting
    train_seconds: float
    announcing: float  # from the end of the step before to its version's announcement
    tokens: int  # prompts and responses
    prompt_tokens: float  # of a prompt, on average
    groups: tuple[tuple[int, ...], ...]  # response lengths
    work: tuple[EngineUsage, ...]
    pulls: tuple[float, ...]  # of the version that this step was sampled from


@dataclass(frozen=True, kw_only=True)
class Observed:
    steps: tuple[ObservedStep, ...]  # without the first, which has no step before it
    starts: tuple[float, ...]  # from the order of an instance until it joined
    slots: int  # of a preemptible instance
    reserved_slots: int
    reserved_engines: int
    price_per_hour: float  # of a preemptible instance
    changes: tuple[Change, ...]  # of the fleet, from the beginning of the first step on


def observed(workdir: str | Path, *, settling: int) -> Observed:
    """
    Args:
        settling: steps at the beginning that are left out; at least the first is.

    Raises ConfigError where the file has no two steps after these.
    """
    events = read_events(workdir)
    begun = {e["step"]: e for e in events if e["kind"] == "begun"}
    # What measures the policy alone has no responses that are trained on.
    ended = (e for e in events if e["kind"] == "trained" and e["detail"]["lengths"])
    trained = {e["step"]: e for e in ended}
    whole = [s for s in sorted(trained) if s in begun and s - 1 in trained and s >= settling]
    if len(whole) < 2:
        raise ConfigError(
            f"{Path(workdir) / FILE}: {len(whole)} whole steps after the first {max(1, settling)}; "
            "2 are needed at least, run for longer or lower --settling"
        )
    joined = [e for e in events if e["kind"] == "joined"]
    remote = [e["detail"] for e in joined if not e["detail"]["reserved"]]
    reserved = [e["detail"] for e in joined if e["detail"]["reserved"]]
    slots = max((d["slots"] for d in remote), default=0)
    return Observed(
        steps=tuple(_step(events, begun, trained, step) for step in whole),
        starts=_starts(events),
        slots=slots or max(d["slots"] for d in reserved),
        reserved_slots=max((d["slots"] for d in reserved), default=slots),
        reserved_engines=len({e["instance"] for e in joined if e["detail"]["reserved"]}),
        price_per_hour=statistics.fmean(d["price_per_hour"] for d in remote) if remote else 0.0,
        changes=_changes(events, since=min(e["time"] for e in begun.values())),
    )


def _step(
    events: Sequence[dict[str, Any]],
    begun: dict[int, dict[str, Any]],
    trained: dict[int, dict[str, Any]],
    step: int,
) -> ObservedStep:
    begin, end, before = begun[step], trained[step], trained[step - 1]
    detail = end["detail"]
    groups = tuple(tuple(lengths) for lengths in detail["lengths"])
    known = ("train_seconds", "train_wait_seconds", "seeding_window_seconds")
    rest = end["time"] - begin["time"] - sum(detail[name] for name in known)
    prompt_tokens = begin["detail"]["prompt_tokens"] / begin["detail"]["prompts"]
    responses = sum(map(len, groups))
    published = [
        e["time"] for e in events if e["kind"] == "published" and e["detail"]["version"] == step
    ]
    return ObservedStep(
        step=step,
        seconds=end["time"] - before["time"],
        beginning=begin["time"] - before["time"],
        publishing=max(0.0, rest),
        train_seconds=detail["train_seconds"],
        announcing=max(0.0, min(published, default=before["time"]) - before["time"]),
        tokens=sum(map(sum, groups)) + round(prompt_tokens * responses),
        prompt_tokens=prompt_tokens,
        groups=groups,
        work=tuple(
            EngineUsage(**e["detail"])
            for e in events
            if e["kind"] == "worked" and e["step"] == step
        ),
        pulls=tuple(
            e["detail"]["seconds"]
            for e in events
            if e["kind"] == "pulled" and e["detail"]["version"] == step
        ),
    )


def _starts(events: Sequence[dict[str, Any]]) -> tuple[float, ...]:
    ordered: dict[str, float] = {}
    seconds = []
    for event in events:
        if event["kind"] == "ordered":
            ordered[event["instance"]] = event["time"]
        elif event["kind"] == "joined" and event["instance"] in ordered:
            seconds.append(event["time"] - ordered.pop(event["instance"]))
    return tuple(seconds)


def _changes(events: Sequence[dict[str, Any]], *, since: float) -> tuple[Change, ...]:
    """Who was there when; those of the beginning come at 0. Reserved engines are no instances."""
    there: set[str] = set()
    found = []
    for event in events:
        name, at = event["instance"], max(0.0, event["time"] - since)
        if event["kind"] == "joined" and not event["detail"]["reserved"]:
            there.add(name)
            found.append(Change(at, True, name))
        elif event["kind"] in ("lost", "drained", "quarantined") and name in there:
            there.discard(name)
            found.append(Change(at, False, name))
    return tuple(found)

"""What a real run's `events.jsonl` says of its steps, its engines and its fleet.

A step counts if it is whole: it followed at once on the one before, with one trainer from its
beginning to its end. A step in which the run was stopped or killed is left out. If a step was
done several times, the last time counts.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from rlboost_jax.observe.events_file import FILE, read_events
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.simulator.market.simulated_market import MachineChange

MOST_DRAFTS: Final = 7  # of a sequence in one decode step, see `engine.drafts`


@dataclass(frozen=True, kw_only=True)
class EngineUsage:
    """One engine in one step: see `rlboost_jax.manager.state.engine_usage.Usage`."""

    reserved: bool
    seconds: float
    steps: float
    tokens: float
    context: float
    prefilled: float
    drafted: float = 0.0  # this and the next two are recorded only where there were drafts
    drafts_accepted: float = 0.0
    steps_saved: float = 0.0

    @property
    def decode_steps(self) -> float:
        """Decode steps that were run: less than tokens of the longest rollout, with drafts."""
        return max(self.steps - self.steps_saved, self.steps / (MOST_DRAFTS + 1))


@dataclass(frozen=True, kw_only=True)
class ObservedStep:
    """One step, from the end of the one before to its own end. Times in seconds."""

    step: int
    seconds: float
    instances_mean: float  # preemptible ones
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
    pulled_bytes: float  # by one of them for a version, on average
    losses: int  # of preemptible instances, until the last of these steps was over
    instance_seconds: float  # that they were there, until then
    changes: tuple[MachineChange, ...]  # of the fleet, from the beginning of the first step on


class _Span(NamedTuple):
    """The events at the beginning and the end of a whole step."""

    before: dict[str, Any]  # the end of the step before
    begin: dict[str, Any]
    end: dict[str, Any]


def observed(workdir: str | Path, *, settling: int) -> Observed:
    """Read the whole steps from a run's `events.jsonl`.

    Args:
        settling: steps at the beginning that are left out; at least the first is.

    Raises ConfigError where the file has no two steps after these.
    """
    events = read_events(workdir)
    whole = [span for step, span in sorted(_whole(events).items()) if step >= settling]
    if len(whole) < 2:
        raise ConfigError(
            f"{Path(workdir) / FILE}: {len(whole)} whole steps after the first {max(1, settling)}; "
            "2 are needed at least, run for longer or lower --settling"
        )
    origin = min(e["time"] for e in events if e["kind"] == "begun")
    changes = _changes(events, since=origin)
    over = max(span.end["time"] for span in whole) - origin
    joined = [e for e in events if e["kind"] == "joined"]
    remote = [e["detail"] for e in joined if not e["detail"]["reserved"]]
    reserved = [e["detail"] for e in joined if e["detail"]["reserved"]]
    slots = max((d["slots"] for d in remote), default=0)
    return Observed(
        steps=tuple(_step(events, span) for span in whole),
        starts=_starts(events),
        slots=slots or max(d["slots"] for d in reserved),
        reserved_slots=max((d["slots"] for d in reserved), default=slots),
        reserved_engines=len({e["instance"] for e in joined if e["detail"]["reserved"]}),
        price_per_hour=statistics.fmean(d["price_per_hour"] for d in remote) if remote else 0.0,
        pulled_bytes=_pulled_bytes(events),
        losses=sum(not change.added for change in changes if change.seconds <= over),
        instance_seconds=sum(
            max(0.0, over - change.seconds) * (1 if change.added else -1) for change in changes
        ),
        changes=changes,
    )


def _whole(events: Sequence[dict[str, Any]]) -> dict[int, _Span]:
    """Find the last complete attempt at each step that has one."""
    found: dict[int, _Span] = {}
    before: dict[str, Any] | None = None  # the end of the last step
    begin: dict[str, Any] | None = None
    undisturbed = True  # since then
    for event in events:
        match event["kind"]:
            case "begun":
                undisturbed &= begin is None
                begin = event
            case "resumed":
                undisturbed = False
            case "joined" if event["detail"]["reserved"]:  # those of another trainer
                undisturbed = False
            case "trained":
                step = event["step"]
                follows = before is not None and before["step"] == step - 1
                if begin is not None and begin["step"] == step and follows and undisturbed:
                    assert before is not None
                    found[step] = _Span(before, begin, event)
                # What measures the policy alone has no responses that are trained on.
                before = event if event["detail"]["lengths"] else None
                if before is None:
                    found.pop(step, None)
                begin, undisturbed = None, True
    return found


def _step(events: Sequence[dict[str, Any]], span: _Span) -> ObservedStep:
    before, begin, end = span
    step, detail = end["step"], end["detail"]
    since, until = before["time"], end["time"]
    groups = tuple(tuple(lengths) for lengths in detail["lengths"])
    known = ("train_seconds", "train_wait_seconds", "seeding_window_seconds")
    rest = end["time"] - begin["time"] - sum(detail[name] for name in known)
    prompt_tokens = begin["detail"]["prompt_tokens"] / begin["detail"]["prompts"]
    responses = sum(map(len, groups))
    published = [
        e["time"]
        for e in events
        if e["kind"] == "published" and e["detail"]["version"] == step and e["time"] >= since
    ]
    return ObservedStep(
        step=step,
        seconds=until - since,
        instances_mean=detail["instances_mean"],
        beginning=begin["time"] - since,
        publishing=max(0.0, rest),
        train_seconds=detail["train_seconds"],
        announcing=max(0.0, min(published, default=since) - since),
        tokens=sum(map(sum, groups)) + round(prompt_tokens * responses),
        prompt_tokens=prompt_tokens,
        groups=groups,
        work=tuple(
            EngineUsage(**e["detail"])
            for e in events
            if e["kind"] == "worked" and e["step"] == step and since <= e["time"] <= until
        ),
        pulls=tuple(
            e["detail"]["seconds"]
            for e in events
            if e["kind"] == "pulled" and e["detail"]["version"] == step and e["time"] >= since
        ),
    )


def _pulled_bytes(events: Sequence[dict[str, Any]]) -> float:
    """Bytes that servers pulled over the network, without those read from the learner's disk."""
    fetched = [e["detail"].get("fetched_bytes", 0) for e in events if e["kind"] == "pulled"]
    return statistics.fmean(fetched) if fetched else 0.0


def _starts(events: Sequence[dict[str, Any]]) -> tuple[float, ...]:
    ordered: dict[str, float] = {}
    seconds = []
    for event in events:
        if event["kind"] == "ordered":
            ordered[event["instance"]] = event["time"]
        elif event["kind"] == "joined" and event["instance"] in ordered:
            seconds.append(event["time"] - ordered.pop(event["instance"]))
    return tuple(seconds)


def _changes(events: Sequence[dict[str, Any]], *, since: float) -> tuple[MachineChange, ...]:
    """Arrivals and losses of instances by time, the initial ones at 0, without reserved engines."""
    there: set[str] = set()
    found = []
    for event in events:
        name, at = event["instance"], max(0.0, event["time"] - since)
        if event["kind"] == "joined" and not event["detail"]["reserved"]:
            there.add(name)
            found.append(MachineChange(at, True, name))
        elif event["kind"] in ("lost", "drained", "quarantined") and name in there:
            there.discard(name)
            found.append(MachineChange(at, False, name))
    return tuple(found)

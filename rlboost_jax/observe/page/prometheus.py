"""Metrics of a run at `/metrics`, in the text format of Prometheus.

Source: Prometheus, "Exposition formats", text format 0.0.4.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from rlboost_jax.observe.metrics import MEANINGS, SUMMED
from rlboost_jax.observe.page.points import REWARD_PREFIX
from rlboost_jax.observe.page.run_view import NEWS, RunView

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "rlboost_"

Sample = tuple[Mapping[str, str], float]  # labels, value


def metrics_text(view: RunView, *, name: str) -> str:
    """Format all numbers of a run.

    A number of the newest step is a gauge `rlboost_<key>`, as docs/reference/metrics.md names it;
    one that is null there is left out. Sums over all steps are counters `rlboost_run_<key>_total`:
    they may become smaller where steps are done again, which Prometheus takes for a restart.

    Args:
        name: of the run.
    """
    return "".join(line for family in _families(view, name) for line in family)


def _families(view: RunView, name: str) -> Iterator[list[str]]:
    yield _family("run_info", "gauge", "of the run; always 1", [({"run": name}, 1)])
    if view.config is not None:
        yield _family("num_steps", "gauge", "steps of the whole run", [({}, view.config.num_steps)])
    yield _family("run_steps_total", "counter", "steps that are done", [({}, view.points.steps)])
    for key, meaning in MEANINGS.items():
        value = view.last.get(key)
        if isinstance(value, int | float):
            yield _family(key, "gauge", f"of the newest step: {meaning}", [({}, value)])
    parts = [
        ({"part": key.removeprefix(REWARD_PREFIX)}, value)
        for key, value in view.last.items()
        if key.startswith(REWARD_PREFIX) and isinstance(value, int | float)
    ]
    if parts:
        yield _family("reward_part", "gauge", "of the newest step: mean of a part", parts)
    for key in SUMMED:
        what = f"over all steps: {MEANINGS[key]}"
        yield _family(f"run_{key}_total", "counter", what, [({}, view.sums[key])])
    lives = [life for life in view.lives() if not life.ending and not life.reserved]
    ready = sum(life.ready is not None for life in lives)
    states = [({"state": "ready"}, ready), ({"state": "starting"}, len(lives) - ready)]
    yield _family("servers", "gauge", "preemptible servers by state", states)
    counts = {**dict.fromkeys(NEWS, 0), **view.kinds}  # `increase` misses a first value above 0
    kinds = [({"kind": kind}, count) for kind, count in sorted(counts.items())]
    yield _family("events_total", "counter", "lines of events.jsonl by kind", kinds)
    signs = len(view.warnings)
    yield _family("warnings_total", "counter", "signs of trouble in the rows", [({}, signs)])


def _family(name: str, kind: str, what: str, samples: Iterable[Sample]) -> list[str]:
    full = PREFIX + name
    help_text = what.replace("\\", "\\\\").replace("\n", "\\n")
    head = [f"# HELP {full} {help_text}\n", f"# TYPE {full} {kind}\n"]
    return [*head, *(f"{full}{_labels(labels)} {float(value)!r}\n" for labels, value in samples)]


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

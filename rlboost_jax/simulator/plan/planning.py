"""A plan: what mixes of machines cost and take, which are worth it, and which one to have."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any, Final

from rlboost_jax.settings.pool_config import PoolConfig
from rlboost_jax.simulator.plan.mix_bound import Bounds
from rlboost_jax.simulator.plan.mix_run import Horizon, MixSample, run_mix
from rlboost_jax.simulator.plan.mixes import Mix, Space, described
from rlboost_jax.simulator.plan.purchase import Purchase
from rlboost_jax.simulator.plan.risk import Spread, missed, spread
from rlboost_jax.simulator.plan.search import Search, SearchProgress, SearchResult, Simulate, Task

Tell = Callable[[SearchProgress], None]
HOUR: Final = 3600.0


@dataclass(frozen=True, kw_only=True)
class PlanLimits:
    """Limits that a run must keep to; 0: none."""

    hours: float = 0.0
    dollars: float = 0.0
    risk: float = 0.05  # of either that is accepted
    worth_per_hour: float = 0.0  # dollars that an hour sooner is worth


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """A mix that was simulated with all seeds."""

    mix: Mix
    name: str
    shape: str  # of the learner
    hours: Spread
    dollars: Spread
    tokens_per_dollar: float
    losses: float  # of instances, in the run
    devices: tuple[str, ...]  # kinds of accelerators, the learner's first
    late: float  # probability of more than the hours; 0 without a limit
    over: float  # … of more than the dollars
    best: bool  # nobody would pass it over
    seconds_by_seed: tuple[float, ...]
    dollars_by_seed: tuple[float, ...]

    @property
    def mixed(self) -> bool:
        """Whether tokens depend on where they are sampled: kinds of devices differ in bits."""
        return len(self.devices) > 1


@dataclass(frozen=True, kw_only=True)
class PurchasePlan:
    rows: tuple[PlanRow, ...]  # those nobody would pass over first, the fastest first
    chosen: PlanRow
    alone: PlanRow  # the chosen mix's learner without instances
    kept: bool  # whether the chosen one keeps to the limits
    space: int
    found: SearchResult

    @property
    def exact(self) -> bool:
        """Whether every mix that could belong to the best was simulated."""
        return not self.found.left

    def price_limit(self, purchase: Purchase) -> float | None:
        """Factor on instance prices and egress at which the learner alone is as cheap.

        None without instances.

        That is where tokens / (hours · R + limit · paid) are the tokens per dollar of the learner
        alone: R is its price per hour, `paid` what instances and egress cost.
        """
        chosen = self.chosen
        if not chosen.mix.instances:
            return None
        shape = purchase.learners[chosen.mix.reserved].reserved
        reserved = chosen.hours.mean * shape.nodes * shape.price_per_node_hour
        tokens = chosen.tokens_per_dollar * chosen.dollars.mean
        paid = chosen.dollars.mean - reserved
        return (tokens / self.alone.tokens_per_dollar - reserved) / paid if paid > 0 else None


def plan(
    purchase: Purchase,
    space: Space,
    horizon: Horizon,
    limits: PlanLimits,
    *,
    simulate: Simulate,
    budget: int = 0,
    tell: Tell = lambda progress: None,
) -> PurchasePlan:
    """Find the mixes worth buying, and choose one.

    Args:
        simulate: carries out simulations, several at once.
        budget: of them, at most; 0: as many as it takes.

    Raises ConfigError where a step does not end.
    """
    search = Search(
        space,
        horizon.seeds,
        bound=Bounds(purchase, horizon).least,
        simulate=simulate,
        budget=budget,
        tell=tell,
    )
    found = search.run()
    rows = [
        _row(purchase, mix, samples, horizon, limits, best=mix in found.best)
        for mix, samples in found.samples.items()
    ]
    by_mix = {row.mix: row for row in rows}
    rows.sort(key=lambda row: (not row.best, row.hours.mean, row.dollars.mean, row.mix))
    chosen, kept = _chosen(rows, limits)
    alone = Mix((0,) * len(chosen.mix.counts), chosen.mix.reserved)
    if alone not in by_mix:  # it was ruled out, or nobody looked at it
        samples = simulate([(alone, seed) for seed in horizon.seeds])
        by_mix[alone] = _row(purchase, alone, samples, horizon, limits, best=False)
    return PurchasePlan(
        rows=tuple(rows),
        chosen=chosen,
        alone=by_mix[alone],
        kept=kept,
        space=space.size,
        found=found,
    )


def _row(
    purchase: Purchase,
    mix: Mix,
    samples: Sequence[MixSample],
    horizon: Horizon,
    limits: PlanLimits,
    *,
    best: bool,
) -> PlanRow:
    hours = [sample.seconds / HOUR for sample in samples]
    dollars = [sample.dollars for sample in samples]
    stretches = max(1.0, horizon.weights[-1])
    names = [each.name for each in purchase.prices.instances]
    late = missed(hours, limits.hours, stretches=stretches) if limits.hours else 0.0
    over = missed(dollars, limits.dollars, stretches=stretches) if limits.dollars else 0.0
    return PlanRow(
        mix=mix,
        name=described(mix, names),
        shape=purchase.shape_names[mix.reserved],
        hours=spread(hours, stretches=stretches),
        dollars=spread(dollars, stretches=stretches),
        tokens_per_dollar=sum(s.tokens for s in samples) / max(1e-9, sum(dollars)),
        losses=sum(sample.losses for sample in samples) / len(samples),
        devices=purchase.devices(mix.counts, mix.reserved),
        late=late,
        over=over,
        best=best,
        seconds_by_seed=tuple(sample.seconds for sample in samples),
        dollars_by_seed=tuple(dollars),
    )


def _chosen(rows: Sequence[PlanRow], limits: PlanLimits) -> tuple[PlanRow, bool]:
    """Choose the cheapest row within the limits, its time counted in dollars.

    Where none is within them, choose the row that is least likely to break one.
    """

    def price(row: PlanRow) -> float:
        return row.dollars.mean + limits.worth_per_hour * row.hours.mean

    keep = [row for row in rows if max(row.late, row.over) <= limits.risk]
    if keep:
        return min(keep, key=lambda row: (price(row), row.mix)), True
    return min(rows, key=lambda row: (max(row.late, row.over), price(row), row.mix)), False


def settings_of(purchase: Purchase, row: PlanRow) -> list[str]:
    """List the lines of a run's configuration for a mix."""
    shape = purchase.learners[row.mix.reserved].reserved
    pools = purchase.machines(row.mix.counts, row.mix.reserved).pools
    hourly = shape.nodes * shape.price_per_node_hour
    lines = [f"config.fleet.reserved_price_per_hour = {hourly:.6g}"]
    if pools:
        lines += ["config.fleet.pools = (", *(f"    {_entry(pool)}," for pool in pools), ")"]
    else:
        lines.append("config.fleet.max_instances = 0")
    if row.mixed:
        lines.append(f"config.deterministic = False  # {', '.join(row.devices)} differ in bits")
    return lines


def _entry(pool: PoolConfig) -> str:
    """Format a pool as in a configuration file, without defaults."""
    said = {key: value for key, value in asdict(pool).items() if value not in ("", {})}
    return repr(said).replace("'", '"')


def to_json(
    found: PurchasePlan, purchase: Purchase, horizon: Horizon, limits: PlanLimits, **more: Any
) -> dict[str, Any]:
    """Contents of `plan.json`."""
    return {
        **more,
        "horizon": asdict(horizon),
        "limits": asdict(limits),
        "types": [each.name for each in purchase.prices.instances],
        "mixes": found.space,
        "simulated": len(found.found.samples),
        "ruled_out": found.found.ruled_out,
        "left": found.found.left,
        "exact": found.exact,
        "chosen": found.chosen.name,
        "chosen_keeps_limits": found.kept,
        "chosen_price_limit": found.price_limit(purchase),
        "settings": settings_of(purchase, found.chosen),
        "rows": [
            {
                **{key: value for key, value in asdict(row).items() if key != "mix"},
                "counts": list(row.mix.counts),
                "needs_deterministic_false": row.mixed,
            }
            for row in found.rows
        ],
    }


@contextmanager
def processes(purchase: Purchase, horizon: Horizon, count: int) -> Iterator[Simulate]:
    """Run simulations in `count` processes; results are in order."""
    if count <= 1:
        yield lambda tasks: [run_mix(purchase, mix, horizon, seed=seed) for mix, seed in tasks]
        return
    # What forks inherits threads that others hold locks in; a simulation imports in a second.
    with get_context("spawn").Pool(count, _begin, (purchase, horizon)) as pool:
        yield lambda tasks: pool.map(_simulate, tasks, chunksize=1)


_OWN: dict[str, Any] = {}  # of a process that simulates


def _begin(purchase: Purchase, horizon: Horizon) -> None:
    _OWN["asked"] = purchase, horizon


def _simulate(task: Task) -> MixSample:
    purchase, horizon = _OWN["asked"]
    mix, seed = task
    return run_mix(purchase, mix, horizon, seed=seed)

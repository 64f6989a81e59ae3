"""What a price list means for a configuration: kinds of machines, and learners.

How fast a machine is comes from the first of these that is given: its `speed`, a factor; its
`tokens_per_second`; its `device` and `chips`, by data sheets. A configuration with rooflines takes
the data sheet in place of its chip. One with a table of seconds scales it: decoding with the
memory's bandwidth, prefill with FLOPs. A learner scales with FLOPs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.pool_config import PoolConfig
from rlboost_jax.simulator.accelerators import DATA_SHEETS, device_of
from rlboost_jax.simulator.market.kinds import DEVICE, MachineKind, Machines
from rlboost_jax.simulator.plan.price_list import InstanceType, PriceList, ReservedShape
from rlboost_jax.simulator.rates import EngineRates
from rlboost_jax.simulator.sim_config import ChipConfig, SimConfig


class _UnknownSpeed(Exception):
    """A machine's speed relative to that of a measured run's machine is unknown."""


@dataclass(frozen=True, kw_only=True)
class Purchase:
    """Machines and learners that may be bought for one workload."""

    prices: PriceList
    learners: tuple[SimConfig, ...]  # of each shape
    shape_names: tuple[str, ...]
    reserved_devices: tuple[str, ...]
    kinds: tuple[MachineKind, ...]  # of each type

    def machines(self, counts: Sequence[int], shape: int) -> Machines:
        """Return a mix's machines, and the pools from which the manager requests them."""
        bought = list(zip(self.prices.instances, self.kinds, counts, strict=True))
        return Machines(
            kinds={kind.name: machine for kind, machine, _ in bought},
            reserved_device=self.reserved_devices[shape],
            pools=tuple(
                PoolConfig(
                    name=kind.name,
                    provider=kind.provider,
                    max_instances=count,
                    price_per_hour=kind.price_per_hour,
                    zone=kind.zone,
                    device=machine.device,
                    options=kind.options,
                )
                for kind, machine, count in bought
                if count
            ),
        )

    def devices(self, counts: tuple[int, ...], shape: int) -> tuple[str, ...]:
        """Kinds of accelerators in a mix, the learner's first."""
        own = (kind.device for kind, count in zip(self.kinds, counts, strict=True) if count)
        return tuple(dict.fromkeys((self.reserved_devices[shape], *own)))


def purchase_of(config: SimConfig, prices: PriceList, *, measured: bool) -> Purchase:
    """Combine a configuration with a price list.

    Args:
        measured: the configuration's speeds are those of a run, of no known data sheet.

    Raises ConfigError, a line per mistake.
    """
    own = "" if measured else device_of(config.chip)
    mistakes: list[str] = []
    unknown: list[str] = []
    kinds: list[MachineKind] = []
    learners: list[SimConfig] = []
    for each in prices.instances:
        try:
            kinds.append(_kind(config, each, own))
        except _UnknownSpeed:
            unknown.append(each.name)
        except ConfigError as error:
            mistakes.append(f"{each.name!r}: {error}")
    for shape in prices.reserved:
        try:
            learners.append(_learner(config, shape, own))
        except _UnknownSpeed:
            unknown.append(shape.name)
        except ConfigError as error:
            mistakes.append(f"{shape.name!r}: {error}")
    if unknown:
        mistakes.append(
            f"{', '.join(unknown)}: the run's devices are of no known data sheet; give speed, of "
            "each of these over the run's own"
        )
    if mistakes:
        raise ConfigError("\n".join(f"--prices: {mistake}" for mistake in mistakes))
    devices = tuple(shape.device or own or DEVICE for shape in prices.reserved)
    return Purchase(
        prices=prices,
        learners=tuple(learners) or (config,),
        shape_names=tuple(shape.name for shape in prices.reserved) or ("reserved",),
        reserved_devices=devices or (own or DEVICE,),
        kinds=tuple(kinds),
    )


def as_fast_as_measured(config: SimConfig, prices: PriceList) -> PriceList:
    """Copy a price list with all machines as fast as those of a measured run."""
    reserved = config.reserved
    return replace(
        prices,
        instances=tuple(replace(each, device="", chips=0, speed=1.0) for each in prices.instances),
        reserved=tuple(
            replace(
                each,
                device="",
                speed=1.0,
                nodes=reserved.nodes,
                chips_per_node=reserved.chips_per_node,
            )
            for each in prices.reserved
        ),
    )


def _kind(config: SimConfig, each: InstanceType, own: str) -> MachineKind:
    rates = _rates(config, each, own)
    if rates.kv_tokens < config.workload.slot_tokens:
        chips = each.chips or config.engine.chips
        raise ConfigError(
            f"{chips} of {each.device or own or 'its device'} have room for "
            f"{max(0, rates.kv_tokens):,} cached tokens beside the weights, the longest rollout "
            f"needs {config.workload.slot_tokens:,}; raise chips, or leave it out"
        )
    return MachineKind(
        rates=rates,
        device=each.device or own or DEVICE,
        zone=each.zone,
        price_per_hour=each.price_per_hour,
        start_seconds=each.start_seconds,
        notice_seconds=each.notice_seconds,
        egress_dollars_per_gb=each.egress_dollars_per_gb,
    )


def _rates(config: SimConfig, each: InstanceType, own: str) -> EngineRates:
    base = EngineRates(config)
    if each.speed:
        return base.slowed(1 / each.speed)
    if each.tokens_per_second:
        work = config.workload
        context = base.slots * (work.prompt_tokens + work.mean_tokens / 2)
        usual = base.slots / base.step_seconds(base.slots, min(context, base.kv_tokens))
        return base.slowed(usual / each.tokens_per_second)
    device, chips = each.device or own, each.chips or config.engine.chips
    if (device, chips) == (own, config.engine.chips):
        return base
    return EngineRates(_on(config, device, chips, own))


def _learner(config: SimConfig, shape: ReservedShape, own: str) -> SimConfig:
    reserved, trainer = config.reserved, config.trainer
    nodes = replace(
        reserved,
        nodes=shape.nodes,
        chips_per_node=shape.chips_per_node,
        price_per_node_hour=max(1e-9, shape.price_per_hour / shape.nodes),
    )
    device = shape.device or own
    alike = device == own
    found = config if alike else _on(config, device, config.engine.chips, own)
    found = replace(found, reserved=nodes, trainer=trainer)
    if found.num_engines < 1:
        raise ConfigError(
            f"{shape.nodes} x {shape.chips_per_node} chips, and an engine takes "
            f"{config.engine.chips}; raise chips_per_node"
        )
    before = reserved.nodes * reserved.chips_per_node
    chips = shape.nodes * shape.chips_per_node
    speed = shape.speed
    if not speed:
        if not own and (chips != before or not alike):
            raise _UnknownSpeed
        if not trainer.token_seconds:
            return found  # the roofline knows
        flops = 1.0 if alike else _sheet(device).flops_per_second / config.chip.flops_per_second
        speed = flops * chips / before
    elif not trainer.token_seconds:  # by the roofline it would be as many times as fast as this
        sheet = 1.0 if alike else _sheet(device).flops_per_second / config.chip.flops_per_second
        efficiency = trainer.compute_efficiency * speed / (sheet * chips / before)
        return replace(
            found, trainer=replace(trainer, compute_efficiency=efficiency,
                                   apply_seconds=trainer.apply_seconds / speed),
        )  # fmt: skip
    slower = replace(
        trainer,
        token_seconds=trainer.token_seconds / speed,
        pair_seconds=trainer.pair_seconds / speed,
        micro_batch_seconds=trainer.micro_batch_seconds / speed,
        apply_seconds=trainer.apply_seconds / speed,
    )
    return replace(found, trainer=slower)


def _on(config: SimConfig, device: str, chips: int, own: str) -> SimConfig:
    """Return the configuration with its engines on other chips."""
    sheet, engine, chip = _sheet(device), config.engine, config.chip
    if not own:
        raise _UnknownSpeed
    before = engine.chips * chip.memory_bytes_per_second
    slower = before / (chips * sheet.memory_bytes_per_second)
    flops = engine.chips * chip.flops_per_second / (chips * sheet.flops_per_second)
    return replace(
        config,
        chip=sheet,
        engine=replace(
            engine,
            chips=chips,
            table=tuple((b, c, s * slower) for b, c, s in engine.table),
            reserved_table=tuple((b, c, s * slower) for b, c, s in engine.reserved_table),
            prefill_token_seconds=engine.prefill_token_seconds * flops,
        ),
    )


def _sheet(device: str) -> ChipConfig:
    if device not in DATA_SHEETS:
        raise ConfigError(
            f"device {device!r} has no data sheet here; give speed, or one of "
            f"{', '.join(DATA_SHEETS)}"
        )
    return DATA_SHEETS[device]

"""What a run is going to be: the text of `--dry_run`. Touches no device."""

import math
from collections.abc import Iterator
from dataclasses import asdict

from rlboost_jax.settings.algorithm_config import AlgorithmConfig
from rlboost_jax.settings.break_even import break_even_text
from rlboost_jax.settings.dry_run_pools import kinds_line, pools_line
from rlboost_jax.settings.fleet_config import FleetConfig
from rlboost_jax.settings.memory_estimates import (
    BYTES,
    activation_bytes_per_device,
    attention_bytes_per_device,
    expert_bytes_per_device,
    learner_bytes,
    logprob_bytes_per_device,
    moment_bytes,
    most_pages,
    num_parameters,
    num_trained_parameters,
    page_bytes,
    share_of,
    size_text,
    weight_bytes,
)
from rlboost_jax.settings.presets import PRESETS
from rlboost_jax.settings.run_config import RunConfig


def engine_bytes(config: RunConfig) -> dict[str, int]:
    """Bytes on each device: a copy of the weights, and the key-value pool if memory is no limit."""
    pages = most_pages(config.engine, config.slot_tokens)
    model = share_of(config.model, config.engine.tensor_parallel)
    return {
        "weights": weight_bytes(model, config.weights.rollout_dtype),
        "kv pool": pages * page_bytes(model, config.engine),
    }


def plan_text(config: RunConfig, *, workdir: str = "") -> str:
    """Describe the resolved plan, a line for each part."""
    return "\n".join(plan_line(name, line) for name, line in _lines(config, workdir))


def plan_line(name: str, line: str) -> str:
    return f"{name:<12}{line}".rstrip()


def _lines(config: RunConfig, workdir: str) -> Iterator[tuple[str, str]]:
    model, learner, engine, fleet = config.model, config.learner, config.engine, config.fleet
    if workdir:
        yield "workdir", workdir
    bits = "same bits whatever the fleet does" if config.deterministic else "not deterministic"
    updates = config.algorithm.updates_per_batch
    steps = f"{config.num_steps} steps" + (f" of {updates} updates" if updates > 1 else "")
    yield "run", f"{steps}, seed {config.seed}, {bits}"
    yield (
        "step",
        f"{learner.prompts_per_step} prompts x {config.algorithm.group_size} responses of up to "
        f"{config.sampling.max_response_tokens} tokens; task {config.task.name}"
        + _lag(config.algorithm.lag),
    )
    if config.environment.name:
        yield "environment", _environment(config)
    yield (
        "model",
        f"{num_parameters(model):,} parameters: {model.num_layers} layers, width "
        f"{model.embed_dim}, {model.num_query_heads} query and {model.num_key_heads} key heads",
    )
    if lora := model.lora.rank:
        trained = num_trained_parameters(model)
        yield (
            "adapters",
            f"rank {lora}, alpha {model.lora.alpha:g}, on {' '.join(model.lora.targets)}: "
            f"{trained:,} parameters ({100 * trained / num_parameters(model):.2g} %) are trained",
        )
    yield "algorithm", _algorithm(config.algorithm)
    devices = math.prod(learner.mesh)
    data, fsdp, tensor = learner.mesh
    yield "processes", f"1 trainer, 1 manager, {_servers(config)}"
    yield (
        "learner",
        f"{devices} device{'s' * (devices > 1)} (data {data}, fsdp {fsdp}, tensor {tensor}); "
        + _memory(learner_bytes(config))
        + _on_host(config)
        + f"; scores of attention {size_text(attention_bytes_per_device(config))}, activations "
        f"{size_text(activation_bytes_per_device(config))}, log-probabilities "
        f"{size_text(logprob_bytes_per_device(config))} on each" + _experts(config),
    )
    yield (
        "engine",
        f"{engine.slots} slots of {config.slot_tokens} tokens, "
        f"{'' if engine.num_pages else 'up to '}{most_pages(engine, config.slot_tokens)} pages of "
        f"{engine.page_size}, {engine.token_rows} rows a step; {_memory(engine_bytes(config))}",
    )
    yield "weights", _snapshots(config)
    yield "fleet", _fleet(config)
    if kinds := kinds_line(fleet, deterministic=config.deterministic):
        yield "devices", kinds
    reserved, each = fleet.reserved_price_per_hour, fleet.price_per_hour
    prices = (
        "what each pool's cost" if fleet.pools else f"${each:.2f} for each preemptible instance"
    )
    if not fleet.billed:
        yield "cost", "none: servers run on this host (fleet.bill_local bills them)"
    else:
        yield (
            "cost",
            f"${reserved:.2f} an hour reserved + {prices}: at most "
            f"${_most(config):.2f} an hour{_budget(fleet)}",
        )
    if text := break_even_text(config):
        yield "break-even", text


def _environment(config: RunConfig) -> str:
    environment = config.environment
    workers = environment.workers
    where = (
        "a process for each episode"
        if environment.isolation == "episode"
        else f"{workers} process{'es' * (workers > 1)}"
    )
    return (
        f"{environment.name}: up to {environment.max_turns} turns and "
        f"{environment.max_given_tokens} given tokens, in {where}; {environment.attempts} "
        f"attempts, then {environment.on_failure.replace('_', ' ')}"
    )


def _most(config: RunConfig) -> float:
    """Most dollars an hour that the run can cost."""
    fleet = config.fleet
    preemptible = sum(p.price_per_hour * p.max_instances for p in fleet.pools)
    if not fleet.pools:
        preemptible = fleet.price_per_hour * fleet.max_instances
    limit = fleet.max_dollars_per_hour
    return fleet.reserved_price_per_hour + (min(preemptible, limit) if limit else preemptible)


def _budget(fleet: FleetConfig) -> str:
    said, limit = "", fleet.max_dollars_per_hour
    if fleet.max_dollars:
        said = f"; preemptible instances go once the run has cost ${fleet.max_dollars:.2f}"
    each = min((p.price_per_hour for p in fleet.pools), default=fleet.price_per_hour)
    starts = fleet.most_instances and (fleet.pools or fleet.provider != "none")
    if starts and 0 < limit < each and not fleet.price_command:
        said += (
            f"; none is started: fleet.max_dollars_per_hour is ${limit:.2f}, and one costs "
            f"${each:.2f}"
        )
    return said


def _lag(versions: int) -> str:
    if not versions:
        return ""
    plural = "s" * (versions > 1)
    return f"; sampled {versions} version{plural} before it is trained on, {versions} begun ahead"


def _snapshots(config: RunConfig) -> str:
    dtype = config.weights.rollout_dtype
    each = size_text(num_trained_parameters(config.model) * BYTES[dtype])
    once = size_text(weight_bytes(config.model, dtype))
    size = f"{each}, and once {once}," if config.model.lora.rank else each
    said = f"{dtype} snapshots of {size} pulled by {config.weights.source}"
    if config.weights.deltas:
        said += f"; servers fetch differences, and keep {each} in their host's memory for that"
    if config.weights.peers:
        twice = size_text(2 * num_trained_parameters(config.model) * BYTES[dtype])
        said += f"; servers fetch from each other, with {twice} of their host's memory meanwhile"
    return said


def _experts(config: RunConfig) -> str:
    num_bytes = expert_bytes_per_device(config)
    return f"; a layer of experts {size_text(num_bytes)} on each" if num_bytes else ""


def _on_host(config: RunConfig) -> str:
    if config.learner.moment_memory == "device":
        return ""
    return f"; on the host: optimizer {size_text(moment_bytes(config))}"


def _algorithm(algorithm: AlgorithmConfig) -> str:
    """Name the preset, and the settings in which the configuration differs from it."""
    preset = asdict(PRESETS[algorithm.name])
    own = ", ".join(
        f"{name} {value} ({preset[name]})"
        for name, value in asdict(algorithm).items()
        if value != preset[name]
    )
    return f"{algorithm.name}; other than its preset: {own}" if own else algorithm.name


def _servers(config: RunConfig) -> str:
    if config.fleet.provider == "none" and not config.fleet.pools:
        return "rollout servers as you start them"
    return f"0 to {config.fleet.most_instances} rollout servers"


def _fleet(config: RunConfig) -> str:
    fleet, chaos = config.fleet, config.fleet.chaos
    if fleet.provider == "none" and not fleet.pools:
        return "servers join by hand"
    changes = []
    if fleet.trace:
        changes.append(f"trace {fleet.trace} at {fleet.trace_speed:g}x")
    if fleet.trace == "synthetic":
        changes[-1] += f" (mean life {fleet.synthetic_lifetime_seconds:g} s of its time)"
    if chaos.enabled:
        changes.append(
            f"chaos: {chaos.kills_per_minute:g} kills, {chaos.terms_per_minute:g} terminations, "
            f"{chaos.joins_per_minute:g} joins a minute"
        )
    change = ", ".join(changes) or "nothing is taken away"
    who = f"provider {fleet.provider}, at most {fleet.max_instances}"
    return f"{pools_line(fleet) if fleet.pools else who}; {change}{_reach(config)}"


def _reach(config: RunConfig) -> str:
    """Warn where servers of other hosts could not connect to the manager; else ""."""
    fleet = config.fleet
    providers = {pool.provider for pool in fleet.pools} or {fleet.provider}
    elsewhere = providers - {"local", "none"} and not fleet.public_address
    if not elsewhere or config.manager.host not in ("127.0.0.1", "localhost", "::1"):
        return ""
    return (
        f"; the manager listens on {config.manager.host}, which servers of other hosts cannot "
        "reach: set manager.host to 0.0.0.0"
    )


def _memory(parts: dict[str, int]) -> str:
    each = " + ".join(f"{name} {size_text(count)}" for name, count in parts.items())
    return f"{size_text(sum(parts.values()))} ({each})"

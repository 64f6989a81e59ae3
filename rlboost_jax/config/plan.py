"""What a run is going to be: the text of `--dry_run`. Touches no device."""

import math
from collections.abc import Iterator
from typing import Final

from rlboost_jax.config.records import ModelConfig, RunConfig

BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}


def num_parameters(model: ModelConfig) -> int:
    """Parameters of the decoder, tied tensors once."""
    E, D = model.embed_dim, model.head_dim
    attention = 2 * E * model.num_query_heads * D + 2 * E * model.num_key_heads * D
    norms = 2 * E + (2 * D if model.qk_norm else 0)
    layers = model.num_layers * (attention + norms + 3 * E * model.hidden_dim)
    return layers + E + model.vocab_size * E * (1 if model.tie_embeddings else 2)


def learner_bytes(config: RunConfig) -> dict[str, int]:
    """Float32 parameters and what training keeps beside them, over all devices of the mesh."""
    parameters = 4 * num_parameters(config.model)
    parts = {"parameters": parameters, "gradients": parameters, "optimizer": 2 * parameters}
    if config.algorithm.kl_coefficient:
        parts["reference"] = parameters
    return parts


def num_pages(config: RunConfig) -> int:
    """Pages in an engine's pool."""
    per_slot = math.ceil(config.slot_tokens / config.engine.page_size)
    return config.engine.num_pages or config.engine.slots * per_slot


def engine_bytes(config: RunConfig) -> dict[str, int]:
    """Weights and the key-value pool of one engine."""
    model, engine = config.model, config.engine
    per_token = 2 * model.num_layers * model.num_key_heads * model.head_dim * BYTES[engine.kv_dtype]
    return {
        "weights": num_parameters(model) * BYTES[config.weights.rollout_dtype],
        "kv pool": num_pages(config) * engine.page_size * per_token,
    }


def plan_text(config: RunConfig, *, workdir: str = "") -> str:
    """The resolved plan, a line for each part."""
    width = 12
    return "\n".join(f"{name:<{width}}{line}".rstrip() for name, line in _lines(config, workdir))


def _lines(config: RunConfig, workdir: str) -> Iterator[tuple[str, str]]:
    model, learner, engine, fleet = config.model, config.learner, config.engine, config.fleet
    if workdir:
        yield "workdir", workdir
    bits = "same bits whatever the fleet does" if config.deterministic else "not deterministic"
    yield "run", f"{config.num_steps} updates, seed {config.seed}, {bits}"
    yield (
        "step",
        f"{learner.prompts_per_step} prompts x {config.algorithm.group_size} responses of up to "
        f"{config.sampling.max_response_tokens} tokens; task {config.task.name}",
    )
    yield (
        "model",
        f"{num_parameters(model):,} parameters: {model.num_layers} layers, width "
        f"{model.embed_dim}, {model.num_query_heads} query and {model.num_key_heads} key heads",
    )
    devices = math.prod(learner.mesh)
    data, fsdp, tensor = learner.mesh
    yield "processes", f"1 trainer, 1 manager, {_servers(config)}"
    yield (
        "learner",
        f"{devices} device{'s' * (devices > 1)} (data {data}, fsdp {fsdp}, tensor {tensor}); "
        + _memory(learner_bytes(config)),
    )
    yield (
        "engine",
        f"{engine.slots} slots of {config.slot_tokens} tokens, {num_pages(config)} pages of "
        f"{engine.page_size}, {engine.token_rows} rows a step; {_memory(engine_bytes(config))}",
    )
    yield "weights", f"{config.weights.rollout_dtype} snapshots, pulled by {config.weights.source}"
    yield "fleet", _fleet(config)
    reserved, each = fleet.reserved_price_per_hour, fleet.price_per_hour
    yield (
        "cost",
        f"${reserved:.2f} an hour reserved + ${each:.2f} for each preemptible instance: at most "
        f"${reserved + each * fleet.max_instances:.2f} an hour",
    )


def _servers(config: RunConfig) -> str:
    if config.fleet.provider == "none":
        return "rollout servers as you start them"
    return f"0 to {config.fleet.max_instances} rollout servers"


def _fleet(config: RunConfig) -> str:
    fleet, chaos = config.fleet, config.fleet.chaos
    if fleet.provider == "none":
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
    return f"local processes, at most {fleet.max_instances}; {change}"


def _memory(parts: dict[str, int]) -> str:
    each = " + ".join(f"{name} {_size(count)}" for name, count in parts.items())
    return f"{_size(sum(parts.values()))} ({each})"


def _size(count: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024  # type: ignore[assignment]
    return f"{count:.1f} GiB"

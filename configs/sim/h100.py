"""Any run of `configs/` on H100s, at the speeds that its compiler leaves room for.

Model, server, learner, fleet, prices and policies are those of `configs/<RUN>.py`. How long steps
take comes from `benchmarks/results/h100.json` (`make h100`): the time of each program with its
arithmetic, memory, launches, links and round trips one after the other at the data sheet's rates,
over `REACHED`. Nothing of it was measured. What the table does not know is `configs/sim/base.py`'s:
lengths of responses, links, the time until an instance is up, and between two uses of a chip.
Lengths are the paper's, in proportion to the longest response; a run's own are to be had from
`rlboost calibrate`.

Run:     rlboost simulate --config=h100:qwen3_14b_openr1
             --workdir=runs/sim
         rlboost advise --config=h100:qwen3_14b_openr1
         … --config=h100:qwen3_14b_openr1,0.6      # another share than REACHED
Takes:   some minutes on one core.
Left out: the reserved engines' pools are as large as a server's, though the learner lies beside
         them; rows of packed batches are full; adapters travel as whole models do.
"""

import importlib
import math
from collections.abc import Mapping

from ml_collections import ConfigDict

from rlboost_jax.configs.sim import base
from rlboost_jax.configs.sim.h100_bounds import BOUNDS

# Share of the speed of the serial bounds that programs come to. Assumed: large products reach some
# 70 % of an H100's data sheet and streams of memory some 90 %, neither is always at work, and of
# what is added up here a part goes on at once. Learners of rows side by side come to an MFU of 42
# to 44 %, servers of dense models of 8B and more to 51 to 61 % of the bandwidth. What `python -m
# benchmarks.gpu --stages=table` measures on a device is 1 / REACHED, program by program. The one
# that was, gradients of 0.6B on an H200, reached 0.68.
REACHED = 0.75
HOST_GPUS = 8
MOST_DRAFTS = 7  # `rlboost_jax/engine/drafts.py`, which imports JAX
EARLIER_TOKENS = 2**21  # `MOST_EARLIER` there
MODEL = ("num_params", "num_layers", "num_query_heads", "num_key_heads", "head_dim")
SHARED = ("max_pending", "balance", "migration", "seeding", "window", "window_initial_seconds",
          "window_eta", "window_memory", "routing", "longest_first")  # fmt: skip


def get_config(run: str = "qwen3_14b_openr1") -> ConfigDict:
    """A simulation of one of `configs/`'s runs on H100s.

    Args:
        run: name of a file of `configs/`, and after a comma a share in place of REACHED.

    Raises ValueError where the table has no such run, or the share is not between 0 and 1.
    """
    name, _, share = run.partition(",")
    if name not in BOUNDS:
        raise ValueError(f"no bounds of {name!r}; there are {', '.join(BOUNDS)}")
    return simulation(name, BOUNDS[name], reached=float(share or REACHED))


def simulation(
    name: str,
    bounds: Mapping[str, float],
    *,
    reached: float = REACHED,
    own: ConfigDict | None = None,
) -> ConfigDict:
    """Of the run `configs/<name>.py`.

    Args:
        bounds: what its steps take at least; as in `h100_bounds.py`.
        reached: share of their speed.
        own: a run with the same programs, in place of that one.
    """
    if not 0 < reached <= 1:
        raise ValueError(f"{reached:g} of the bounds' speed; choose more than 0, at most 1")
    own = own or importlib.import_module(f"rlboost_jax.configs.{name}").get_config()
    config = base.get_config()
    for field in MODEL:
        config.model[field] = type(config.model[field])(bounds[field])
    _set_engine(config, own, bounds, reached)
    _set_learner(config, own, bounds, reached)
    return _with_run(config, own)


def by_rooflines(own: ConfigDict, **model: float) -> ConfigDict:
    """Of any run, with the data sheet of an H100 and the shares of `configs/sim/base.py`.

    Args:
        model: the fields `MODEL` of a simulation's model.
    """
    config = base.get_config()
    for field in MODEL:
        config.model[field] = type(config.model[field])(model[field])
    config.engine.chips, config.engine.slots = own.engine.tensor_parallel, own.engine.slots
    config.engine.dispatch_tokens = own.engine.steps_per_dispatch
    config.engine.reserve_ratio = 0.0  # pages are taken as rollouts grow
    _set_reserved(config, own)
    return _with_run(config, own)


def _with_run(config: ConfigDict, own: ConfigDict) -> ConfigDict:
    """With the workload, the prices and the policies of a run."""
    config.num_steps, config.settling_steps = 14, 6
    work, longest = config.workload, own.sampling.max_response_tokens
    work.prompts_per_step, work.group_size = own.learner.prompts_per_step, own.algorithm.group_size
    work.prompt_tokens = min(work.prompt_tokens, own.engine.max_prompt_tokens)
    work.mean_tokens *= longest / work.max_response_tokens
    work.max_response_tokens = longest
    config.instance.price_per_hour = own.fleet.price_per_hour
    config.instance.egress_dollars_per_gb = own.fleet.egress_dollars_per_gb
    config.market.instances = tuple(range(own.fleet.max_instances + 1))
    for field in SHARED:
        config.policy[field] = own.manager[field]
    for field in ("sizing", "worth_per_hour", "merge_tail"):
        config.policy[field] = own.fleet[field]
    return config


def _set_engine(
    config: ConfigDict, own: ConfigDict, bounds: Mapping[str, float], reached: float
) -> None:
    """A law that is linear in what a batch has cached is exact in four points."""
    engine, model = config.engine, config.model
    engine.chips, engine.slots = own.engine.tensor_parallel, own.engine.slots
    engine.dispatch_tokens = own.engine.steps_per_dispatch
    engine.token_rows = own.engine.token_rows
    engine.most_drafts = MOST_DRAFTS if own.speculation.enabled else 0
    if own.speculation.enabled and "epochs" in own.speculation.drafters:
        engine.earlier_tokens = EARLIER_TOKENS
        config.policy.kept_tokens = own.speculation.kept_tokens
    engine.draft_seconds = bounds.get("draft_seconds", 0.0) / reached
    engine.reserve_ratio = 0.0  # pages are taken as rollouts grow
    cached = 2 * model.num_layers * model.num_key_heads * model.head_dim * model.bytes_per_kv
    held = model.num_params * model.bytes_per_param + bounds["kv_tokens"] * cached
    engine.memory_fraction = held / (engine.chips * config.chip.memory_bytes)
    longest = own.engine.max_prompt_tokens + own.sampling.max_response_tokens
    step, context = bounds["step_seconds"], bounds["context_token_seconds"]
    engine.table = tuple(
        (float(batch), float(length), (step + batch * length * context) / reached)
        for batch in (1, engine.slots)
        for length in (0, longest)
    )
    engine.prefill_token_seconds = bounds["prefill_token_seconds"] / reached


def _set_learner(
    config: ConfigDict, own: ConfigDict, bounds: Mapping[str, float], reached: float
) -> None:
    _set_reserved(config, own)
    trainer = config.trainer
    trainer.micro_batch_seconds = bounds["batch_seconds"] / reached
    trainer.apply_seconds = bounds["update_seconds"] / reached
    trainer.token_seconds = bounds["token_seconds"] / reached
    trainer.pair_seconds = bounds["pair_seconds"] / reached


def _set_reserved(config: ConfigDict, own: ConfigDict) -> None:
    """The reserved GPUs are those of the learner's mesh."""
    gpus, reserved, trainer = math.prod(own.learner.mesh), config.reserved, config.trainer
    reserved.nodes = -(-gpus // HOST_GPUS)
    reserved.chips_per_node = min(gpus, HOST_GPUS)
    reserved.price_per_node_hour = own.fleet.reserved_price_per_hour / reserved.nodes
    trainer.deterministic = own.deterministic
    trainer.micro_batch_prompts = own.learner.micro_batch_prompts

"""Parts of gpu.py that run the models: engine, peer, training step and the whole loop."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu_kernels import figure, seconds_of

SPEEDUP_TARGET, PRICE_TARGET = 3.0, 1.10
BATCH, PROMPT, NEW = 64, 64, 256
_DATASHEET_FLOPS = 989e12  # bfloat16, dense, H100 SXM


def _model(dry_run: bool) -> Any:
    """Qwen3-0.6B, or something of its shape."""
    qwen = replace(
        _settings().model,
        vocab_size=151936,
        embed_dim=1024,
        num_layers=28,
        num_query_heads=16,
        num_key_heads=8,
        head_dim=128,
        hidden_dim=3072,
        rope_theta=1e6,
        norm_epsilon=1e-6,
        tie_embeddings=True,
        qk_norm=True,
        dtype="bfloat16",
    )
    small = {"vocab_size": 128, "embed_dim": 32, "num_layers": 2, "hidden_dim": 64}
    heads = {"num_query_heads": 2, "num_key_heads": 1, "head_dim": 16, "dtype": "float32"}
    return replace(qwen, **small, **heads) if dry_run else qwen


def _settings() -> Any:
    """A run's records, from configs/base.py."""
    from configs import base
    from rlboost_jax.settings.load import run_config_from_dict

    return run_config_from_dict(base.get_config().to_dict())


def engine(*, dry_run: bool) -> list[dict[str, Any]]:
    """Tokens per second by implementation of attention, with 256 rows a step and with few."""
    from benchmarks.gpu_inputs import parameters
    from rlboost_jax.engine.engine import Engine

    model, settings = _model(dry_run), _settings().engine
    batch, new = (2, 4) if dry_run else (BATCH, NEW)
    params = parameters(model, model.dtype)
    requests = [_request(i, _prompt(model, i), temperature=0.0, most=new) for i in range(batch)]

    def generate(machine: Engine) -> None:
        machine.submit(requests)
        for _ in machine.run():
            pass

    figures, rates = [], {}
    for name in ("xla",) if dry_run else ("mosaic_gpu", "triton", "xla"):
        for rows in (64,) if dry_run else (256, 64):
            config = replace(
                settings,
                slots=batch,
                page_size=16 if dry_run else 64,
                token_rows=rows,
                max_prompt_tokens=PROMPT,
                attention=name,
                kv_dtype=model.dtype,
            )
            label = f"{name}, {rows} rows"
            try:
                machine = Engine(model, config, slot_tokens=PROMPT + new, truncated_sampling=False)
                machine.load(params, 0)
                machine.warm_up()
                seconds = seconds_of(partial(generate, machine), rounds=1 if dry_run else 3)
                rates[name, rows] = batch * new / seconds
                figures.append(figure(label, rates[name, rows], "tokens/s"))
            except Exception as error:
                reason = f"failed: {type(error).__name__}: {error}".splitlines()[0][:200]
                figures.append(figure(label, reason, ""))
        if (name, 64) in rates and (name, 256) in rates:
            price = rates[name, 64] / rates[name, 256]
            target = f"≤ {PRICE_TARGET}"
            figures.append(figure(f"{name}, price of 256 rows", price, "x", target))
    return figures


def paths(*, dry_run: bool) -> Iterator[dict[str, Any]]:
    """Whether the decode step that sampled a token and a prefill up to it give it equal bits.

    Such as differ are rare: what two programs add up in another order is rounded to bfloat16 next,
    which hides nearly all of it. The start-up check of an engine looks at too few tokens.
    """
    from benchmarks.gpu_inputs import parameters
    from rlboost_jax.engine.engine import Engine

    batch, new, rounds = (2, 4, 1) if dry_run else (BATCH, 96, 2)
    narrow = {"embed_dim": 64, "num_layers": 2, "hidden_dim": 128, "vocab_size": 128}
    whole = _model(dry_run)
    models = {"2 layers, 64 wide": replace(whole, **narrow), "the whole model": whole}
    for label, model in models.items():
        config = replace(
            _settings().engine,
            slots=batch,
            page_size=16 if dry_run else 64,
            token_rows=64,
            max_prompt_tokens=PROMPT,
            attention="xla" if dry_run else "mosaic_gpu",
            kv_dtype=model.dtype,
        )
        machine = Engine(model, config, slot_tokens=PROMPT + new, truncated_sampling=False)
        machine.load(parameters(model, model.dtype), 0)
        machine.warm_up()
        seen = differ = 0
        for first in range(0, batch * (rounds if model is not whole else 1), batch):
            prompts = {i: _prompt(model, i) for i in range(first, first + batch)}
            said = _answers(machine, {(i, 0): _request(i, p, most=new) for i, p in prompts.items()})
            again = {
                (i, place): _request(i, prompts[i], tokens[:place], most=place + 1)
                for (i, _), (tokens, _) in said.items()
                for place in range(1, len(tokens))
            }
            for (i, place), (tokens, logprobs) in _answers(machine, again).items():
                once = [part[place : place + 1].tobytes() for part in said[i, 0]]
                seen += 1
                differ += once != [tokens.tobytes(), logprobs.tobytes()]
        yield figure(f"{label}: of {seen} tokens, other bits by prefill", differ, "tokens", "0")


def _prompt(model: Any, index: int) -> np.ndarray:
    return np.random.default_rng(index).integers(model.vocab_size, size=PROMPT).astype(np.int32)


def _request(
    index: int, prompt: np.ndarray, response: Any = (), *, most: int, temperature: float = 1.0
) -> Any:
    """Of a rollout that has come to `response` already."""
    from rlboost_jax.messages import GenerateRequest, Sampling, pack_tokens
    from rlboost_jax.sequences.identities import Work

    return GenerateRequest(
        work=Work(seed=0, batch=0, prompt=index, sample=0),
        request_id=index,
        version=0,
        prompt_tokens=pack_tokens(prompt),
        response_tokens=pack_tokens(np.array(response, np.int32)),
        sampling=Sampling(
            temperature=temperature, top_p=1.0, top_k=0, max_tokens=most, stop_ids=()
        ),
    )


def _answers(machine: Any, requests: dict[Any, Any]) -> dict[Any, tuple[np.ndarray, np.ndarray]]:
    """Tokens and log-probabilities of what an engine samples for each."""
    import msgspec

    names = dict(enumerate(requests))
    machine.submit(
        [msgspec.structs.replace(requests[name], request_id=i) for i, name in names.items()]
    )
    parts: dict[Any, list[Any]] = {name: [] for name in requests}
    for dispatch in machine.run():
        ends = np.cumsum(dispatch.counts, dtype=int)
        for i, count, end in zip(dispatch.request_ids.tolist(), dispatch.counts, ends, strict=True):
            which = slice(end - count, end)
            parts[names[i]].append((dispatch.tokens[which], dispatch.logprobs[which]))
    return {
        name: (np.concatenate([t for t, _ in some]), np.concatenate([p for _, p in some]))
        for name, some in parts.items()
    }


def ways(*, dry_run: bool) -> tuple[str, ...]:
    """In which the peer generates; some do not end on some machines."""
    return ("generate",) if dry_run else ("generate", "continuous batching")


def transformers(*, dry_run: bool, which: str = "") -> Iterator[dict[str, Any]]:
    """Tokens per second of the peer.

    Args:
        which: of `ways`; "": all.
    """
    import torch
    import transformers as peer

    model = _model(dry_run)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch, new = (2, 4) if dry_run else (BATCH, NEW)
    config = peer.Qwen3Config(
        vocab_size=model.vocab_size,
        hidden_size=model.embed_dim,
        intermediate_size=model.hidden_dim,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_query_heads,
        num_key_value_heads=model.num_key_heads,
        head_dim=model.head_dim,
        tie_word_embeddings=model.tie_embeddings,
        attn_implementation="sdpa",
        eos_token_id=None,
    )
    network = peer.Qwen3ForCausalLM(config).to(device, getattr(torch, model.dtype)).eval()
    settings = peer.GenerationConfig(
        do_sample=False,
        max_new_tokens=new,
        eos_token_id=-1,
        pad_token_id=0,
    )
    prompts = np.random.default_rng(0).integers(model.vocab_size, size=(batch, PROMPT))

    def generate() -> None:
        tokens = torch.from_numpy(prompts).to(device)
        with torch.inference_mode():
            network.generate(
                tokens, attention_mask=torch.ones_like(tokens), generation_config=settings
            )
        if device == "cuda":
            torch.cuda.synchronize()

    def generate_continuously() -> None:
        network.generate_batch(inputs=prompts.tolist(), generation_config=settings)

    calls = {"generate": generate, "continuous batching": generate_continuously}
    for label in [which] if which else ways(dry_run=dry_run):
        try:
            seconds = seconds_of(calls[label], rounds=1 if dry_run else 3)
            rate, target = batch * new / seconds, f"ours ≥ {SPEEDUP_TARGET} x"
            yield figure(label, rate, "tokens/s", target)
        except Exception as error:
            reason = f"failed: {type(error).__name__}: {error}".splitlines()[0][:200]
            yield figure(label, reason, "")


def training(*, dry_run: bool) -> list[dict[str, Any]]:
    """Gradients and update of one packed batch, as a share of what matrix products reach."""
    import jax
    import jax.numpy as jnp

    from benchmarks.gpu_inputs import parameters
    from rlboost_jax.learner.packing import empty
    from rlboost_jax.learner.programs.policy import PolicyPrograms
    from rlboost_jax.learner.state import init_state
    from rlboost_jax.models.sharding import make_mesh

    model, run = _model(dry_run), _settings()
    rows, row_tokens = (1, 32) if dry_run else (4, 2048)
    learner = replace(run.learner, remat="none" if dry_run else "full", attention="auto")
    step = PolicyPrograms(
        model, learner, run.algorithm, run.sampling, num_updates=10, mesh=make_mesh((1, 1, 1))
    )
    params = parameters(model, "float32")
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    state = init_state(params, step.optimizer, step.shardings)
    del params
    batch = empty(rows, row_tokens)
    rng = np.random.default_rng(0)
    shape = (rows, row_tokens)
    batch = replace(
        batch,
        tokens=rng.integers(model.vocab_size, size=shape).astype(np.int32),
        targets=rng.integers(model.vocab_size, size=shape).astype(np.int32),
        positions=np.tile(np.arange(row_tokens, dtype=np.int32), (rows, 1)),
        segments=np.ones(shape, np.int32),
        response_mask=np.ones(shape, np.bool_),
        behaviour_logprobs=np.full(shape, -np.log(model.vocab_size), np.float32),
        advantages=np.ones(shape, np.float32),
        weights=np.ones(shape, np.float32),
    )
    gradients = seconds_of(
        lambda: step.gradients(state.params, None, batch), rounds=1 if dry_run else 5
    )

    def update(state: Any) -> Any:
        parts, _ = step.gradients(state.params, None, batch)
        return step.apply(state, parts, np.float32(rows * row_tokens))[0]

    times = []
    for _ in range(2 if dry_run else 6):
        since = time.perf_counter()
        state = jax.block_until_ready(update(state))
        times.append(time.perf_counter() - since)
    seconds = min(times[1:])

    size = 256 if dry_run else 8192
    x = jax.random.normal(jax.random.key(0), (size, size), model.dtype)
    peak = 2 * size**3 / seconds_of(partial(jax.jit(jnp.matmul), x, x), rounds=5)
    # 6 operations a parameter and token; attention 12 a layer, head dim and pair, half masked.
    heads = model.num_layers * model.num_query_heads * model.head_dim
    flops = rows * row_tokens * (6 * count + 6 * heads * row_tokens)
    return [
        figure("parameters", count, ""),
        figure(f"gradients of {rows} x {row_tokens} tokens", gradients * 1e3, "ms"),
        figure("gradients and update", seconds * 1e3, "ms"),
        figure("tokens per second", rows * row_tokens / seconds, "tokens/s"),
        figure("fastest matrix product", peak / 1e12, "TFLOP/s"),
        figure("share of the fastest product, without recomputation", flops / seconds / peak, ""),
        figure("share of 989 TFLOP/s", flops / seconds / _DATASHEET_FLOPS, "MFU"),
    ]


def loop(*, dry_run: bool) -> list[dict[str, Any]]:
    """configs/tiny.py from start to end. Dry, only its plan."""
    import grain  # noqa: F401  (the run needs them, and says so less plainly)
    import ml_collections  # noqa: F401
    import msgspec  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rlboost_jax.main", "--config=configs/tiny.py"]
        command += [f"--workdir={folder}/run", "--dry_run" if dry_run else "--nodry_run"]
        since = time.perf_counter()
        process = subprocess.run(command, capture_output=True, text=True)
        seconds = time.perf_counter() - since
    if process.returncode:
        last = (process.stderr or process.stdout).strip().splitlines()[-1:]
        raise RuntimeError(f"it ended with {process.returncode}: {' '.join(last)}")
    last = process.stdout.strip().splitlines()[-1:]
    return [figure("seconds from start to end", seconds, "s"), figure("", " ".join(last), "")]

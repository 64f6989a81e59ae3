"""The notebook and the code of the README run, and what they say holds."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import rlboost_kernels
from flax import nnx
from rlboost_kernels.attention.attention_api import ragged_paged_attention

KERNELS = Path(__file__).resolve().parents[1]
NOTEBOOK = KERNELS / "examples" / "flax_generation.ipynb"
README = KERNELS / "README.md"


def run_notebook(namespace: dict[str, Any]) -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            exec(compile(source, f"{NOTEBOOK.name}, cell {number}", "exec"), namespace)


@pytest.fixture(scope="module")
def notebook() -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    run_notebook(namespace)
    return namespace


def test_sequences_are_the_same_alone_in_company_and_resumed(notebook):
    assert len(notebook["company"]) > notebook["S"]  # some wait for others to finish
    for ways in zip(*(notebook[name] for name in ("alone", "company", "resumed")), strict=True):
        assert ways[0].tokens == ways[1].tokens == ways[2].tokens
        alone, company, resumed = (np.stack(sequence.logits).tobytes() for sequence in ways)
        assert alone == company == resumed


def test_tokens_follow_the_prompt_and_are_likely_ones(notebook):
    for sequence, prompt in zip(notebook["company"], notebook["prompts"](), strict=True):
        n = len(prompt.tokens)
        assert sequence.tokens[:n] == prompt.tokens
        assert len(sequence.tokens) == n + len(sequence.logits) == notebook["LENGTH"]
        for token, logits in zip(sequence.tokens[n:], sequence.logits, strict=True):
            assert (logits > logits[token]).sum() < 50  # its top_k


def test_pools_are_written_in_place(notebook):
    sequence, free = notebook["prompts"]()[0], list(range(notebook["P"]))
    shape = rlboost_kernels.kv_pages_shape(notebook["P"], *(notebook[name] for name in "LKD"))
    pools = tuple(jnp.zeros(shape) for _ in range(notebook["num_layers"]))
    places = [pool.unsafe_buffer_pointer() for pool in pools]
    pools, *_ = notebook["step"](notebook["params"], pools, **notebook["pack"]([sequence], free))
    assert [pool.unsafe_buffer_pointer() for pool in pools] == places


def test_logits_are_those_of_the_model_by_hand(notebook):
    decoder = nnx.merge(notebook["graph"], notebook["params"])
    for sequence in notebook["company"][::5]:
        expected = logits_by_hand(decoder, sequence.tokens[:-1], notebook["D"])
        expected = expected[-len(sequence.logits) :]
        error = np.linalg.norm(np.stack(sequence.logits) - expected)
        assert error <= 5e-6 * np.linalg.norm(expected)


def logits_by_hand(decoder, tokens, D):
    """The notebook's decoder in float64, with attention one row and head at a time."""

    def times(x, linear):
        return x @ np.asarray(linear.kernel[...], np.float64)

    def normed(x, norm):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * np.asarray(norm.scale[...])

    def heads(x):
        return x.reshape(len(x), -1, D).swapaxes(0, 1)

    def rotated(x):
        """Halves of a head are the parts of complex numbers, which a position turns."""
        turns = np.outer(np.arange(x.shape[1]), 10_000.0 ** (-np.arange(D // 2) / (D // 2)))
        turned = (x[..., : D // 2] + 1j * x[..., D // 2 :]) * np.exp(1j * turns)
        return np.concatenate([turned.real, turned.imag], axis=-1)

    x = np.asarray(decoder.embed.embedding[...], np.float64)[tokens]
    for block in decoder.blocks:
        before = normed(x, block.attention_norm)
        q, k, v = (heads(times(before, linear)) for linear in (block.query, block.key, block.value))
        q, k, out = rotated(q), rotated(k), np.zeros((len(x), len(q), D))
        for h in range(len(q)):
            key_head = h // (len(q) // len(k))
            for t in range(len(x)):
                weights = np.exp(k[key_head, : t + 1] @ q[h, t] / np.sqrt(D))
                out[t, h] = weights @ v[key_head, : t + 1] / weights.sum()
        x = x + times(out.reshape(len(x), -1), block.output)
        up = times(normed(x, block.mlp_norm), block.up)
        x = x + times(up / (1 + np.exp(-up)), block.down)
    return times(normed(x, decoder.norm), decoder.head)


def with_one_key_head_for_both(q, pool, *metadata):
    """Wrong, but the same in any company."""
    return ragged_paged_attention(q, pool.at[:, :, :2].set(pool[:, :, 2:]), *metadata)


def with_a_millionth_of_the_others(*arguments):
    """Right within any tolerance, but not the same in any company."""
    out = ragged_paged_attention(*arguments)
    return out + 1e-6 * out.mean(axis=0, keepdims=True)


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize(
    ("attention", "keeps_the_promise"),
    [
        pytest.param(with_one_key_head_for_both, True, marks=pytest.mark.soak),
        (with_a_millionth_of_the_others, False),
    ],
)
def test_the_notebook_notices_a_wrong_attention(attention, keeps_the_promise, monkeypatch):
    monkeypatch.setattr(rlboost_kernels, "ragged_paged_attention", attention)
    namespace: dict[str, Any] = {}
    with pytest.raises(AssertionError):
        run_notebook(namespace)
    assert ("dense_logits" in namespace) == keeps_the_promise


def readme_blocks() -> tuple[str, str, str]:
    """Signatures, a decode loop, and the same over two devices."""
    text = README.read_text(encoding="utf-8")
    signatures, loop, sharded = re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)
    return signatures, loop, sharded


def test_the_readme_has_every_function_with_its_parameters():
    text = re.sub("#.*", "", readme_blocks()[0])
    written = dict(re.findall(r"(\w+)\(([^)]*)\)", text))
    assert written.keys() == set(rlboost_kernels.__all__) - {"__version__"}
    for name, parameters in written.items():
        signature = inspect.signature(getattr(rlboost_kernels, name))
        bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        tidy = ", ".join(parameter.strip() for parameter in parameters.strip(", \n").split(","))
        assert f"({tidy})" == str(inspect.Signature(bare)).replace("'", '"'), name


CHECKS = """
import numpy as np

# Keys are equal, so three tokens weigh the same, and their values are 0, 1 and 2.
np.testing.assert_allclose(out, 1, rtol=1e-6)
{sharded}
metadata = (jnp.full(S, 3, jnp.int32), page_indices, cu_q_lens, num_seqs)
split = jax.jit(sharded)(q, kv_pages, *metadata)
assert len(split.sharding.device_set) == 2
np.testing.assert_allclose(split, out, rtol=1e-6)
"""


def test_the_code_of_the_readme_runs():
    _, loop, sharded = readme_blocks()
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, "-c", loop + CHECKS.format(sharded=sharded)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr

"""What the compiler makes of the step programs."""

import re
from dataclasses import replace

import jax
import pytest
from rlboost_kernels import available_implementations

from rlboost_jax.engine.engine import Engine
from rlboost_jax.settings.engine_config import EngineConfig
from rlboost_jax.settings.model_config import ModelConfig
from tests.engine.step_programs import step_programs

# What is copied and what lies where is decided before LLVM begins, which takes half of the time.
WITHOUT_LLVM = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
NAMES = {"float32": "f32", "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3fn"}  # in HLO


@pytest.mark.parametrize(
    "kv_dtype", ["float32", "float8_e4m3fn", pytest.param("bfloat16", marks=pytest.mark.soak)]
)
def test_no_step_copies_a_pool(
    model: ModelConfig, engine_config: EngineConfig, kv_dtype: str
) -> None:
    """A pool takes most of a device's memory, so that a copy would cost more than the step."""
    if kv_dtype != "float32" and "cpu" not in available_implementations():
        pytest.skip("XLA on CPU converts a pool of 16 or 8 bits")
    config = replace(engine_config, kv_dtype=kv_dtype, num_pages=3000)
    model = model if kv_dtype == "float32" else replace(model, num_layers=1)
    engine = Engine(model, config, slot_tokens=44, truncated_sampling=False)
    pool = engine.device_state.pools[0]
    shape = f"{NAMES[kv_dtype]}[{','.join(map(str, pool.shape))}]"
    for program, *arguments in step_programs(engine):
        compiled = program.lower(*arguments).compile(compiler_options=WITHOUT_LLVM)
        assert compiled.memory_analysis().temp_size_in_bytes < pool.nbytes
        text = compiled.as_text()
        assert shape in text
        assert not re.findall(rf"= {re.escape(shape)}\S* copy(?:-start)?\(.*", text)
        aliases = re.search(r"input_output_alias=\{(.*?) \}, ", text)
        assert aliases is not None
        assert aliases[1].count("may-alias") + aliases[1].count("must-alias") == len(
            engine.device_state.pools
        )


def test_a_copy_would_be_seen() -> None:
    text = jax.jit(lambda x: (x, x + 1)).lower(jax.numpy.zeros(7)).compile().as_text()
    assert re.findall(r"= f32\[7\]\S* copy(?:-start)?\(.*", text)

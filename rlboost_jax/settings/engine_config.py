"""Settings of an inference engine: slots, pages, rows, kernels."""

from dataclasses import dataclass
from typing import Final, Literal

from rlboost_jax.settings.setting import setting

KvDtype = Literal["float32", "bfloat16", "float16", "float8_e4m3fn"]
EngineAttention = Literal["auto", "reference", "xla", "cpu", "mosaic_gpu", "triton"]
ATTENTION_FOR_GPU: Final = ("mosaic_gpu", "triton")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """One engine, of a rollout server or of the trainer's own."""

    slots: int = setting(64, "rollouts that are decoded together", at_least=1)
    page_size: int = setting(16, "tokens of a page", unit="tokens", at_least=1)
    num_pages: int = setting(
        0,
        "pages in the pool; 0: the longest rollout of every slot, if that fits",
        unit="pages",
        at_least=0,
        may_change="at once",
    )
    memory_fraction: float = setting(
        0.9,
        "share of the device's memory for weights, pool and working space",
        note="Less what the learner takes there. A limit, not a claim: several servers on a CPU "
        "host share its memory, and each takes what its slots need.",
        above=0,
        at_most=1,
        may_change="at once",
    )
    max_prompt_tokens: int = setting(
        8, "longest prompt; with the longest response it fills a slot", at_least=1
    )
    token_rows: int = setting(
        64,
        "rows of a step with prefill; of deterministic runs a multiple of 16, at least 64",
        unit="rows",
        note="Decode steps of deterministic runs on a GPU have as many rows; those of other runs "
        "only as many as there are slots.",
    )
    steps_per_dispatch: int = setting(8, "decode steps per program call", at_least=1)
    attention: EngineAttention = setting(
        "auto",
        "implementation of rlboost_kernels",
        note='"auto": on a GPU the fastest that passes its check at the start '
        "(docs/explanation/qualification.md).",
    )
    kv_dtype: KvDtype = setting(
        "float32",
        "type of cached keys and values",
        note="float8_e4m3fn takes half of bfloat16's memory and widens the gap to the learner's "
        "log-probabilities: keys and values are stored with scale 1 and cut off at 448.",
    )
    tensor_parallel: int = setting(
        1, "devices that weights and pages are split over", unit="devices", at_least=1
    )

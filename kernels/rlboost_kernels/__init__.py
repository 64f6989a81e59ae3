"""Ragged paged attention for JAX: one signature, a plain definition and fast implementations."""

from rlboost_kernels.attention.attention_api import ragged_paged_attention
from rlboost_kernels.attention.validation import validate_metadata
from rlboost_kernels.grouped.grouped_api import grouped_matmul
from rlboost_kernels.implementations import active, available_implementations
from rlboost_kernels.kv_pages.copy import copy_kv_pages
from rlboost_kernels.kv_pages.update import kv_pages_shape, update_kv_pages
from rlboost_kernels.logprobs.logprobs_api import choice_intervals, selected_logprobs
from rlboost_kernels.matmul.matmul_api import matmul
from rlboost_kernels.matmul.panels import fits_panels, pack_panels
from rlboost_kernels.precision import product_precision
from rlboost_kernels.sampling.choice_masses import choice_masses
from rlboost_kernels.sampling.noise import (
    exponentials,
    noise_keys,
    token_noise,
    uniforms,
)
from rlboost_kernels.sampling.sampling_api import kept_entries, sample_tokens, tokens_from_noise

__version__ = "0.1.0"  # pyproject.toml reads it; rlboost_jax has the same

__all__ = [
    "__version__",
    "active",
    "available_implementations",
    "choice_intervals",
    "choice_masses",
    "copy_kv_pages",
    "exponentials",
    "fits_panels",
    "grouped_matmul",
    "kept_entries",
    "kv_pages_shape",
    "matmul",
    "noise_keys",
    "pack_panels",
    "product_precision",
    "ragged_paged_attention",
    "sample_tokens",
    "selected_logprobs",
    "token_noise",
    "tokens_from_noise",
    "uniforms",
    "update_kv_pages",
    "validate_metadata",
]

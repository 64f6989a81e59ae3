"""Ragged paged attention for JAX: one signature, a plain definition and fast implementations."""

from rlboost_kernels.attention.api import ragged_paged_attention
from rlboost_kernels.attention.validation import validate_metadata
from rlboost_kernels.grouped.api import grouped_matmul
from rlboost_kernels.implementations import active, available_implementations
from rlboost_kernels.kv_pages.copy import copy_kv_pages
from rlboost_kernels.kv_pages.update import kv_pages_shape, update_kv_pages
from rlboost_kernels.logprobs.api import choice_intervals, selected_logprobs
from rlboost_kernels.matmul.api import matmul
from rlboost_kernels.matmul.panels import fits_panels, pack_panels
from rlboost_kernels.precision import product_precision
from rlboost_kernels.sampling.api import kept_entries, sample_tokens, tokens_from_noise
from rlboost_kernels.sampling.noise import noise_keys, uniforms

__all__ = [
    "active",
    "available_implementations",
    "choice_intervals",
    "copy_kv_pages",
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
    "tokens_from_noise",
    "uniforms",
    "update_kv_pages",
    "validate_metadata",
]

"""Ragged paged attention for JAX: one signature, a plain definition and fast implementations."""

from rlboost_kernels.attention.api import ragged_paged_attention
from rlboost_kernels.attention.validation import validate_metadata
from rlboost_kernels.implementations import available_implementations
from rlboost_kernels.kv_pages.update import kv_pages_shape, update_kv_pages

__all__ = [
    "available_implementations",
    "kv_pages_shape",
    "ragged_paged_attention",
    "update_kv_pages",
    "validate_metadata",
]

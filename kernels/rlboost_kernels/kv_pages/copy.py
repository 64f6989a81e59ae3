"""Copies of pages within a pool, for a sequence that parts from another one inside a page."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from rlboost_kernels.attention.validation import check_kv_pages
from rlboost_kernels.cpu import ffi_calls as cpu
from rlboost_kernels.implementations import BY_PLATFORM, choose_late


def copy_kv_pages(
    kv_pages: Array,  # [P, L, 2*K, D]
    source: Array,  # i32[N]
    destination: Array,  # i32[N]
    *,
    implementation: str | None = None,
) -> Array:  # [P, L, 2*K, D]
    """Copy page `source[i]` to page `destination[i]` for all i, and return the pool.

    All pages are read before one is written. Donate the pool, as for `update_kv_pages`, which
    also says what "xla" makes of some types of pools on CPU.

    Args:
        source: pages; one that is not there is cut to the nearest.
        destination: pages, none twice; one that is not there is no copy.
        implementation: a name of `available_implementations()`; None or "auto" takes the best,
            and "reference" is the program of "xla".

    Raises:
        ValueError: shapes or types do not fit.
        NotImplementedError: `implementation` cannot run here.
    """
    check_kv_pages(kv_pages)
    for name, pages in {"source": source, "destination": destination}.items():
        if pages.ndim != 1 or pages.shape != source.shape or pages.dtype != jnp.int32:
            raise ValueError(
                f"{name} has shape {pages.shape} and type {pages.dtype}; source and destination "
                "must be int32[N]"
            )
    return _copy(kv_pages, source, destination, name=choose_late(implementation))


@partial(jax.jit, static_argnames="name")
def _copy(kv_pages: Array, source: Array, destination: Array, *, name: str) -> Array:
    if name == BY_PLATFORM:
        return lax.platform_dependent(
            kv_pages, source, destination, cpu=cpu.copy_pages, default=_gather_and_scatter
        )
    return (cpu.copy_pages if name == "cpu" else _gather_and_scatter)(kv_pages, source, destination)


def _gather_and_scatter(kv_pages: Array, source: Array, destination: Array) -> Array:
    P, N = kv_pages.shape[0], source.shape[0]
    # -1 would mean the last page; and each copy that is none gets a place of its own.
    inside = (destination >= 0) & (destination < P)
    places = jnp.where(inside, destination, P + jnp.arange(N, dtype=jnp.int32))
    pages = kv_pages[jnp.clip(source, 0, P - 1)]
    return kv_pages.at[places].set(pages, mode="drop", unique_indices=True)

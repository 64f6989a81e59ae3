"""The names an `implementation` argument takes, and which one `None` means."""

import jax

from rlboost_kernels.cpu import library

PLAIN = ("reference", "xla")  # of the operations that are written in JAX alone
WITH_KERNELS = (
    "ragged_paged_attention",
    "update_kv_pages",
    "copy_kv_pages",
    "matmul",
)  # and those with more

# What `choose_late` says where the choice is left to the platform a program is compiled for.
BY_PLATFORM = "by platform"


def available_implementations() -> tuple[str, ...]:
    """Names that run on this machine, the definition first."""
    return PLAIN if library.why_missing() else (*PLAIN, "cpu")


def active() -> dict[str, str]:
    """Return what `implementation=None` picks for each operation, with a kernel's instruction set.

    Equal values, on equal versions of jax and machines of one kind, give equal bits.
    """
    name = choose(None)
    described = f"cpu[{library.isa()}]" if name == "cpu" else name
    return dict.fromkeys(WITH_KERNELS, described)


def choose(implementation: str | None, platform: str | None = None) -> str:
    """Return the implementation to run: the best available for None or "auto", else the named one.

    Args:
        platform: "cpu", "gpu" or "tpu"; None is that of JAX's default device.

    Raises:
        NotImplementedError: the one named is not available; no other is put in its place.
    """
    on_cpu = (platform or jax.default_backend()) == "cpu"
    if implementation is None or implementation == "auto":
        return "cpu" if on_cpu and not library.why_missing() else "xla"
    if implementation == "cpu" and (reason := library.why_missing()):
        raise NotImplementedError(f"implementation 'cpu' is not available here: {reason}")
    if implementation == "cpu" and platform and not on_cpu:
        raise NotImplementedError(f"implementation 'cpu' is for CPU and this is {platform}")
    _require_one_of(available_implementations(), implementation)
    return implementation


def choose_late(implementation: str | None) -> str:
    """Like `choose`, but leave None open until the platform is known, if that matters."""
    if implementation is None or implementation == "auto":
        return "xla" if library.why_missing() else BY_PLATFORM
    return choose(implementation)


def choose_plain(implementation: str | None) -> str:
    """Like `choose`, for operations whose implementations are those of `PLAIN`, the best last."""
    if implementation is None or implementation == "auto":
        return PLAIN[-1]
    _require_one_of(PLAIN, implementation)
    return implementation


def _require_one_of(available: tuple[str, ...], implementation: str) -> None:
    if implementation not in available:
        raise NotImplementedError(
            f"implementation {implementation!r} is not available here; "
            f"available: {', '.join(available)}, or None for the best of them"
        )

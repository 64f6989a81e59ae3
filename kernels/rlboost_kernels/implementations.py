"""The names an `implementation` argument takes, and which one `None` means."""

AVAILABLE = ("reference", "xla")
_BEST = "xla"


def available_implementations() -> tuple[str, ...]:
    """Names that run on this machine, the definition first."""
    return AVAILABLE


def choose(implementation: str | None) -> str:
    """The implementation to run: the best available for None or "auto", else the one named.

    Raises:
        NotImplementedError: the one named is not available; no other is put in its place.
    """
    if implementation is None or implementation == "auto":
        return _BEST
    if implementation not in AVAILABLE:
        raise NotImplementedError(
            f"implementation {implementation!r} is not available here; "
            f"available: {', '.join(AVAILABLE)}, or None for the best of them"
        )
    return implementation

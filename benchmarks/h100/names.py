"""How programs of the table are named after what they compute with."""

GRADIENTS = "gradients"


def gradients_name(rows: int, tokens: int) -> str:
    """Name gradients over a packed batch: "gradients 8 x 14,848"."""
    return f"{GRADIENTS} {rows} x {tokens:,}"


def packed_size(program: str) -> tuple[int, int]:
    """Rows of the packed batch, and tokens of each, that `gradients_name` has put into a name.

    Raises ValueError for a program of another kind.
    """
    kind, _, size = program.partition(" ")
    if kind != GRADIENTS:
        raise ValueError(f"{program!r} is not named after a packed batch")
    rows, _, tokens = size.replace(",", "").partition(" x ")
    return int(rows), int(tokens)

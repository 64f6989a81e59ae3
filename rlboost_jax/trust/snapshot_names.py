"""Which names a snapshot may use.

A list of pieces comes from the network and names files that a server will write and read.
"""

from rlboost_jax.messages import PieceList


class WeightsError(RuntimeError):
    """A snapshot could not be fetched, or is not what its manifest says."""


def check_names(pieces: PieceList) -> None:
    """Check that every file and leaf stays below its folder and is named once.

    Raises:
        WeightsError: naming the first that does not.
    """
    paths = [entry.path for entry in pieces.files]
    leaves = [leaf.name for leaf in pieces.leaves]
    for path in paths:
        if not all(_is_plain(part) for part in path.split("/")):
            raise WeightsError(f"list of pieces: unsafe file name {path!r}")
    for name in leaves:
        if not _is_plain(name) or "/" in name:
            raise WeightsError(f"list of pieces: unsafe leaf name {name!r}")
    if len(set(paths)) < len(paths) or len(set(leaves)) < len(leaves):
        raise WeightsError("list of pieces: a name occurs twice")


def _is_plain(part: str) -> bool:
    """Whether a path component is a plain file name that leads nowhere else."""
    return part not in ("", ".", "..") and "\\" not in part and part.isprintable()

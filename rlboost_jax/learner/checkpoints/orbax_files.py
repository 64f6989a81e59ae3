"""Trees of arrays in Orbax's format, in folders that are there already.

Only Orbax's handler is used, neither its manager nor its checkpointers: where a checkpoint lies,
when it counts and what becomes of older ones is said in `writing.py`, and by no wall clock.
What is written here Orbax's own readers take, too.
"""

import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import SingleDeviceSharding

from rlboost_jax.learner.checkpoints.write_waits import sizes, wait_for_writes
from rlboost_jax.models.params import Params
from rlboost_jax.platform.exhaustion import exhausted

CHUNK_BYTES = 2**26  # of an array on disk: a process that needs a part reads little else


class _Explained(logging.Filter):
    """Log filter that drops tracebacks of Orbax's threads when the host lacks a resource.

    The same error is raised where the tree is waited for, and reported there in one line.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return error is None or not exhausted(error)


_EXPLAINED = _Explained()


class _Late:
    """Hook that drops TensorStore's report on a write that Orbax no longer waits for.

    Orbax stops waiting at the first error that closes its loop, whatever else is in progress.

    Args:
        before: the hook that is asked about all else.
    """

    def __init__(self, before: Callable[["sys.UnraisableHookArgs"], object]) -> None:
        self._before = before

    def __call__(self, found: "sys.UnraisableHookArgs") -> None:
        late = isinstance(found.exc_value, RuntimeError) and found.object is None
        if not (late and str(found.exc_value) == "Event loop is closed"):
            self._before(found)


def _explain() -> None:
    """Report errors of a write where it is waited for, and nowhere else."""
    logging.getLogger("absl").addFilter(_EXPLAINED)  # once, however often
    if not isinstance(sys.unraisablehook, _Late):
        sys.unraisablehook = _Late(sys.unraisablehook)


def begin(folder: Path, tree: Any, grown: Callable[[], None] = lambda: None) -> Callable[[], None]:
    """Begin to write a tree, and return a function that waits for this process's part.

    That function raises `WritesStalled` if nothing is written any more.

    Arrays of several processes are copied to the host before this returns, and may be donated; host
    arrays are not copied, and nobody may change them until all is written.

    Every process calls this where arrays are of several, and then one of them `finish`.

    Args:
        grown: called now and then while more and more is written.
    """
    arguments = ocp.args.PyTreeSave(
        tree, save_args=jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=CHUNK_BYTES), tree)
    )
    _explain()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(tree))

    def begun() -> list[Any]:
        return asyncio.run(_handler().async_save(folder, args=arguments)) or []

    futures = wait_for_writes(begun, folder, size_bytes=size, grown=grown)

    def written() -> None:
        for future in futures:
            future.result()

    return lambda: wait_for_writes(written, folder, size_bytes=size, grown=grown)


def finish(folder: Path, grown: Callable[[], None] = lambda: None) -> None:
    """Merge what the processes have written into one tree. Raises WritesStalled.

    Args:
        grown: as in `begin`.
    """
    size = sum(sizes(folder).values())
    wait_for_writes(lambda: _handler().finalize(folder), folder, size_bytes=size, grown=grown)


def own_folders(folder: Path, process: int) -> list[Path]:
    """Folders that this process alone has written, in a tree of several processes."""
    return [place for place in [folder / f"ocdbt.process_{process}"] if place.is_dir()]


def read(folder: Path, abstract: Any) -> Any:
    """Read the tree in a folder.

    Args:
        abstract: shapes, dtypes and shardings to read onto; leaves without one stay on the host.
    """
    arguments = ocp.checkpoint_utils.construct_restore_args(abstract)
    return _handler().restore(folder, args=ocp.args.PyTreeRestore(abstract, restore_args=arguments))


def read_params(folder: Path, abstract: Params) -> Params:
    """`params` of the tree in a folder alone, on the default device."""
    place = SingleDeviceSharding(jax.devices()[0])
    wanted = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        {"params": abstract},
    )
    arguments = ocp.checkpoint_utils.construct_restore_args(wanted)
    part = ocp.args.PyTreeRestore(wanted, restore_args=arguments, partial_restore=True)
    params: Params = _handler().restore(folder, args=part)["params"]
    return params


def _handler() -> ocp.PyTreeCheckpointHandler:
    """Orbax handler without compression or array metadata files.

    What trains hardly shrinks, and compression would cost more than all else. For the metadata
    files processes wait for each other in ways of their own.
    """
    kinds = ocp.type_handlers
    registry = kinds.create_type_handler_registry(
        (np.ndarray, kinds.NumpyHandler(deepcopy_host_arrays=False)),
        (jax.Array, kinds.ArrayHandler(array_metadata_store=None)),
    )
    return ocp.PyTreeCheckpointHandler(use_compression=False, type_handler_registry=registry)

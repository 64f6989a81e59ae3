"""Checkpoints: a tree of arrays, such as a train state, and JSON values beside it.

A step is written beside its place and moved there when complete, so that a reader sees all
of it or nothing, and one torn by a crash is never restored. Orbax stays behind this module.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import jax
import orbax.checkpoint as ocp

from rlboost_jax.closing import Closing
from rlboost_jax.models.params import Params
from rlboost_jax.settings.errors import Mistake

Tree = TypeVar("Tree")  # a pytree of arrays


REASON_LETTERS = 120  # of an error


class CheckpointNotFound(Mistake, ValueError):
    """No complete checkpoint of that step exists."""


class CheckpointBroken(Mistake, ValueError):
    """A checkpoint that was complete cannot be read any more, or is of another model."""


class Checkpoints(Closing):
    """Checkpoints of one run in one folder. One thread saves; it is also the one that closes.

    Every save is heard of once: `on_durable` is called after its files are in place, or the
    next `save`, `wait` or `close` raises what went wrong.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        on_durable: Callable[[int], None] = lambda step: None,
    ) -> None:
        """Open the folder, and make it where missing.

        Args:
            keep: newest checkpoints left in the folder, the others are deleted.
            on_durable: called with the step, in step order, from a thread of its own.
        """
        self._manager = ocp.CheckpointManager(
            Path(folder).absolute(),
            options=ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=True),
        )
        self._on_durable = on_durable
        self._waiter = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: Future[None] | None = None

    def save(
        self,
        step: int,
        state: Any,
        extra: dict[str, Any],
        versions: Mapping[str, Params] | None = None,
    ) -> None:
        """Begin to save; returns once the arrays are copied to the host, and may be donated.

        A save that is still under way is waited for first.

        Args:
            step: greater than those saved before.
            state: a tree of arrays.
            extra: plain JSON values.
            versions: older parameters that go with it, by name, in host memory.

        Raises:
            ValueError: the step is not greater than the newest.
        """
        older = {"versions": ocp.args.StandardSave(dict(versions))} if versions else {}
        self.wait()
        newest = self.latest()
        if newest is not None and step <= newest:
            raise ValueError(f"checkpoint {step} would come after {newest}; steps only grow")
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state), extra=ocp.args.JsonSave(extra), **older
            ),
        )
        self._saving = self._waiter.submit(self._finish, step)

    def wait(self) -> None:
        """Block until what was saved is durable and `on_durable` has returned."""
        if self._saving is not None:
            saving, self._saving = self._saving, None
            saving.result()

    def latest(self) -> int | None:
        """Step of the newest complete checkpoint, None if there is none."""
        return self._manager.latest_step()

    def restore(self, step: int, abstract: Tree) -> tuple[Tree, dict[str, Any]]:
        """State and extra of a step.

        Args:
            abstract: shapes, dtypes and shardings to restore onto, such as
                `state.abstract_state`; the mesh may be another than the one that saved.

        Raises:
            CheckpointNotFound: no complete checkpoint of the step is in the folder.
            CheckpointBroken: its files are damaged, or of another model.
        """
        restored = self._restore(
            step, state=ocp.args.StandardRestore(abstract), extra=ocp.args.JsonRestore()
        )
        return restored["state"], restored["extra"]

    def restore_versions(self, step: int, abstract: dict[str, Params]) -> dict[str, Params]:
        """The older parameters that go with a step.

        Args:
            abstract: shapes, dtypes and shardings to restore onto, by name.

        Raises:
            CheckpointNotFound, CheckpointBroken
        """
        restored = self._restore(step, versions=ocp.args.StandardRestore(abstract))
        versions: dict[str, Params] = restored["versions"]
        return versions

    def close(self) -> None:
        """Wait for what was saved, then let go of the folder."""
        try:
            self.wait()
        finally:
            self._waiter.shutdown()
            self._manager.close()

    def _restore(self, step: int, **items: Any) -> Any:
        if step not in self._manager.all_steps():
            raise CheckpointNotFound(
                f"checkpoint {step} is not in {self._manager.directory}; "
                f"complete ones: {sorted(self._manager.all_steps())}"
            )
        with _legible(self._manager, step):
            return self._manager.restore(step, args=ocp.args.Composite(**items))

    def _finish(self, step: int) -> None:
        self._manager.wait_until_finished()
        self._on_durable(step)


def newest_step(folder: Path) -> int:
    """Of the complete checkpoints in a folder that may be another process's.

    Raises:
        CheckpointNotFound: there is none.
    """
    with _reading(folder) as manager:
        newest = manager.latest_step()
    if newest is None:
        raise CheckpointNotFound(
            f"no complete checkpoint is in {folder}; is it a run's, and begun?"
        )
    return int(newest)


def read_params(folder: Path, step: int, abstract: Params) -> Params:
    """The parameters of a step alone, on the default device; the folder is left as it is.

    Args:
        abstract: their shapes and dtypes.

    Raises:
        CheckpointNotFound: no complete checkpoint of the step is in the folder.
        CheckpointBroken: its files are damaged, or of another model.
    """
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    wanted = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        {"params": abstract},
    )
    arguments = ocp.checkpoint_utils.construct_restore_args(wanted)
    with _reading(folder) as manager:
        if step not in manager.all_steps():
            raise CheckpointNotFound(
                f"checkpoint {step} is not in {folder}; complete ones: "
                f"{sorted(manager.all_steps())}"
            )
        part = ocp.args.PyTreeRestore(wanted, restore_args=arguments, partial_restore=True)
        with _legible(manager, step):
            restored = manager.restore(step, args=ocp.args.Composite(state=part))
    params: Params = restored["state"]["params"]
    return params


@contextlib.contextmanager
def _legible(manager: ocp.CheckpointManager, step: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # Orbax's and tensorstore's, of many kinds
        reason = " ".join(str(error).split())[:REASON_LETTERS]
        raise CheckpointBroken(
            f"checkpoint {step} in {manager.directory} cannot be read; complete ones are "
            f"{sorted(manager.all_steps())}, take another or remove the newest: {reason}"
        ) from error


def _reading(folder: Path) -> ocp.CheckpointManager:
    if not folder.is_dir():
        raise CheckpointNotFound(f"{folder} does not exist; give the workdir of a run")
    return ocp.CheckpointManager(
        folder.absolute(), options=ocp.CheckpointManagerOptions(read_only=True)
    )

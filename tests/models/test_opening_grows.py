"""What it takes to open checkpoints grows with their tensors, and not with the square of these.

Counted, not timed: calls of functions, and entries of each table of names that is made.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from safetensors.numpy import save_file

from rlboost_jax.learner.checkpoints import leaf_digests
from rlboost_jax.models.checkpoint_reader import weights_digest
from rlboost_jax.platform import at_rest
from rlboost_jax.settings.huggingface.tensor_files import INDEX, SINGLE, TensorFiles

FEW, MANY = 100, 400
ONE = np.ones(2, np.float32)


class Counter:
    """Counts calls while it is on, and what safetensors is asked to list."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, plain = 0, safetensors.safe_open

        def opened(*given: Any, **more: Any) -> "Handle":
            return Handle(plain(*given, **more))

        class Handle:
            def __init__(self, handle: Any) -> None:
                self._handle = handle

            def __enter__(self) -> "Handle":
                self._handle.__enter__()
                return self

            def __exit__(self, *error: Any) -> None:
                self._handle.__exit__(*error)

            def keys(handle) -> list[str]:
                names: list[str] = list(handle._handle.keys())
                self.count += len(names)
                return names

            def get_slice(self, name: str) -> Any:
                return self._handle.get_slice(name)

        monkeypatch.setattr(safetensors, "safe_open", opened)

    def of(self, call: Callable[[], object]) -> int:
        def count(frame: Any, event: str, argument: Any) -> None:
            self.count += event in ("call", "c_call")

        self.count = 0
        sys.setprofile(count)
        try:
            call()
        finally:
            sys.setprofile(None)
        return self.count


def single(folder: Path, names: list[str]) -> Callable[[], object]:
    save_file(dict.fromkeys(names, ONE), folder / SINGLE)
    return lambda: (TensorFiles(folder).close(), weights_digest(folder))


def sharded(folder: Path, names: list[str]) -> Callable[[], object]:
    placed = {name: f"part-{index % 4}.safetensors" for index, name in enumerate(names)}
    for file in set(placed.values()):
        save_file({name: ONE for name in names if placed[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"weight_map": placed}))
    return lambda: (TensorFiles(folder).close(), weights_digest(folder))


def leaves(folder: Path, names: list[str]) -> Callable[[], object]:
    """Digests of a tree, made and compared as a checkpoint of ours is opened."""
    tree = dict.fromkeys(names, ONE)
    return lambda: leaf_digests.differing(tree, leaf_digests.parts_of(tree)())


def files(folder: Path, names: list[str]) -> Callable[[], object]:
    """Digests of the files of a folder."""
    for name in names:
        (folder / name).touch()
    (folder / at_rest.FILE).write_bytes(at_rest.describe(folder, {}))

    def opened() -> object:
        said = at_rest.described(folder)
        assert said is not None and len(said["files"]) == len(names)
        return list(at_rest.faults(folder, said["files"])), list(
            at_rest.strangers(folder, said["files"])
        )

    return opened


@pytest.mark.parametrize("made", [single, sharded, leaves, files])
def test_four_times_as_many_tensors_take_four_times_as_much(made, tmp_path, monkeypatch):
    counter, counts = Counter(monkeypatch), []
    for number in (0, FEW, MANY):
        folder = tmp_path / str(number)
        folder.mkdir()
        opened = made(folder, [f"model.layers.{index}.w" for index in range(max(1, number))])
        opened()  # what is imported late
        counts.append(counter.of(opened))
    none, few, many = counts
    assert 0 < many - none < 1.1 * MANY / FEW * (few - none)

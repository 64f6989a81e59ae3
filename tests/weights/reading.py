"""The arrays of a version, read from its folder."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from rlboost_jax.messages import PieceList
from rlboost_jax.weights.leaf_arrays import open_params


def read_params(folder: Path, pieces: PieceList) -> Any:
    return jax.tree.map(np.asarray, open_params(folder, pieces))

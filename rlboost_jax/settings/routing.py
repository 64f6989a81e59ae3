"""What a run records of each token's way through its experts, and what that costs in bytes.

The *route* of a position is the experts that its token was sent to as an input: so many of each
layer, the most probable first. The token after it was sampled from what came of that, so a
response of R tokens to a prompt of P has P + R - 1 routes: its last token is no input.

Source: Ma et al. 2025, arXiv:2510.11370, section 3 (rollout routing replay).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.settings.algorithm_config import AlgorithmConfig
from rlboost_jax.settings.model_config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Shape of the experts' choices at one position, as they are recorded."""

    num_layers: int
    num_experts: int  # of a layer
    experts_per_token: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_layers, self.experts_per_token

    @property
    def dtype(self) -> str:
        """Smallest little-endian type that holds the id of an expert."""
        return "<u1" if self.num_experts <= 2**8 else "<u2"

    @property
    def route_bytes(self) -> int:
        """Bytes per position: 384 for the 48 layers and 8 experts of Qwen3-30B-A3B."""
        return self.num_layers * self.experts_per_token * np.dtype(self.dtype).itemsize

    def pack(self, routes: NDArray[np.unsignedinteger]) -> bytes:
        return np.asarray(routes, self.dtype).tobytes()

    def unpack(self, data: bytes) -> NDArray[np.unsignedinteger]:
        """Decode to [positions, layers, experts]. Raises ValueError where bytes are left over."""
        return np.frombuffer(data, self.dtype).reshape(-1, *self.shape)


def routing_of(model: ModelConfig, algorithm: AlgorithmConfig) -> Routing | None:
    """Return the shape of recorded routes, None where nothing is recorded."""
    if not (model.num_experts and algorithm.routing_replay):
        return None
    return Routing(
        num_layers=model.num_layers,
        num_experts=model.num_experts,
        experts_per_token=model.experts_per_token,
    )

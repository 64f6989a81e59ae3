"""`transformers` on torch, with its fused attention and a cache that grows."""

from pathlib import Path

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from benchmarks import hugging_face


class Peer:
    """A model that continues prompts greedily; see `__main__.py`."""

    note = ""

    def __init__(self, folder: Path, *, dtype: str, threads: int, batch: int, tokens: int) -> None:
        torch.set_num_threads(threads)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            attn_implementation="sdpa",
            trust_remote_code=False,
        ).eval()

    def generate(self, prompts: NDArray[np.int32], num_tokens: int) -> NDArray[np.int64]:
        """Their continuations: [B, P] to [B, num_tokens]."""
        return hugging_face.generate(self._model, prompts.astype(np.int64), num_tokens)

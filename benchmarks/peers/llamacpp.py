"""llama.cpp by `llama-cpp-python`, on a GGUF file in float32 with keys and values in float32."""

import ctypes
from pathlib import Path

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.float32_gguf import FILE

_FLOAT32 = 0  # GGML_TYPE_F32
_PREFILL_TOKENS = 512  # at once


class Peer:
    """A model that continues prompts greedily; see `__main__.py`."""

    note = ""

    def __init__(self, folder: Path, *, dtype: str, threads: int, batch: int, tokens: int) -> None:
        """Load `FILE` of the folder, which `float32_gguf.py` makes.

        Raises:
            NotImplementedError: another type than float32 is asked for, or there is no such file.
            RuntimeError: llama.cpp does not take the file, or has no memory for the context.
        """
        path = folder / FILE
        if dtype != "float32" or not path.exists():
            raise NotImplementedError(f"it is compared in float32 and needs {path}")
        llama_cpp.llama_backend_init()
        settings = llama_cpp.llama_model_default_params()
        settings.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), settings)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = batch * 256 * -(-tokens // 256)
        options.n_batch = options.n_ubatch = self._most = max(_PREFILL_TOKENS, batch)
        options.n_seq_max, options.n_threads, options.n_threads_batch = batch, threads, threads
        options.type_k = options.type_v = _FLOAT32
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        if not self._context:
            raise RuntimeError(f"llama.cpp has no context for {batch} sequences of {tokens} tokens")
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._batch = llama_cpp.llama_batch_init(self._most, 0, 1)

    def generate(self, prompts: NDArray[np.int32], num_tokens: int) -> NDArray[np.int32]:
        """Continue prompts greedily: token ids [B, P] to [B, num_tokens]."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        count, width = prompts.shape
        newest = np.zeros(count, np.int32)
        known = [(s, i) for s in range(count) for i in range(width)]
        for start in range(0, len(known), self._most):
            part = known[start : start + self._most]
            rows = [(s, i, int(prompts[s, i]), i == width - 1) for s, i in part]
            newest = self._step(rows, newest)
        found = [newest]
        for i in range(num_tokens - 1):
            rows = [(s, width + i, int(token), True) for s, token in enumerate(found[-1])]
            found.append(self._step(rows, newest))
        return np.stack(found, axis=1)

    def _step(
        self, rows: list[tuple[int, int, int, bool]], newest: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Run tokens and return the likeliest next token of each sequence that is asked for.

        Args:
            rows: sequence, position, token, and whether the next one is asked for.
            newest: of the other sequences.
        """
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (sequence, position, token, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        if code := llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {code}")
        newest = newest.copy()
        for i, (sequence, _, _, wanted) in enumerate(rows):
            if wanted:
                pointer = llama_cpp.llama_get_logits_ith(self._context, i)
                address = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))
                logits = np.ctypeslib.as_array(address, (self._vocab_size,))
                newest[sequence] = np.argmax(logits)
        return newest

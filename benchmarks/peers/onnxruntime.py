"""ONNX Runtime GenAI: a graph of its own model builder, attention over a buffer for all tokens."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime_genai as genai
from numpy.typing import NDArray

_MOST = 32  # sequences at once, by its own limit


class Peer:
    """A model that continues prompts greedily; see `__main__.py`."""

    def __init__(self, folder: Path, *, dtype: str, threads: int, batch: int, tokens: int) -> None:
        """Build the graph by the package's own tool, beside the checkpoint.

        Raises:
            NotImplementedError: it has no kernels of that type for CPU.
            RuntimeError: the tool failed; with what it said.
        """
        if dtype != "float32":
            raise NotImplementedError(f"its kernels for CPU do not take {dtype}")
        self.note = f"in batches of {_MOST}, its limit" if batch > _MOST else ""
        graph = folder.with_name(folder.name + "-onnx")
        if not graph.exists():
            _build(folder, graph)
        settings = json.loads((graph / "genai_config.json").read_text())
        settings["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
        (graph / "genai_config.json").write_text(json.dumps(settings))
        self._model = genai.Model(str(graph))

    def generate(self, prompts: NDArray[np.int32], num_tokens: int) -> NDArray[np.int32]:
        """Their continuations: [B, P] to [B, num_tokens]."""
        parts = np.split(prompts, range(_MOST, len(prompts), _MOST))
        return np.concatenate([self._generate(part, num_tokens) for part in parts])

    def _generate(self, prompts: NDArray[np.int32], num_tokens: int) -> NDArray[np.int32]:
        count, width = prompts.shape
        options = genai.GeneratorParams(self._model)
        options.set_search_options(do_sample=False, max_length=width + num_tokens, batch_size=count)
        generator = genai.Generator(self._model, options)
        generator.append_tokens(prompts)
        while not generator.is_done():
            generator.generate_next_token()
        return np.array([generator.get_sequence(i)[width:] for i in range(count)])


def _build(folder: Path, graph: Path) -> None:
    unfinished = graph.with_name(graph.name + ".partial")
    options = ("-i", folder, "-o", unfinished, "-p", "fp32", "-e", "cpu", "-c", folder / "cache")
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"onnxruntime_genai.models.builder failed:\n{done.stderr[-2000:]}")
    unfinished.rename(graph)

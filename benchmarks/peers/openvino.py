"""OpenVINO GenAI's continuous batching, on a graph traced from transformers' model.

Optimum, which usually makes such graphs, wants an older transformers. What the pipeline asks of
one is little: inputs of these names, and keys and values as states that `beam_idx` picks from; it
then puts its own paged attention in the place of torch's.
"""

from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai
import torch
import transformers
from numpy.typing import NDArray
from openvino import opset13 as ops
from openvino._offline_transformations import apply_make_stateful_transformation

from benchmarks.peers.checkpoint import END

_INPUTS = ("input_ids", "attention_mask", "position_ids")


class Peer:
    """A model that continues prompts greedily; see `__main__.py`."""

    note = ""

    def __init__(self, folder: Path, *, dtype: str, threads: int, batch: int, tokens: int) -> None:
        graph = folder.with_name(folder.name + "-openvino")
        if not graph.exists():
            _write_graph(folder, graph)
        precision = {"float32": "f32", "bfloat16": "bf16"}[dtype]
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_seqs = batch
        scheduler.max_num_batched_tokens = max(256, 64 * batch)  # all prompts of 64 in one step
        scheduler.num_kv_blocks = batch * (-(-tokens // 32) + 1)  # of 32 tokens
        scheduler.enable_prefix_caching = False
        self._pipeline = genai.ContinuousBatchingPipeline(
            str(graph),
            scheduler,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": precision,
                "KV_CACHE_PRECISION": precision,  # else 8 bits
                "INFERENCE_NUM_THREADS": threads,
            },
        )

    def generate(self, prompts: NDArray[np.int32], num_tokens: int) -> NDArray[np.int64]:
        """Their continuations: [B, P] to [B, num_tokens]."""
        config = genai.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.ignore_eos = num_tokens, False, True
        config.eos_token_id, config.stop_token_ids = END, {END}
        inputs = [openvino.Tensor(prompt[None].astype(np.int64)) for prompt in prompts]
        results = self._pipeline.generate(inputs, [config] * len(inputs))
        return np.array([result.m_generation_ids[0] for result in results])


class _Cache:
    """Keys and values as tensors that came in, and those that go out, for transformers' layers."""

    is_compileable = False

    def __init__(self, past: list[torch.Tensor]) -> None:
        self.past, self.present = past, list[torch.Tensor]()

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        past = self.past[2 * layer : 2 * layer + 2]
        both = [torch.cat(parts, dim=2) for parts in zip(past, (key, value), strict=True)]
        self.present += both
        return both[0], both[1]

    def get_seq_length(self, *_: Any) -> int:
        return self.past[0].shape[2]


class _Step(torch.nn.Module):
    """Tokens and what there is in the cache to logits and what there is then."""

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        past: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        cache, new, held = _Cache(past), input_ids.shape[1], attention_mask.shape[1]
        keys = torch.arange(held)[None, None, None, :]
        queries = torch.arange(new)[None, None, :, None] + (held - new)
        seen = (keys <= queries) & attention_mask[:, None, None, :].bool()
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
        out = self.model(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        return (out.logits, *cache.present)


def _write_graph(folder: Path, graph: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa", trust_remote_code=False
    ).eval()
    config, width = model.config, model.config.head_dim
    shape = (2, config.num_key_value_heads, 3, width)
    past = [torch.zeros(shape) for _ in range(2 * config.num_hidden_layers)]
    ids, mask = torch.zeros(2, 5, dtype=torch.int64), torch.ones(2, 8, dtype=torch.int64)
    positions = torch.arange(3, 8).repeat(2, 1)
    with torch.inference_mode():
        example = (ids, mask, positions, past)
        traced = openvino.convert_model(_Step(model), example_input=example)
    _hide_cache(traced, config.num_key_value_heads, width)
    graph.mkdir()
    openvino.save_model(traced, graph / "openvino_model.xml", compress_to_fp16=False)
    config.save_pretrained(graph)


def _hide_cache(model: openvino.Model, heads: int, width: int) -> None:
    """Make states of keys and values, each empty at first and read in the order of `beam_idx`."""
    inputs, outputs = model.inputs, model.outputs
    for port, name in zip(inputs, _INPUTS, strict=False):
        _name(port, name, [-1, -1])
    outputs[0].get_tensor().set_names({"logits"})
    order = ops.parameter(
        name="beam_idx", dtype=openvino.Type.i32, shape=openvino.PartialShape([-1])
    )
    order.output(0).get_tensor().add_names({"beam_idx"})
    states = {}
    for i, (port, present) in enumerate(zip(inputs[len(_INPUTS) :], outputs[1:], strict=True)):
        name = f"{i // 2}.{('key', 'value')[i % 2]}"
        readers = port.get_target_inputs()
        _name(port, f"past_key_values.{name}", [-1, heads, -1, width])
        present.get_tensor().set_names({f"present.{name}"})
        picked = ops.gather(port.get_node(), order, ops.constant(0))
        for reader in readers:
            reader.replace_source_output(picked.output(0))
        states[f"past_key_values.{name}"] = f"present.{name}"
    model.add_parameters([order])
    model.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(model, states)

    ids = ops.shape_of(model.input("input_ids").get_node(), output_type="i64")
    rows = ops.gather(ids, ops.constant([0]), ops.constant(0))
    rest = ops.constant(np.array([heads, 0, width], np.int64))
    empty = ops.broadcast(ops.constant(0.0, dtype=np.float32), ops.concat([rows, rest], axis=0))
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            node.set_arguments([empty.output(0)])
    model.validate_nodes_and_infer_types()


def _name(port: Any, name: str, shape: list[int]) -> None:
    port.get_tensor().set_names({name})
    port.get_node().set_friendly_name(name)
    port.get_node().set_partial_shape(openvino.PartialShape(shape))

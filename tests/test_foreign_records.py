"""A field that nobody knows, in each kind of record that others write.

It is used, refused by its name, or named in a warning or in an answer: what a reader returns,
raises or logs has the name. No reader of these: columns of rows, which settings choose by name;
records of typed clients (boto3, lightkube, SkyPilot); what a run writes for itself. Sessions of the
gateway, which need one, are asked in `gateway/test_gateway_app.py`.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from configs import tiny
from configs.sim import base as simulation
from rlboost_jax.data.conversations import conversation_in, fields_unread, tools_in
from rlboost_jax.environments.observations import checked_observation, checked_step
from rlboost_jax.environments.protocol import Step
from rlboost_jax.environments.tools import tool
from rlboost_jax.gateway.client_calls import chat_call, token_call
from rlboost_jax.providers.command import _job
from rlboost_jax.providers.price_command import prices, prices_in
from rlboost_jax.rewards.code import cases
from rlboost_jax.rewards.functions import _found
from rlboost_jax.rewards.http_rewards import RewardService, _found_in
from rlboost_jax.rewards.reward_frames import RewardJob, RewardResponse
from rlboost_jax.rollout.notices import aws_notices, azure_notices, metadata_server
from rlboost_jax.settings import foreign_keys
from rlboost_jax.settings.config_loading import run_config, run_config_from_dict, to_dict
from rlboost_jax.settings.huggingface.adapter_config import ADAPTER_CONFIG, adapter_fields
from rlboost_jax.settings.huggingface.config import from_huggingface
from rlboost_jax.settings.huggingface.generation import GENERATION, end_ids
from rlboost_jax.settings.huggingface.rope_scaling import _KNOWN as ROPE_TYPES
from rlboost_jax.settings.huggingface.tensor_files import INDEX, TensorFiles
from rlboost_jax.settings.rewards_config import RewardConfig
from rlboost_jax.settings.traces import read_trace
from rlboost_jax.simulator.market.availability import read_availability
from rlboost_jax.simulator.plan.price_list import EXAMPLE_FILE, read_prices
from rlboost_jax.simulator.sim_config_loading import sim_config
from tests.settings.test_huggingface import PUBLISHED

ODD = {"sparkle": 7}
USER = {"role": "user", "content": "2 + 2?"}
FUNCTION = {"name": "add", "description": "", "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
QWEN = PUBLISHED["Qwen3-8B"][1]
ORIGINAL = {"original_max_position_embeddings": 8192}
ROPE = {  # what a section of each type must have
    "default": {},
    "linear": {"factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL},
    "yarn": {"factor": 4.0, **ORIGINAL},
}
JOB = RewardJob(
    prompt="p",
    responses=(RewardResponse(completion="c", completion_ids=(1,), finished=True),),
    columns={},
)


def rope(kind: str, key: str) -> Callable[[Path], Any]:
    section = {"rope_type": kind, **ROPE[kind]}
    return lambda _: from_huggingface({**QWEN, key: {**section, **ODD}}, "config.json")


def written(name: str, value: Any, read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """A reader of a file; what it is given is the file's path."""

    def asked(folder: Path) -> Any:
        (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))
        return read(folder / name)

    return asked


def index_of_tensors(folder: Path) -> None:
    save_file({"model.norm.weight": np.ones(1, np.float32)}, folder / "a.safetensors")
    values = {"metadata": {}, "weight_map": {"model.norm.weight": "a.safetensors"}, **ODD}
    (folder / INDEX).write_text(json.dumps(values))
    TensorFiles(folder).close()


def settings(_: Path) -> Any:
    values = to_dict(run_config(tiny.get_config()))
    return run_config_from_dict({**values, "learner": {**values["learner"], **ODD}})


def settings_of_a_simulation(_: Path) -> Any:
    config = simulation.get_config()
    config.sparkle = 7
    return sim_config(config)


def prices_of_pools(_: Path) -> list[Any]:
    fleet = SimpleNamespace(
        pools=[SimpleNamespace(name="spot")],
        price_command="printf 'spot 1.5\\nsparkle 7\\n'",
        price_seconds=60.0,
    )

    async def first() -> Any:
        async with aclosing(prices(fleet)) as found:
            return await anext(found)

    return [asyncio.run(first())]


def in_price_list(table: str) -> Callable[[Path], Any]:
    text = EXAMPLE_FILE.read_text(encoding="utf-8")
    odd = text.replace(f"[[{table}]]", f"[[{table}]]\nsparkle = 7", 1) if table else text
    return written("prices.toml", odd if table else f"sparkle = 7\n{text}", read_prices)


def answer_of_a_service(_: Path) -> Any:
    service = RewardService(RewardConfig(name="http", options={"url": "http://127.0.0.1:9"}))
    try:
        return _found_in(json.dumps({"rewards": [1.0], **ODD}).encode(), JOB, service._report)
    finally:
        asyncio.run(service.close())


def from_the_cloud(values: Any, kind: type) -> Callable[[Path], Any]:
    answer = metadata_server.MetadataAnswer(status=200, text=json.dumps(values), headers={}, at=0.0)
    return lambda _: metadata_server.decode(answer, kind)


@tool
def add(x: int = 1) -> int:
    """Add to 1."""
    return 1 + x


EVENT = {"EventId": "e", "EventType": "Preempt", "Resources": ["vm"]}
READERS: dict[str, Callable[[Path], Any]] = {
    # a checkpoint's folder
    "config.json": lambda _: from_huggingface({**QWEN, **ODD}, "config.json"),
    **{f"rope_scaling {kind}": rope(kind, "rope_scaling") for kind in ROPE},
    **{f"rope_parameters {kind}": rope(kind, "rope_parameters") for kind in ROPE},
    "generation_config.json": written(GENERATION, ODD, lambda path: end_ids(path.parent)),
    "index of tensors": index_of_tensors,
    "adapter_config.json": written(
        ADAPTER_CONFIG,
        {"peft_type": "LORA", "r": 4, "lora_alpha": 8, **ODD},
        lambda path: adapter_fields(str(path.parent)),
    ),
    # rows
    "message": lambda _: conversation_in([{**USER, **ODD}], "m"),
    "message of ShareGPT": lambda _: conversation_in([{"from": "human", "value": "x", **ODD}], "m"),
    "message that no template reads": lambda _: fields_unread([{**USER, **ODD}], (), "{{ role }}"),
    "part of a message": lambda _: conversation_in(
        [{"role": "user", "content": [{"type": "text", "text": "x", **ODD}]}], "m"
    ),
    "call of a message": lambda _: conversation_in(
        [{"role": "assistant", "content": "", "tool_calls": [{**CALL, **ODD}]}, USER], "m"
    ),
    "arguments of a call": lambda _: conversation_in(
        [{"from": "function_call", "value": {"name": "add", "arguments": ODD}}, USER], "m"
    ),
    "tool": lambda _: tools_in([{"type": "function", "function": FUNCTION, **ODD}], "t"),
    "function of a tool": lambda _: tools_in([{**FUNCTION, **ODD}], "t"),
    # requests to the gateway
    "chat call": lambda _: chat_call({"messages": [USER], **ODD}),
    "its message": lambda _: chat_call({"messages": [{**USER, **ODD}]}),
    "its part": lambda _: chat_call(
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", **ODD}]}]}
    ),
    "its call": lambda _: chat_call(
        {"messages": [USER, {"role": "assistant", "tool_calls": [{**CALL, **ODD}]}, USER]}
    ),
    "its tool": lambda _: chat_call(
        {"messages": [USER], "tools": [{"type": "function", "function": {**FUNCTION, **ODD}}]}
    ),
    "its stream options": lambda _: chat_call(
        {"messages": [USER], "stream": True, "stream_options": ODD}
    ),
    "token call": lambda _: token_call({"token_ids": [1], **ODD}),
    "its sampling": lambda _: token_call({"token_ids": [1], "sampling_params": ODD}),
    # environments and rewards
    "arguments of a tool": lambda _: add.run(ODD, "key"),
    "message of an environment": lambda _: checked_observation([{**USER, **ODD}], first=True),
    "call of its message": lambda _: checked_observation(
        [{"role": "assistant", "content": "", "tool_calls": [{**CALL, **ODD}]}], first=True
    ),
    "metrics of a step": lambda _: checked_step(Step(observation="", reward=0.0, metrics=ODD)),
    "reward of a function": lambda _: _found(ODD, JOB),
    "test of a program": lambda _: cases([{"input": "1", "output": "2", **ODD}]),
    "tests of a program": lambda _: cases({"inputs": ["1"], "outputs": ["2"], **ODD}),
    "answer of a service": answer_of_a_service,
    # fleets and their prices
    "fleet.price_command": prices_of_pools,
    "line of prices": lambda _: prices_in("spot 1.5 sparkle"),
    "prices in JSON": lambda _: prices_in(json.dumps({"spot": ODD})),
    "fleet.command.list": lambda _: _job("run name nonce sparkle"),
    "reason of a job": lambda _: _job("run name nonce running sparkle"),
    "AWS: action": from_the_cloud({"action": "stop", "time": "t", **ODD}, aws_notices.Action),
    "AWS: rebalance": from_the_cloud({"noticeTime": "t", **ODD}, aws_notices.Rebalance),
    "Azure: document": from_the_cloud(
        {"DocumentIncarnation": 1, "Events": [EVENT], **ODD}, azure_notices.ScheduledEvents
    ),
    "Azure: event": from_the_cloud(
        {"DocumentIncarnation": 1, "Events": [{**EVENT, **ODD}]}, azure_notices.ScheduledEvents
    ),
    # files of settings, prices and traces
    "settings": settings,
    "settings of a simulation": settings_of_a_simulation,
    **{f"price list {name}": in_price_list(name) for name in ("", "instances", "reserved")},
    "fleet.trace": written("t.csv", "0,add,a,sparkle\n", read_trace),
    "trace of counts": written(
        "t.csv", "0,1,sparkle,x\n", lambda p: read_availability(p, "parcae")
    ),
    "trace by date": written(
        "t.csv", "2024-01-01, 00:00:00, 1, sparkle\n", lambda p: read_availability(p, "gcp")
    ),
    "trace in JSON": written(
        "t.json", {"metadata": {"gap_seconds": 60}, "data": [1], **ODD}, read_availability
    ),
    "its metadata": written(
        "t.json", {"metadata": {"gap_seconds": 60, **ODD}, "data": [1]}, read_availability
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_it_is_used_or_refused_or_named(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign_keys.warn_once.cache_clear()
    monkeypatch.setattr(metadata_server, "_TOLD", set())
    with caplog.at_level(logging.WARNING):
        try:
            said = repr(READERS[name](tmp_path))
        except Exception as error:  # whichever a reader refuses with
            assert not isinstance(error, AssertionError | AttributeError | NameError)
            said = f"{type(error).__name__}: {error}"
    assert "sparkle" in f"{said}\n{caplog.text}"


def test_each_type_of_rope_section_is_asked() -> None:
    assert ROPE.keys() == ROPE_TYPES.keys()


def test_a_cloud_that_says_ever_more_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Its metadata is asked every second; keys of any number and length are one short line."""
    metadata_server._TOLD.clear()
    foreign_keys.warn_once.cache_clear()
    for number in range(3):
        more = {f"{number}-{key}-{'x' * 500}": 1 for key in range(100)}
        from_the_cloud({"noticeTime": "t", **more}, aws_notices.Rebalance)(Path())
    (record,) = caplog.records
    assert record.getMessage().endswith(" and 80 more") and len(record.getMessage()) < 2000
    metadata_server._TOLD.clear()


def test_what_azure_says_and_nobody_needs_is_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    """An event as its documentation shows it."""
    event = {
        **{**EVENT, "EventStatus": "Scheduled", "ResourceType": "VirtualMachine"},
        **{"NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT", "Description": "Host update"},
        **{"EventSource": "Platform", "DurationInSeconds": -1},
    }
    from_the_cloud({"DocumentIncarnation": 1, "Events": [event]}, azure_notices.ScheduledEvents)(
        Path()
    )
    assert not caplog.records

"""What servers receive: enough for the same engine, and nothing of data, rewards and money."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from ml_collections import ConfigDict

from configs import (
    llama32_1b_lora,
    quickstart,
    qwen3_8b_openr1,
    qwen3_30b_a3b_moe,
    qwen25_05b_gsm8k,
    tiny,
)
from rlboost_jax.settings.changes import differences
from rlboost_jax.settings.config_loading import run_config_from_dict, to_dict
from rlboost_jax.settings.distillation_config import DistillationConfig, TeacherConfig
from rlboost_jax.settings.for_servers import for_servers, sent_to_servers
from rlboost_jax.settings.validation.run_checks import check

SECRET = "sk-judge-0123"
FILES = (
    *(llama32_1b_lora, quickstart, qwen25_05b_gsm8k, qwen3_8b_openr1, qwen3_30b_a3b_moe, tiny),
)


def every_way(get_config: Callable[[], ConfigDict]) -> ConfigDict:
    """Add to a configuration all that must not leave the manager's host."""
    config = get_config()
    config.model.source = ""  # nothing is fetched here
    config.engine.tensor_parallel = 1
    if config.task.name == "dataset":
        config.data.source = f"/home/{SECRET}.jsonl"
        config.data.tokenizer = "bytes"
        config.data.system_prompt = SECRET
        config.rewards.functions = (
            {"name": "http", "options": {"url": "http://judge", "api_key": SECRET}},
        )
    config.observe.wandb.entity = SECRET
    config.fleet.price_per_hour = 777.25
    config.fleet.orphan_seconds = 41.5
    config.fleet.notice_seconds = 12.5
    return config


@pytest.mark.parametrize("module", FILES, ids=lambda module: module.__name__)
def test_what_is_sent_is_that_and_names_no_setting_that_is_blank(module: object) -> None:
    """A setting that came with this release keeps no server of the one before away."""
    run = run_config_from_dict(every_way(module.get_config).to_dict())  # type: ignore[attr-defined]
    sent = json.loads(json.dumps(sent_to_servers(run)))
    assert run_config_from_dict(sent) == for_servers(run)
    assert sent["manager"] == {} and sent["checkpoint"] == {}
    assert sent["evaluation"] == {"every_steps": 0}
    assert sent.get("environment") != {}, "a section that servers of before do not know"
    assert "noise" not in sent["sampling"], "nor this setting, unless it is set"
    assert sent["fleet"]["provider"] == "none", "nor all providers"
    assert sent["fleet"].keys() <= {
        *("provider", "chaos", "orphan_seconds", "notices", "notice_signal", "notice_seconds"),
    }


def test_noise_that_is_not_the_usual_one_is_sent() -> None:
    config = tiny.get_config()
    config.sampling.noise = "tree"
    sent = sent_to_servers(run_config_from_dict(config.to_dict()))
    assert set(sent["weights"]) == {"rollout_dtype", "keep_versions", "source"}  # not newer ones
    assert sent["sampling"]["noise"] == "tree"


@pytest.mark.parametrize("module", FILES, ids=lambda module: module.__name__)
def test_nothing_but_what_an_engine_needs(module: object) -> None:
    run = run_config_from_dict(every_way(module.get_config).to_dict())  # type: ignore[attr-defined]
    served = run_config_from_dict(json.loads(json.dumps(to_dict(for_servers(run)))))
    check(served)
    text = json.dumps(to_dict(served))
    assert SECRET not in text and "777.25" not in text
    kept = {
        *("seed", "deterministic", "num_steps", "compile_cache_dir"),
        *("model", "algorithm", "sampling", "learner", "engine", "weights"),
        *("observe.profile_step", "fleet.orphan_seconds"),
        *("fleet.notices", "fleet.notice_signal", "fleet.notice_seconds"),
    }
    sections = {name.partition(".")[0] for name in kept if "." in name}
    for difference in differences(run, served):
        section, name = difference.name.partition(".")[0], difference.name
        assert name not in kept and (section not in kept or section in sections), name
    assert served.slot_tokens == run.slot_tokens


def test_servers_that_score_are_sent_what_a_teacher_is_and_not_where() -> None:
    config = every_way(tiny.get_config)
    config.fleet.max_instances = 2
    run = run_config_from_dict(config.to_dict())
    assert "distillation" not in sent_to_servers(run)
    teachers = tuple(
        TeacherConfig(source=SECRET, data=data, model=replace(run.model, source=SECRET))
        for data in ((SECRET,), ())
    )
    distillation = DistillationConfig(teachers=teachers, scored_by="servers", weight=0.5)
    sent = json.loads(json.dumps(sent_to_servers(replace(run, distillation=distillation))))
    assert SECRET not in json.dumps(sent)
    served = run_config_from_dict(sent)
    assert [each.model for each in served.distillation.teachers] == [run.model] * 2
    assert served.distillation.on_servers and served.distillation.weight == 1.0

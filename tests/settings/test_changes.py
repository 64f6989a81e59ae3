"""The settings of every step follow from the newest ones and the record of what was changed."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import tiny
from rlboost_jax.settings import config_loading
from rlboost_jax.settings.changes import (
    LAYOUT,
    Change,
    foreign,
    lines,
    next_change,
    recorded,
    settings_at,
)
from rlboost_jax.settings.rewards_config import RewardConfig
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.setting import settings_of

RUN = config_loading.run_config(tiny.get_config())
MAY_CHANGE = {each.name: each.may_change for each in settings_of(RunConfig)}


def with_rate(run: RunConfig, rate: float, kl: float = 0.0, servers: int = 3) -> RunConfig:
    return replace(
        run,
        learner=replace(run.learner, learning_rate=rate),
        algorithm=replace(run.algorithm, kl_coefficient=kl),
        fleet=replace(run.fleet, max_instances=servers),
    )


def rate(run: RunConfig) -> float:
    return run.learner.learning_rate


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("learner.learning_rate", "from its step"),
        ("algorithm.kl_coefficient", "from its step"),
        ("learner.guard_kl", "from its step"),
        ("learner.mesh", "from its step"),
        ("learner.pack_tokens", "from its step"),
        ("learner.moment_memory", "from its step"),
        ("engine.tensor_parallel", "never"),
        ("learner.attention", "never"),
        ("num_steps", "from its step"),
        ("evaluation.every_steps", "from its step"),
        ("evaluation.top_p", "never"),
        ("evaluation.top_k", "never"),
        ("fleet.price_per_hour", "at once"),
        ("fleet.chaos.kills_per_minute", "at once"),
        ("observe.wandb.name", "at once"),
        ("data.source", "at once"),
        ("model.source", "at once"),
        ("engine.num_pages", "at once"),
        ("seed", "never"),
        ("model.embed_dim", "never"),
        ("algorithm.group_size", "never"),
        ("sampling.temperature", "never"),
        ("engine.kv_dtype", "never"),
    ],
)
def test_each_setting_says_whether_it_may_change(name: str, may: str) -> None:
    assert MAY_CHANGE[name] == may


def test_what_never_changes_is_foreign() -> None:
    other = replace(with_rate(RUN, 1.0), seed=RUN.seed + 1)
    assert [each.name for each in foreign(RUN, other)] == ["seed"]


def test_steps_done_again_have_the_settings_that_they_had() -> None:
    second, third = with_rate(RUN, 1e-3, servers=1), with_rate(RUN, 1e-4, kl=0.5, servers=2)
    changes = recorded((), RUN, second, step=4)
    changes = recorded(changes, second, third, step=7)
    at = [settings_at(third, changes, step) for step in (0, 3, 4, 6, 7, 9)]
    assert [rate(run) for run in at] == [3e-4, 3e-4, 1e-3, 1e-3, 1e-4, 1e-4]
    assert [run.algorithm.kl_coefficient for run in at] == [0, 0, 0, 0, 0.5, 0.5]
    assert {run.fleet.max_instances for run in at} == {2}, "the fleet's are the newest always"
    assert [next_change(changes, step) for step in (0, 3, 4, 6, 7)] == [4, 4, 7, 7, None]
    assert list(lines(changes, step=7)) == [
        "changed from step 7 on: algorithm.kl_coefficient 0.0 → 0.5",
        "changed from step 7 on: learner.learning_rate 0.001 → 0.0001",
        "changed from step 7 on: fleet.max_instances 1 → 2",
    ]


def test_a_change_that_is_taken_back_before_a_step_was_done_is_none() -> None:
    changes = recorded((), RUN, with_rate(RUN, 1e-3), step=4)
    assert recorded(changes, with_rate(RUN, 1e-3), RUN, step=4) == ()


def test_a_change_after_a_fallback_replaces_what_was_recorded_for_later() -> None:
    """It replaces changes of its own settings; others apply again at their steps."""
    second = with_rate(RUN, 1e-3, kl=0.5)
    changes = recorded((), RUN, second, step=8)
    third = with_rate(RUN, 1e-5, kl=0.5)
    changes = recorded(changes, second, third, step=5)
    assert [(each.step, each.name, each.before, each.value) for each in changes] == [
        (5, "learner.learning_rate", 3e-4, 1e-5),
        (8, "algorithm.kl_coefficient", 0.0, 0.5),
    ]


def test_what_a_run_begins_with_is_no_change() -> None:
    changes = recorded((), RUN, with_rate(RUN, 1e-3), step=8)
    second = with_rate(RUN, 1e-5)
    assert recorded(changes, with_rate(RUN, 1e-3), second, step=0) == ()


def on_mesh(run: RunConfig, *mesh: int) -> RunConfig:
    return replace(run, learner=replace(run.learner, mesh=mesh))


def test_a_mesh_that_is_taken_back_is_no_change_also_once_it_was_in_a_file() -> None:
    """JSON has no tuples."""
    there = recorded((), RUN, on_mesh(RUN, 1, 4, 1), step=4)
    assert list(lines(there, step=4)) == [
        "changed from step 4 on: learner.mesh (1, 1, 1) → (1, 4, 1)",
        "the state of step 4 has the bits that were saved; updates from there on may differ by "
        "rounding from those of the layout before",
    ]
    assert settings_at(on_mesh(RUN, 1, 4, 1), there, 3).learner.mesh == (1, 1, 1)
    read = msgspec.json.decode(msgspec.json.encode(there), type=tuple[Change, ...])
    for changes in (there, read):
        assert recorded(changes, on_mesh(RUN, 1, 4, 1), RUN, step=4) == ()


def test_what_cannot_be_had_again_holds_from_an_earlier_step() -> None:
    """The layout does; other changes apply again at their steps."""
    second = on_mesh(with_rate(RUN, 1e-3), 1, 4, 1)
    changes = recorded((), RUN, second, step=8)
    changes = recorded(changes, second, second, step=5, again=LAYOUT)
    assert [(each.step, each.name) for each in changes] == [
        (5, "learner.mesh"),
        (8, "learner.learning_rate"),
    ]
    assert settings_at(second, changes, 5) == on_mesh(RUN, 1, 4, 1)


@pytest.mark.parametrize("updates", [0, 8])
def test_a_layout_after_another_warm_up_is_recorded_of_step_0(updates: int) -> None:
    run = replace(RUN, warmup=replace(RUN.warmup, max_updates=updates))
    changes = recorded((), run, on_mesh(with_rate(run, 1e-3), 1, 4, 1), step=0)
    assert [(each.step, each.name) for each in changes] == [(0, "learner.mesh")] * bool(updates)


STARTS = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(0, 5), st.sampled_from([1e-3, 2e-3]), st.integers(1, 3)
    ),
    max_size=8,
)


@settings(max_examples=40)
@given(STARTS)
def test_the_record_agrees_with_a_list_of_every_step(starts: list[tuple[int, ...]]) -> None:
    """Each start falls back some steps, changes, and does some."""
    rates = [rate(RUN)] * 40  # of all steps, those to come too
    run, changes, done = RUN, (), 0
    for back, ahead, new_rate, servers in starts:
        first, new = max(0, done - back), with_rate(RUN, new_rate, servers=servers)
        changed = rate(new) != rate(run)
        if changed:
            rates[first:] = [new_rate] * (40 - first)
        changes = recorded(changes, run, new, step=first)
        run, done = new, first + ahead
    assert [rate(settings_at(run, changes, step)) for step in range(40)] == rates


def test_changes_and_origin_are_kept_with_the_configuration(tmp_path) -> None:
    change = Change(step=3, name="learner.learning_rate", before=1.0, value=2.0)
    origin = config_loading.Origin(workdir="/runs/a", run_id="f00d", step=3)
    config_loading.write_run_config(tmp_path, RUN, "cafe", changes=[change], fork=origin)
    assert config_loading.read_run_config(tmp_path) == RUN
    assert config_loading.read_changes(tmp_path) == (change,)
    assert config_loading.read_origin(tmp_path) == origin
    config_loading.write_run_config(tmp_path, RUN, "cafe")
    assert (
        config_loading.read_changes(tmp_path) == () and config_loading.read_origin(tmp_path) is None
    )


def test_another_reward_reads_as_a_configuration_has_it() -> None:
    """One that a run which has begun cannot have: only what was set, and no record of ours."""
    before, now = (
        replace(RUN, rewards=replace(RUN.rewards, functions=functions))
        for functions in (
            (RewardConfig(name="exact"), RewardConfig(name="format", weight=0.1)),
            (RewardConfig(name="mine:right", options={"limit": 3}),),
        )
    )
    (difference,) = foreign(before, now)
    assert str(difference) == (
        "rewards.functions: ({'name': 'exact'}, {'name': 'format', 'weight': 0.1}) → "
        "({'name': 'mine:right', 'options': {'limit': 3}},)"
    )
    (difference,) = foreign(RUN, replace(RUN, seed=5))
    assert str(difference) == "seed: 0 → 5"

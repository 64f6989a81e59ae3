"""Each setting stands once, and says what it is."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, get_args

import pytest

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.algorithm_config import AlgorithmName
from rlboost_jax.settings.data_config import DataPreset, TaskName
from rlboost_jax.settings.data_presets import DATA_PRESETS
from rlboost_jax.settings.explain import document, explain
from rlboost_jax.settings.presets import PRESETS
from rlboost_jax.settings.ranges import objection_to, out_of_range
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.setting import FROM_PRESET, Setting, setting, settings_of
from rlboost_jax.settings.task_sizes import DATASET, ENVIRONMENT, TASK_SIZES

ROOT = Path(__file__).resolve().parents[2]
ALL = {setting.name: setting for setting in settings_of(RunConfig)}


@dataclass(frozen=True, kw_only=True)
class Inner:
    wait_seconds: float = setting(2.5, "waits", above=0, at_most=9)


@dataclass(frozen=True, kw_only=True)
class Outer:
    kind: Literal["a", "b"] = setting(FROM_PRESET, "which")
    inner: Inner
    count: int = setting(3, "how many", unit="pieces", at_least=0, note="None is fine.")


def test_a_field_says_all_there_is_to_know() -> None:
    assert list(settings_of(Outer)) == [
        Setting(
            name="kind",
            kind=Literal["a", "b"],
            default=FROM_PRESET,
            meaning="which",
            choices=("a", "b"),
        ),
        Setting(
            name="inner.wait_seconds",
            kind=float,
            default=2.5,
            meaning="waits",
            unit="s",
            above=0,
            at_most=9,
        ),
        Setting(
            name="count",
            kind=int,
            default=3,
            meaning="how many",
            unit="pieces",
            note="None is fine.",
            at_least=0,
        ),
    ]
    assert Inner() == Inner(wait_seconds=2.5)
    with pytest.raises(TypeError, match="kind"):
        Outer(inner=Inner())  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("kind", "c", "'c' does not exist; known: a, b"),
        ("kind", "a", ""),
        ("inner.wait_seconds", 0.0, "is 0.0; choose more than 0"),
        ("inner.wait_seconds", 9.5, "is 9.5; choose 9 or less"),
        ("inner.wait_seconds", float("nan"), "is nan; choose more than 0"),
        ("count", -1, "is -1; choose 0 or more"),
        ("count", 0, ""),
    ],
)
def test_what_cannot_be_is_named_with_its_limit(name: str, value: object, says: str) -> None:
    (found,) = [setting for setting in settings_of(Outer) if setting.name == name]
    assert objection_to(found, value) == says


def test_every_setting_means_something_and_its_default_is_allowed() -> None:
    for name, found in ALL.items():
        assert len(found.meaning) > 8 and not found.meaning.endswith("."), name
        assert not found.note or found.note.endswith("."), name
        if found.default is not FROM_PRESET:
            assert objection_to(found, found.default) == "", name


def test_choices_are_what_there_is() -> None:
    assert set(get_args(AlgorithmName)) == set(PRESETS)
    assert set(get_args(DataPreset)) == {"", *DATA_PRESETS}
    assert set(get_args(TaskName)) == {*TASK_SIZES, DATASET, ENVIRONMENT}


def test_the_page_of_settings_is_made_from_them() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    assert page == document(), "python -m rlboost_jax.settings.explain > docs/reference/settings.md"
    assert all(f"**`{name}`**" in page for name in ALL)


def test_one_setting_and_a_section_are_explained() -> None:
    said = explain("learner.remat")
    assert said.startswith("learner.remat\n")
    assert '"none" | "dots" | "attention" | "full"; default "none"' in said
    assert explain("fleet.chaos").count("\nfleet.chaos.") == 4
    with pytest.raises(ConfigError, match=r"did you mean learner\.remat\?"):
        explain("learner.rematt")
    with pytest.raises(ConfigError, match=r"no setting 'learner\.rema'"):
        explain("learner.rema")  # the beginning of a name is no section


def test_a_part_of_a_run_can_be_checked_alone() -> None:
    sampling = SimpleNamespace(
        temperature=0.0, top_p=1.5, top_k=0, max_response_tokens=1, noise="tree"
    )
    assert list(out_of_range(SimpleNamespace(sampling=sampling), "sampling.")) == [
        "sampling.temperature is 0.0; choose more than 0",
        "sampling.top_p is 1.5; choose 1 or less",
    ]

"""What is known of the teachers of `distillation.teachers` before their weights are read."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.distillation_config import TeacherConfig
from rlboost_jax.settings.huggingface.sources import WEIGHTS, source_fields, source_folder
from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.validation.run_checks import check_model

TEACHER_SOURCE: Final = "distillation.teachers: source"


def teacher_models(run: RunConfig) -> tuple[ModelConfig, ...]:
    """Read the architecture of each teacher from its config.json. Raises ConfigError."""
    return tuple(teacher_model(run, each) for each in run.distillation.teachers)


def trainers_teachers(run: RunConfig) -> tuple[ModelConfig, ...]:
    """The architecture of each teacher that the trainer's devices hold. Raises ConfigError."""
    return () if run.distillation.on_servers else teacher_models(run)


def with_models(run: RunConfig, *, weights: bool) -> RunConfig:
    """The run with the architecture of each teacher, where servers score: they know no source.

    Args:
        weights: see `source_fields`.

    Raises ConfigError.
    """
    if not run.distillation.on_servers:
        return run
    teachers = tuple(
        replace(each, model=teacher_model(run, each, weights=weights))
        for each in run.distillation.teachers
    )
    return replace(run, distillation=replace(run.distillation, teachers=teachers))


def teacher_model(run: RunConfig, teacher: TeacherConfig, *, weights: bool = False) -> ModelConfig:
    """Read the architecture of a teacher, in `model.dtype`.

    Args:
        weights: see `source_fields`.

    Raises:
        ConfigError: there is no such checkpoint, or it cannot teach this policy.
    """
    if teacher.model is not None:
        return teacher.model
    try:
        fields = source_fields(teacher.source, weights=weights)
    except ConfigError as error:
        raise error.under(TEACHER_SOURCE) from None
    model = ModelConfig(source=teacher.source, dtype=run.model.dtype, **fields)
    check_model(model)
    if model.vocab_size < run.model.vocab_size:
        raise ConfigError(
            f"distillation.teachers: {teacher.source!r} has {model.vocab_size:,} rows, the policy "
            f"{run.model.vocab_size:,} (model.vocab_size): it has no probability for the last "
            "tokens; take a teacher with the policy's vocabulary"
        )
    return model


def teacher_folder(source: str) -> Path:
    """Return the folder with a teacher's files. Raises ConfigError."""
    try:
        return source_folder(source, WEIGHTS)
    except ConfigError as error:
        raise error.under(TEACHER_SOURCE) from None

"""Before a learner starts on a GPU: which kernels it is to run.

As for engines (`engine_start.py`), "auto" becomes the fastest candidate that is right here, and in
a deterministic run the one that it has begun with. Without a GPU, and where "auto" needs no kernel,
"auto" stays as it is.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from rlboost_jax.platform.compile_cache import DEFAULT_FOLDER
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.qualification.kernel_choice import choose, described, objection
from rlboost_jax.qualification.trial_host import HERE, Host
from rlboost_jax.qualification.trial_records import KernelVerdict, ProblemName
from rlboost_jax.settings.run_config import RunConfig

Say = Callable[[str], None]


class KernelNotAvailable(Mistake, ValueError):
    """A deterministic run names a kernel for its learner that this device cannot run."""


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """A learner setting that names a kernel.

    Attributes:
        name: of the field of `LearnerConfig`.
        plain: what runs where no candidate is right; trusted when it is named.
        kernels: that a run has to have checked when it names one.
    """

    name: str
    problem: ProblemName
    plain: str
    kernels: tuple[str, ...]

    @property
    def what(self) -> str:
        return f"learner.{self.name}"


SETTINGS: Final = (
    _Setting(
        name="attention",
        problem="learner_attention",
        plain="chunked",
        kernels=("triton", "cudnn"),
    ),
    _Setting(
        name="experts",
        problem="learner_experts",
        plain="blocks",
        kernels=("mosaic_gpu",),
    ),
)


def learner_run(
    run: RunConfig, begun: RunConfig | None, say: Say, *, host: Host = HERE
) -> RunConfig:
    """Return the run with the kernels that its learner is to have.

    Args:
        begun: what a deterministic run has begun with, if it has; it stays with that.
        say: is given a line for each choice.

    Raises:
        KernelNotAvailable: this device cannot run what a deterministic run has begun with.
    """
    for setting in SETTINGS:
        if _named(run, setting) == "auto" and begun is not None:
            run = _with(run, setting, _named(begun, setting))
        elif _named(run, setting) == "auto":
            run = _chosen(run, setting, say, host)
            continue
        _check(run, setting, say, host)
    return run


def verdicts_here(
    run: RunConfig, *, folder: Path | None, interpret: bool = False, host: Host = HERE
) -> Iterator[tuple[str, str, KernelVerdict]]:
    """Trials of all candidates for each setting that needs a kernel: the setting's name on the
    command line, its plain form, and what came of them.

    Args:
        folder: of kept verdicts; None neither reads nor keeps any.
        interpret: try them on a CPU, those for GPU step by step.
    """
    for setting in SETTINGS:
        if (shape := _shape(run, setting)) is not None:
            changed: dict[str, Any] = {"interpret": interpret}
            shape = msgspec.structs.replace(shape, **changed)
            verdict, _ = _verdict(run, setting, shape, folder=folder, on_cpu=interpret, host=host)
            yield setting.what, setting.plain, verdict


def folder_of(run: RunConfig) -> Path:
    """Folder in which verdicts are kept."""
    return Path(run.compile_cache_dir or DEFAULT_FOLDER).expanduser()


def _chosen(run: RunConfig, setting: _Setting, say: Say, host: Host) -> RunConfig:
    shape = _shape(run, setting) if host.gpu_expected() else None
    if shape is None:
        return run
    verdict, word = _verdict(run, setting, shape, folder=folder_of(run), host=host)
    if verdict.platform == "cpu":
        return run
    choice = choose(verdict, plain=setting.plain, steady=run.deterministic)
    say(f"{described(choice, setting.what)}; {word}")
    return _with(run, setting, choice.candidate)


def _check(run: RunConfig, setting: _Setting, say: Say, host: Host) -> None:
    """Check that the kernel a deterministic run names can run here; other runs are not checked."""
    named = _named(run, setting)
    if named not in setting.kernels or not run.deterministic or not host.gpu_expected():
        return
    shape = _shape(run, setting)
    if shape is None:
        return
    folder = folder_of(run)
    verdict, word = _verdict(run, setting, shape, folder=folder, wanted=named, host=host)
    if verdict.platform == "cpu":
        return  # `kernels.check` says so
    if reason := objection(verdict, named):
        raise KernelNotAvailable(
            f"{setting.what} of this deterministic run is {named!r}; on this "
            f"{verdict.device or 'device'} {reason}; take a device of the kind that the run began "
            f"on, or begin a run with --config.{setting.what}={setting.plain}"
        )
    say(f"{setting.what} on {verdict.device}: {named}, as the run has it; {word}")


def _shape(run: RunConfig, setting: _Setting) -> msgspec.Struct | None:
    from rlboost_jax.qualification import learner_attention, learner_experts  # for GPUs alone

    if setting.problem == "learner_experts":
        return learner_experts.shape_of(run)
    return learner_attention.shape_of(run)


def _verdict(
    run: RunConfig,
    setting: _Setting,
    shape: msgspec.Struct,
    *,
    folder: Path | None,
    wanted: str = "",
    on_cpu: bool = False,
    host: Host = HERE,
) -> tuple[KernelVerdict, str]:
    from rlboost_jax.qualification.trials import verdict_of

    return verdict_of(
        setting.problem,
        shape,
        invariant=run.deterministic,
        folder=folder,
        wanted=wanted,
        on_cpu=on_cpu,
        host=host,
    )


def _named(run: RunConfig, setting: _Setting) -> str:
    value: str = getattr(run.learner, setting.name)
    return value


def _with(run: RunConfig, setting: _Setting, value: str) -> RunConfig:
    changed: dict[str, Any] = {setting.name: value}
    return replace(run, learner=replace(run.learner, **changed))

"""Before anything starts on a GPU: which kernels it is to run.

For learners see `learner_start.py`. Of engines, `engine.attention = "auto"` becomes the fastest
candidate that is right here. Without a GPU it stays "auto": nothing is tried, no process is
started. To be called before this process asks JAX for its devices, see `child_process.py`.

In a deterministic run the choice is made once, at its first start, and is written into its
`config.json`: later starts and all servers run that one or not at all, since another would give
other bits. Otherwise everyone chooses for the device at hand, at every start.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

import msgspec

from rlboost_jax.engine.step_programs import AttentionNotAvailable
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.qualification import learner_start
from rlboost_jax.qualification.kernel_choice import choose, described, objection
from rlboost_jax.qualification.trial_host import HERE, Host
from rlboost_jax.qualification.trial_records import KernelVerdict, ProblemName
from rlboost_jax.settings.config_loading import read_run_config
from rlboost_jax.settings.engine_config import ATTENTION_FOR_GPU, EngineAttention
from rlboost_jax.settings.run_config import RunConfig

_WHAT: Final = "engine.attention"
_PROBLEM: Final[ProblemName] = "engine_attention"
_PLAIN: Final = "xla"  # that problem's

Say = Callable[[str], None]


def trainer_run(run: RunConfig, workdir: Path, say: Say, *, host: Host = HERE) -> RunConfig:
    """Return the run with the kernels that its trainer's learner and own engines are to have.

    Args:
        workdir: of the run, which may have begun; then a deterministic one keeps its choice.
        say: is given a line for each choice that says what was chosen, from what and why.
        host: that it is to run on.

    Raises:
        AttentionNotAvailable, KernelNotAvailable: this device cannot run what a deterministic run
            has begun with.
    """
    begun = _begun_with(workdir) if run.deterministic else None
    run = learner_start.learner_run(run, begun, say, host=host)
    if begun is not None:
        if run.engine.attention == "auto":
            run = _with(run, begun.engine.attention)
        return _checked(run, say, host)
    if run.engine.attention == "auto":
        return _chosen(run, say, host)
    return _checked(run, say, host)


def server_run(run: RunConfig, say: Say, *, host: Host = HERE) -> RunConfig:
    """Return the manager's run with the attention that this server is to have.

    Raises:
        AttentionNotAvailable: the run is deterministic and this device cannot run its choice.
    """
    if run.deterministic or run.engine.attention != "auto":
        return _checked(run, say, host)
    return _chosen(run, say, host)


def reader_run(run: RunConfig, say: Say, *, host: Host = HERE) -> RunConfig:
    """Return the run for engines whose bits need not equal any others'."""
    free = run.engine.attention in ("auto", *ATTENTION_FOR_GPU)
    return _chosen(_with(run, "auto"), say, host) if free else run


def published_run(run: RunConfig, own: RunConfig) -> RunConfig:
    """Return the run for `config.json`, for later starts and for servers.

    Args:
        own: what `trainer_run` made of `run`.
    """
    return own if run.deterministic else run


def verdict_here(
    run: RunConfig,
    *,
    folder: Path | None,
    wanted: str = "",
    interpret: bool = False,
    host: Host = HERE,
) -> tuple[KernelVerdict, str]:
    """Try all candidates at the run's sizes; return also where the verdict is kept.

    Args:
        folder: of kept verdicts; None neither reads nor keeps any.
        wanted: as in `verdict_of`.
        interpret: try them on a CPU, those for GPU step by step.
    """
    # Only who has a GPU pays for these.
    from rlboost_jax.qualification.engine_attention import shape_of
    from rlboost_jax.qualification.trials import verdict_of

    shape = msgspec.structs.replace(shape_of(run), interpret=interpret)
    return verdict_of(
        _PROBLEM,
        shape,
        invariant=run.deterministic,
        folder=folder,
        wanted=wanted,
        on_cpu=interpret,
        host=host,
    )


def _chosen(run: RunConfig, say: Say, host: Host) -> RunConfig:
    if not host.gpu_expected():
        return run
    verdict, word = verdict_here(run, folder=learner_start.folder_of(run), host=host)
    if verdict.platform == "cpu":
        return run
    choice = choose(verdict, plain=_PLAIN, steady=run.deterministic)
    say(f"{described(choice, _WHAT)}; {word}")
    return _with(run, choice.candidate)


def _checked(run: RunConfig, say: Say, host: Host) -> RunConfig:
    """Return the run unchanged, after checking the kernels it names where that is needed.

    The choice of a person for a run that is not deterministic is taken as it is.
    """
    named = run.engine.attention
    if named not in ATTENTION_FOR_GPU or not run.deterministic or not host.gpu_expected():
        return run
    folder = learner_start.folder_of(run)
    verdict, word = verdict_here(run, folder=folder, wanted=named, host=host)
    if verdict.platform == "cpu":
        return run  # the engine says so
    if reason := objection(verdict, named):
        raise AttentionNotAvailable(
            f"{_WHAT} of this deterministic run is {named!r}, which all its engines have to run; "
            f"on this {verdict.device or 'device'} {reason}; take a device of the kind that the "
            f"run began on, or begin a run with --config.{_WHAT}={_PLAIN}"
        )
    say(f"{_WHAT} on {verdict.device}: {named}, as the run has it; {word}")
    return run


def _begun_with(workdir: Path) -> RunConfig | None:
    """Read the run in a folder; None if none has begun there."""
    if not (workdir / "config.json").exists():
        return None
    try:
        return read_run_config(workdir)
    except ConfigError:
        return None  # `Workdir` says what is wrong with it


def _with(run: RunConfig, attention: str) -> RunConfig:
    return replace(run, engine=replace(run.engine, attention=cast(EngineAttention, attention)))

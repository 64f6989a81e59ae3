"""Environments as a kind of worker, on this host and on others."""

import msgspec

from rlboost_jax.environments import environment_frames
from rlboost_jax.environments.observations import checked_observation
from rlboost_jax.settings.environment_config import EnvironmentConfig
from rlboost_jax.trust.credentials import ENVIRONMENT
from rlboost_jax.workers.worker_kind import GRACE_SECONDS, RemoteProtocol, WorkerKind

FOLDER_OF_HOSTS = "environment_hosts"  # in a run's folder
ROUTE = "/environment"


def environment_kind(
    settings: EnvironmentConfig,
    *,
    sandbox_required: bool = True,
    grace_seconds: float = GRACE_SECONDS,
) -> WorkerKind:
    """The kind of worker that runs a run's environments.

    Args:
        sandbox_required: of tools that run code.
        grace_seconds: for a worker's answer, beside the time that a step may take.
    """
    setup = environment_frames.EnvironmentSetup(
        name=settings.name,
        options=dict(settings.options),
        time_limit_seconds=settings.time_limit_seconds,
        memory_mb=settings.memory_mb,
        isolation=settings.isolation,
        sandbox_required=sandbox_required,
    )
    return _kind(setup, settings.workers, grace_seconds)


def kind_of_setup(data: bytes) -> WorkerKind:
    """The kind of worker that a trainer asks another host for.

    Raises:
        ValueError: the frame is no first one.
    """
    setup = environment_frames.decode_to_worker(data)
    if not isinstance(setup, environment_frames.EnvironmentSetup):
        raise ValueError(f"{type(setup).__name__} before Setup")
    return _kind(setup, workers=1, grace_seconds=GRACE_SECONDS)


def _kind(
    setup: environment_frames.EnvironmentSetup, workers: int, grace_seconds: float
) -> WorkerKind:
    return WorkerKind(
        what="environment worker",
        module="rlboost_jax.environments.environment_worker",
        setup=setup,
        decode=environment_frames.decode_from_worker,
        session_of=lambda frame: int(frame.episode),
        closing=lambda number: environment_frames.CloseEpisode(episode=number),
        is_stuck=_is_stuck,
        setting="environment.name",
        imports=repr(setup.name),
        workers=workers,
        one_each=setup.isolation == "episode",
        answer_seconds=setup.time_limit_seconds + grace_seconds,
        remote=RemoteProtocol(
            host="environment host",
            setting="environment.listen",
            command="rlboost environments",
            folder=FOLDER_OF_HOSTS,
            route=ROUTE,
            role=ENVIRONMENT,
            setup=msgspec.structs.replace(setup, isolation="shared"),
            check=_check,
        ),
    )


def _is_stuck(frame: msgspec.Struct) -> bool:
    ends = environment_frames.Taken | environment_frames.StepFailed
    return isinstance(frame, ends) and frame.stuck


def _check(frame: msgspec.Struct) -> None:
    """Raise ValueError for an observation that no environment may give."""
    match frame:
        case environment_frames.Opened():
            checked_observation(frame.said.observation, first=True)
        case environment_frames.Taken():
            checked_observation(frame.said.observation, first=frame.anew)
        case _:
            pass

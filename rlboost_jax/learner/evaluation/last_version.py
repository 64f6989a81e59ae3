"""The evaluation of the last version, by itself, after all steps."""

from collections.abc import Callable
from functools import partial

from rlboost_jax import messages
from rlboost_jax.learner.evaluation.measurement import Measurement
from rlboost_jax.learner.session import Session
from rlboost_jax.learner.stream.stream_driver import drive_measurement
from rlboost_jax.models.params import Params
from rlboost_jax.sequences.identities import Batch, Version


def measure_last_version(
    session: Session,
    measurement: Measurement,
    *,
    params: Params,
    params_digest: str,
    waited: Callable[[messages.ToTrainer | None], None],
) -> messages.BatchReport:
    """Have held-out prompts answered with the last version, and check the answers.

    Args:
        params: of that version, on the devices.
        waited: called with what each wait has brought.

    Returns:
        What the manager counted meanwhile.
    """
    link, number = session.link, Batch(session.run.num_steps)
    (prompts, group_size), *_ = measurement.parts()
    if session.episodes is not None:
        session.episodes.begin(number, lambda work: measurement.prompt_of(work.prompt))
    link.begin_batch(
        messages.BeginBatch(
            batch=number,
            version=Version(number),
            params_digest=params_digest,
            seed=session.run.seed,
            group_size=group_size,
            sampling=measurement.sampling,
            prompts=prompts,
            turns=session.turns,
        )
    )
    for extension in measurement.extensions()[1:]:  # what groups leave over of each prompt
        link.extend_batch(extension)
    check = partial(session.learner.check, params, heldout=True)
    drive_measurement(
        measurement,
        link,
        number=number,
        check=session.followers.checking_heldout(check),
        waited=waited,
    )
    return link.trained(
        messages.BatchTrained(batch=number, train_wait_seconds=0.0, train_seconds=0.0)
    )

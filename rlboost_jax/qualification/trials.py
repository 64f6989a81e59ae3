"""Trials of one problem on the device at hand: in child processes, or as they were kept."""

from pathlib import Path

import msgspec

from rlboost_jax.qualification import cache, child_process
from rlboost_jax.qualification.kernel_choice import worth_another_trial, worth_keeping
from rlboost_jax.qualification.known_problems import problem_of
from rlboost_jax.qualification.trial_host import HERE, Host
from rlboost_jax.qualification.trial_records import KernelVerdict, ProblemName, Spec


def verdict_of(
    problem: ProblemName,
    shape: msgspec.Struct,
    *,
    invariant: bool,
    folder: Path | None,
    wanted: str = "",
    on_cpu: bool = False,
    host: Host = HERE,
) -> tuple[KernelVerdict, str]:
    """Try all candidates of a problem, or read a kept verdict; say where it is kept.

    Args:
        shape: the problem's own record.
        invariant: whether bits must be those of a case in all its variants.
        folder: of kept verdicts; None neither reads nor keeps any.
        wanted: a candidate that the run must have: where it is kept as failed, it is tried again.
        on_cpu: try them where there is no accelerator.
    """
    values = msgspec.to_builtins(shape)
    spec = Spec(
        problem=problem,
        shape=values,
        invariant=invariant,
        candidates=problem_of(problem, values).names,
        seconds=child_process.TRIAL_SECONDS,
        on_cpu=on_cpu,
    )
    facts = host.facts() if folder is not None else None
    if folder is None or facts is None:
        return host.verdict_of(spec), "not kept: the driver does not name the device"
    key = {"facts": dict(facts), "spec": msgspec.to_builtins(spec)}
    path = cache.place_of(folder, problem, key)
    kept = cache.kept(path, key, KernelVerdict)
    if kept is None:
        verdict = host.verdict_of(spec)
    elif worth_another_trial(kept, wanted):
        verdict = _with_trial_of(wanted, kept, spec, host)
    else:
        return kept, f"as kept in {path}"
    if not worth_keeping(verdict):
        return verdict, "not kept: the next start tries again"
    trouble = cache.keep(path, key, verdict)
    return verdict, f"not kept: {trouble}" if trouble else f"kept in {path}"


def _with_trial_of(candidate: str, kept: KernelVerdict, spec: Spec, host: Host) -> KernelVerdict:
    """Return a verdict with one candidate tried again."""
    again = host.verdict_of(msgspec.structs.replace(spec, candidates=(candidate,)))
    latest = {trial.candidate: trial for trial in (*kept.trials, *again.trials)}
    trials = tuple(latest[trial.candidate] for trial in kept.trials)
    return msgspec.structs.replace(kept, trials=trials)

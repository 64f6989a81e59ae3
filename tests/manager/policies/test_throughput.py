"""The plateau batch of a machine whose throughput curve is known."""

from rlboost_jax.manager.policies.throughput import ThroughputProfile


def throughput(batch: int) -> float:
    """Tokens a second: linear up to 16 rollouts, flat above."""
    return 100.0 * min(batch, 16)


def measured(batches: list[int], context: float = 50.0) -> ThroughputProfile:
    profile = ThroughputProfile()
    for batch in batches:
        for _ in range(4):
            tokens = batch * 8
            profile.add(
                "cpu",
                batch=batch,
                tokens=tokens,
                seconds=tokens / throughput(batch),
                context=context,
            )
    return profile


def test_smallest_batch_near_the_best_throughput() -> None:
    profile = measured([1, 2, 4, 8, 16, 32, 64])
    assert profile.plateau("cpu", context=50.0) == 0  # that of the previous step is asked
    profile.end_step()
    assert profile.plateau("cpu", context=50.0) == 16
    assert profile.plateau("gpu", context=50.0) == 0


def test_longer_contexts_level_off_earlier() -> None:
    profile = measured([1, 4, 16, 64])
    profile.end_step()
    assert profile.plateau("cpu", context=100.0) == 8
    assert profile.plateau("cpu", context=25.0) == 32
    assert profile.plateau("cpu", context=1e9) == 1


def test_nothing_is_said_after_too_few_samples() -> None:
    profile = measured([16])
    profile.add("cpu", batch=1, tokens=1, seconds=1.0, context=1.0)
    profile.end_step()
    assert profile.plateau("cpu", context=50.0) == 0


def test_a_step_without_samples_keeps_the_last_profile() -> None:
    profile = measured([1, 4, 16, 64])
    profile.end_step()
    profile.end_step()
    assert profile.plateau("cpu", context=50.0) == 16


def test_dispatches_that_say_nothing_are_passed_over() -> None:
    profile = ThroughputProfile()
    for _ in range(8):
        profile.add("cpu", batch=0, tokens=8, seconds=1.0, context=1.0)
        profile.add("cpu", batch=8, tokens=8, seconds=0.0, context=1.0)
        profile.add("cpu", batch=8, tokens=0, seconds=1.0, context=1.0)
    profile.end_step()
    assert profile.plateau("cpu", context=1.0) == 0

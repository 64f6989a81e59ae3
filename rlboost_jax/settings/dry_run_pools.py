"""What `--dry_run` says of pools."""

from rlboost_jax.settings.fleet_config import FleetConfig
from rlboost_jax.settings.pool_fleets import device_kinds


def pools_line(fleet: FleetConfig) -> str:
    """List the pools with provider, size and price."""
    return "; ".join(
        f"pool {pool.name}: {pool.provider}, at most {pool.max_instances} at "
        f"${pool.price_per_hour:.2f} an hour"
        + (f", {pool.device}" if pool.device else "")
        + (f" in {pool.zone}" if pool.zone else "")
        for pool in fleet.pools
    )


def kinds_line(fleet: FleetConfig, *, deterministic: bool) -> str:
    """Warn where pools name several kinds of devices, whose bits differ; else ""."""
    kinds = device_kinds(fleet)
    if len(kinds) < 2:
        return ""
    named = f"pools of {', '.join(kinds)}: kinds of devices differ in bits"
    if deterministic:
        return (
            f"{named}, so only servers of the learner's own kind will be let in; "
            "set deterministic to False for all of them"
        )
    return f"{named}; deterministic is False, so all of them may join"

"""Servers on EC2: one instance each, by a fleet of type "instant" for one, spot or on demand.

CreateFleet weighs price and spare capacity of all pools in one answer, where RunInstances would be
asked for one after the other. Both take a token with which asking again starts nothing twice.

A signal is the system's own shutdown: TerminateInstances has it end services as it goes down, and
with `SkipOsShutdown` it does not. An instance that goes down is not billed any more: it is over,
unless this launcher has given its server a grace.
"""

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rlboost_jax.providers.aws_calls import Aws, AwsFailed
from rlboost_jax.providers.base import ANY_POOL, Rendezvous
from rlboost_jax.providers.ec2_kept import NO_TEMPLATE, Ec2Kept
from rlboost_jax.providers.ec2_machine import (
    EXPIRES_TAG,
    NAME_TAG,
    NONCE_TAG,
    RUN_TAG,
    as_tags,
    from_tags,
)
from rlboost_jax.providers.launcher import Job, JobState, Kept, LaunchFailed
from rlboost_jax.settings.ec2_config import pools_of, tags_of
from rlboost_jax.settings.fleet_config import FleetConfig

SPOT: Final = {"AllocationStrategy": "price-capacity-optimized"}
ON_DEMAND: Final = {"AllocationStrategy": "lowest-price"}
# All others are of instances that are over. One that was stopped costs its disk, and never goes on.
STATES: Final[Mapping[str, JobState]] = {
    "pending": "waiting",
    "running": "running",
    **dict.fromkeys(("stopping", "stopped"), "waiting"),
}
PAGE: Final = 500  # instances; without a size EC2 gives up on long answers
LEAVES: Final = "shutting-down"
GONE: Final = "InvalidInstanceID.NotFound"


class Ec2Launcher:
    """Launcher of EC2 instances.

    Args:
        page: instances of an answer.

    Raises:
        ConfigError: boto3 is not installed, or no region is known.
    """

    def __init__(self, fleet: FleetConfig, rendezvous: Rendezvous, *, page: int = PAGE) -> None:
        self._ec2, self._run, self._page = fleet.ec2, rendezvous.run_id, page
        self._pools = pools_of(fleet.ec2)
        self.pools = tuple(self._pools)
        self._aws = Aws(fleet.ec2.region, fleet.ec2.timeout_seconds)
        self._keeps = Ec2Kept(self._aws, fleet, rendezvous)
        self._leaving: set[str] = set()  # ids of instances whose servers have a grace

    async def start(self, name: str, nonce: str, pool: str) -> None:
        ec2, run = self._ec2, self._run
        template = await self._keeps.template()
        spot = ec2.market == "spot"
        price = {"MaxPrice": f"{ec2.max_price:g}"} if spot and ec2.max_price else {}
        wanted = self._pools.values() if pool == ANY_POOL else (self._pools[pool],)
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=ec2.minutes)
        tags = {
            **tags_of(ec2),
            "Name": f"rlboost/{run}/{name}",
            **{RUN_TAG: run, NAME_TAG: name, NONCE_TAG: nonce},
            EXPIRES_TAG: end.strftime("%Y-%m-%dT%H:%MZ"),
        }
        try:
            answer = await self._aws.call(
                "ec2",
                "create_fleet",
                ClientToken=hashlib.sha256(f"{run} {nonce}".encode()).hexdigest(),
                Type="instant",
                LaunchTemplateConfigs=[
                    {
                        "LaunchTemplateSpecification": {
                            "LaunchTemplateName": template,
                            "Version": "$Default",
                        },
                        "Overrides": [{**each, **price} for each in wanted],
                    }
                ],
                TargetCapacitySpecification={
                    "TotalTargetCapacity": 1,
                    "DefaultTargetCapacityType": "spot" if spot else "on-demand",
                },
                TagSpecifications=[{"ResourceType": "instance", "Tags": as_tags(tags)}],
                **{"SpotOptions" if spot else "OnDemandOptions": SPOT if spot else ON_DEMAND},
            )
        except AwsFailed as error:
            if error.code in NO_TEMPLATE:  # somebody has removed it: the next start makes it
                self._keeps.forget()
            raise
        if not answer.get("Instances"):
            errors = answer.get("Errors", ())
            if any(each.get("ErrorCode") in NO_TEMPLATE for each in errors):
                self._keeps.forget()
            raise LaunchFailed(_refusal(errors), sure=True)

    async def stop(self, job: Job, grace_seconds: float) -> None:
        if grace_seconds > 0:
            self._leaving.add(job.handle)
        else:
            self._leaving.discard(job.handle)
        try:
            await self._aws.call(
                "ec2",
                "terminate_instances",
                InstanceIds=[job.handle],
                SkipOsShutdown=grace_seconds <= 0,
            )
        except AwsFailed as error:
            if error.code != GONE:
                raise

    async def list(self) -> Sequence[Job]:
        tagged = [{"Name": "tag-key", "Values": [RUN_TAG]}]
        pages = await self._aws.pages("ec2", "describe_instances", size=self._page, Filters=tagged)
        found = [
            each
            for page in pages
            for reservation in page["Reservations"]
            for each in reservation["Instances"]
        ]
        found.sort(key=lambda each: (each["LaunchTime"], each["InstanceId"]))
        jobs = [job for each in found if (job := self._job(each)) is not None]
        self._leaving &= {job.handle for job in jobs if job.state != "over"}
        return jobs

    async def kept(self) -> Sequence[Kept]:
        return await self._keeps.all()

    async def discard(self, kept: Kept) -> None:
        await self._keeps.discard(kept)

    def _job(self, found: Mapping[str, Any]) -> Job | None:
        """Job of an instance; None if its tags are not ours."""
        tags, handle = from_tags(found.get("Tags", [])), found["InstanceId"]
        run, name, nonce = (tags.get(each, "") for each in (RUN_TAG, NAME_TAG, NONCE_TAG))
        if not (run and name and nonce):
            return None
        state = found["State"]["Name"]
        leaves = state == LEAVES and handle in self._leaving
        why = found.get("StateReason", {})
        return Job(
            handle=handle,
            run=run,
            name=name,
            nonce=nonce,
            state="running" if leaves else STATES.get(state, "over"),
            reason=str(why.get("Message") or why.get("Code") or ""),
        )


def _refusal(errors: Sequence[Mapping[str, Any]]) -> str:
    """Line on each pool's reason, equal reasons joined."""
    pools: dict[str, list[str]] = {}
    for each in errors:
        said = each.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
        place = said.get("SubnetId") or said.get("AvailabilityZone")
        pool = "/".join(filter(None, (said.get("InstanceType"), place)))
        pools.setdefault(f"{each.get('ErrorCode')}: {each.get('ErrorMessage')}", []).append(pool)
    lines = (f"{', '.join(filter(None, named))}: {said}" for said, named in pools.items())
    return "; ".join(lines) or "EC2 started nothing, and did not say why"

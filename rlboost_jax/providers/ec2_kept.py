"""AWS resources of a run besides its instances: a launch template and a parameter.

The parameter holds the credentials of servers, encrypted (SSM, SecureString): a role
that may describe instances reads their user data, and only one that may read the parameter joins.
Neither costs anything.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any, Final

from rlboost_jax.providers.aws_calls import Aws, AwsFailed
from rlboost_jax.providers.base import Rendezvous
from rlboost_jax.providers.ec2_machine import (
    PREFIX,
    RUN_TAG,
    as_tags,
    from_tags,
    parameter_of,
    script_of,
    template_of,
)
from rlboost_jax.providers.launcher import Kept, LaunchFailed
from rlboost_jax.settings.ec2_config import tags_of
from rlboost_jax.settings.fleet_config import FleetConfig
from rlboost_jax.trust.credentials import packed

NO_TEMPLATE: Final = (
    "InvalidLaunchTemplateId.NotFound",
    "InvalidLaunchTemplateName.NotFoundException",
)
SAME_TEMPLATE: Final = "InvalidLaunchTemplateName.AlreadyExistsException"
TEMPLATE: Final = "launch template"
PARAMETER: Final = "parameter"


class Ec2Kept:
    def __init__(self, aws: Aws, fleet: FleetConfig, rendezvous: Rendezvous) -> None:
        self._aws, self._ec2, self._rendezvous = aws, fleet.ec2, rendezvous
        self._price = fleet.price_per_hour
        self._prepares = asyncio.Lock()
        self._template = self._credentials = ""  # name, and digest, of what exists

    async def template(self) -> str:
        """Name of the run's template, with up-to-date credentials in place.

        Raises LaunchFailed, which is `sure`.
        """
        async with self._prepares:
            await self._keep_credentials()
            await self._keep_template()
            return self._template

    def forget(self) -> None:
        """Forget the template, which no longer exists."""
        self._template = ""

    async def all(self) -> Sequence[Kept]:
        tagged = [{"Name": "tag-key", "Values": [RUN_TAG]}]
        named = [{"Key": "Name", "Option": "BeginsWith", "Values": [PREFIX]}]
        templates, parameters = await asyncio.gather(
            self._aws.pages("ec2", "describe_launch_templates", Filters=tagged),
            self._aws.pages("ssm", "describe_parameters", ParameterFilters=named),
        )
        return [
            *(
                Kept(handle=each["LaunchTemplateName"], run=run, what=TEMPLATE)
                for page in templates
                for each in page["LaunchTemplates"]
                if (run := from_tags(each["Tags"]).get(RUN_TAG))
            ),
            *(
                Kept(handle=name, run=name.removeprefix(PREFIX).rpartition("/")[0], what=PARAMETER)
                for page in parameters
                for each in page["Parameters"]
                if (name := each["Name"]).endswith("/join")
            ),
        ]

    async def discard(self, kept: Kept) -> None:
        try:
            if kept.what == PARAMETER:
                self._credentials = ""
                await self._aws.call("ssm", "delete_parameter", Name=kept.handle)
            else:
                self._template = ""
                await self._aws.call(
                    "ec2", "delete_launch_template", LaunchTemplateName=kept.handle
                )
        except AwsFailed as error:
            if error.code not in (*NO_TEMPLATE, "ParameterNotFound"):
                raise

    async def _keep_credentials(self) -> None:
        """Store the current credentials: a manager renews certificates as it starts."""
        join = self._rendezvous.join
        try:
            value = packed(join)
        except OSError as error:
            raise LaunchFailed(f"cannot read {join}: {error.strerror}", sure=True) from None
        digest = hashlib.sha256(value.encode()).hexdigest()
        if digest == self._credentials:
            return
        await self._before(
            "ssm",
            "put_parameter",
            Name=parameter_of(self._rendezvous.run_id),
            Description="rlboost: what lets rollout servers of a run in",
            Value=value,
            Type="SecureString",
            Tier="Intelligent-Tiering",
            Overwrite=True,
        )
        self._credentials = digest

    async def _keep_template(self) -> None:
        if self._template:
            return
        run, ec2 = self._rendezvous.run_id, self._ec2
        script = script_of(ec2, self._rendezvous, self._aws.region, self._price)
        name, data = template_of(ec2, run, script, await self._base())
        tags = as_tags({**tags_of(ec2), RUN_TAG: run})
        try:
            await self._before(
                "ec2",
                "create_launch_template",
                LaunchTemplateName=name,
                LaunchTemplateData=data,
                TagSpecifications=[{"ResourceType": "launch-template", "Tags": tags}],
            )
        except AwsFailed as error:
            if error.code != SAME_TEMPLATE:
                raise
        self._template = name

    async def _base(self) -> dict[str, Any]:
        """Data of the user's own template; {} if there is none."""
        name, _, version = self._ec2.launch_template.partition(":")
        if not name:
            return {}
        answer = await self._before(
            "ec2",
            "describe_launch_template_versions",
            **{"LaunchTemplateId" if name.startswith("lt-") else "LaunchTemplateName": name},
            Versions=[version or "$Default"],
        )
        (found,) = answer["LaunchTemplateVersions"]
        return self._aws.fitting("RequestLaunchTemplateData", found["LaunchTemplateData"])

    async def _before(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Make a call before the start: if it fails, nothing was started."""
        try:
            return await self._aws.call(service, operation, **arguments)
        except AwsFailed as error:
            raise AwsFailed(str(error), code=error.code, sure=True) from None

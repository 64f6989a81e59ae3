"""Launch template of a run's EC2 instances, and the script that they run.

The script is user data, which everybody who may describe instances can read. It names the parameter
with the credentials, and has none of them. One template serves all instances of a run: which one
it is an instance reads in its own tags.
"""

import base64
import hashlib
import json
import shlex
from collections.abc import Mapping
from typing import Any, Final

from rlboost_jax.providers.base import NONCE_VARIABLE, Rendezvous
from rlboost_jax.settings.ec2_config import Ec2Config, tags_of
from rlboost_jax.settings.launchers_config import names_of
from rlboost_jax.trust.credentials import JOIN_VARIABLE

RUN_TAG: Final = "rlboost:run"
NAME_TAG: Final = "rlboost:name"
NONCE_TAG: Final = "rlboost:nonce"
EXPIRES_TAG: Final = "rlboost:expires"  # when the instance ends itself, UTC
PREFIX: Final = "/rlboost/"  # of the names of parameters

# The first time it arms its own end and becomes a service, which the system stops ahead of the
# network, and whose end is the machine's. `$0` is cloud-init's copy, which root alone can read.
SCRIPT: Final = """\
#!/bin/sh -eu
# A rollout server of the rlboost run {run}.
if [ "${{1-}}" != server ]; then
    shutdown -P +{minutes}
    systemd-run --unit=rlboost --no-block \\
        --property=SyslogIdentifier=rlboost --property=StandardOutput=journal+console \\
        --property=KillMode=mixed --property=TimeoutStopSec=150 \\
        --property=After=network-online.target \\
        --property=ExecStopPost="/usr/bin/systemctl --no-block poweroff" \\
        /bin/sh -eu "$0" server || shutdown -P now
    exit
fi
imds="${{AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}}"
token=$(curl -fsS --retry 9 -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 300" \\
    "$imds/latest/api/token")
said() {{ curl -fsS --retry 9 -H "X-aws-ec2-metadata-token: $token" "$imds/latest/meta-data/$1"; }}
name=$(said tags/instance/{name_tag})
{nonce}=$(said tags/instance/{nonce_tag})
zone=$(said placement/availability-zone)/$(said instance-type)
export HOME="${{HOME-/root}}"
{setup}
{join}=$(aws ssm get-parameter --region={region} --name={parameter} --with-decryption \\
    --query=Parameter.Value --output=text)
export {nonce} {join}
exec {program} --manager={manager} --name="$name" --price={price:g} --zone="$zone" \\
    --notices=aws --notices_url="$imds"
"""


def parameter_of(run: str) -> str:
    """Name of the parameter with the credentials of a run."""
    return f"{PREFIX}{run}/join"


def script_of(ec2: Ec2Config, rendezvous: Rendezvous, region: str, price_per_hour: float) -> str:
    """Script that an instance runs as root, once, when it has booted."""
    return SCRIPT.format(
        run=rendezvous.run_id,
        minutes=ec2.minutes,
        name_tag=NAME_TAG,
        nonce_tag=NONCE_TAG,
        nonce=NONCE_VARIABLE,
        join=JOIN_VARIABLE,
        setup=ec2.setup,
        region=shlex.quote(region),
        parameter=shlex.quote(parameter_of(rendezvous.run_id)),
        program=shlex.join(shlex.split(ec2.program)),
        manager=shlex.quote(rendezvous.address),
        price=price_per_hour,
    )


def template_of(
    ec2: Ec2Config, run: str, script: str, base: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Name and data of a run's launch template. Another script or base has another name.

    Args:
        base: the user's own template, whose values stand where nothing else is said.
    """
    own: dict[str, Any] = {
        "ImageId": ec2.image,
        "KeyName": ec2.key,
        "IamInstanceProfile": _profile(ec2.profile),
        "SecurityGroupIds": list(names_of(ec2.security_groups)),
        "UserData": base64.b64encode(script.encode()).decode(),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            **base.get("MetadataOptions", {}),
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "InstanceMetadataTags": "enabled",
        },
        "TagSpecifications": [
            *(
                each
                for each in base.get("TagSpecifications", ())
                if each["ResourceType"] != "volume"
            ),
            {"ResourceType": "volume", "Tags": as_tags({**tags_of(ec2), RUN_TAG: run})},
        ],
    }
    data = {**base, **{key: value for key, value in own.items() if value}}
    # The request says how many are bought, as what, and of which type.
    for key in ("InstanceMarketOptions", "InstanceType", "InstanceRequirements"):
        data.pop(key, None)
    digest = hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode())
    return f"rlboost-{run}-{digest.hexdigest()[:12]}", data


def as_tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def from_tags(tags: list[dict[str, str]]) -> dict[str, str]:
    return {each["Key"]: each["Value"] for each in tags}


def _profile(profile: str) -> dict[str, str]:
    if not profile:
        return {}
    return {"Arn" if profile.startswith("arn:") else "Name": profile}

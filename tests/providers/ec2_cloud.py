"""EC2 and SSM of moto, whose instances are accompanied by processes that run their user data.

Of a machine there are: the script that it was given, run by a real shell with real curl; the
metadata server (IMDSv2, with its tags, and a notice where a test gives one); what ends it. In place
of programs of its system stand small scripts: `systemd-run` runs what it is given, `shutdown` and
`systemctl` note how they were called, `aws` asks moto for the parameter. When its last process has
ended, the instance has.
"""

import base64
import functools
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

REGION = "us-east-1"
ACCOUNT = "123456789012"
ZONE = "us-east-1a"
MISSING = "moto is not installed: pip install -e '.[dev]'"
IMDS_TOKEN = "token-of-imds"
LOOK_SECONDS = 0.01  # between two looks of a server whether it is closed
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "of-nobody",
    "AWS_SECRET_ACCESS_KEY": "of-nobody",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",  # of the trainer's host, which has none
}
IMAGE = {
    "ami_id": "ami-0123456789abcdef0",
    "name": "servers",
    "owner_id": "801119661308",
    "architecture": "x86_64",
}
STUBS = {
    "shutdown": '#!/bin/sh\necho "shutdown $*" >>"$MACHINE/said"\n',
    "systemctl": '#!/bin/sh\necho "systemctl $*" >>"$MACHINE/said"\n',
    "systemd-run": """#!/bin/sh
for word in "$@"; do echo "systemd-run $word" >>"$MACHINE/said"; done
while :; do case "$1" in --*) shift;; *) break;; esac; done
echo "$$" >"$MACHINE/pid.part"
mv "$MACHINE/pid.part" "$MACHINE/pid"
exec "$@"
""",
    # aws ssm get-parameter: signed with a key that moto does not look at.
    "aws": """#!/bin/sh
for word in "$@"; do case "$word" in --name=*) name=${word#--name=};; esac; done
curl -fsS -H 'X-Amz-Target: AmazonSSM.GetParameter' \\
    -H 'Content-Type: application/x-amz-json-1.1' \\
    -H 'Authorization: AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/ssm/aws4_request, x' \\
    -d "{\\"Name\\": \\"$name\\", \\"WithDecryption\\": true}" "$AWS_ENDPOINT_URL" |
    sed -e 's/.*"Value": *"//' -e 's/".*//'
""",
}


@functools.cache
def _server() -> str:
    """Address of moto's, one for all tests of a process. It has one image: to make hundreds anew
    for each test takes a while."""
    pytest.importorskip("moto", reason=MISSING)
    with tempfile.NamedTemporaryFile("w") as images:
        images.write(json.dumps([IMAGE]))
        images.flush()
        os.environ["MOTO_AMIS_PATH"] = images.name  # read once; that it is set is looked at again
        from moto.ec2.models import amis
    assert len(amis.AMIS) == 1
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    return f"http://{host}:{port}"


@functools.cache
def _client(service: str) -> Any:
    """Make a client for the tests, which look at moto as an administrator does."""
    import boto3

    return boto3.Session(
        aws_access_key_id="of-nobody", aws_secret_access_key="of-nobody", region_name=REGION
    ).client(service, endpoint_url=_server())


@functools.cache
def _image() -> str:
    found: str = _client("ec2").describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    return found


class Ec2Cloud:
    """An account with no instances, in a folder.

    Attributes:
        environment: by which AWS's clients find it.
        fails: codes and words of why nothing can be started, by a sound answer.
        breaks: what CreateFleet fails with: code, words and HTTP status.
        blind: a file; while it is there nothing can be listed, for the reason that it holds.
        late: a file; while it is there, nothing comes of what is asked for.
        fleets: requests of CreateFleet as they came.
        stops: ids of instances that were terminated, and whether without a word.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        endpoint = _server()
        self.folder = folder
        self.environment = {**ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}
        self._extra = dict(environment or {})
        self.fails: list[tuple[str, str]] = []
        self.breaks: tuple[str, str, int] | None = None
        self.blind, self.late = folder / "blind", folder / "late"
        self.fleets: list[dict[str, Any]] = []
        self.stops: list[tuple[str, bool]] = []
        self.notices: dict[str, str] = {}  # interruptions by instance, as IMDS says them
        self.boots = True  # whether instances run their user data
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._waiters: list[threading.Thread] = []
        self.moment = threading.Lock()  # an answer shows instances as they are at one
        (folder / "bin").mkdir(parents=True)
        for name, text in STUBS.items():
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o700)
        self._imds = ThreadingHTTPServer(("127.0.0.1", 0), _imds_of(self))
        threading.Thread(target=self._imds.serve_forever, args=(LOOK_SECONDS,), daemon=True).start()
        self._stack = ExitStack()
        self._stack.enter_context(mock.patch.dict(os.environ, self.environment))
        self._reset()
        self.ec2, self.ssm = _client("ec2"), _client("ssm")
        self._stack.enter_context(_patched(self))
        self._stack.enter_context(_closed_clients())
        self.image = _image()  # one that moto has

    def instances(self) -> dict[str, dict[str, Any]]:
        """As EC2 describes them, by id."""
        pages = self.ec2.get_paginator("describe_instances").paginate()
        return {
            each["InstanceId"]: each
            for page in pages
            for reservation in page["Reservations"]
            for each in reservation["Instances"]
        }

    def of_name(self, name: str) -> str:
        """Id of the newest instance of a server."""
        found = [i for i, each in self.backend_instances().items() if _tag(each, "name") == name]
        return found[-1]

    def backend_instances(self) -> dict[str, Any]:
        from moto.backends import get_backend

        backend = get_backend("ec2")[ACCOUNT][REGION]
        return {each.id: each for each in list(backend.all_instances())}

    def pid(self, instance: str) -> int:
        """Process id of an instance's server, which has begun."""
        return int((self.folder / instance / "pid").read_text())

    def said(self, instance: str) -> str:
        """What it called of its system."""
        return (self.folder / instance / "said").read_text()

    def interrupt(self, instance: str) -> None:
        """EC2 takes it, as at the end of its notice."""
        self._end(instance, "Server.SpotInstanceTermination")

    def close(self) -> None:
        """End all of it."""
        self.boots = False
        for process in list(self._processes.values()):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for waiter in self._waiters:
            waiter.join()
        self._imds.shutdown()
        self._imds.server_close()
        self._stack.close()

    def _reset(self) -> None:
        from moto.backends import get_backend

        for service in ("ec2", "ssm"):
            get_backend(service).reset()

    # What moto's answers are changed by

    def create_fleet(self, answer: Any, make: Callable[[], Any], request: dict[str, Any]) -> Any:
        self.fleets.append(request)
        if self.fails:
            overrides = request["LaunchTemplateConfigs"][0]["Overrides"]
            errors = [
                {
                    "LaunchTemplateAndOverrides": {"Overrides": each},
                    "Lifecycle": "spot",
                    "ErrorCode": code,
                    "ErrorMessage": message,
                }
                for code, message in self.fails
                for each in overrides
            ]
            return answer({"FleetId": "fleet-1", "Errors": errors, "Instances": []})
        while self.late.exists():
            time.sleep(LOOK_SECONDS)
        made = make()
        for each in made.result["Instances"]:
            for instance in each["InstanceIds"]:
                self._boot(instance)
        return made

    def terminate(self, instances: list[str], at_once: bool) -> None:
        for instance in instances:
            self.stops.append((instance, at_once))
            if at_once:
                self._end(instance, "Client.UserInitiatedShutdown")
            else:
                self._set(instance, "shutting-down", "Client.UserInitiatedShutdown")
                with suppress(FileNotFoundError, ProcessLookupError):
                    os.kill(self.pid(instance), signal.SIGTERM)

    def _boot(self, instance: str) -> None:
        if not self.boots:
            return
        folder = self.folder / instance
        folder.mkdir()
        script = folder / "user-data"
        found = self.ec2.describe_instance_attribute(InstanceId=instance, Attribute="userData")
        script.write_bytes(base64.b64decode(found["UserData"]["Value"]))
        host, port = self._imds.server_address[:2]
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                ["/bin/sh", "-eu", str(script)],
                env={
                    "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
                    "MACHINE": str(folder),
                    "AWS_ENDPOINT_URL": self.environment["AWS_ENDPOINT_URL"],
                    "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{host}:{port}/{instance}",
                    **self._extra,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes[instance] = process
        waiter = threading.Thread(target=self._wait, args=(instance, process), daemon=True)
        self._waiters.append(waiter)
        waiter.start()

    def _wait(self, instance: str, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._set(instance, "terminated", "Client.InstanceInitiatedShutdown")

    def _end(self, instance: str, why: str) -> None:
        self._set(instance, "shutting-down", why)
        if (process := self._processes.get(instance)) is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _set(self, instance: str, state: str, why: str) -> None:
        found = self.backend_instances().get(instance)
        if found is None:
            return
        with self.moment:
            if found.state == "terminated":
                return
            if found.state == "running":
                found.state_reason.code, found.state_reason.message = why, f"{why}: moto"
            found._state.name = state
            found._state.code = {"shutting-down": 32, "terminated": 48}[state]


def _tag(instance: Any, name: str) -> str:
    tags = {each["key"]: each["value"] for each in instance.get_tags()}
    return tags.get(f"rlboost:{name}", "")


@contextmanager
def _patched(cloud: Ec2Cloud) -> Iterator[None]:
    from moto.core.responses import ActionResult
    from moto.ec2.exceptions import EC2ClientError
    from moto.ec2.responses.fleets import Fleets
    from moto.ec2.responses.instances import InstanceResponse

    create, describe = Fleets.create_fleet, InstanceResponse.describe_instances

    def create_fleet(self: Any) -> Any:
        if cloud.breaks is not None:
            code, words, status = cloud.breaks
            error = f"<Error><Code>{code}</Code><Message>{words}</Message></Error>"
            return f"<Response><Errors>{error}</Errors></Response>", {"status": status}
        names = ("ClientToken", "Type", "SpotOptions", "OnDemandOptions", "LaunchTemplateConfigs")
        more = ("TargetCapacitySpecification", "TagSpecifications")
        request = {name: self._get_param(name) for name in (*names, *more)}
        return cloud.create_fleet(ActionResult, lambda: create(self), request)

    def describe_instances(self: Any) -> Any:
        if cloud.blind.exists():
            raise EC2ClientError("Unavailable", cloud.blind.read_text().strip())
        with cloud.moment:
            return self.serialized(describe(self))

    def terminate_instances(self: Any) -> Any:
        instances = self._get_param("InstanceIds", [])
        self.ec2_backend.get_multi_instances_by_id(instances)
        cloud.terminate(instances, bool(self._get_bool_param("SkipOsShutdown")))
        return ActionResult({"TerminatingInstances": []})

    with (
        mock.patch.object(Fleets, "create_fleet", create_fleet),
        mock.patch.object(InstanceResponse, "describe_instances", describe_instances),
        mock.patch.object(InstanceResponse, "terminate_instances", terminate_instances),
    ):
        yield


@contextmanager
def _closed_clients() -> Iterator[None]:
    """Close the clients that are made within: launchers live as long as processes."""
    from boto3 import Session

    make, made = Session.client, []

    def client(self: Any, *words: Any, **options: Any) -> Any:
        made.append(make(self, *words, **options))
        return made[-1]

    with mock.patch.object(Session, "client", client):
        yield
    for each in made:
        each.close()


def _imds_of(cloud: Ec2Cloud) -> type[BaseHTTPRequestHandler]:
    """/INSTANCE/latest/…, as IMDSv2 answers."""

    class Imds(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self._answer(IMDS_TOKEN if self.path.endswith("/latest/api/token") else None)

        def do_GET(self) -> None:
            if self.headers.get("X-aws-ec2-metadata-token") != IMDS_TOKEN:
                self._answer("", 401)
                return
            _, instance, _, _, item = self.path.split("/", 4)
            found = cloud.backend_instances()[instance]
            if item.startswith("tags/instance/rlboost:"):
                self._answer(_tag(found, item.removeprefix("tags/instance/rlboost:")))
                return
            items = {
                "placement/availability-zone": found.placement.zone,
                "instance-type": found.instance_type,
                "spot/instance-action": cloud.notices.get(instance),
            }
            self._answer(items.get(item))

        def _answer(self, text: str | None, status: int = 200) -> None:
            body = (text or "").encode()
            self.send_response(404 if text is None else status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # who asked has ended
                self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    return Imds


def notice(moment: str) -> str:
    """What IMDS says of an instance that is to be terminated."""
    return json.dumps({"action": "terminate", "time": moment})

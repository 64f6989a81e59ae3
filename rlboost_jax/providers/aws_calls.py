"""Calls to AWS, each in a thread, with a time limit and its errors as `LaunchFailed`.

Region, credentials and address follow AWS's own configuration: `AWS_PROFILE`,
`AWS_ENDPOINT_URL` and all others.
"""

import asyncio
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from rlboost_jax.platform.mistakes import ConfigError, install
from rlboost_jax.providers.launcher import LaunchFailed

CALLS: Final = 20  # at a time: starts, stops and a list
ATTEMPTS: Final = 2  # of each call; what it asks for again carries the same token
LINE: Final = 300  # characters of a reason
SERVER_ERROR: Final = 500  # HTTP status: it may have been done all the same
# Errors of botocore's own, raised before anything was sent.
UNSENT: Final = (
    *("NoCredentialsError", "PartialCredentialsError", "NoRegionError", "ProfileNotFound"),
    *("EndpointConnectionError", "ConnectTimeoutError", "ParamValidationError"),
    *("InvalidRegionError", "UnauthorizedSSOTokenError", "TokenRetrievalError"),
)


class AwsFailed(LaunchFailed):
    """A call to AWS failed.

    Attributes:
        code: AWS's, such as "InsufficientInstanceCapacity"; of botocore its error's name.
    """

    def __init__(self, reason: str, *, code: str, sure: bool) -> None:
        super().__init__(reason, sure=sure)
        self.code = code


class Aws:
    """Client of AWS in one region.

    Args:
        region: "": by AWS's own configuration.
        timeout_seconds: for each attempt to connect, and to be answered.

    Raises:
        ConfigError: boto3 is not installed, or no region is known.
    """

    def __init__(self, region: str, timeout_seconds: float) -> None:
        try:
            import boto3
            import botocore.session
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError:
            raise ConfigError(f'fleet.provider "ec2" needs boto3; {install("ec2")}') from None
        self._unsaid, self._said = BotoCoreError, ClientError
        config = Config(
            connect_timeout=min(timeout_seconds, 10.0),
            read_timeout=timeout_seconds,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            max_pool_connections=CALLS,
        )
        try:
            core = botocore.session.Session()
            core.register_component("data_loader", _models(core.get_config_variable("data_path")))
            session = boto3.Session(region_name=region or None, botocore_session=core)
            self._clients = {name: session.client(name, config=config) for name in ("ec2", "ssm")}
        except BotoCoreError as error:
            raise ConfigError(f"{error}; fleet.ec2.region names a region") from None
        self.region: str = self._clients["ec2"].meta.region_name
        self._threads = ThreadPoolExecutor(CALLS, thread_name_prefix="aws")

    async def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call an operation of a service. Raises AwsFailed."""
        made = getattr(self._clients[service], operation)
        found: dict[str, Any] = await self._run(operation, lambda: made(**arguments))
        return found

    async def pages(
        self, service: str, operation: str, *, size: int | None = None, **arguments: Any
    ) -> Sequence[Any]:
        """Return all pages of an answer. Raises AwsFailed.

        Args:
            size: of a page; None: AWS's own.
        """
        pages = self._clients[service].get_paginator(operation)
        config = {"PageSize": size}
        return await self._run(
            operation, lambda: list(pages.paginate(PaginationConfig=config, **arguments))
        )

    def fitting(self, shape: str, value: dict[str, Any]) -> dict[str, Any]:
        """Part of an answer that EC2 accepts as a request: answers have additional fields."""
        fields = self._clients["ec2"].meta.service_model.shape_for(shape)
        fitted: dict[str, Any] = _fitting(fields, value)
        return fitted

    async def _run(self, operation: str, call: Any) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except self._said as error:
            said, status = error.response["Error"], error.response["ResponseMetadata"]
            code, message = str(said.get("Code", "")), str(said.get("Message", ""))
            sure = status.get("HTTPStatusCode", SERVER_ERROR) < SERVER_ERROR or throttled(code)
            raise AwsFailed(_line(f"{code}: {message}"), code=code, sure=sure) from None
        except self._unsaid as error:
            code = type(error).__name__
            reason = _line(f"{operation}: {error}")
            raise AwsFailed(reason, code=code, sure=code in UNSENT) from None


@functools.cache
def _models(path: str | None) -> Any:
    """Shapes of AWS's services, read once: EC2's takes 0.2 s of CPU time."""
    from botocore.loaders import create_loader

    return create_loader(path)


def throttled(code: str) -> bool:
    """Whether a request was rejected unread, whatever its HTTP status."""
    return code in ("RequestLimitExceeded", "Throttling", "ThrottlingException")


def _line(text: str) -> str:
    return " ".join(text.split())[:LINE]


def _fitting(shape: Any, value: Any) -> Any:
    if shape.type_name == "structure":
        return {
            key: _fitting(shape.members[key], each)
            for key, each in value.items()
            if key in shape.members
        }
    if shape.type_name == "list":
        return [_fitting(shape.member, each) for each in value]
    return value

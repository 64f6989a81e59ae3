"""AWS: interruption notices and rebalance recommendations of spot instances.

Source: Amazon EC2 User Guide, "Spot Instance interruption notices", "EC2 instance rebalance
recommendations" and "Use the Instance Metadata Service" (IMDSv2).
"""

from collections.abc import Callable

import msgspec

from rlboost_jax.rollout.notices.metadata_server import (
    CloudNotice,
    Metadata,
    MetadataAnswer,
    NoAnswer,
    decode,
    until,
    utc,
)

EVERY_SECONDS = 5.0  # as Amazon recommends
LEAD_SECONDS = 120.0  # the longest notice there is
TOKEN_SECONDS = 21_600  # the longest that a token can live
TOKEN_PATH = "/latest/api/token"
ACTION_PATH = "/latest/meta-data/spot/instance-action"
REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"


class Action(msgspec.Struct, frozen=True):
    action: str  # terminate, stop or hibernate
    time: str


class Rebalance(msgspec.Struct, frozen=True):
    time: str = msgspec.field(name="noticeTime")


class MetadataItem:
    """One item of the metadata; absent (404) until there is a notice."""

    every_seconds = EVERY_SECONDS

    def __init__(
        self, metadata: Metadata, path: str, read: Callable[[MetadataAnswer], CloudNotice]
    ) -> None:
        self.name = f"aws {path}"
        self._metadata, self._path, self._read = metadata, path, read
        self._token = ""
        self._text: str | None = None  # that was read last

    async def look(self) -> list[CloudNotice]:
        if not self._token:
            self._token = await new_token(self._metadata)
        answer = await self._ask()
        if answer.status == 401:  # the token has expired
            self._token = await new_token(self._metadata)
            answer = await self._ask()
        if answer.status == 404:
            return []
        if answer.status != 200:
            raise NoAnswer(f"{self._path}: HTTP {answer.status}")
        if answer.text == self._text:
            return []
        notice = self._read(answer)
        self._text = answer.text
        return [notice]

    async def _ask(self) -> MetadataAnswer:
        return await self._metadata.ask(self._path, {"X-aws-ec2-metadata-token": self._token})


def interruption(metadata: Metadata) -> MetadataItem:
    def read(answer: MetadataAnswer) -> CloudNotice:
        said = decode(answer, Action)
        # Hibernation begins at once, whatever time it names.
        most = 0.0 if said.action == "hibernate" else LEAD_SECONDS
        seconds = until(utc(said.time), answer, most)
        return CloudNotice(seconds=seconds, reason=f"aws: {said.action} {said.time}")

    return MetadataItem(metadata, ACTION_PATH, read)


def rebalance(metadata: Metadata) -> MetadataItem:
    def read(answer: MetadataAnswer) -> CloudNotice:
        said = decode(answer, Rebalance)
        return CloudNotice(seconds=None, reason=f"aws: rebalance recommendation {said.time}")

    return MetadataItem(metadata, REBALANCE_PATH, read)


async def present(metadata: Metadata) -> bool:
    """Whether this machine is in AWS. Raises NoAnswer."""
    await new_token(metadata)
    return True


async def new_token(metadata: Metadata) -> str:
    """Request a metadata token. Raises NoAnswer."""
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
    answer = await metadata.ask(TOKEN_PATH, headers, method="PUT")
    token = answer.text.strip()
    if answer.status != 200 or not token or not (token.isascii() and token.isprintable()):
        raise NoAnswer(f"{TOKEN_PATH}: HTTP {answer.status}, no token")
    return token

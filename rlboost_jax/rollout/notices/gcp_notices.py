"""Google Cloud: preemption of Spot machines, and maintenance of their hosts.

Source: Compute Engine documentation, "Detect if a preemptible process has been preempted",
"Query the metadata server for maintenance event notices" and "View and query VM metadata"
(waiting for a change with `last_etag`).
"""

from urllib.parse import quote

from rlboost_jax.rollout.notices.metadata_server import (
    CloudNotice,
    Metadata,
    MetadataAnswer,
    NoAnswer,
)

ROOT = "/computeMetadata/v1/instance"
FLAVOR = {"Metadata-Flavor": "Google"}  # asked of us, and found in every genuine answer
EVERY_SECONDS = 1.0  # between two questions; each waits for a change
WAIT_SECONDS = 60
PREEMPTION_SECONDS = 30.0  # from the notice to the forced end
# Machines with GPUs hear of it an hour before. The others a minute before: they then get a
# signal in time, which is all that a notice is for.
MAINTENANCE_SECONDS = 3_600.0


class Value:
    """One value of the metadata server; a look waits for it to change."""

    every_seconds = EVERY_SECONDS

    def __init__(self, metadata: Metadata, path: str, notices: dict[str, CloudNotice]) -> None:
        self.name = f"gcp {path}"
        self._metadata, self._path, self._notices = metadata, path, notices
        self._etag = ""  # of the newest answer
        self._value = ""

    async def look(self) -> list[CloudNotice]:
        query, wait = "", 0
        if self._etag:
            wait = WAIT_SECONDS
            etag = quote(self._etag, safe="")
            query = f"?wait_for_change=true&timeout_sec={wait}&last_etag={etag}"
        answer = await _ask(self._metadata, f"{ROOT}/{self._path}{query}", wait)
        self._etag = answer.headers.get("ETag", "")
        before, self._value = self._value, answer.text.strip()
        notice = self._notices.get(self._value)
        return [notice] if notice is not None and self._value != before else []


def preempted(metadata: Metadata) -> Value:
    notice = CloudNotice(seconds=PREEMPTION_SECONDS, reason="gcp: preempted")
    return Value(metadata, "preempted", {"TRUE": notice})


def maintenance(metadata: Metadata) -> Value:
    """Value for host maintenance: a machine that migrates pauses, one that cannot is ended."""
    move, end = "MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE"
    notices = {
        move: CloudNotice(seconds=None, reason=f"gcp: {move}"),
        end: CloudNotice(seconds=MAINTENANCE_SECONDS, reason=f"gcp: {end}"),
    }
    return Value(metadata, "maintenance-event", notices)


async def present(metadata: Metadata) -> bool:
    """Whether this machine is in Google Cloud. Raises NoAnswer."""
    await _ask(metadata, f"{ROOT}/id", 0)
    return True


async def _ask(metadata: Metadata, path: str, wait_seconds: float) -> MetadataAnswer:
    answer = await metadata.ask(path, FLAVOR, wait_seconds=wait_seconds)
    genuine = answer.headers.get("Metadata-Flavor") == "Google"
    if answer.status != 200 or not genuine:
        raise NoAnswer(f"{path}: HTTP {answer.status}, {'' if genuine else 'not '}by Google")
    return answer

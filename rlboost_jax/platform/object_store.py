"""A folder in an object store: S3, Google Cloud Storage, Azure, or a folder that is visible here.

The only module that imports obstore (extra `store`). Credentials, region and endpoint are those
that its clients find: `AWS_…`, `GOOGLE_…` and `AZURE_…` in the environment, a machine's own role.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from rlboost_jax.platform.mistakes import Mistake, install, plain

SCHEMES: Final[Mapping[str, str]] = {
    "s3": "s3://BUCKET/PREFIX",
    "gs": "gs://BUCKET/PREFIX",
    "az": "az://CONTAINER/PREFIX",
    "file": "file:///FOLDER",
}
RETRY_SECONDS: Final = 60.0  # of one request, with back-off: 5xx, "slow down", broken lines
_MOST_SHOWN: Final = 300  # characters of an answer
_CREDENTIALS: Final = {"s3": "AWS_…", "gs": "GOOGLE_…", "az": "AZURE_…"}
_STATUS: Final = re.compile(r"non-2xx status code: (4\d\d [A-Z][A-Za-z ]+)")
_CODE: Final = re.compile(r"(?:<Code>|\(code: )(\w+)")
_REFUSED: Final = ("AccessDenied", "ExpiredToken", "InvalidToken", "TokenRefreshRequired")


class BadStore(Mistake, RuntimeError):
    """The address is none of an object store, or what it takes is not installed."""


class StoreFailed(RuntimeError):
    """The store did not do what it was asked to: one line with its own reason."""


class ObjectStore:
    """Objects below one address, each with a name that has slashes.

    Every method raises StoreFailed where the store refuses, or does not answer in time.
    """

    def __init__(self, url: str, *, setting: str, retry_seconds: float = RETRY_SECONDS) -> None:
        """
        Args:
            url: one of `SCHEMES`.
            setting: that it comes from, for the error.
            retry_seconds: how long one request is tried again.

        Raises:
            BadStore
        """
        if objection := objection_to_url(url):
            raise BadStore(f"{setting} {objection}")
        try:
            import obstore
            from obstore import exceptions, store
        except ImportError:
            raise BadStore(
                f"{setting} {url} takes the package obstore: {install('store')}"
            ) from None
        self.url, self._setting, self._obstore = url, setting, obstore
        self._errors: tuple[type[Exception], ...] = (exceptions.BaseError, OSError, ValueError)
        self._exists = exceptions.AlreadyExistsError
        more: dict[str, Any] = {"mkdir": True} if url.startswith("file:") else {
            "retry_config": {"retry_timeout": timedelta(seconds=retry_seconds)}
        }  # fmt: skip
        try:
            self._store = store.from_url(url, **more)
        except self._errors as error:
            raise BadStore(f"{setting} {url} cannot be opened: {_reason(error)}") from None

    def put(self, name: str, data: bytes | Iterator[bytes]) -> None:
        """Put an object in place of any before: all of it, or nothing."""
        self._try("put", name, lambda: self._obstore.put(self._store, name, data))

    def claim(self, name: str, data: bytes) -> bool:
        """Put an object where there is none; returns whether there was none."""
        try:
            self._obstore.put(self._store, name, data, mode="create")
        except self._exists:
            return False
        except self._errors as error:
            raise self._failed("put", name, error) from None
        return True

    def size(self, name: str) -> int | None:
        """Bytes of an object; None where there is none."""
        try:
            return int(self._obstore.head(self._store, name)["size"])
        except FileNotFoundError:
            return None
        except self._errors as error:
            raise self._failed("look for", name, error) from None

    def read(self, name: str, limit: int) -> bytes:
        """Read an object of at most `limit` bytes."""
        return b"".join(self.blocks(name, limit))

    def blocks(self, name: str, limit: int) -> Iterator[bytes]:
        """Read an object in blocks, as they arrive; raises StoreFailed beyond `limit` bytes."""
        size = 0
        try:
            for block in self._obstore.get(self._store, name).stream():
                size += len(block)
                if size > limit:
                    raise StoreFailed(f"{self.url}/{name} has more than {limit:,} bytes")
                yield bytes(block)
        except self._errors as error:
            raise self._failed("get", name, error) from None

    def names(self, below: str) -> list[str]:
        """Names of the objects below a folder, sorted."""
        found = self._try(
            "list",
            below,
            lambda: [
                str(each["path"])
                for some in self._obstore.list(self._store, prefix=below)
                for each in some
            ],
        )
        return sorted(found)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, whether they are there or not."""
        for name in names:
            try:
                self._obstore.delete(self._store, name)
            except FileNotFoundError:
                pass
            except self._errors as error:
                raise self._failed("delete", name, error) from None

    def _try(self, what: str, name: str, call: Any) -> Any:
        try:
            return call()
        except self._errors as error:
            raise self._failed(what, name, error) from None

    def _failed(self, what: str, name: str, error: Exception) -> StoreFailed:
        place = f"{self.url}/{name}"
        if refusal := _refusal(str(error), what):
            names = _CREDENTIALS[urlsplit(self.url).scheme]
            return StoreFailed(
                f"cannot {what} {place}: {refusal}; {self._setting} takes credentials that may do "
                f"so, from {names} in the environment or the machine's role"
            )
        return StoreFailed(f"cannot {what} {place}: {_reason(error)}")


def objection_to_url(url: str) -> str:
    """What is wrong with the address of a store, to follow the setting's name; "" if nothing."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    local = parts.scheme == "file"
    place, wrong = (parts.path, parts.netloc) if local else (parts.netloc, "@" in parts.netloc)
    wrong = wrong or parts.query or parts.fragment or ".." in Path(parts.path).parts
    if parts.scheme in SCHEMES and place and not wrong:
        return ""
    return f"{url!r} is no address of a store; give {' or '.join(SCHEMES.values())}"


def _refusal(said: str, what: str) -> str:
    """What a store says of its caller's credentials, in a few words; "" of anything else.

    The answer to a question for a size has no text: expired credentials are a mere 400 there.
    """
    if "169.254.169.254" in said or "metadata.google.internal" in said:
        return "no credentials were found"
    status, code = _STATUS.search(said), _CODE.search(said)
    reason = code[1] if code else status[1].strip() if status else ""
    if reason in _REFUSED or (status and status[1][:3] in ("401", "403")):
        return f"the credentials are refused ({reason})"
    if status and status[1][:3] == "400" and what == "look for":
        return f"the credentials have expired, or are none ({reason})"
    return ""


def _reason(error: Exception) -> str:
    """First part of an error of obstore, which shows its inner values after it."""
    return plain(" ".join(str(error).partition("\n\nDebug source")[0].split()), _MOST_SHOWN)

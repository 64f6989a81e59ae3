"""The few calls of a Kubernetes API server that the launcher makes, each bounded in time.

What was refused with 429 (Too Many Requests) or 503 is sent again after as long as the answer's
`Retry-After` says, until the call's time is over. Every call may be sent twice: names of pods are
made of the tag, and what is gone is gone.

lightkube is imported on the first call: a run with another provider does not need it.
"""

import asyncio
import contextlib
import importlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from rlboost_jax.platform.proxies import is_loopback
from rlboost_jax.providers.kubernetes.manifests import CONTAINER, RUN, Manifest
from rlboost_jax.providers.launcher import LaunchFailed

T = TypeVar("T")

AGAIN: Final = (429, 503)  # answers after which the same may be asked again
GONE, CONFLICT = 404, 409
LONGEST_PAUSE_SECONDS: Final = 10.0
CHUNK: Final = 500  # pods in an answer; a list that needs several is all or an error
TAIL_LINES: Final = 1000  # of a log that is kept
LINE: Final = 300  # characters of a reason


class AlreadyExists(LaunchFailed):
    """An object of that name exists."""


class KubernetesApi:
    """Client of one cluster. To be used in one event loop.

    Args:
        context: of the kubeconfig; "": its current one, or the pod's own service account.
        timeout_seconds: of a call, repetitions included.
        kubeconfig: None: that of the environment, `KUBECONFIG` or ~/.kube/config.
    """

    def __init__(
        self,
        context: str,
        namespace: str,
        *,
        timeout_seconds: float,
        kubeconfig: Path | None = None,
    ) -> None:
        self._context, self._namespace = context, namespace
        self._timeout_seconds, self._kubeconfig = timeout_seconds, kubeconfig
        self._client: Any = None

    async def create(self, manifest: Manifest) -> Any:
        """Create an object and return it. Raises LaunchFailed, AlreadyExists."""
        kind = _resource(manifest["kind"])
        return await self._ask(lambda c: c.create(kind.from_dict(manifest)), "create a pod")

    async def pod(self, name: str) -> Manifest:
        """Read a pod. Raises LaunchFailed."""
        kind = _resource("Pod")
        found = await self._ask(lambda c: c.get(kind, name), "read a pod")
        return dict(found.to_dict())

    async def delete_pod(self, name: str, grace_seconds: int) -> None:
        """Delete a pod, if it is there. Raises LaunchFailed."""
        kind = _resource("Pod")
        with contextlib.suppress(_Gone):
            await self._ask(
                lambda c: c.delete(kind, name, grace_period=grace_seconds), "delete a pod"
            )

    async def pods(self) -> Sequence[Manifest]:
        """All pods with a run's label, at one moment. Raises LaunchFailed."""
        kind = _resource("Pod")
        operators = importlib.import_module("lightkube.operators")

        async def listed(client: Any) -> list[Manifest]:
            found = client.list(kind, labels={RUN: operators.exists()}, chunk_size=CHUNK)
            return [dict(each.to_dict()) async for each in found]

        return await self._ask(listed, "list pods")

    async def log(self, name: str) -> str:
        """The end of a pod's log. Raises LaunchFailed."""

        async def read(client: Any) -> str:
            lines = client.log(name, container=CONTAINER, tail_lines=TAIL_LINES)
            return "".join([line async for line in lines])

        return await self._ask(read, "read a log")

    async def _ask(self, call: Callable[[Any], Awaitable[T]], what: str) -> T:
        httpx2 = importlib.import_module("httpx2")
        pause = 0.0
        try:
            client = self._opened()
            async with asyncio.timeout(self._timeout_seconds):
                while True:
                    try:
                        return await call(client)
                    except httpx2.HTTPStatusError as error:
                        code = error.response.status_code if error.response is not None else 0
                        if code not in AGAIN:
                            raise
                        pause = _retry_after(error.response, pause)
                        refusal = _answer(error, code)
                    await asyncio.sleep(pause)
        except TimeoutError:
            if pause:  # it was refused each time
                raise LaunchFailed(f"cannot {what}: {refusal}", sure=True) from None
            raise LaunchFailed(
                f"cannot {what}: no answer of the API server in {self._timeout_seconds:g} s"
            ) from None
        except httpx2.HTTPStatusError as error:
            code = error.response.status_code if error.response is not None else 0
            line = f"cannot {what}: {_answer(error, code)}"
            kinds = {GONE: _Gone, CONFLICT: AlreadyExists}
            raise kinds.get(code, LaunchFailed)(line, sure=400 <= code < 500) from None
        except httpx2.ConnectError as error:
            raise LaunchFailed(f"cannot {what}: {_line(error)}", sure=True) from None
        except (httpx2.HTTPError, msgspec.MsgspecError, KeyError) as error:
            # KeyError: lightkube's on an error's answer without a Content-Type.
            raise LaunchFailed(f"cannot {what}: {_line(error)}") from None

    def _opened(self) -> Any:
        """Open the client. Raises LaunchFailed if no cluster is configured."""
        if self._client is None:
            lightkube = importlib.import_module("lightkube")
            errors = importlib.import_module("lightkube.core.exceptions")
            httpx2 = importlib.import_module("httpx2")
            try:
                path, known = self._kubeconfig, lightkube.KubeConfig
                config = known.from_file(path) if path is not None else known.from_env()
                chosen = config.get(self._context or None)
                # A cluster may be behind a proxy, one on this host never is: as kubectl has it.
                self._client = lightkube.AsyncClient(
                    config=chosen,
                    trust_env=chosen is None or not is_loopback(chosen.cluster.server),
                    namespace=self._namespace,
                    timeout=httpx2.Timeout(self._timeout_seconds),
                )
            except (errors.ConfigError, OSError, KeyError, ValueError, ImportError) as error:
                # ImportError: the environment names a SOCKS proxy, which needs a package more.
                raise LaunchFailed(f"no cluster to ask: {_line(error)}", sure=True) from None
        return self._client


class _Gone(LaunchFailed):
    """No object of that name exists."""


def _resource(kind: str) -> Any:
    return getattr(importlib.import_module("lightkube.resources.core_v1"), kind)


def _retry_after(response: Any, last: float) -> float:
    """Seconds to wait: as the answer says, else twice as long as the last."""
    said = response.headers.get("Retry-After", "")
    seconds = float(said) if said.isdecimal() else 2 * last or 0.5
    return min(max(seconds, 0.1), LONGEST_PAUSE_SECONDS)


def _answer(error: Any, code: int) -> str:
    status = getattr(error, "status", None)
    message = getattr(status, "message", None) or _line(error)
    return f"{code}: {' '.join(message.split())[:LINE]}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:LINE] or type(error).__name__

"""Watcher of the cloud this machine is in, for as long as the server lives.

A watcher never endangers the server: one that fails waits longer and longer, one that fails in an
unexpected way ends alone, and the server works on.
"""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp

from rlboost_jax.platform.backoff import backoff_seconds
from rlboost_jax.rollout.notices import aws_notices, gcp_notices
from rlboost_jax.rollout.notices.azure_notices import Azure
from rlboost_jax.rollout.notices.metadata_server import (
    ADDRESS,
    CloudNotice,
    Metadata,
    NoAnswer,
    NoticeSource,
)

PROBE_SECONDS = 2.0  # for the metadata server of this machine to say which it is
LONGEST_PAUSE_SECONDS = 15.0  # some notices are 30 s long

Tell = Callable[[CloudNotice], None]
Say = Callable[[str], None]
Sleep = Callable[[float], Awaitable[None]]


async def watch_machine(
    cloud: str,
    tell: Tell,
    say: Say,
    *,
    address: str = ADDRESS,
    sleep: Sleep = asyncio.sleep,
    sources: Callable[[str, Metadata], list[NoticeSource]] | None = None,
) -> None:
    """Pass on a cloud's notices about this machine, until cancelled.

    Args:
        cloud: "aws", "gcp", "azure"; "none", or "auto" where none of them answers, returns.
        tell: called with each notice and hint, once.
        say: called with a line on what is watched, and on what went wrong for good.
        sources: of a cloud; None: `sources_of`.
    """
    if cloud == "none":
        return
    # Cookies are for browsers, and proxies are for addresses further away than this.
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(cookie_jar=jar, trust_env=False) as session:
        metadata = Metadata(session, address)
        if cloud == "auto":
            cloud = await which_cloud(metadata)
            say(f"notices of {cloud}" if cloud != "none" else "no cloud here gives notices")
        await asyncio.gather(
            *(
                _guarded(watch(source, tell, sleep), source, say)
                for source in (sources or sources_of)(cloud, metadata)
            )
        )


def sources_of(cloud: str, metadata: Metadata) -> list[NoticeSource]:
    match cloud:
        case "aws":
            return [aws_notices.interruption(metadata), aws_notices.rebalance(metadata)]
        case "gcp":
            return [gcp_notices.preempted(metadata), gcp_notices.maintenance(metadata)]
        case "azure":
            return [Azure(metadata)]
    return []


async def which_cloud(metadata: Metadata, probe_seconds: float = PROBE_SECONDS) -> str:
    """Cloud whose metadata server answers; "none" if none does. Asks all at once."""
    probes = {
        "aws": asyncio.ensure_future(aws_notices.present(metadata)),
        "gcp": asyncio.ensure_future(gcp_notices.present(metadata)),
        "azure": asyncio.ensure_future(Azure(metadata).present()),
    }
    await asyncio.wait(probes.values(), timeout=probe_seconds)
    for probe in probes.values():
        probe.cancel()
    answers = await asyncio.gather(*probes.values(), return_exceptions=True)
    return next((name for name, a in zip(probes, answers, strict=True) if a is True), "none")


async def watch(source: NoticeSource, tell: Tell, sleep: Sleep = asyncio.sleep) -> None:
    """Look at a source again and again, after failures at growing intervals."""
    failures = 0
    while True:
        pause = source.every_seconds
        try:
            for notice in await source.look():
                tell(notice)
            failures = 0
        except NoAnswer:
            pause = backoff_seconds(failures, first=pause, longest=LONGEST_PAUSE_SECONDS)
            failures += 1
        await sleep(pause)


async def _guarded(watching: Awaitable[None], source: NoticeSource, say: Say) -> None:
    try:
        await watching
    except Exception as error:  # whatever it is, generating goes on without notices
        say(f"notices of {source.name} are not watched any more: {error!r}")

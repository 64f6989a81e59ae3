"""Calls of a batch's episodes, kept so that none is carried out twice."""

from collections.abc import Callable, Sequence
from typing import Any, assert_never

from rlboost_jax.environments.episode_records import CallBegun, CallDone, EpisodeRecord
from rlboost_jax.environments.protocol import ToolCall, ToolResult
from rlboost_jax.environments.runner import KnownCall


class CallJournal:
    """Calls of a batch's episodes, as its journal keeps them."""

    def __init__(
        self, keep: Callable[[Sequence[EpisodeRecord]], Any], records: Sequence[Any]
    ) -> None:
        """
        Args:
            keep: awaitable; the records last then.
            records: that were kept before.
        """
        self._keep = keep
        self._known: dict[str, CallBegun | CallDone] = {}
        for record in records:
            if isinstance(record, CallBegun | CallDone):
                self._known[record.key] = record

    async def begin(self, calls: Sequence[ToolCall], lasting: Sequence[bool]) -> list[KnownCall]:
        found = [_known(call, self._known.get(call.key)) for call in calls]
        begun = [
            CallBegun(key=call.key)
            for call, lasts, known in zip(calls, lasting, found, strict=True)
            if lasts and known == "new"
        ]
        if begun:
            self._known.update((record.key, record) for record in begun)
            await self._keep(begun)
        return found

    async def done(self, result: ToolResult) -> None:
        record = CallDone(key=result.call.key, content=result.content, failed=result.failed)
        self._known[record.key] = record
        await self._keep([record])


def _known(call: ToolCall, record: CallBegun | CallDone | None) -> KnownCall:
    match record:
        case None:
            return "new"
        case CallBegun():
            return "begun"
        case CallDone(content=content, failed=failed):
            return ToolResult(call=call, content=content, failed=failed)
        case unknown:
            assert_never(unknown)

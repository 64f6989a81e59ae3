"""Streams that were abandoned, whose late tokens are still recognised."""

REMEMBERED_STREAMS = 1024  # that ended last


class EndedStreams:
    """By stream, whether it was a reserved one's, and how many tokens that may still come are
    counted already."""

    def __init__(self) -> None:
        self._streams: dict[int, tuple[bool, int]] = {}

    def __contains__(self, stream: int) -> bool:
        return stream in self._streams

    def remember(self, stream: int, *, reserved: bool, charged: int) -> None:
        self._streams[stream] = reserved, charged
        if len(self._streams) > REMEMBERED_STREAMS:
            del self._streams[next(iter(self._streams))]

    def late(self, stream: int, tokens: int) -> tuple[int, bool]:
        """So many tokens have come of it: those that are not counted yet, and whose they are."""
        reserved, charged = self._streams[stream]
        self.remember(stream, reserved=reserved, charged=max(0, charged - tokens))
        return max(0, tokens - charged), reserved

"""Streams that were abandoned, whose late tokens are still recognised."""

REMEMBERED_STREAMS = 1024  # that ended last


class EndedStreams:
    """For each ended stream: whether it was reserved, and its tokens that are already charged."""

    def __init__(self) -> None:
        self._streams: dict[int, tuple[bool, int]] = {}

    def __contains__(self, stream: int) -> bool:
        return stream in self._streams

    def remember(self, stream: int, *, reserved: bool, charged: int) -> None:
        self._streams[stream] = reserved, charged
        if len(self._streams) > REMEMBERED_STREAMS:
            del self._streams[next(iter(self._streams))]

    def late(self, stream: int, tokens: int) -> tuple[int, bool]:
        """Number of late tokens not charged yet, and whether the stream was a reserved one."""
        reserved, charged = self._streams[stream]
        self.remember(stream, reserved=reserved, charged=max(0, charged - tokens))
        return max(0, tokens - charged), reserved

"""Which streams hold more than they were asked to keep: by bytes when an append passes the limit, by age from a heap that is corrected lazily. Asked
by the leader's engine through machine.due().

Like expiry.py: derived, free to differ between replicas; it proposes Trim, and apply decides (lifecycle.trim). A published snapshot holds retention
back: what lies behind it must stay, or bootstrap would have a gap. In a fork nothing is trimmed within the inherited part, whose boundaries are
another group's; it goes as a whole, when the limit passes into the fork's own part."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from heapq import heappop, heappush

from anabranch_node.core.stream.commands import Trim
from anabranch_node.core.stream.stream import Chunk, OpenChunk, Stream

TRIMS_PER_CALL_MAX = 100
REPEAT_MS = 1000
"""A Trim that was asked for is on its way through the log; if it gets lost, it is asked for again after this."""


class RetentionQueue:
    __slots__ = ("_heap", "_over")

    def __init__(self) -> None:
        self._over: dict[str, int] = {}  # passed its bytes -> not asked again before
        self._heap: list[tuple[int, str, int]] = []  # (nothing is too old before, stream, incarnation)

    def watch(self, name: str, stream: Stream) -> None:
        """A stream that is new here."""
        rare = stream.rare
        if rare is not None and rare.retention_age_s is not None:
            heappush(self._heap, (0, name, stream.incarnation))
        self.appended(name, stream)

    def appended(self, name: str, stream: Stream) -> None:
        rare = stream.rare
        if rare is not None and rare.retention_bytes is not None and stream.tail - stream.earliest > rare.retention_bytes:
            self._over.setdefault(name, 0)

    def due(self, streams: dict[str, Stream], now_ms: int) -> list[Trim]:
        trims: list[Trim] = []
        if self._over:
            self._due_by_bytes(streams, now_ms, trims)
        heap = self._heap
        while heap and heap[0][0] <= now_ms and len(trims) < TRIMS_PER_CALL_MAX:
            _, name, incarnation = heappop(heap)
            stream = streams.get(name)
            if stream is None or stream.incarnation != incarnation or stream.rare is None or stream.rare.gone:
                continue
            age_s = stream.rare.retention_age_s
            assert age_s is not None
            oldest_ms = None if stream.rare.published is not None else _oldest_ms(stream)
            again_ms = now_ms + age_s * 1000  # nothing that comes later can be too old before
            if oldest_ms is not None and oldest_ms + age_s * 1000 > now_ms:
                again_ms = oldest_ms + age_s * 1000
            elif oldest_ms is not None:
                trims.append(Trim(name, incarnation, _offset_at(stream, now_ms - age_s * 1000 + 1), 0))
                again_ms = now_ms + REPEAT_MS
            heappush(heap, (again_ms, name, incarnation))
        return trims

    def _due_by_bytes(self, streams: dict[str, Stream], now_ms: int, trims: list[Trim]) -> None:
        for name, not_before_ms in list(self._over.items()):
            if len(trims) >= TRIMS_PER_CALL_MAX:
                return
            if not_before_ms > now_ms:
                continue
            stream = streams.get(name)
            rare = None if stream is None else stream.rare
            if stream is None or rare is None or rare.retention_bytes is None or stream.tail - stream.earliest <= rare.retention_bytes:
                del self._over[name]
                continue
            offset = _boundary_from(stream, stream.tail - rare.retention_bytes)
            if rare.published is None and not rare.gone and offset > stream.earliest:
                trims.append(Trim(name, stream.incarnation, offset, 0))
                self._over[name] = now_ms + REPEAT_MS
            else:
                del self._over[name]  # held back, or one large message: the next append asks again


def _first_chunk(stream: Stream) -> int:
    """Index among chunks() of the one that holds the earliest message of our own that is shown."""
    return 0 if stream.sealed_starts is None else max(0, bisect_left(stream.sealed_starts, max(stream.earliest, stream.start) + 1) - 1)


def _oldest_ms(stream: Stream) -> int | None:
    at = max(stream.earliest, stream.start)
    for chunk in stream.chunks()[_first_chunk(stream) :]:
        number = bisect_left(chunk.ends, at - chunk.start + 1)
        if number < len(chunk.ends):
            return chunk.times[bisect_left(chunk.time_firsts, number + 1) - 1]
    return None


def _offset_at(stream: Stream, from_ms: int) -> int:
    """Where the first message of our own that was appended then or later begins; the tail if there is none."""
    for chunk in stream.chunks():
        run = bisect_left(chunk.times, from_ms)
        if run < len(chunk.times):
            number = chunk.time_firsts[run]
            return chunk.start + (chunk.ends[number - 1] if number else 0)
    return stream.tail


def _boundary_from(stream: Stream, offset: int) -> int:
    """The first boundary of our own at or behind `offset`, but never the tail: the last message is not trimmed for its size."""
    if offset < stream.base:
        return 0
    for chunk in reversed(stream.chunks()):
        if offset >= chunk.start or chunk.start == stream.start:
            boundary = _boundary_in(chunk.ends, offset - chunk.start) + chunk.start
            if boundary < stream.tail:
                return boundary
            return _last_start(chunk)
    return 0


def _boundary_in(ends: array[int], position: int) -> int:
    if position <= 0:
        return 0
    return ends[bisect_left(ends, position)]


def _last_start(chunk: Chunk | OpenChunk) -> int:
    return chunk.start + (chunk.ends[-2] if len(chunk.ends) > 1 else 0)

"""From an offset to bytes: whole messages, cut out of the columns and never parsed. Cold ranges will be planned here, too.

Called through machine.py after the request has passed its ReadIndex; what is here was applied, hence committed, hence may be shown."""

from bisect import bisect_right
from collections.abc import Iterator

from anabranch_node.core.stream.queries import NOW, START
from anabranch_node.core.stream.results import OffsetBeyondTail, OffsetInsideMessage, ReadResult, ReadSlice
from anabranch_node.core.stream.stream import Chunk, OpenChunk, Stream, boundary_at, messages_within


def read(stream: Stream, offset: int, max_bytes: int, now_ms: int) -> ReadResult:
    """Messages from `offset` on while they fit in `max_bytes`; the first one always does, or a reader could never pass it."""
    tail = stream.tail
    if offset < 0:
        if offset not in (START, NOW):
            raise ValueError(f"offset {offset} is negative and no sentinel")
        offset = tail if offset == NOW else 0
    if offset >= tail:
        return _slice(stream, offset, offset, b"", now_ms) if offset == tail else OffsetBeyondTail(offset, tail)
    limit = offset + max_bytes
    pieces: list[bytes] = []
    at = offset
    for chunk in _chunks_from(stream, offset):
        ends, base = chunk.ends, chunk.start
        if not pieces:
            begin = boundary_at(ends, offset - base)
            if begin is None:
                inside = messages_within(ends, offset - base)
                return OffsetInsideMessage(offset, base + (ends[inside - 1] if inside else 0), base + ends[inside])
            stop = max(messages_within(ends, limit - base), begin + 1)
        else:
            begin, stop = 0, messages_within(ends, limit - base)
            if stop == 0:
                break
        end = base + ends[stop - 1]
        if isinstance(chunk, OpenChunk):
            pieces += chunk.parts[begin:stop]
        else:
            pieces.append(chunk.data[at - base : end - base])  # the whole of an immutable object is the object: no copy
        at = end
    return _slice(stream, offset, at, pieces[0] if len(pieces) == 1 else b"".join(pieces), now_ms)


def _slice(stream: Stream, start: int, end: int, data: bytes, now_ms: int) -> ReadSlice:
    rare, is_tail = stream.rare, end == stream.tail
    if rare is None:
        return ReadSlice(start, end, data, is_tail, stream.incarnation, stream.content_type)
    closed = rare.closed and is_tail
    return ReadSlice(start, end, data, is_tail, stream.incarnation, stream.content_type, closed, rare.is_touch_due(now_ms))


def _chunks_from(stream: Stream, offset: int) -> Iterator[Chunk | OpenChunk]:
    """The chunk that holds `offset`, which is below the tail, and those after it."""
    open_chunk = stream.open
    if open_chunk is None or offset < open_chunk.start:
        assert stream.sealed is not None, (offset, stream.tail)
        assert stream.sealed_starts is not None, (offset, stream.tail)
        for index in range(bisect_right(stream.sealed_starts, offset) - 1, len(stream.sealed)):
            yield stream.sealed[index]
    if open_chunk is not None:
        yield open_chunk

"""From an offset to bytes: whole messages, cut out of the columns and never parsed. Cold ranges will be planned here, too.

Called through machine.py after the request has passed its ReadIndex; what is here was applied, hence committed, hence may be shown. A fork's
inherited part is another group's: there we say which ranges to ask for, and give our own part along (service/forks.py puts them together).

A read with a routing key takes whole runs of messages and skips whole chunks, so that it costs by what it finds. Not here: who may read."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from anabranch_node.core.stream.commands import Range
from anabranch_node.core.stream.queries import NOW, START, PointAt, ReadAt, ReadInherited, ReadMessages
from anabranch_node.core.stream.results import (
    Inherited,
    MessageSlice,
    OffsetBeyondTail,
    OffsetInsideMessage,
    Point,
    ReadResult,
    ReadSlice,
    StreamNotFound,
    SubOffsetBeyond,
    Trimmed,
)
from anabranch_node.core.stream.stream import Chunk, OpenChunk, Stream, boundary_at, messages_within

RUNS_PER_READ_MAX = 20_000
"""Of a read with a key: what one query may look at, about 10 ms. It then answers what it has, and where to go on."""


class _Cut(NamedTuple):
    end: int
    pieces: list[bytes]
    sizes: list[int]
    """Of each message; only if asked for."""

    @property
    def data(self) -> bytes:
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)


def read(stream: Stream, query: ReadAt | ReadMessages, now_ms: int) -> ReadResult | MessageSlice:
    """Messages from `offset` on while they fit in `max_bytes`; the first one always does, or a reader could never pass it."""
    tail, offset = stream.tail, query.offset
    if offset < 0 or query.since_ms is not None:
        if query.since_ms is not None:
            offset = stream.earliest if stream.earliest < stream.base else _offset_since(stream, query.since_ms, stream.earliest)
        elif offset not in (START, NOW):
            raise ValueError(f"offset {offset} is negative and no sentinel")
        else:
            offset = tail if offset == NOW else 0
    if offset > tail:
        return OffsetBeyondTail(offset, tail)
    if offset < stream.earliest:
        return Trimmed(stream.earliest)
    if offset >= stream.base:
        return _own(stream, query, offset, now_ms)
    assert stream.rare is not None
    assert stream.rare.fork is not None
    fork = stream.rare.fork
    at = fork.offset if query.since_ms is None else _offset_since(stream, query.since_ms, fork.offset)
    own = _own(stream, query, at, now_ms)
    assert isinstance(own, ReadSlice | MessageSlice), own
    return Inherited(offset, [clipped(r, offset, fork.offset) for r in fork.ranges if r.end > offset and r.start < fork.offset], own)


def clipped(r: Range, start: int, end: int) -> Range:
    return Range(r.stream, r.incarnation, max(r.start, start), min(r.end, end))


def _own(stream: Stream, query: ReadAt | ReadMessages, offset: int, now_ms: int) -> ReadSlice | MessageSlice | OffsetInsideMessage:
    end = stream.tail
    with_sizes = isinstance(query, ReadMessages)
    if isinstance(query, ReadMessages) and query.end >= 0:
        end = min(end, query.end)
    cut = _cut(stream, offset, max(offset, end), query.max_bytes, query.key, with_sizes)
    if isinstance(cut, OffsetInsideMessage):
        return cut
    rare, is_tail = stream.rare, cut.end == stream.tail
    closed, touch_due = (False, False) if rare is None else (rare.closed and is_tail, rare.is_touch_due(now_ms))
    state = (closed, touch_due, stream.tail)
    if with_sizes:
        lengths = array("I", cut.sizes).tobytes()
        return MessageSlice(offset, cut.end, cut.data, lengths, stream.incarnation, is_tail, stream.content_type, *state)
    return ReadSlice(offset, cut.end, cut.data, is_tail, stream.incarnation, stream.content_type, *state)


def read_inherited(stream: Stream | None, query: ReadInherited) -> MessageSlice | OffsetInsideMessage | StreamNotFound:
    """For a fork: what it stands on, whoever else may see it."""
    if stream is None or stream.incarnation != query.incarnation or query.offset < stream.start or query.end > stream.tail:
        return StreamNotFound(query.stream)
    offset, found = query.offset, -1
    if query.since_ms is not None:
        offset = _offset_since(stream, query.since_ms, offset)
        if offset >= query.end:
            return MessageSlice(query.end, query.end, b"", b"", stream.incarnation)
        found = offset
    cut = _cut(stream, offset, query.end, query.max_bytes, query.key, True)
    if isinstance(cut, OffsetInsideMessage):
        return cut
    return MessageSlice(offset, cut.end, cut.data, array("I", cut.sizes).tobytes(), stream.incarnation, found=found)


def _cut(stream: Stream, offset: int, end: int, max_bytes: int, key: str | None, with_sizes: bool) -> _Cut | OffsetInsideMessage:
    """[offset, ...) of our own part, at most to `end`. A message that crosses `end` is cut there: a fork point may lie inside one."""
    if offset >= end:
        return _Cut(offset, [], [])
    if key is not None:
        return _cut_by_key(stream, offset, end, max_bytes, key)
    limit = min(offset + max_bytes, end)
    pieces: list[bytes] = []
    sizes: list[int] = []
    at = offset
    for chunk in _chunks_from(stream, offset):
        ends, base = chunk.ends, chunk.start
        if not pieces:
            begin = boundary_at(ends, offset - base)
            if begin is None:
                return _inside(chunk, offset)
            stop = max(messages_within(ends, limit - base), begin + 1)
        else:
            begin, stop = 0, messages_within(ends, limit - base)
            if stop == 0:
                break
        piece_end = base + ends[stop - 1]
        if isinstance(chunk, OpenChunk):
            pieces += chunk.parts[begin:stop]
        else:
            pieces.append(chunk.data[at - base : piece_end - base])  # the whole of an immutable object is the object: no copy
        if with_sizes:
            first = ends[begin - 1] if begin else 0
            sizes += [right - left for left, right in pairwise((first, *ends[begin:stop]))]
        at = piece_end
    if at > end:  # the first message crosses it
        return _Cut(end, [*pieces[:-1], pieces[-1][: end - at]], [*sizes[:-1], sizes[-1] - (at - end)] if sizes else [])
    if at < end == limit:  # the next one does, or it would have been taken
        pieces.append(_message(stream, at)[: end - at])
        sizes.append(end - at)
        at = end
    return _Cut(at, pieces, sizes)


def _message(stream: Stream, at: int) -> bytes:
    chunk = next(_chunks_from(stream, at))
    number = boundary_at(chunk.ends, at - chunk.start)
    assert number is not None, at
    return chunk.parts[number] if isinstance(chunk, OpenChunk) else chunk.data[at - chunk.start : chunk.ends[number]]


def _cut_by_key(stream: Stream, offset: int, end: int, max_bytes: int, key: str) -> _Cut | OffsetInsideMessage:
    pieces: list[bytes] = []
    sizes: list[int] = []
    room, runs, at = max_bytes, 0, offset
    for chunk in _chunks_from(stream, offset):
        if chunk.start >= end:
            break
        ends, base = chunk.ends, chunk.start
        number = boundary_at(ends, at - base)
        if number is None:
            return _inside(chunk, at)
        firsts = (0,) if chunk.key_runs is None else chunk.key_runs.firsts
        keys = ("",) if chunk.key_runs is None else chunk.key_runs.keys
        for run in range(bisect_right(firsts, number) - 1, len(firsts)):
            runs += 1
            behind = firsts[run + 1] if run + 1 < len(firsts) else len(ends)
            if keys[run] != key:
                number = behind
                continue
            while number < behind:
                first = ends[number - 1] if number else 0
                size = min(ends[number], end - base) - first
                if size <= 0:
                    break
                if size > room and pieces:
                    return _Cut(base + first, pieces, sizes)
                data = chunk.parts[number] if isinstance(chunk, OpenChunk) else chunk.data[first : ends[number]]
                pieces.append(data if len(data) == size else data[:size])
                sizes.append(size)
                room -= size
                number += 1
        at = base + ends[-1]
        if runs >= RUNS_PER_READ_MAX and at < end:
            return _Cut(at, pieces, sizes)
    return _Cut(min(at, end), pieces, sizes)


def _inside(chunk: Chunk | OpenChunk, offset: int) -> OffsetInsideMessage:
    inside = messages_within(chunk.ends, offset - chunk.start)
    return OffsetInsideMessage(offset, chunk.start + (chunk.ends[inside - 1] if inside else 0), chunk.start + chunk.ends[inside])


def _offset_since(stream: Stream, since_ms: int, first: int) -> int:
    """Where the first message of our own begins that was appended then or later, not before `first`: what is hidden from readers, a fork may still
    inherit. The tail if there is none."""
    for chunk in stream.chunks():
        if chunk.times[-1] < since_ms:
            continue
        number = chunk.time_firsts[bisect_left(chunk.times, since_ms)]
        return max(first, chunk.start + (chunk.ends[number - 1] if number else 0))
    return stream.tail


# --- points for forks and snapshots ----------------------------------------------------------------------------------------------


def point(stream: Stream, anchor: int, end: int, sub_offset: int, json: bool) -> Point | OffsetInsideMessage | SubOffsetBeyond:
    """Where `sub_offset` past `anchor` is, in our own part and not behind `end`: whole messages in JSON, else bytes of the message at the anchor."""
    if anchor >= end:
        return Point(end, sub_offset)
    left = sub_offset
    at = anchor
    for chunk in _chunks_from(stream, anchor):
        ends, base = chunk.ends, chunk.start
        number = boundary_at(ends, at - base)
        if number is None:
            return _inside(chunk, at)
        if not left:
            return Point(at, 0)
        if not json:
            size = min(base + ends[number], end) - at
            return Point(at + left, 0) if left <= size else SubOffsetBeyond()
        within = messages_within(ends, end - base) - number
        if left <= within:
            return Point(base + ends[number + left - 1], 0)
        left -= max(within, 0)
        at = base + ends[-1]
        if at >= end:
            break
    return Point(end, left)


def point_at(stream: Stream | None, query: PointAt) -> Point | OffsetInsideMessage | StreamNotFound | SubOffsetBeyond:
    if stream is None or stream.incarnation != query.incarnation or query.anchor < stream.start or query.end > stream.tail:
        return StreamNotFound(query.stream)
    return point(stream, query.anchor, query.end, query.sub_offset, query.is_json)


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

"""Forks across groups, the source's side and the fork's promise: commands and tables (DESIGN 9).

Before us: service/forks.py asks the source's group for a Pin, then the fork's group for CreateFork (stream/lifecycle.py). A pin is pending until the
source's leader has asked the fork's group what became of it; a fork that is not there by then is refused for ever by its uuid, so that no late
CreateFork can come to stand on bytes that nobody keeps. After us: the last unpin of a deleted source frees it, and tells its own source in turn.
Not here: reading what is inherited (stream/read_plan.py), sending (service/cross.py)."""

from bisect import bisect_left, bisect_right

import msgspec

from anabranch_node.core.stream import lifecycle
from anabranch_node.core.stream.commands import AckOutbox, Pin, Range, ResolveFork, SettlePin, Unpin
from anabranch_node.core.stream.content_type import is_json, same_media_type
from anabranch_node.core.stream.lifetime import PinState
from anabranch_node.core.stream.queries import NOW
from anabranch_node.core.stream.read_plan import point
from anabranch_node.core.stream.results import (
    ContentTypeMismatch,
    ForkResolved,
    NameHeld,
    OffsetBeyondTail,
    Pinned,
    PinResult,
    Point,
    PointElsewhere,
    StreamNotFound,
    SubOffsetBeyond,
    Trimmed,
    Unpinned,
)
from anabranch_node.core.stream.stream import Stream
from anabranch_node.core.stream.table import StreamTable


def pin(table: StreamTable, command: Pin, now_ms: int) -> PinResult:
    name = command.stream
    stream = table.streams.get(name)
    absent = lifecycle.why_absent(name, stream, now_ms)
    if stream is None or absent is not None:
        return StreamNotFound(name) if isinstance(absent, StreamNotFound) else NameHeld(name)
    rare = stream.rare
    known = None if rare is None or rare.pins is None else rare.pins.get(command.uuid)
    if known is not None:
        return _pinned(stream, known)
    if command.content_type and not same_media_type(command.content_type, stream.content_type):
        return ContentTypeMismatch(stream.content_type)
    anchor = stream.tail if command.anchor == NOW else command.anchor
    if anchor > stream.tail:
        return OffsetBeyondTail(anchor, stream.tail)
    if anchor < stream.earliest:
        return Trimmed(stream.earliest)
    if command.resolved != stream.incarnation:
        json = is_json(stream.content_type)
        if anchor < stream.base:
            return PointElsewhere(stream.incarnation, _ranges(stream, anchor, stream.tail), json)
        found = point(stream, anchor, stream.tail, command.sub_offset, json)
        if not isinstance(found, Point):
            return found
        if found.left:
            return SubOffsetBeyond()
        anchor = found.offset
    stream = table.own(name, stream)
    state = PinState(command.fork, min(stream.earliest, anchor), anchor, True, now_ms, _last_append_ms(stream, anchor))
    rare = stream.rare_fields()
    rare.pins = {**(rare.pins or {}), command.uuid: state}
    table.pending_pins[command.uuid] = name
    return _pinned(stream, state)


def _pinned(stream: Stream, state: PinState) -> Pinned:
    rare = stream.rare
    assert rare is not None
    ranges = _ranges(stream, state.earliest, state.offset)
    lifetime = (rare.ttl_s, rare.expires_at_ms, rare.expires_at)
    return Pinned(stream.incarnation, state.offset, state.earliest, stream.content_type, *lifetime, ranges, state.last_append_ms)


def _last_append_ms(stream: Stream, offset: int) -> int:
    """Append time of the last message before a point. Of what we inherit ourselves we know the latest, which is late enough."""
    for chunk in stream.chunks():
        if chunk.start < offset <= chunk.start + chunk.ends[-1]:
            number = bisect_left(chunk.ends, offset - chunk.start)
            return chunk.times[bisect_right(chunk.time_firsts, number) - 1]
    return 0 if stream.rare is None or stream.rare.fork is None else stream.rare.fork.last_append_ms


def _ranges(stream: Stream, start: int, end: int) -> list[Range]:
    """Where [start, end) of this stream lies: what it inherits itself, flat, and its own part."""
    inherited = () if stream.rare is None or stream.rare.fork is None else stream.rare.fork.ranges
    ranges = [Range(r.stream, r.incarnation, max(r.start, start), min(r.end, end)) for r in inherited if r.end > start and r.start < end]
    if end > stream.base:
        ranges.append(Range(stream.name, stream.incarnation, max(stream.base, start), end))
    return [r for r in ranges if r.start < r.end]


def unpin(table: StreamTable, command: Unpin, now_ms: int) -> Unpinned:
    _drop_pin(table, command.stream, command.incarnation, command.uuid)
    return Unpinned()


def _drop_pin(table: StreamTable, name: str, incarnation: int, uuid: str) -> None:
    table.pending_pins.pop(uuid, None)
    stream = table.streams.get(name)
    if stream is None or stream.incarnation != incarnation or stream.rare is None or uuid not in (stream.rare.pins or ()):
        return
    stream = table.own(name, stream)
    rare = stream.rare_fields()
    assert rare.pins is not None
    rare.pins = {other: state for other, state in rare.pins.items() if other != uuid} or None
    if rare.pins is None and rare.gone:
        lifecycle.free(table, name, stream)
    else:
        lifecycle.release(table, stream)


def resolve(table: StreamTable, command: ResolveFork, now_ms: int) -> ForkResolved:
    stream = table.streams.get(command.stream)
    alive = stream is not None and stream.rare is not None and stream.rare.fork is not None and stream.rare.fork.uuid == command.uuid
    if not alive:
        table.refused.add(command.uuid)
    return ForkResolved(alive)


def settle(table: StreamTable, command: SettlePin, now_ms: int) -> Unpinned:
    if not command.alive:
        _drop_pin(table, command.stream, command.incarnation, command.uuid)
        return Unpinned()
    table.pending_pins.pop(command.uuid, None)
    stream = table.streams.get(command.stream)
    state = None if stream is None or stream.rare is None or stream.rare.pins is None else stream.rare.pins.get(command.uuid)
    if stream is not None and state is not None and stream.incarnation == command.incarnation and state.pending:
        rare = table.own(command.stream, stream).rare_fields()
        rare.pins = {**(rare.pins or {}), command.uuid: msgspec.structs.replace(state, pending=False)}
    return Unpinned()


def acknowledge(table: StreamTable, command: AckOutbox, now_ms: int) -> Unpinned:
    table.outbox.acknowledge(command.numbers)
    return Unpinned()

"""The life of a stream: create (plain or as a fork), publish, trim, delete, touch, expire. Called by machine.py with the group's clock and, for a
create, the new incarnation.

A stream that is past its due does not exist for any command but Expire, which frees it, and Create, which replaces it. One that is kept for forks is
never freed or replaced: deleted or due, it is gone for everybody else until its last fork has let go (core/cross/pins.py)."""

import sys

from anabranch_node.core.cross import fences
from anabranch_node.core.cross.outbox import Owed
from anabranch_node.core.stream.commands import Create, CreateFork, Delete, Expire, PublishSnapshot, Touch, Trim
from anabranch_node.core.stream.content_type import is_json, same_media_type
from anabranch_node.core.stream.lifetime import Fork, Published, RareFields
from anabranch_node.core.stream.queries import ForkLook
from anabranch_node.core.stream.read_plan import point
from anabranch_node.core.stream.results import (
    Created,
    CreateResult,
    Deleted,
    ForkTooLate,
    NameHeld,
    NotDue,
    OffsetBeyondTail,
    OffsetInsideMessage,
    Point,
    PointElsewhere,
    PublishResult,
    SnapshotPublished,
    StreamExists,
    StreamGone,
    StreamNotFound,
    Touched,
    TrimDone,
    Trimmed,
)
from anabranch_node.core.stream.stream import Stream, split_messages
from anabranch_node.core.stream.table import StreamTable


def why_absent(name: str, stream: Stream | None, now_ms: int) -> StreamNotFound | StreamGone | None:
    """None: it is there for everybody."""
    if stream is None:
        return StreamNotFound(name)
    rare = stream.rare
    if rare is None:
        return None
    if rare.gone:
        return StreamGone(name)
    if rare.is_due(now_ms):
        return StreamNotFound(name) if rare.pins is None else StreamGone(name)
    return None


# --- create ----------------------------------------------------------------------------------------------------------------------


def create(table: StreamTable, command: Create | CreateFork, incarnation: int, now_ms: int) -> CreateResult:
    """Idempotent: the same settings again answer where the stream ends (a body is not appended again), other settings are refused."""
    name = command.stream
    fork = _fork_of(command)
    if fork is not None and fork.uuid in table.refused:
        return ForkTooLate()
    unknown = fences.check(table, name)
    if unknown is not None:
        return unknown
    stream = table.streams.get(name)
    if stream is not None:
        absent = why_absent(name, stream, now_ms)
        if absent is None:
            return _exists(table, stream, command, fork, now_ms)
        if isinstance(absent, StreamGone):
            return NameHeld(name)
    messages = split_messages(command.body, command.lengths)
    if stream is not None:
        free(table, name, stream)
    # A handful of content types serve all streams: one string each instead of one per stream.
    stream = Stream(name, incarnation, sys.intern(command.content_type), table.generation, now_ms)
    stream.rare = _rare_of(command, fork)
    if stream.rare is not None:
        stream.rare.touch(now_ms)
    if isinstance(command, CreateFork):
        stream.rare_fields().last_append_ms = command.last_append_ms
        stream.tail = stream.start = command.offset
        stream.earliest = command.earliest
    for message in messages:
        stream.add(message, now_ms, "")
    table.insert(name, stream)
    return Created(stream.tail, False, command.closed, incarnation, _fork_type(stream))


def _fork_type(stream: Stream) -> str:
    return stream.content_type if stream.rare is not None and stream.rare.fork is not None else ""


def _fork_of(command: Create | CreateFork) -> Fork | None:
    if not isinstance(command, CreateFork):
        return None
    asked = (command.anchor, command.sub_offset)
    return Fork(command.uuid, command.source, command.source_incarnation, *asked, command.offset, command.ranges, command.last_append_ms)


def _rare_of(command: Create | CreateFork, fork: Fork | None) -> RareFields | None:
    rare = RareFields(
        command.ttl_s,
        command.expires_at_ms,
        command.expires_at,
        closed=command.closed,
        retention_bytes=command.retention_bytes,
        retention_age_s=command.retention_age_s,
        fork=fork,
    )
    return None if rare == RareFields() else rare


def _exists(table: StreamTable, stream: Stream, command: Create | CreateFork, fork: Fork | None, now_ms: int) -> Created | StreamExists:
    rare = stream.rare or RareFields()
    if not _same_settings(stream, rare, command) or (fork is not None and not _same_fork(rare.fork, fork)):
        return StreamExists(stream.name, stream.content_type)
    if rare.ttl_s is not None:
        table.own(stream.name, stream).rare_fields().touch(now_ms)
    return Created(stream.tail, True, command.closed, stream.incarnation, _fork_type(stream))


def _same_settings(stream: Stream, rare: RareFields, command: Create | CreateFork) -> bool:
    settings = (rare.ttl_s, rare.expires_at_ms, rare.closed, rare.retention_bytes, rare.retention_age_s)
    wanted = (command.ttl_s, command.expires_at_ms, command.closed, command.retention_bytes, command.retention_age_s)
    return settings == wanted and same_media_type(stream.content_type, command.content_type)


def _same_fork(held: Fork | None, asked: Fork) -> bool:
    if held is None or held.source != asked.source:
        return False
    return fork_point_matches(held, asked.anchor, asked.sub_offset)


def look_for_fork(stream: Stream | None, look: ForkLook, now_ms: int) -> Created | StreamExists | NameHeld | StreamNotFound:
    absent = why_absent(look.stream, stream, now_ms)
    if stream is None or absent is not None:
        return NameHeld(look.stream) if isinstance(absent, StreamGone) else StreamNotFound(look.stream)
    rare = stream.rare or RareFields()
    fork = rare.fork
    same = (
        fork is not None
        and fork.source == look.source
        and fork_point_matches(fork, look.anchor, look.sub_offset)
        and (not look.content_type or same_media_type(stream.content_type, look.content_type))
        and (look.ttl_s is None or look.ttl_s == rare.ttl_s)
        and (look.expires_at_ms is None or look.expires_at_ms == rare.expires_at_ms)
        and (look.closed, look.retention_bytes, look.retention_age_s) == (rare.closed, rare.retention_bytes, rare.retention_age_s)
    )
    return (
        Created(stream.tail, True, rare.closed, stream.incarnation, stream.content_type) if same else StreamExists(look.stream, stream.content_type)
    )


def fork_point_matches(held: Fork, anchor: int | None, sub_offset: int) -> bool:
    """The same question as at its create, or the point itself that "the tail" meant then."""
    if (held.anchor, held.sub_offset) == (anchor, sub_offset):
        return True
    return held.sub_offset == sub_offset == 0 and held.anchor is None and anchor == held.offset


# --- what is shown ---------------------------------------------------------------------------------------------------------------


def publish(table: StreamTable, command: PublishSnapshot, now_ms: int) -> PublishResult:
    name, offset = command.stream, command.offset
    stream = table.streams.get(name)
    absent = why_absent(name, stream, now_ms)
    if stream is None or absent is not None:
        return absent or StreamNotFound(name)
    if offset > stream.tail:
        return OffsetBeyondTail(offset, stream.tail)
    if offset < stream.earliest:
        return Trimmed(stream.earliest)
    if offset < stream.base:
        if command.aligned != stream.incarnation:
            assert stream.rare is not None
            assert stream.rare.fork is not None
            return PointElsewhere(stream.incarnation, [r for r in stream.rare.fork.ranges if r.end > offset], is_json(stream.content_type))
    else:
        found = point(stream, offset, stream.tail, 0, json=True)
        if isinstance(found, OffsetInsideMessage):
            return found
    stream = table.own(name, stream)
    rare = stream.rare_fields()
    rare.touch(now_ms)
    table.hot_bytes += len(command.body) - (0 if rare.published is None else len(rare.published.data))
    rare.published = Published(offset, command.content_type, command.body)
    stream.earliest = offset
    release(table, stream)
    return SnapshotPublished(offset)


def trim(table: StreamTable, command: Trim, now_ms: int) -> TrimDone:
    stream = table.streams.get(command.stream)
    if stream is None or stream.incarnation != command.incarnation or not stream.earliest < command.offset <= stream.tail:
        return TrimDone()
    if stream.rare is None or stream.rare.gone or stream.rare.published is not None or command.offset < stream.base:
        return TrimDone()
    if isinstance(point(stream, command.offset, stream.tail, 0, json=True), Point):
        stream = table.own(command.stream, stream)
        stream.earliest = command.offset
        release(table, stream)
    return TrimDone()


def release(table: StreamTable, stream: Stream) -> None:
    """Forget the bytes that neither readers nor forks need. The caller owns the stream."""
    needed = stream.earliest
    if stream.rare is not None and stream.rare.pins is not None:
        needed = min([needed, *[pin.earliest for pin in stream.rare.pins.values() if pin.offset > pin.earliest]])
    if needed > stream.start:
        before = stream.held_bytes
        # A fork's pin may begin inside what its source inherits, or at a point inside a message: keep that message whole.
        last_append_ms = stream.last_append_ms
        stream.drop_before(stream.boundary_before(needed))
        if stream.start == stream.tail:  # append times never go back, whatever is still here
            stream.rare_fields().last_append_ms = last_append_ms
        table.hot_bytes -= before - stream.held_bytes


# --- the end ---------------------------------------------------------------------------------------------------------------------


def free(table: StreamTable, name: str, stream: Stream) -> None:
    """Nobody needs it any more. A fork tells its source."""
    table.remove(name)
    if stream.rare is not None and stream.rare.fork is not None:
        fork = stream.rare.fork
        table.outbox.add(Owed(fork.source, fork.source_incarnation, fork.uuid))


def _end(table: StreamTable, name: str, stream: Stream) -> None:
    """Deleted or expired: freed, or kept for its forks alone."""
    if stream.rare is None or stream.rare.pins is None:
        free(table, name, stream)
        return
    stream = table.own(name, stream)
    rare = stream.rare_fields()
    rare.gone = True
    table.mortal.add(name)
    stream.producers = None
    if rare.published is not None:
        table.hot_bytes -= len(rare.published.data)
        rare.published = None


def delete(table: StreamTable, command: Delete, now_ms: int) -> Deleted | StreamNotFound | StreamGone:
    stream = table.streams.get(command.stream)
    absent = why_absent(command.stream, stream, now_ms)
    if stream is None or absent is not None:
        return absent or StreamNotFound(command.stream)
    _end(table, command.stream, stream)
    return Deleted(stream.incarnation)


def touch(table: StreamTable, command: Touch, now_ms: int) -> Touched:
    """Whoever reads did see the stream, so there is nothing to refuse; but what is past its due does not come back."""
    stream = table.streams.get(command.stream)
    if stream is not None and stream.incarnation == command.incarnation:
        rare = stream.rare
        if rare is not None and rare.ttl_s is not None and not rare.gone and not rare.is_due(now_ms):
            table.own(command.stream, stream).rare_fields().touch(now_ms)
    return Touched()


def expire(table: StreamTable, command: Expire, now_ms: int) -> Deleted | NotDue:
    stream = table.streams.get(command.stream)
    if stream is None or stream.incarnation != command.incarnation or stream.rare is None or not stream.rare.is_due(now_ms):
        return NotDue()
    _end(table, command.stream, stream)
    return Deleted(stream.incarnation)

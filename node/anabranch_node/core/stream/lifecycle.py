"""The life of a stream: create, delete, touch, expire. Called by machine.py with the group's clock and, for a create, the new incarnation.

A stream that is past its due does not exist for any command but Expire, which frees it, and Create, which replaces it."""

import sys

from anabranch_node.core.cross import fences
from anabranch_node.core.stream.commands import Create, Delete, Expire, Touch
from anabranch_node.core.stream.content_type import same_media_type
from anabranch_node.core.stream.lifetime import RareFields
from anabranch_node.core.stream.results import Created, CreateResult, Deleted, NotDue, StreamExists, StreamNotFound, Touched
from anabranch_node.core.stream.stream import Stream, split_messages
from anabranch_node.core.stream.table import StreamTable


def create(table: StreamTable, command: Create, incarnation: int, now_ms: int) -> CreateResult:
    """Idempotent: the same settings again answer where the stream ends (a body is not appended again), other settings are refused."""
    name = command.stream
    unknown = fences.check(table, name)
    if unknown is not None:
        return unknown
    stream = table.streams.get(name)
    if stream is not None:
        rare = stream.rare
        if rare is None or not rare.is_due(now_ms):
            if not _same_settings(stream, command):
                return StreamExists(name, stream.content_type)
            if rare is not None and rare.ttl_s is not None:
                table.own(name, stream).rare_fields().touch(now_ms)
            return Created(stream.tail, True, command.closed, stream.incarnation)
    messages = split_messages(command.body, command.lengths)
    if stream is not None:
        table.remove(name)
    # A handful of content types serve all streams: one string each instead of one per stream.
    stream = Stream(incarnation, sys.intern(command.content_type), table.generation)
    if command.ttl_s is not None or command.expires_at_ms is not None or command.closed:
        stream.rare = RareFields(command.ttl_s, command.expires_at_ms, command.expires_at, closed=command.closed)
        stream.rare.touch(now_ms)
    for message in messages:
        stream.add(message, now_ms, "")
    table.insert(name, stream)
    return Created(stream.tail, False, command.closed, incarnation)


def _same_settings(stream: Stream, command: Create) -> bool:
    rare = stream.rare
    settings = (None, None, False) if rare is None else (rare.ttl_s, rare.expires_at_ms, rare.closed)
    wanted = (command.ttl_s, command.expires_at_ms, command.closed)
    return settings == wanted and same_media_type(stream.content_type, command.content_type)


def delete(table: StreamTable, command: Delete, now_ms: int) -> Deleted | StreamNotFound:
    stream = table.streams.get(command.stream)
    if stream is None or (stream.rare is not None and stream.rare.is_due(now_ms)):
        return StreamNotFound(command.stream)
    table.remove(command.stream)
    return Deleted(stream.incarnation)


def touch(table: StreamTable, command: Touch, now_ms: int) -> Touched:
    """Whoever reads did see the stream, so there is nothing to refuse; but what is past its due does not come back."""
    stream = table.streams.get(command.stream)
    if stream is not None and stream.incarnation == command.incarnation:
        rare = stream.rare
        if rare is not None and rare.ttl_s is not None and not rare.is_due(now_ms):
            table.own(command.stream, stream).rare_fields().touch(now_ms)
    return Touched()


def expire(table: StreamTable, command: Expire, now_ms: int) -> Deleted | NotDue:
    stream = table.streams.get(command.stream)
    if stream is None or stream.incarnation != command.incarnation or stream.rare is None or not stream.rare.is_due(now_ms):
        return NotDue()
    table.remove(command.stream)
    return Deleted(stream.incarnation)

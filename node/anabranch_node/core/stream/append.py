"""One append or close: the checks in the protocol's order, then offsets. Called by machine.py; a refusal leaves the stream untouched.

The order: found, closed, content type, producer, Stream-Seq, empty body. A retry of a producer is thus answered as a duplicate before its Stream-Seq
could be called a regression. The producer table, the close and Stream-Seq change here, together with the data, so that a retry after any crash
meets all or nothing. Not here: parsing of JSON (web/write.py), the window of a stream (lifetime.py)."""

from anabranch_node.core.stream import producers
from anabranch_node.core.stream.commands import Append
from anabranch_node.core.stream.content_type import same_media_type
from anabranch_node.core.stream.lifecycle import why_absent
from anabranch_node.core.stream.results import (
    Appended,
    AppendResult,
    ContentTypeMismatch,
    EmptyBody,
    SeqRegression,
    StreamClosed,
    StreamNotFound,
)
from anabranch_node.core.stream.stream import Stream, split_messages
from anabranch_node.core.stream.table import StreamTable


def append(table: StreamTable, command: Append, now_ms: int) -> AppendResult:
    name = command.stream
    stream = table.streams.get(name)
    if stream is None:
        return StreamNotFound(name)
    rare = stream.rare
    if rare is not None:
        if rare.gone or rare.is_due(now_ms):
            absent = why_absent(name, stream, now_ms)
            assert absent is not None
            return absent
        if rare.closed:
            return _append_to_closed(table, stream, command, now_ms)
    body, claim, seq, close = command.body, command.producer, command.seq, command.close
    # A close without a body is never refused for its content type: clients attach default ones.
    if body and command.content_type and not same_media_type(command.content_type, stream.content_type):
        return ContentTypeMismatch(stream.content_type)
    if claim is not None:
        verdict = producers.judge(stream.producers, claim, stream.tail, now_ms)
        if type(verdict) is Appended:
            _note_duplicate(table.own(name, stream), command, now_ms)
            return verdict
        if verdict is not None:
            return verdict
    # Python orders text by code point, which is the order of its UTF-8 bytes.
    if seq is not None and rare is not None and rare.seq is not None and seq <= rare.seq:
        return SeqRegression(rare.seq)
    if not body and not close:
        return EmptyBody(name)

    messages = split_messages(body, command.lengths) if command.lengths else None
    stream = table.own(name, stream)
    start = stream.tail
    if body:
        at_ms = now_ms if command.timestamp_ms is None else max(stream.last_append_ms, min(command.timestamp_ms, now_ms))
        if messages is None:
            stream.add(body, at_ms, command.key)
        else:
            for message in messages:
                stream.add(message, at_ms, command.key)
        table.hot_bytes += len(body)
    if close or seq is not None or stream.rare is not None:
        rare = stream.rare_fields()
        rare.touch(now_ms)
        if seq is not None:
            rare.seq = seq
        if close:
            rare.closed, rare.closer = True, claim
        if rare.retention_bytes is not None:
            table.retention.appended(name, stream)
    if claim is None:
        return Appended(start, stream.tail, False, close)
    if stream.producers is None:
        stream.producers = {}
    producers.note_append(stream.producers, claim, start, stream.tail, now_ms)
    return Appended(start, stream.tail, False, close, True, claim.epoch, claim.seq)


def _append_to_closed(table: StreamTable, stream: Stream, command: Append, now_ms: int) -> AppendResult:
    """Only a repetition succeeds: of the very append that closed, or of a close that carries nothing."""
    claim, tail = command.producer, stream.tail
    assert stream.rare is not None
    if claim is None:
        if command.body or not command.close:
            return StreamClosed(tail)
        if stream.rare.ttl_s is not None:
            table.own(command.stream, stream).rare_fields().touch(now_ms)
        return Appended(tail, tail, True, True)
    if claim != stream.rare.closer:
        return StreamClosed(tail)
    # A closed stream takes no new producers, so the one that closed it was not pushed out of the table since.
    verdict = producers.judge(stream.producers, claim, tail, now_ms, closed=True)
    assert type(verdict) is Appended, (claim, verdict)
    _note_duplicate(table.own(command.stream, stream), command, now_ms)
    return verdict


def _note_duplicate(stream: Stream, command: Append, now_ms: int) -> None:
    assert stream.producers is not None
    assert command.producer is not None
    producers.note_duplicate(stream.producers, command.producer, now_ms)
    if stream.rare is not None:
        stream.rare.touch(now_ms)

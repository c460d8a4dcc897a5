"""One append: the checks in the protocol's order, then offsets. Called by machine.py; a refusal leaves the stream untouched.

The producer table changes here, together with the data, so that a retry after any crash meets both or neither."""

from anabranch_node.core.stream import producers
from anabranch_node.core.stream.commands import Append
from anabranch_node.core.stream.results import Appended, AppendResult, EmptyBody, StreamNotFound
from anabranch_node.core.stream.table import StreamTable


def append(table: StreamTable, command: Append, now_ms: int) -> AppendResult:
    body = command.body
    if not body:
        return EmptyBody(command.stream)
    stream = table.streams.get(command.stream)
    if stream is None:
        return StreamNotFound(command.stream)
    claim = command.producer
    if claim is None:
        stream = table.own(command.stream, stream)
        return Appended(stream.tail, stream.add(body, now_ms))

    verdict = producers.judge(stream.producers, claim, stream.tail, now_ms)
    if verdict is not None and type(verdict) is not Appended:
        return verdict
    stream = table.own(command.stream, stream)
    if stream.producers is None:
        stream.producers = {}
    if verdict is not None:
        producers.note_duplicate(stream.producers, claim, now_ms)
        return verdict
    start = stream.tail
    end = stream.add(body, now_ms)
    producers.note_append(stream.producers, claim, start, end, now_ms)
    return Appended(start, end)

"""The life of a stream: create, for now. Called by machine.py with the group's clock and the index of the log entry."""

import sys

from anabranch_node.core.stream.commands import Create
from anabranch_node.core.stream.results import Created, CreateResult, StreamExists
from anabranch_node.core.stream.stream import Stream
from anabranch_node.core.stream.table import StreamTable


def create(table: StreamTable, command: Create, index: int) -> CreateResult:
    """Idempotent: the same settings again answer where the stream ends, other settings are refused."""
    stream = table.streams.get(command.stream)
    if stream is None:
        # A handful of content types serve all streams: one string each instead of one per stream.
        table.streams[command.stream] = Stream(index, sys.intern(command.content_type), table.generation)
        return Created(0, existed=False)
    if stream.content_type != command.content_type:
        return StreamExists(command.stream, stream.content_type)
    return Created(stream.tail, existed=True)

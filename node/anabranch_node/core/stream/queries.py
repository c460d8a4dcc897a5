"""What can be asked of a group without changing it: each passes a ReadIndex, then machine.query() answers from applied state.

Before us: web/read.py makes a query. After us: read_plan.py cuts the slice. Tags are never reused: queries travel to other nodes, too."""

from msgspec import Struct

NOW = -2
"""Offset sentinel of ReadAt: the tail, whatever it is when the read is served."""
START = -1
"""Offset sentinel of ReadAt: the earliest offset that the stream still has."""


class ReadAt(Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Answered by ReadSlice, StreamNotFound, OffsetBeyondTail or OffsetInsideMessage."""

    stream: str
    offset: int
    max_bytes: int


class Head(Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Answered by StreamInfo or StreamNotFound. Does not reset a sliding window."""

    stream: str


class ListStreams(Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Answered by StreamPage: names of this group that start with `prefix` and come behind `after`, at most `limit`."""

    prefix: str
    after: str
    limit: int


Query = ReadAt | Head | ListStreams

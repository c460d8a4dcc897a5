"""What can be asked of a group without changing it: each passes a ReadIndex, then machine.query() answers from applied state.

Before us: web/read.py makes a query. After us: read_plan.py cuts the slice. Tags are never reused: queries travel to other nodes, too."""

from msgspec import Struct

NOW = -2
"""Offset sentinel of ReadAt: the tail, whatever it is when the read is served."""
START = -1
"""Offset sentinel of ReadAt: the earliest offset that the stream still has."""


class ReadAt(Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Answered by ReadSlice, Inherited (a fork, before its fork point), StreamNotFound, StreamGone, Trimmed, OffsetBeyondTail or
    OffsetInsideMessage."""

    stream: str
    offset: int
    max_bytes: int
    key: str | None = None
    """Only messages with this routing key; the slice still covers all that were looked at."""
    since_ms: int | None = None
    """Instead of an offset: from the first message (with that key) that was appended then or later; the tail if there is none."""


class Head(Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Answered by StreamInfo, StreamNotFound or StreamGone. Does not reset a sliding window."""

    stream: str


class ListStreams(Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Answered by StreamPage: names of this group that start with `prefix` and come behind `after`, at most `limit`."""

    prefix: str
    after: str
    limit: int
    details: bool = False
    """With a StreamRow for each name."""


class ReadMessages(Struct, frozen=True, array_like=True, tag=4, gc=False):
    """Whole messages with their lengths, for bootstrap and format=raw. Answered by MessageSlice, or as ReadAt. `incarnation` 0: whichever; another
    one is StreamNotFound. `end` -1: the tail."""

    stream: str
    offset: int
    max_bytes: int
    incarnation: int = 0
    end: int = -1
    key: str | None = None
    since_ms: int | None = None


class ReadInherited(Struct, frozen=True, array_like=True, tag=5, gc=False):
    """For a fork: messages of [offset, end) of exactly that incarnation, whatever became of its name since: deleted, expired, trimmed. A message
    that crosses `end` is cut there. Answered by MessageSlice, StreamNotFound or OffsetInsideMessage."""

    stream: str
    incarnation: int
    offset: int
    end: int
    max_bytes: int
    key: str | None = None
    since_ms: int | None = None


class PointAt(Struct, frozen=True, array_like=True, tag=6, gc=False):
    """For a fork's point, or a snapshot's, in an inherited part: where is `sub_offset` past `anchor`, at or before `end`? Answered by Point,
    StreamNotFound or OffsetInsideMessage."""

    stream: str
    incarnation: int
    anchor: int
    end: int
    sub_offset: int
    is_json: bool


class ReadSnapshot(Struct, frozen=True, array_like=True, tag=7, gc=False):
    """The published snapshot. Answered by SnapshotBlob, NoSnapshot, StreamNotFound or StreamGone. `blob` False: without its bytes.
    `offset` -1: the latest."""

    stream: str
    offset: int
    blob: bool


class BucketCount(Struct, frozen=True, array_like=True, tag=8, gc=False):
    """Answered by BucketFenced (its count): streams of that bucket in this group."""

    bucket: str


class ForkLook(Struct, frozen=True, array_like=True, tag=9, gc=False):
    """Before a fork is made: is it there already? Answered by Created (existed), StreamExists, NameHeld, or StreamNotFound: make it. What is not
    given (None, no content type) is inherited, so it is not compared."""

    stream: str
    source: str
    anchor: int | None
    sub_offset: int
    content_type: str
    ttl_s: int | None
    expires_at_ms: int | None
    closed: bool
    retention_bytes: int | None
    retention_age_s: int | None


Query = ReadAt | Head | ListStreams | ReadMessages | ReadInherited | PointAt | ReadSnapshot | BucketCount | ForkLook

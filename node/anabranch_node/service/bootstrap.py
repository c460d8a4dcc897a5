"""One bootstrap between its arrival and its last part: which question comes next, which bytes go out.

Before us: service.py asks what query() says and brings the results. After us: web/bootstrap.py renders, the driver writes, and says when its client
has taken a piece; only then the next one is asked for, so that memory holds one piece whatever the length of the stream.

First look: what the stream is, and where it begins and ends now; everything after is asked of exactly that incarnation. Until the first byte is
sent, a stream that changes under us means another look. After it there is no status left to send: the answer is cut off, never ended as if it were
whole. Not here: the window of the stream (service.py resets it), the parts that a fork has inherited (forks.py hands them over as slices)."""

from typing import Any, Final, NamedTuple

from anabranch_node.core.errors import ReadUnavailable
from anabranch_node.core.stream.queries import Head, Query, ReadMessages, ReadSnapshot
from anabranch_node.core.stream.results import (
    MessageSlice,
    NoSnapshot,
    OffsetBeyondTail,
    OffsetInsideMessage,
    SnapshotBlob,
    StreamInfo,
    StreamNotFound,
    Trimmed,
)
from anabranch_node.web import bootstrap as web
from anabranch_node.web.request import Request

PIECE_BYTES: Final = 256 << 10
LOOKS_MAX: Final = 4
"""Each needs a snapshot that is published, or a trim, between two questions a few milliseconds apart."""
_CHANGED: Final = (NoSnapshot, StreamNotFound, Trimmed, OffsetBeyondTail, OffsetInsideMessage)


class Ask(NamedTuple):
    """Ask what query() says now."""


class Refuse(NamedTuple):
    """Nothing was sent: this is the answer."""

    result: Any


class Send(NamedTuple):
    """`first`: with the head of the response. `last`: then comes closing()."""

    data: bytes
    first: bool
    last: bool
    stream_bytes: int


class CutOff(NamedTuple):
    """It cannot go on as it began."""


class Bootstrap:
    __slots__ = ("_at", "_boundary", "_info", "_looks", "_piece_bytes", "_request", "_snapshot", "begun")

    def __init__(self, request: Request, boundary: str, piece_bytes: int = PIECE_BYTES) -> None:
        self._request = request
        self._boundary = boundary
        self._piece_bytes = piece_bytes
        self._looks = 1
        self._info: StreamInfo | None = None
        self._snapshot: SnapshotBlob | None = None
        self._at = -1
        self.begun = False

    def query(self) -> Query:
        stream, info = self._request.stream, self._info
        if info is None:
            return Head(stream)
        if self._at < 0:
            return ReadSnapshot(stream, info.snapshot_offset, True)
        return ReadMessages(stream, self._at, self._piece_bytes, info.incarnation, info.tail)

    def step(self, result: Any) -> Ask | Refuse | Send | CutOff:
        info = self._info
        if info is None:
            if type(result) is not StreamInfo:
                return Refuse(result)
            self._info = result
            if result.snapshot_offset < 0:
                self._at = result.earliest
            return Ask()
        if self._at < 0 and type(result) is SnapshotBlob and result.incarnation == info.incarnation:
            self._snapshot, self._at = result, result.offset
            return Ask()
        if self._at >= 0 and type(result) is MessageSlice and self._fits(result, info):
            return self._send(result, info)
        if self.begun:
            return CutOff()
        if not isinstance(result, (*_CHANGED, SnapshotBlob, MessageSlice)):
            return Refuse(result)
        self._info = self._snapshot = None
        self._at = -1
        self._looks += 1
        return Ask() if self._looks <= LOOKS_MAX else Refuse(ReadUnavailable())

    def _fits(self, slice: MessageSlice, info: StreamInfo) -> bool:
        """It continues what was sent, of the same stream, and there is an end to it."""
        at, behind = self._at, slice.next_offset
        return slice.start == at and slice.incarnation == info.incarnation and (at < behind <= info.tail or at == behind == info.tail)

    def _send(self, slice: MessageSlice, info: StreamInfo) -> Send:
        self._at = slice.next_offset
        last = self._at == info.tail
        data = web.parts(self._boundary, info.content_type, slice)
        if self.begun:
            return Send(web.chunk(data), False, last, len(slice.data))
        self.begun = True
        opening = web.first_part(self._boundary, self._snapshot)
        head = web.head(self._request, self._boundary, self._snapshot, info.tail)
        self._snapshot = None  # up to 10 MiB, which is on its way now
        return Send(head + web.chunk(opening + data), True, last, len(slice.data))

    def closing(self) -> bytes:
        return web.end(self._boundary)

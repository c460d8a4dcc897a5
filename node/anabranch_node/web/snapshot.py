"""Published snapshots: a client's own fold of a stream up to an offset. Request -> command or query; result -> reply.

Before us: request.py. After us: core/stream. Only the latest one is kept, so deleting never succeeds: the latest is what a bootstrap starts with,
any other is gone already. Not here: its bytes as the first part of a bootstrap (bootstrap.py)."""

from typing import Final

from anabranch_node.core.stream.commands import PublishSnapshot
from anabranch_node.core.stream.queries import ReadSnapshot
from anabranch_node.core.stream.results import OffsetBeyondTail, SnapshotBlob, SnapshotPublished
from anabranch_node.web import errors
from anabranch_node.web.read import type_header
from anabranch_node.web.reply import STREAM_CLOSED, UP_TO_DATE, Reply, error
from anabranch_node.web.request import Kind, Request, refuse

SNAPSHOT_BYTES_MAX: Final = 10 << 20
"""It travels through the log, as one command."""
LATEST: Final = -1
_NO_STORE: Final = b"Cache-Control: no-store\r\n"
_BEHIND: Final = b"Stream-Up-To-Date: false\r\n"


def command(request: Request, body: bytes) -> PublishSnapshot:
    """An empty one is a snapshot, too: the fold of a stream may be nothing."""
    if len(body) > SNAPSHOT_BYTES_MAX:
        raise refuse(413, "snapshot_too_large", f"a snapshot may have {SNAPSHOT_BYTES_MAX} bytes")
    return PublishSnapshot(request.stream, request.snapshot_offset, request.content_type, body, 0)


def query(request: Request) -> ReadSnapshot:
    return ReadSnapshot(
        request.stream, LATEST if request.kind is Kind.SNAPSHOT_LATEST else request.snapshot_offset, request.kind is Kind.SNAPSHOT_READ
    )


def answer(request: Request, result: object) -> Reply:
    if type(result) is SnapshotPublished:
        return Reply(204, offset_header(result.offset))
    if type(result) is OffsetBeyondTail and request.kind is Kind.SNAPSHOT_PUBLISH:
        # Not 400 as for a read: the extensions call it a conflict, since the client may know more than the stream does.
        return error(409, "offset_beyond_tail", str(result))
    if type(result) is not SnapshotBlob:
        return errors.answer(result)
    if request.kind is Kind.SNAPSHOT_DELETE:
        return error(409, "latest_snapshot", "the latest snapshot cannot be deleted: a bootstrap would be incomplete without it")
    at = offset_header(result.offset)
    if request.kind is Kind.SNAPSHOT_LATEST:
        location = f"{request.path}/snapshot/{result.offset:020d}"
        return Reply(307, b"Location: " + location.encode("ascii") + b"\r\n" + at + _NO_STORE)
    headers = type_header(result.content_type) + at + b"Stream-Next-Offset: %020d\r\n" % result.offset + _NO_STORE
    if result.offset < result.tail:
        return Reply(200, headers + _BEHIND, result.data)
    return Reply(200, headers + UP_TO_DATE + (STREAM_CLOSED if result.closed else b""), result.data)


def offset_header(offset: int) -> bytes:
    return b"Stream-Snapshot-Offset: %020d\r\n" % offset

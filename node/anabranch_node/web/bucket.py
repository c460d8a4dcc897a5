"""What is answered about a bucket: made, what it is, its streams, gone. Before us: service/buckets.py asked the meta group and all others.
After us: the driver. Not here: refusals (errors.py), paths and parameters (request.py)."""

from typing import Final

import msgspec

from anabranch_node.core.stream.results import StreamPage
from anabranch_node.web.reply import Reply
from anabranch_node.web.request import Request

_JSON: Final = b"Content-Type: application/json\r\nCache-Control: no-store\r\n"
_encoder: Final = msgspec.json.Encoder()

GONE: Final = Reply(204, b"")


class _Info(msgspec.Struct, gc=False):
    bucket_id: str
    streams: int
    created_at_ms: int


class _Row(msgspec.Struct, gc=False):
    stream_id: str
    status: str
    content_type: str
    tail_offset: int
    created_at_ms: int
    last_write_at_ms: int


class _Page(msgspec.Struct, gc=False):
    bucket_id: str
    prefix: str
    stream_count: int
    """With that prefix, over all pages."""
    streams: list[_Row]
    next_cursor: str | None
    has_more: bool


def made(request: Request) -> Reply:
    place = f"/ds/{request.bucket}"
    return Reply(201, b"Location: " + (f"http://{request.http_host}{place}" if request.http_host else place).encode("ascii") + b"\r\n")


def info(bucket: str, streams: int, created_ms: int) -> Reply:
    return Reply(200, _JSON, _encoder.encode(_Info(bucket, streams, created_ms)))


def listing(request: Request, page: StreamPage) -> Reply:
    """`page` names streams as the core does; here they are local to their bucket."""
    local = len(request.bucket) + 1
    rows = [
        _Row(name[local:], "Closed" if row.closed else "Open", row.content_type, row.tail, row.created_ms, row.last_write_ms)
        for name, row in zip(page.names, page.rows, strict=True)
    ]
    cursor = rows[-1].stream_id if page.more and rows else None
    return Reply(200, _JSON, _encoder.encode(_Page(request.bucket, request.prefix, page.count, rows, cursor, page.more)))

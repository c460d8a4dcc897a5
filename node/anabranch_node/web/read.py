"""GET, HEAD and the listing: request -> query; its result -> reply. Before us: request.py. After us: the driver.

Not here: waiting at the tail (service/live.py), server-sent events (sse.py), published snapshots (snapshot.py), bootstrap.py."""

from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import accumulate
from struct import unpack
from typing import Final

import msgspec

from anabranch_node.core.stream.content_type import is_json, media_type
from anabranch_node.core.stream.queries import NOW, Head, ListStreams, Query, ReadAt, ReadMessages
from anabranch_node.core.stream.results import MessageSlice, ReadSlice, StreamInfo, StreamPage
from anabranch_node.web import errors
from anabranch_node.web.reply import PREFLIGHT, STREAM_CLOSED, UP_TO_DATE, Reply, error
from anabranch_node.web.request import DEFAULT_CONTENT_TYPE, BadRequest, Kind, Request
from anabranch_node.web.routes import DEFAULT_BUCKET, path_of
from anabranch_node.web.sse import cursor_for

_NO_STORE: Final = b"Cache-Control: no-store\r\n"
_NO_CACHE: Final = b"Cache-Control: no-cache\r\n"
_CACHED: Final = b"Cache-Control: public, max-age=60, stale-while-revalidate=300\r\n"
_ACTIVE_TYPES: Final = ("text/html", "application/xhtml+xml", "image/svg+xml", "text/xml", "application/xml")
_type_headers: dict[str, bytes] = {}
_TYPE_HEADERS_MAX: Final = 256


def query(request: Request, response_bytes_max: int) -> Query:
    """A preflight asks nothing of any stream: it ends here with its reply."""
    kind = request.kind
    if kind is Kind.READ:
        wanted = request.max_bytes
        max_bytes = response_bytes_max if wanted is None else min(wanted, response_bytes_max)
        if request.raw:
            return ReadMessages(request.stream, request.offset, max_bytes, key=request.read_key, since_ms=request.since_ms)
        return ReadAt(request.stream, request.offset, max_bytes, request.read_key, request.since_ms)
    if kind is Kind.HEAD:
        return Head(request.stream)
    if kind is Kind.LIST:
        return ListStreams(request.prefix, request.after, request.limit)
    assert kind is Kind.PREFLIGHT, kind
    raise BadRequest(PREFLIGHT)


def answer(request: Request, result: object, now_ms: int) -> Reply:
    if type(result) is ReadSlice:
        return _read(request, result, now_ms)
    if type(result) is MessageSlice:
        return _read(request, result, now_ms)
    if type(result) is StreamInfo:
        return _info(result)
    if type(result) is StreamPage:
        return _page(result) if request.row < 0 else _rows(request, result)
    return errors.answer(result)


def nothing_new(request: Request, at: ReadSlice, now_ms: int) -> Reply:
    """A long-poll ended without data: in time, or at once because the stream is closed."""
    cursor = cursor_for(request.cursor, now_ms, request.stream).encode()
    headers = _offsets(at) + b"%bStream-Cursor: %b\r\n%b" % (UP_TO_DATE, cursor, _NO_STORE)
    return Reply(204, headers + STREAM_CLOSED if at.closed else headers)


def _offsets(slice: ReadSlice | MessageSlice) -> bytes:
    # A node of an older version does not tell the tail.
    return b"Stream-Next-Offset: %020d\r\nStream-End-Offset: %020d\r\n" % (slice.next_offset, max(slice.tail, slice.next_offset))


def _read(request: Request, slice: ReadSlice | MessageSlice, now_ms: int) -> Reply:
    if request.json_only and not is_json(slice.content_type):
        return error(400, "bad_format", "format=json is for streams of JSON")
    data = slice.data
    polling = request.live == "long-poll"
    if polling and not data and slice.up_to_date:
        assert type(slice) is ReadSlice, slice
        return nothing_new(request, slice, now_ms)
    headers = _offsets(slice)
    if slice.up_to_date:
        headers += UP_TO_DATE
    if slice.closed:
        headers += STREAM_CLOSED
    if polling:
        headers += b"Stream-Cursor: " + cursor_for(request.cursor, now_ms, request.stream).encode() + b"\r\n"
    if request.offset == NOW:
        headers += _NO_STORE
    else:
        # Behind the tail, or at the end of a closed stream, the same question has the same answer for ever.
        headers += _CACHED if slice.closed or not slice.up_to_date else _NO_CACHE
        closed = b":c" if slice.closed else b""
        etag = b'"%x-%d-%d%b%b"' % (slice.incarnation, slice.start, slice.next_offset, closed, _variant(request))
        headers += b"ETag: %b\r\n" % etag
        if request.if_none_match and not polling and matches(request.if_none_match, etag.decode()):
            return Reply(304, headers)
    if type(slice) is MessageSlice:
        return Reply(200, headers + _RAW_TYPE, _own_bytes(slice))
    headers += _type_headers.get(slice.content_type) or type_header(slice.content_type)
    if is_json(slice.content_type):
        data = b"[" + data[:-1] + b"]"
    return Reply(200, headers, data)


_RAW_TYPE: Final = f"Content-Type: {DEFAULT_CONTENT_TYPE}\r\n".encode()


def _variant(request: Request) -> bytes:
    """What else than the range makes other bytes. A key may hold quotes and commas, which a tag may not."""
    if request.read_key is None:
        return b":r" if request.raw else b""
    return b":k%b%b" % (blake2b(request.read_key.encode(), digest_size=8).hexdigest().encode(), b":r" if request.raw else b"")


def messages_of(slice: MessageSlice, content_type: str) -> list[bytes]:
    """Each message's own bytes: in JSON mode without the comma that is stored behind it."""
    data, lengths = slice.data, slice.lengths
    ends = list(accumulate(unpack(f"<{len(lengths) // 4}I", lengths)))
    assert (ends[-1] if ends else 0) == len(data), (len(ends), len(data))
    if is_json(content_type):
        return [data[start : end - 1] for start, end in zip([0, *ends], ends, strict=False)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _own_bytes(slice: MessageSlice) -> bytes:
    return b"".join(messages_of(slice, slice.content_type)) if is_json(slice.content_type) else slice.data


def matches(if_none_match: str, etag: str) -> bool:
    """The weak comparison of RFC 9110 13.1.2: `W/` does not count. None of our tags holds a comma."""
    if if_none_match == "*":
        return True
    return any(tag.strip(" \t").removeprefix("W/") == etag for tag in if_none_match.split(","))


def type_header(content_type: str) -> bytes:
    """Checked again on the way out: what a log brought here was checked by another version of us."""
    assert content_type.isascii() and content_type.isprintable(), content_type
    header = b"Content-Type: " + content_type.encode() + b"\r\n"
    media = media_type(content_type)
    if media in _ACTIVE_TYPES or media.endswith("+xml"):
        header += b"Content-Disposition: attachment\r\nContent-Security-Policy: sandbox; default-src 'none'\r\n"
    if len(_type_headers) >= _TYPE_HEADERS_MAX:
        _type_headers.clear()
    _type_headers[content_type] = header
    return header


def _info(info: StreamInfo) -> Reply:
    headers = b"Stream-Next-Offset: %020d\r\nStream-End-Offset: %020d\r\nStream-Earliest-Offset: %020d\r\n" % (info.tail, info.tail, info.earliest)
    headers += _NO_STORE + (_type_headers.get(info.content_type) or type_header(info.content_type))
    if info.closed:
        headers += STREAM_CLOSED
    if info.snapshot_offset >= 0:
        headers += b"Stream-Snapshot-Offset: %020d\r\n" % info.snapshot_offset
    if info.retention_bytes is not None:
        headers += b"Stream-Retention-Bytes: %d\r\n" % info.retention_bytes
    if info.retention_age_s is not None:
        headers += b"Stream-Retention-Age: %d\r\n" % info.retention_age_s
    if info.ttl_s is not None:
        headers += b"Stream-TTL: %d\r\n" % info.ttl_s
    if info.expires_at:
        assert info.expires_at.isascii() and info.expires_at.isprintable(), info.expires_at
        headers += b"Stream-Expires-At: " + info.expires_at.encode() + b"\r\n"
    return Reply(200, headers)


class _Item(msgspec.Struct, gc=False):
    name: str
    path: str


class _Page(msgspec.Struct, gc=False):
    streams: list[_Item]
    more: bool
    after: str
    """What to send as `after` for the next page."""


_encoder: Final = msgspec.json.Encoder()


def _page(page: StreamPage) -> Reply:
    items = [_Item(name, path_of(name)) for name in page.names]
    body = _encoder.encode(_Page(items, page.more, page.names[-1] if page.names else ""))
    return Reply(200, b"Content-Type: application/json\r\n" + _NO_STORE, body)


class _Row(msgspec.Struct, gc=False):
    """A descriptor as clients of Prisma Streams know it. What we have no such thing of says so: no epochs, no segments, no profiles but one."""

    name: str
    path: str
    content_type: str
    created_at: str
    expires_at: str | None
    next_offset: str
    epoch: int = 0
    sealed_through: str = "-1"
    uploaded_through: str = "-1"
    profile: str = "generic"


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _rows(request: Request, page: StreamPage) -> Reply:
    """All rows from the first one; those before the one that is wanted are left out here."""
    found = [
        _Row(
            name.removeprefix(f"{DEFAULT_BUCKET}/"),
            path_of(name),
            row.content_type,
            (_EPOCH + timedelta(milliseconds=row.created_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            row.expires_at or None,
            str(row.tail),
        )
        for name, row in zip(page.names[request.row :], page.rows[request.row :], strict=True)
    ]
    return Reply(200, b"Content-Type: application/json\r\n" + _NO_STORE, _encoder.encode(found))

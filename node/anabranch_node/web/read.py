"""GET, HEAD and the listing: request -> query; its result -> reply. Before us: request.py. After us: the driver.

Not here: waiting at the tail (service/live.py), server-sent events (sse.py)."""

from typing import Final

import msgspec

from anabranch_node.core.stream.content_type import media_type
from anabranch_node.core.stream.queries import NOW, Head, ListStreams, Query, ReadAt
from anabranch_node.core.stream.results import ReadSlice, StreamInfo, StreamPage
from anabranch_node.web import errors
from anabranch_node.web.reply import PREFLIGHT, STREAM_CLOSED, UP_TO_DATE, Reply
from anabranch_node.web.request import BadRequest, Kind, Request
from anabranch_node.web.routes import path_of
from anabranch_node.web.sse import cursor_for
from anabranch_node.web.write import is_json_cached

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
        return ReadAt(request.stream, request.offset, response_bytes_max if wanted is None else min(wanted, response_bytes_max))
    if kind is Kind.HEAD:
        return Head(request.stream)
    if kind is Kind.LIST:
        return ListStreams(request.prefix, request.after, request.limit)
    assert kind is Kind.PREFLIGHT, kind
    raise BadRequest(PREFLIGHT)


def answer(request: Request, result: object, now_ms: int) -> Reply:
    if type(result) is ReadSlice:
        return _read(request, result, now_ms)
    if type(result) is StreamInfo:
        return _info(result)
    if type(result) is StreamPage:
        return _page(result)
    return errors.answer(result)


def nothing_new(request: Request, at: ReadSlice, now_ms: int) -> Reply:
    """A long-poll ended without data: in time, or at once because the stream is closed."""
    cursor = cursor_for(request.cursor, now_ms, request.stream).encode()
    headers = b"Stream-Next-Offset: %020d\r\n%bStream-Cursor: %b\r\n%b" % (at.next_offset, UP_TO_DATE, cursor, _NO_STORE)
    return Reply(204, headers + STREAM_CLOSED if at.closed else headers)


def _read(request: Request, slice: ReadSlice, now_ms: int) -> Reply:
    data = slice.data
    polling = request.live == "long-poll"
    if polling and not data:
        return nothing_new(request, slice, now_ms)
    headers = b"Stream-Next-Offset: %020d\r\n" % slice.next_offset
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
        etag = b'"%x-%d-%d%b"' % (slice.incarnation, slice.start, slice.next_offset, b":c" if slice.closed else b"")
        headers += b"ETag: %b\r\n" % etag
        if request.if_none_match and not polling and matches(request.if_none_match, etag.decode()):
            return Reply(304, headers)
    headers += _type_headers.get(slice.content_type) or _type_header(slice.content_type)
    if is_json_cached(slice.content_type):
        data = b"[" + data[:-1] + b"]"
    return Reply(200, headers, data)


def matches(if_none_match: str, etag: str) -> bool:
    """The weak comparison of RFC 9110 13.1.2: `W/` does not count. None of our tags holds a comma."""
    if if_none_match == "*":
        return True
    return any(tag.strip(" \t").removeprefix("W/") == etag for tag in if_none_match.split(","))


def _type_header(content_type: str) -> bytes:
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
    headers = b"Stream-Next-Offset: %020d\r\n" % info.tail + _NO_STORE + (_type_headers.get(info.content_type) or _type_header(info.content_type))
    if info.closed:
        headers += STREAM_CLOSED
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

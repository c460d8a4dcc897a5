"""A response as bytes. Before us: write.py, read.py and errors.py make a Reply. After us: the driver writes what render() returns.

Not here: Date (no clock in pure layers; RFC 9110 allows its absence), compression (BREACH), live responses (sse.py)."""

from typing import Final, NamedTuple

import msgspec


class Reply(NamedTuple):
    """`headers` are rendered "Name: value" lines, each with its CRLF; framing, security and CORS headers are added by render()."""

    status: int
    headers: bytes
    body: bytes = b""


REASONS: Final = {
    200: b"OK",
    201: b"Created",
    204: b"No Content",
    304: b"Not Modified",
    307: b"Temporary Redirect",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    409: b"Conflict",
    410: b"Gone",
    411: b"Length Required",
    413: b"Content Too Large",
    414: b"URI Too Long",
    415: b"Unsupported Media Type",
    417: b"Expectation Failed",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
    505: b"HTTP Version Not Supported",
}

HEADERS: Final[dict[str, str]] = {
    "Stream-Next-Offset": "where the next read goes on, or the tail",
    "Stream-End-Offset": "reads, HEAD: the tail",
    "Stream-Earliest-Offset": "HEAD, and 410: the earliest offset that is still shown",
    "Stream-Snapshot-Offset": "of the published snapshot; at a bootstrap without one `-1`",
    "Stream-Up-To-Date": "`true`: Stream-Next-Offset is the tail. A snapshot says `false`, too",
    "Stream-Closed": "`true`: there is nothing more to come",
    "Stream-Cursor": "live reads: to be sent back as `cursor`",
    "Stream-TTL": "HEAD: the window in seconds",
    "Stream-Expires-At": "HEAD: as it was given",
    "Stream-Retention-Bytes": "HEAD",
    "Stream-Retention-Age": "HEAD",
    "Stream-SSE-Data-Encoding": "`base64`: data of a binary stream",
    "Producer-Epoch": "append: of the tuple; 403: the current one",
    "Producer-Seq": "append: the highest one taken",
    "Producer-Expected-Seq": "409",
    "Producer-Received-Seq": "409",
    "ETag": "reads: incarnation, range, key and format",
    "Location": "201: of the stream; 307: of the latest snapshot",
    "Retry-After": "429 and 503",
    "X-Request-Id": "as sent, or made for an error",
}
"""Of responses, and what a page of another origin may see of them; docs/protocol.md is made from it."""

COMMON: Final = (
    b"X-Content-Type-Options: nosniff\r\n"
    b"Cross-Origin-Resource-Policy: cross-origin\r\n"
    b"Access-Control-Allow-Origin: *\r\n"
    b"Access-Control-Expose-Headers: " + ", ".join(HEADERS).encode() + b"\r\n"
)
"""On every response: a page of any origin may call us, never with credentials, and no browser may guess a type."""

ALLOW: Final = b"GET, POST, PUT, DELETE, HEAD, OPTIONS"

PREFLIGHT: Final = Reply(
    204,
    b"Access-Control-Allow-Methods: " + ALLOW + b"\r\n"
    b"Access-Control-Allow-Headers: Content-Type, Authorization, If-None-Match, Stream-Seq, Stream-TTL, Stream-Expires-At, Stream-Closed, "
    b"Stream-Key, Stream-Timestamp, Producer-Id, Producer-Epoch, Producer-Seq, Stream-Forked-From, Stream-Fork-Offset, Stream-Fork-Sub-Offset, "
    b"Stream-Retention-Bytes, Stream-Retention-Age, X-Request-Id\r\n"
    b"Access-Control-Max-Age: 600\r\n"
    b"Allow: " + ALLOW + b"\r\n",
)
"""The same for every path, so that a preflight tells nobody which streams exist."""

_CLOSE: Final = b"Connection: close\r\n"
_OPEN: Final = {status: b"HTTP/1.1 %d %b\r\n%b" % (status, reason, COMMON) for status, reason in REASONS.items()}
_SHUT: Final = {status: start + _CLOSE for status, start in _OPEN.items()}


def render(reply: Reply, *, keep_alive: bool, head_only: bool = False, request_id: str = "") -> bytes:
    status, headers, body = reply
    start = (_OPEN if keep_alive else _SHUT).get(status)
    if start is None:
        start = b"HTTP/1.1 %d Status\r\n%b" % (status, COMMON if keep_alive else COMMON + _CLOSE)
    if request_id:
        assert request_id.isascii() and request_id.isprintable(), request_id
        headers += b"X-Request-Id: " + request_id.encode() + b"\r\n"
    if status == 204 or status == 304:
        return start + headers + b"\r\n"
    if head_only:
        # A HEAD's length would be that of the GET, which is known for errors only.
        return start + headers + (b"Content-Length: %d\r\n\r\n" % len(body) if body else b"\r\n")
    return b"%b%bContent-Length: %d\r\n\r\n%b" % (start, headers, len(body), body)


class _Error(msgspec.Struct, gc=False):
    code: str
    message: str


class _ErrorBody(msgspec.Struct, gc=False):
    error: _Error


_encoder: Final = msgspec.json.Encoder()


def error(status: int, code: str, message: str, retry_after_s: int | None = None, extra_headers: bytes = b"") -> Reply:
    """`message` may quote what a client sent: the JSON encoder escapes it."""
    headers = b"Content-Type: application/json\r\nCache-Control: no-store\r\n" + extra_headers
    if retry_after_s is not None:
        headers += b"Retry-After: %d\r\n" % retry_after_s
    return Reply(status, headers, _encoder.encode(_ErrorBody(_Error(code, message))))


def offset_header(offset: int) -> bytes:
    return b"Stream-Next-Offset: %020d\r\n" % offset


STREAM_CLOSED: Final = b"Stream-Closed: true\r\n"
UP_TO_DATE: Final = b"Stream-Up-To-Date: true\r\n"

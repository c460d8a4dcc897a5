"""Live reads as server-sent events: a slice -> the bytes of its events, framed as HTTP chunks.

Before us: service/live.py has a slice for all readers at one offset. After us: the driver writes the same bytes to each of them.
Every data event is followed by its own control event and decodes alone. No client's bytes ever stand in an event: or id: line."""

import re
from binascii import b2a_base64
from hashlib import blake2b
from typing import Final

from anabranch_node.core.stream.content_type import is_json, media_type
from anabranch_node.core.stream.results import ReadSlice
from anabranch_node.web.reply import COMMON
from anabranch_node.web.request import Request

CURSOR_EPOCH_MS: Final = 1_728_432_000_000
"""2024-10-09T00:00:00Z, the protocol's."""
CURSOR_INTERVAL_MS: Final = 20_000
JITTER_INTERVALS_MAX: Final = 180
"""One hour, the protocol's bound."""

KEEP_ALIVE: Final = b"3\r\n:\n\n\r\n"
END: Final = b"0\r\n\r\n"

_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\n"
    + COMMON
    + b"Content-Type: text/event-stream\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n"
)
_BASE64: Final = b"Stream-SSE-Data-Encoding: base64\r\n"
_line_end: Final = re.compile(rb"\r\n|\r|\n")


def cursor_for(request_cursor: str, now_ms: int, stream: str = "") -> str:
    """The number of the current interval. A client that has it already, or a later one, gets its own plus a jitter, so that caches never see
    a loop; the jitter is a hash, because pure code has no chance: the same question has the same answer on every node."""
    current = max(0, (now_ms - CURSOR_EPOCH_MS) // CURSOR_INTERVAL_MS)
    if not request_cursor:
        return str(current)
    theirs = int(request_cursor)
    if theirs < current:
        return str(current)
    digest = blake2b(f"{theirs}/{stream}".encode(), digest_size=4).digest()
    return str(theirs + 1 + int.from_bytes(digest, "big") % JITTER_INTERVALS_MAX)


def is_text(content_type: str) -> bool:
    return is_json(content_type) or media_type(content_type).startswith("text/")


def head(request: Request, first: ReadSlice, now_ms: int) -> bytes:
    start = _HEAD if is_text(first.content_type) else _HEAD + _BASE64
    if request.request_id:
        start += b"X-Request-Id: " + request.request_id.encode() + b"\r\n"
    return start + b"\r\n"


def event(slice: ReadSlice, cursor: str) -> bytes:
    """One HTTP chunk: the data, if there is any, and its control event."""
    text = b"event: control\ndata:" + _control(slice, cursor) + b"\n\n"
    data = slice.data
    if data:
        if is_json(slice.content_type):
            text = b"event: data\n" + _data_lines(b"[" + data[:-1] + b"]") + text
        elif is_text(slice.content_type):
            text = b"event: data\n" + _data_lines(_valid_utf8(data)) + text
        else:
            text = b"event: data\ndata:" + b2a_base64(data, newline=False) + b"\n\n" + text
    return b"%x\r\n%b\r\n" % (len(text), text)


def _control(slice: ReadSlice, cursor: str) -> bytes:
    if slice.closed:  # the cursor is for coming back, which nobody does after the end
        return b'{"streamNextOffset":"%020d","streamClosed":true}' % slice.next_offset
    assert cursor.isdecimal(), cursor
    up_to_date = b',"upToDate":true' if slice.up_to_date else b""
    return b'{"streamNextOffset":"%020d","streamCursor":"%b"%b}' % (slice.next_offset, cursor.encode(), up_to_date)


def _data_lines(text: bytes) -> bytes:
    """One data: line for each line of the text. A reader takes one space off the front of a line, so a line that has one gets another."""
    lines = _line_end.split(text) if b"\n" in text or b"\r" in text else [text]
    return b"".join([b"data: %b\n" % line if line.startswith(b" ") else b"data:%b\n" % line for line in lines]) + b"\n"


def _valid_utf8(data: bytes) -> bytes:
    """An event stream is UTF-8; a text stream may hold other bytes, which a plain read delivers as they are."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace").encode()
    return data

"""The bytes of a bootstrap: a snapshot and each message behind it as one part of a multipart/mixed body, in HTTP chunks.

Before us: service/bootstrap.py decides what comes next. After us: the driver. A piece is one join over its messages, never one formatting per part:
100,000 of them must not cost more than half a second. A boundary is not to be guessed, for whoever could would end a part inside a message."""

from hashlib import blake2b
from typing import Final

from anabranch_node.core.stream.results import MessageSlice, SnapshotBlob
from anabranch_node.web.read import messages_of
from anabranch_node.web.reply import COMMON, UP_TO_DATE
from anabranch_node.web.request import DEFAULT_CONTENT_TYPE, Request

_HEAD: Final = b"HTTP/1.1 200 OK\r\n" + COMMON + UP_TO_DATE + b"Cache-Control: no-store\r\nTransfer-Encoding: chunked\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"


def boundary_of(incarnation: int, boot: int, token: int) -> str:
    """The incarnation of a node is 64 bits of chance that no client is ever told."""
    return blake2b(f"{incarnation:x}/{boot}/{token}".encode(), digest_size=16, person=b"bootstrap").hexdigest()


def head(request: Request, boundary: str, snapshot: SnapshotBlob | None, end: int) -> bytes:
    """`end`: the tail that was seen first; the parts go up to it."""
    at = b"-1" if snapshot is None else b"%020d" % snapshot.offset
    headers = b"Content-Type: multipart/mixed; boundary=%b\r\nStream-Snapshot-Offset: %b\r\nStream-Next-Offset: %020d\r\n" % (
        boundary.encode(),
        at,
        end,
    )
    if request.request_id:
        headers += b"X-Request-Id: " + request.request_id.encode() + b"\r\n"
    return _HEAD + headers + b"\r\n"


def first_part(boundary: str, snapshot: SnapshotBlob | None) -> bytes:
    """Without a snapshot an empty part says so. No line break behind it: that belongs to the next delimiter."""
    content_type, data = (DEFAULT_CONTENT_TYPE, b"") if snapshot is None else (snapshot.content_type, snapshot.data)
    return b"--%b\r\nContent-Type: %b\r\n\r\n%b" % (boundary.encode(), _checked(content_type), data)


def parts(boundary: str, content_type: str, slice: MessageSlice) -> bytes:
    messages = messages_of(slice, content_type)
    if not messages:
        return b""
    between = b"\r\n--%b\r\nContent-Type: %b\r\n\r\n" % (boundary.encode(), _checked(content_type))
    return between.join([b"", *messages])


def chunk(data: bytes) -> bytes:
    """One with nothing in it would be the last."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def end(boundary: str) -> bytes:
    return chunk(b"\r\n--%b--\r\n" % boundary.encode()) + _LAST_CHUNK


def _checked(content_type: str) -> bytes:
    """Checked again on the way out: what a log brought here was checked by another version of us."""
    assert content_type.isascii() and content_type.isprintable(), content_type
    return content_type.encode()

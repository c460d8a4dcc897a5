"""PUT, POST and DELETE: request and body -> command; its result -> reply. Before us: request.py. After us: the leader stamps `now_ms`.

JSON mode lives here on the way in: a body is cut into messages, each stored as its own bytes and a comma, numbers and key order untouched.
Not here: comparing content types, producers, closing (core/stream/append.py)."""

from struct import pack
from typing import Final

import msgspec

from anabranch_node.core.stream.commands import Append, Command, Create, Delete
from anabranch_node.core.stream.content_type import is_json
from anabranch_node.core.stream.results import Appended, Created, Deleted
from anabranch_node.web import errors
from anabranch_node.web.reply import STREAM_CLOSED, Reply, render
from anabranch_node.web.request import Kind, Request, refuse

_whole: Final = msgspec.json.Decoder()
_items: Final = msgspec.json.Decoder(list[msgspec.Raw])
_SPACE: Final = b" \t\r\n"
MESSAGES_MAX: Final = 65_536
"""Of one request. A body of 5 MB can hold 2.6 million, which kept the loops of all replicas busy for more than two seconds each: an election."""

_APPENDED: Final = b"Stream-Next-Offset: %020d\r\n"
_PLAIN: Final = render(Reply(204, b"@"), keep_alive=True).replace(b"%", b"%%").replace(b"@", _APPENDED)
_PRODUCED: Final = b"Stream-Next-Offset: %020d\r\nProducer-Epoch: %d\r\nProducer-Seq: %d\r\n"


def split_json(body: bytes) -> list[bytes]:
    """The messages of a body: the elements of an array (one level), or the one value that it is. Raises BadRequest.

    Decoded twice: the splitting decoder does not look inside the elements, and one malformed element would break every reader's array."""
    if body.startswith(b"\xef\xbb\xbf"):
        raise refuse(400, "bad_json", "the body begins with a byte order mark")
    try:
        body.decode("utf-8")
        whole = _whole.decode(body)
        if isinstance(whole, list) and len(whole) > MESSAGES_MAX:
            raise refuse(413, "too_many_messages", f"a request may append {MESSAGES_MAX} messages")
        stripped = body.strip(_SPACE)
        if not stripped.startswith(b"["):
            return [stripped]
        return [bytes(item).strip(_SPACE) for item in _items.decode(stripped)]
    except RecursionError:
        raise refuse(400, "bad_json", "the body is nested too deeply") from None
    except (msgspec.DecodeError, ValueError):  # UnicodeDecodeError is a ValueError
        raise refuse(400, "bad_json", "the body is not valid JSON") from None


def pack_json(messages: list[bytes]) -> tuple[bytes, bytes]:
    """(body, lengths) of a command: each message is its own bytes and a comma."""
    lengths = b"" if len(messages) < 2 else pack(f"<{len(messages)}I", *[len(message) + 1 for message in messages])
    return (b",".join(messages) + b"," if messages else b""), lengths


def initial_body(content_type: str, body: bytes) -> tuple[bytes, bytes]:
    """(body, lengths) of a create. Raises BadRequest."""
    return pack_json(split_json(body)) if body and is_json(content_type) else (body, b"")


def command(request: Request, body: bytes) -> Command:
    """`now_ms` is 0 until the leader stamps it. Raises BadRequest for what only the body shows."""
    kind = request.kind
    lengths = b""
    if kind is Kind.APPEND:
        if not body:
            if not request.closed:
                raise refuse(400, "empty_body", "an append needs a body, or Stream-Closed: true")
            return Append(request.stream, b"", 0, request.producer, close=True, seq=request.seq)
        content_type = request.content_type
        if not content_type:
            raise refuse(400, "content_type_required", "an append needs a Content-Type")
        if is_json(content_type):
            messages = split_json(body)
            if not messages:
                raise refuse(400, "empty_array", "an empty array appends nothing")
            body, lengths = pack_json(messages)
        return Append(
            request.stream, body, 0, request.producer, content_type, lengths, request.closed, request.seq, request.key, request.timestamp_ms
        )
    if kind is Kind.CREATE:
        body, lengths = initial_body(request.content_type, body)
        return Create(
            request.stream,
            request.content_type,
            0,
            request.ttl_s,
            request.expires_at_ms,
            request.expires_at,
            request.closed,
            body,
            lengths,
            request.retention_bytes,
            request.retention_age_s,
        )
    assert kind is Kind.DELETE, kind
    return Delete(request.stream, 0)


def appended(request: Request, result: Appended) -> bytes:
    """The whole response, as answer() and render() would make it."""
    if result.producer or result.closed or request.request_id:
        return render(answer(request, result), keep_alive=True, request_id=request.request_id)
    return _PLAIN % result.next_offset


def answer(request: Request, result: object) -> Reply:
    if type(result) is Appended:
        if not result.producer:
            headers = _APPENDED % result.next_offset
            return Reply(204, headers + STREAM_CLOSED if result.closed else headers)
        headers = _PRODUCED % (result.next_offset, result.epoch, result.seq)
        if result.closed:
            headers += STREAM_CLOSED
        # 200 says "new data": a close without a body wrote none.
        return Reply(204 if result.duplicate or result.start_offset == result.next_offset else 200, headers)
    if type(result) is Created:
        content_type = result.content_type or request.content_type
        assert content_type.isascii() and content_type.isprintable(), content_type
        headers = b"Content-Type: %b\r\nStream-Next-Offset: %020d\r\n" % (content_type.encode(), result.offset)
        if result.closed:
            headers += STREAM_CLOSED
        if result.existed:
            return Reply(200, headers)
        place = f"http://{request.http_host}{request.path}" if request.http_host else request.path
        return Reply(201, headers + b"Location: " + place.encode("ascii") + b"\r\n")
    if type(result) is Deleted:
        return Reply(204, b"")
    return errors.answer(result)

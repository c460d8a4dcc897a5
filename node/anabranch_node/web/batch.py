"""append-batch: many frames of one request become one Append, hence one log entry; what became of it -> an acknowledgement for each frame.

Before us: request.py. After us: core/stream/append.py, which knows nothing of frames. Without a producer a frame that is no message is reported and
the others are appended together; with one its tuple stands for the whole request, so that one bad frame refuses it all. A frame is told its fate
inside a 200; what concerns the stream as a whole (missing, gone, another content type, the producer) is answered as for any append.

Not here: atomicity, which is the entry's."""

from collections.abc import Iterator
from itertools import accumulate
from struct import pack
from typing import Final, NamedTuple

import msgspec

from anabranch_node.core.stream.commands import Append
from anabranch_node.core.stream.content_type import is_json
from anabranch_node.core.stream.results import Appended, StreamClosed
from anabranch_node.web import errors
from anabranch_node.web.reply import STREAM_CLOSED, Reply
from anabranch_node.web.request import BadRequest, Request, refuse
from anabranch_node.web.write import MESSAGES_MAX, split_json

FRAMES_MAX: Final = 512

_head: Final = b"Content-Type: application/json\r\nCache-Control: no-store\r\n"
_PRODUCED: Final = b"Producer-Epoch: %d\r\nProducer-Seq: %d\r\n"
_encode: Final = msgspec.json.Encoder().encode


class Frame(NamedTuple):
    """What was read of one frame: how much it appends, or why it is refused."""

    size: int
    code: str = ""
    message: str = ""


class Batch(NamedTuple):
    append: Append | None
    """None: no frame is left to be appended."""
    frames: list[Frame]


def batch(request: Request, body: bytes) -> Batch:
    """Raises BadRequest for what concerns the whole."""
    if not request.content_type:
        raise refuse(400, "content_type_required", "append-batch needs a Content-Type")
    json = is_json(request.content_type)
    frames: list[Frame] = []
    messages: list[bytes] = []
    for number, payload in enumerate(_cut(body)):
        if number == FRAMES_MAX:
            raise refuse(413, "too_many_frames", f"a request may have {FRAMES_MAX} frames")
        frame = _json_frame(payload, messages) if json else _frame(payload, messages)
        if frame.code and request.producer is not None:
            raise refuse(400, frame.code, f"frame {number}: {frame.message}")
        if len(messages) > MESSAGES_MAX:
            raise refuse(413, "too_many_messages", f"a request may append {MESSAGES_MAX} messages")
        frames.append(frame)
    if not frames:
        raise refuse(400, "bad_framing", "append-batch needs at least one frame")
    if not messages:
        return Batch(None, frames)
    lengths = b"" if len(messages) == 1 else pack(f"<{len(messages)}I", *[len(message) for message in messages])
    append = Append(
        request.stream,
        b"".join(messages),
        0,
        request.producer,
        request.content_type,
        lengths,
        key=request.key,
        timestamp_ms=request.timestamp_ms,
    )
    return Batch(append, frames)


def _cut(body: bytes) -> Iterator[bytes]:
    at, end = 0, len(body)
    while at < end:
        start = at + 4
        at = start + int.from_bytes(body[at:start], "big")
        if start > end or at > end:
            raise refuse(400, "bad_framing", "a frame is four bytes of length, big-endian, and that many bytes")
        yield body[start:at]


def _frame(payload: bytes, messages: list[bytes]) -> Frame:
    if not payload:
        return Frame(0, "empty_body", "a frame needs at least one byte")
    messages.append(payload)
    return Frame(len(payload))


def _json_frame(payload: bytes, messages: list[bytes]) -> Frame:
    """A frame is what the body of an append would be: an array is split one level."""
    if not payload:
        return Frame(0, "empty_body", "a frame needs at least one byte")
    try:
        items = split_json(payload)
    except BadRequest as bad:
        if bad.reply.status != 400:
            raise
        return Frame(0, "bad_json", "the frame is not valid JSON")
    if not items:
        return Frame(0, "empty_array", "an empty array appends nothing")
    messages += [item + b"," for item in items]
    return Frame(sum(map(len, items)) + len(items))


class _Ack(msgspec.Struct, omit_defaults=True, gc=False):
    status: int
    stream_next_offset: int | None = None
    stream_closed: bool = False
    error_code: str = ""
    error: str = ""


def answer(frames: list[Frame], result: object) -> Reply:
    """`result` None: nothing was left to be appended."""
    if type(result) is Appended:
        return _appended(frames, result)
    if type(result) is StreamClosed:
        closed = _Ack(409, result.tail, True, "stream_closed", str(result))
        return _acks([_refused(frame) if frame.code else closed for frame in frames], STREAM_CLOSED)
    if result is None:
        return _acks([_refused(frame) for frame in frames], b"")
    return errors.answer(result)


def _appended(frames: list[Frame], result: Appended) -> Reply:
    offsets = list(accumulate((frame.size for frame in frames), initial=result.start_offset))[1:]
    if offsets[-1] != result.next_offset:
        # Repeated, and with older offsets than are kept, or with other frames: what is known is the tail.
        assert result.duplicate, (result, offsets)
        offsets = [result.next_offset] * len(frames)
    acks = [_refused(frame) if frame.code else _Ack(204, offset, result.closed) for frame, offset in zip(frames, offsets, strict=True)]
    headers = b"Stream-Next-Offset: %020d\r\n" % result.next_offset
    if result.closed:
        headers += STREAM_CLOSED
    if result.producer:
        headers += _PRODUCED % (result.epoch, result.seq)
    return _acks(acks, headers)


def _refused(frame: Frame) -> _Ack:
    return _Ack(400, error_code=frame.code, error=frame.message)


def _acks(acks: list[_Ack], headers: bytes) -> Reply:
    return Reply(200, _head + headers, _encode(acks))

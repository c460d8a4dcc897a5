"""HTTP/2 frames (RFC 9113) and the gRPC message prefix as bytes: how each is spelled and what makes it malformed. Pure: no socket, no state.

Before and after us: http2_connection.py, which reads and writes them. Not here: HPACK (the hpack package, once per stream and never per message),
server push and priorities, which gRPC does not use, and compressed messages, which our own frames never are."""

import struct
from urllib.parse import quote_from_bytes, unquote_to_bytes

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITIZED = 0x20

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 2, 3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 5, 6, 7, 8, 9, 11

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = range(1, 7)

FRAME_HEAD_BYTES = 9
PREFIX_BYTES = 5
FRAME_BYTES_DEFAULT = 1 << 14
FRAME_BYTES_LIMIT = (1 << 24) - 1
WINDOW_BYTES_DEFAULT = (1 << 16) - 1
WINDOW_BYTES_LIMIT = (1 << 31) - 1
STREAM_ID_MASK = (1 << 31) - 1

HEAD = struct.Struct(">BHBBL")  # length in two pieces, kind, flags, stream
HEAD_AND_PREFIX = struct.Struct(">BHBBLBL")  # the same, and what follows it where a message begins: compressed, length
PREFIX = struct.Struct(">BL")
_SETTING = struct.Struct(">HL")
_WORD = struct.Struct(">L")
_TWO_WORDS = struct.Struct(">LL")

# https://grpc.github.io/grpc/core/md_doc_statuscodes.html
OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED = 0, 1, 2, 3, 4
RESOURCE_EXHAUSTED, FAILED_PRECONDITION, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 8, 9, 12, 13, 14
STATUS_NAMES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED"),
    *("RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"),
    "UNAUTHENTICATED",
)
_STATUS_TEXT_BYTES_MAX = 1024
_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


class Http2Error(Exception):
    """The connection cannot go on: the other side broke the protocol, or asked for more than it may."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(key, value) for key, value in values.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, _WORD.pack(increment))


def rst_stream(stream_id: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, _WORD.pack(code))


def goaway(last_stream_id: int, code: int, text: str) -> bytes:
    return frame(GOAWAY, 0, 0, _TWO_WORDS.pack(last_stream_id, code) + text.encode()[:256])


def read_settings(data: bytes, start: int, end: int) -> list[tuple[int, int]]:
    if (end - start) % _SETTING.size:
        raise Http2Error(FRAME_SIZE_ERROR, f"settings of {end - start} bytes")
    found = []
    for position in range(start, end, _SETTING.size):
        key, value = _SETTING.unpack_from(data, position)
        if key == INITIAL_WINDOW_SIZE and value > WINDOW_BYTES_LIMIT:
            raise Http2Error(FLOW_CONTROL_ERROR, f"an initial window of {value} bytes")
        if key == MAX_FRAME_SIZE and not FRAME_BYTES_DEFAULT <= value <= FRAME_BYTES_LIMIT:
            raise Http2Error(PROTOCOL_ERROR, f"frames of up to {value} bytes")
        if key == ENABLE_PUSH and value > 1:
            raise Http2Error(PROTOCOL_ERROR, f"ENABLE_PUSH of {value}")
        found.append((key, value))
    return found


def read_word(data: bytes, start: int, end: int, what: str) -> int:
    if end - start != _WORD.size:
        raise Http2Error(FRAME_SIZE_ERROR, f"{what} of {end - start} bytes")
    word: int = _WORD.unpack_from(data, start)[0]
    return word


def read_goaway(data: bytes, start: int, end: int) -> tuple[int, int, str]:
    """The last stream that was or will be handled, why, and the text."""
    if end - start < _TWO_WORDS.size:
        raise Http2Error(FRAME_SIZE_ERROR, f"GOAWAY of {end - start} bytes")
    last, code = _TWO_WORDS.unpack_from(data, start)
    return last & STREAM_ID_MASK, code, data[start + 8 : min(end, start + 8 + 256)].decode("utf-8", "replace")


def without_padding(flags: int, data: bytes, start: int, end: int) -> tuple[int, int]:
    if not flags & PADDED:
        return start, end
    if start == end or start + 1 + data[start] > end:
        raise Http2Error(PROTOCOL_ERROR, "more padding than frame")
    return start + 1, end - data[start]


def encode_status_text(text: str) -> bytes:
    """grpc-message: percent-encoded, and bounded, since it is written into a header block."""
    return quote_from_bytes(text.encode()[:_STATUS_TEXT_BYTES_MAX], safe=_PRINTABLE).encode()


def decode_status_text(value: bytes) -> str:
    return unquote_to_bytes(value[: 3 * _STATUS_TEXT_BYTES_MAX]).decode("utf-8", "replace")


def decode_status(trailers: dict[bytes, bytes]) -> tuple[int, str]:
    value = trailers.get(b"grpc-status", b"")
    if not value.isdigit() or len(value) > 2 or int(value) >= len(STATUS_NAMES):
        return UNKNOWN, "the stream ended without a status" if not value else f"status {value!r}"
    return int(value), decode_status_text(trailers.get(b"grpc-message", b""))

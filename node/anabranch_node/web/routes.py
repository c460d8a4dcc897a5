"""Raw path -> which resource. Before us: request.py cut the target at "?". After us: the core, which knows a stream as "bucket/name".

Each segment is percent-decoded once, as strict UTF-8; slashes, dot segments, control characters and empty segments are refused, nothing is
normalised. So two paths name one stream only if their decoded segments are equal. That is why `_default/x` is refused: `x` is that stream.
Not here: whether a stream exists, methods (request.py)."""

import re
from typing import Final, NamedTuple

STREAM_PREFIX: Final = b"/v1/stream/"
LIST_PATH: Final = b"/v1/streams"
DEFAULT_BUCKET: Final = "_default"
NAME_BYTES_MAX: Final = 1024
CACHE_ENTRIES_MAX: Final = 8192

RESERVED_ENDS: Final = frozenset(
    {
        *("_schema", "_profile", "_search", "_aggregate", "_routing_keys", "_index_status", "_details"),
        *("bootstrap", "append-batch", "snapshot"),
    }
)
RESERVED_PARENTS: Final = frozenset({"snapshot", "pk"})
"""`snapshot/{offset}`, `pk/{key}`."""
RESERVED_FIRST: Final = "__ds"

_bucket: Final = re.compile(r"[a-z0-9_-]{4,64}").fullmatch
_raw_segments: Final = re.compile(rb"[A-Za-z0-9\-._~!$&'()*+,;=:@%/\"<>^`{|}\[\]]+").fullmatch
_bad_percent: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})").search
_percent: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_bad_decoded: Final = re.compile(r"[\x00-\x1f\x7f-\x9f/\\]").search


class BadPath(ValueError):
    """The text is ours alone: it quotes nothing that a client sent."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Route(NamedTuple):
    stream: str
    path: str
    reserved: bool
    """No stream may be created here."""
    internal: bool
    """Below `__ds`: no stream can ever be here."""


_cache: dict[bytes, Route] = {}


def stream_route(raw: bytes) -> Route:
    """`raw` is the whole path of the target, starting with STREAM_PREFIX. Raises BadPath."""
    route = _cache.get(raw)
    if route is None:
        route = _stream_route(raw)
        if len(_cache) >= CACHE_ENTRIES_MAX:
            _cache.clear()  # rare, and cheaper than an order of use on every hit
        _cache[raw] = route
    return route


def _stream_route(raw: bytes) -> Route:
    rest = raw[len(STREAM_PREFIX) :]
    if not rest:
        raise BadPath("bad_path", "the path names no stream")
    if len(rest) > 3 * NAME_BYTES_MAX:
        raise BadPath("name_too_long", f"a stream's name may have {NAME_BYTES_MAX} bytes")
    if _raw_segments(rest) is None:
        raise BadPath("bad_path", "the path has characters that must be percent-encoded")
    segments = [decode_segment(segment) for segment in rest.split(b"/")]
    name = "/".join(segments)
    if len(name.encode()) > NAME_BYTES_MAX:
        raise BadPath("name_too_long", f"a stream's name may have {NAME_BYTES_MAX} bytes")
    first = segments[0]
    if len(segments) > 1 and first == DEFAULT_BUCKET:
        raise BadPath("reserved_name", "streams of the default bucket are addressed without its name")
    in_bucket = len(segments) > 1 and _bucket(first) is not None
    ends = segments[-1] in RESERVED_ENDS or (len(segments) > 1 and segments[-2] in RESERVED_PARENTS)
    return Route(name if in_bucket else f"{DEFAULT_BUCKET}/{name}", raw.decode("ascii"), ends or first == RESERVED_FIRST, first == RESERVED_FIRST)


def decode_segment(raw: bytes) -> str:
    try:
        text = percent_decode(raw).decode("utf-8")
    except ValueError:  # UnicodeDecodeError is one
        raise BadPath("bad_path", "the path is not valid percent-encoded UTF-8") from None
    if not text or text == "." or text == "..":
        raise BadPath("bad_path", "the path has an empty or a dot segment")
    if _bad_decoded(text) is not None:
        raise BadPath("bad_path", "the path has a control character, an encoded slash or a backslash")
    return text


def percent_decode(raw: bytes) -> bytes:
    """Once, strictly: ValueError for a percent sign without two hex digits."""
    if b"%" not in raw:
        return raw
    if _bad_percent(raw) is not None:
        raise ValueError("malformed percent-encoding")
    return _percent.sub(lambda found: bytes.fromhex(found[1].decode()), raw)


def path_of(stream: str) -> str:
    """The path of a stream by its core name: the inverse of stream_route()."""
    bucket, _, name = stream.partition("/")
    shown = name if bucket == DEFAULT_BUCKET else stream
    return STREAM_PREFIX.decode() + "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in shown.encode())


_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/")

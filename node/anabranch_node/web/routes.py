"""Raw path -> which resource, on three surfaces. Before us: request.py cut the target at "?". After us: the core, which knows a stream as
"bucket/name".

`/v1/stream/{path}` makes buckets as it goes and takes slashes in names; `/ds/{bucket}/{stream}` and `/{bucket}/{stream}` do neither. Behind a
stream comes an operation or nothing. Each segment is percent-decoded once, as strict UTF-8; slashes, dot segments, control characters and empty
segments are refused, nothing is normalised. So two paths of one surface name one stream only if their decoded segments are equal. That is why
`/v1/stream/_default/x` is refused: `/v1/stream/x` is that stream. Not here: whether a stream exists, methods (request.py)."""

import re
from typing import Final, NamedTuple

STREAM_PREFIX: Final = b"/v1/stream/"
LIST_PATH: Final = b"/v1/streams"
BUCKETS_PREFIX: Final = b"/ds/"
DEFAULT_BUCKET: Final = "_default"
NAME_BYTES_MAX: Final = 1024
BUCKETED_NAME_BYTES_MAX: Final = 122
"""Of "{bucket}/{stream}" on the surfaces with a bucket, the extensions' bound."""
KEY_BYTES_MAX: Final = 256
CACHE_ENTRIES_MAX: Final = 8192

# What a path names. Plain strings: the hash of an enumeration's member is computed in Python, each time.
STREAM: Final = "stream"
BATCH: Final = "append-batch"
SNAPSHOT: Final = "snapshot"
SNAPSHOT_AT: Final = "snapshot/{offset}"
BOOTSTRAP: Final = "bootstrap"
KEY: Final = "pk/{key}"
BUCKET: Final = "bucket"
BUCKET_STREAMS: Final = "bucket/streams"
STREAMS: Final = "streams"
UNSERVED: Final = "unserved"
"""An operation that is reserved and not served yet."""
RESERVED: Final = "reserved"
"""The place of a stream that can never be."""

_OPERATIONS: Final = {place: place for place in (BATCH, SNAPSHOT, BOOTSTRAP)} | dict.fromkeys(
    ("_schema", "_profile", "_search", "_aggregate", "_routing_keys", "_index_status", "_details"), UNSERVED
)
RESERVED_ENDS: Final = frozenset(_OPERATIONS)
_WITH_ARGUMENT: Final = {"snapshot": SNAPSHOT_AT, "pk": KEY}
RESERVED_FIRST: Final = "__ds"
RESERVED_LOCAL: Final = "streams"
"""On the surfaces with a bucket: its listing."""

_bucket: Final = re.compile(r"[a-z0-9_-]{4,64}").fullmatch
_raw_segments: Final = re.compile(rb"[A-Za-z0-9\-._~!$&'()*+,;=:@%/\"<>^`{|}\[\]]+").fullmatch
_bad_percent: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})").search
_percent: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_bad_decoded: Final = re.compile(r"[\x00-\x1f\x7f-\x9f/\\]").search
_bad_key: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]").search


class BadPath(ValueError):
    """The text is ours alone: it quotes nothing that a client sent."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class Route(NamedTuple):
    place: str
    stream: str = ""
    """Core name."""
    path: str = ""
    """Of the stream itself, as the client spelt it on its surface."""
    argument: str = ""
    """The offset or the key behind it, not looked at."""
    bucket: str = ""
    makes_bucket: bool = False
    """On /v1: a create makes its bucket, too."""


_cache: dict[bytes, Route] = {}


def route_of(raw: bytes) -> Route:
    """`raw` is the whole path of the target. Raises BadPath."""
    route = _cache.get(raw)
    if route is None:
        route = _route(raw)
        if len(_cache) >= CACHE_ENTRIES_MAX:
            _cache.clear()  # rare, and cheaper than an order of use on every hit
        _cache[raw] = route
    return route


def _route(raw: bytes) -> Route:
    if raw.startswith(STREAM_PREFIX):
        return _on_v1(raw)
    if raw == LIST_PATH:
        return Route(STREAMS)
    if raw.startswith(BUCKETS_PREFIX):
        return _in_bucket(raw, len(BUCKETS_PREFIX))
    if raw in (b"/", b"/ds", b"/v1") or not raw.startswith(b"/") or raw.startswith(b"/v1/"):
        raise _nothing()
    return _in_bucket(raw, 1)


def _nothing() -> BadPath:
    return BadPath("unknown_route", "there is nothing at this path", 404)


def _split(raw: bytes) -> list[bytes]:
    if not raw:
        raise BadPath("bad_path", "the path names no stream and no bucket")
    if len(raw) > 3 * (NAME_BYTES_MAX + KEY_BYTES_MAX):
        raise BadPath("name_too_long", f"a stream's name may have {NAME_BYTES_MAX} bytes")
    if _raw_segments(raw) is None:
        raise BadPath("bad_path", "the path has characters that must be percent-encoded")
    return raw.split(b"/")


def _on_v1(raw: bytes) -> Route:
    """An operation is recognised at the end of a path, whatever comes before it: so no stream there can ever be called like one. What stands behind
    `pk` is a key even if it is spelt like an operation."""
    pieces = _split(raw[len(STREAM_PREFIX) :])
    first = decode_segment(pieces[0])
    if first == RESERVED_FIRST:
        return Route(RESERVED)
    count = len(pieces)
    place, argument, behind = STREAM, "", 0
    if count > 1 and decode_segment(pieces[-2]) in _WITH_ARGUMENT:
        place, argument = _operation(pieces[-2:])
        behind = 2
    else:
        last = decode_segment(pieces[-1])
        if last in _OPERATIONS:
            place, behind = _OPERATIONS[last], 1
    if behind == count:
        return Route(RESERVED)
    segments = [decode_segment(piece) for piece in pieces[: count - behind]]
    name = "/".join(segments)
    if len(name.encode()) > NAME_BYTES_MAX:
        raise BadPath("name_too_long", f"a stream's name may have {NAME_BYTES_MAX} bytes")
    if len(segments) > 1 and first == DEFAULT_BUCKET:
        raise BadPath("reserved_name", "streams of the default bucket are addressed without its name")
    stream = name if len(segments) > 1 and _bucket(first) is not None else f"{DEFAULT_BUCKET}/{name}"
    return Route(place, stream, _without(raw, pieces, behind), argument, makes_bucket=True)


def _in_bucket(raw: bytes, start: int) -> Route:
    pieces = _split(raw[start:])
    bucket = decode_segment(pieces[0])
    if bucket == RESERVED_FIRST:
        raise _nothing()
    if _bucket(bucket) is None:
        raise BadPath("bad_bucket", "a bucket's id is 4 to 64 of the characters a-z, 0-9, - and _")
    if len(pieces) == 1:
        return Route(BUCKET, bucket=bucket)
    local = decode_segment(pieces[1])
    if local == RESERVED_LOCAL:
        if len(pieces) == 2:
            return Route(BUCKET_STREAMS, bucket=bucket)
        raise BadPath("reserved_name", "this name is that of a bucket's listing")
    if ".." in local:
        raise BadPath("bad_path", "a stream's id may not contain two dots in a row")
    stream = f"{bucket}/{local}"
    if len(stream.encode()) > BUCKETED_NAME_BYTES_MAX:
        raise BadPath("name_too_long", f"a bucket and a stream's id may have {BUCKETED_NAME_BYTES_MAX} bytes together")
    if len(pieces) == 2:
        # Such a stream would be an operation on /v1, where it must have an address, too.
        is_reserved = local in RESERVED_ENDS or local == RESERVED_FIRST
        return Route(RESERVED if is_reserved else STREAM, stream, raw.decode("ascii"))
    place, argument = _operation(pieces[2:])
    return Route(place, stream, _without(raw, pieces, len(pieces) - 2), argument)


def _without(raw: bytes, pieces: list[bytes], behind: int) -> str:
    cut = sum(len(piece) + 1 for piece in pieces[len(pieces) - behind :])
    return raw[: len(raw) - cut].decode("ascii")


def _operation(behind: list[bytes]) -> tuple[str, str]:
    """What the segments behind a stream ask for, with its argument."""
    first = decode_segment(behind[0])
    if len(behind) == 1 and first in _OPERATIONS:
        return _OPERATIONS[first], ""
    if len(behind) == 2 and first in _WITH_ARGUMENT:
        place = _WITH_ARGUMENT[first]
        return place, _decode_key(behind[1]) if place is KEY else decode_segment(behind[1])
    raise BadPath("bad_path", "a stream's id is one segment here, and there is no such operation behind it")


def decode_segment(raw: bytes) -> str:
    text = _decode(raw)
    if not text or text == "." or text == "..":
        raise BadPath("bad_path", "the path has an empty or a dot segment")
    if _bad_decoded(text) is not None:
        raise BadPath("bad_path", "the path has a control character, an encoded slash or a backslash")
    return text


def _decode_key(raw: bytes) -> str:
    """A key names nothing in the path, so its slashes may be encoded in it; but a dot segment would be taken out on the way to us."""
    text = _decode(raw)
    if not text or text == "." or text == ".." or _bad_key(text) is not None:
        raise BadPath("bad_path", "the key is empty, a dot segment, or has a control character")
    if len(text.encode()) > KEY_BYTES_MAX:
        raise BadPath("bad_path", f"a key may have {KEY_BYTES_MAX} bytes")
    return text


def _decode(raw: bytes) -> str:
    try:
        return percent_decode(raw).decode("utf-8")
    except ValueError:  # UnicodeDecodeError is one
        raise BadPath("bad_path", "the path is not valid percent-encoded UTF-8") from None


def percent_decode(raw: bytes) -> bytes:
    """Once, strictly: ValueError for a percent sign without two hex digits."""
    if b"%" not in raw:
        return raw
    if _bad_percent(raw) is not None:
        raise ValueError("malformed percent-encoding")
    return _percent.sub(lambda found: bytes.fromhex(found[1].decode()), raw)


def path_of(stream: str) -> str:
    """The path of a stream by its core name: the inverse of route_of(). On /v1, but for the streams of a bucket that is called like an operation."""
    bucket, _, name = stream.partition("/")
    on_v1 = bucket not in _WITH_ARGUMENT or "/" in name
    shown = name if bucket == DEFAULT_BUCKET else stream
    prefix = STREAM_PREFIX if on_v1 else BUCKETS_PREFIX
    return prefix.decode() + "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in shown.encode())


_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/")

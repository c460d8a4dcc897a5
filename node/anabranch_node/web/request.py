"""The head of a request -> a typed Request, strictly, or BadRequest. Before us: the driver cut the bytes into a head. After us: write.py and
read.py make a command or a query of it; what depends on the body is decided there.

Only the headers in _WANTED are looked at. Not here: framing (the driver), authentication, subscriptions and forks (not served yet)."""

import re
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from anabranch_node.core.stream.commands import Producer
from anabranch_node.core.stream.queries import NOW, START
from anabranch_node.web.reply import Reply, error
from anabranch_node.web.routes import LIST_PATH, STREAM_PREFIX, BadPath, percent_decode, stream_route

INTEGER_MAX: Final = (1 << 53) - 1
OFFSET_MAX: Final = (1 << 63) - 1
TOKEN_BYTES_MAX: Final = 256
"""Of Producer-Id, Stream-Seq, Stream-Key and Content-Type."""
QUERY_BYTES_MAX: Final = 4096
LIST_LIMIT_DEFAULT: Final = 100
LIST_LIMIT_MAX: Final = 1000
DEFAULT_CONTENT_TYPE: Final = "application/octet-stream"


class Head(NamedTuple):
    """Header names are lower-cased by the driver, values are as received."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]


class Kind(Enum):
    CREATE = 1
    APPEND = 2
    DELETE = 3
    HEAD = 4
    READ = 5
    LIST = 6
    PREFLIGHT = 7
    BATCH = 8
    SNAPSHOT_PUBLISH = 9
    SNAPSHOT_READ = 10
    SNAPSHOT_LATEST = 11
    SNAPSHOT_DELETE = 12
    BOOTSTRAP = 13
    BUCKET_CREATE = 14
    BUCKET_INFO = 15
    BUCKET_LIST = 16
    BUCKET_DELETE = 17


class Request(msgspec.Struct, frozen=True, gc=False):
    kind: Kind
    stream: str = ""
    path: str = ""
    content_type: str = ""
    ttl_s: int | None = None
    expires_at_ms: int | None = None
    expires_at: str = ""
    closed: bool = False
    seq: str | None = None
    producer: Producer | None = None
    key: str = ""
    timestamp_ms: int | None = None
    offset: int = START
    has_offset: bool = False
    live: str = ""
    max_bytes: int | None = None
    if_none_match: str = ""
    cursor: str = ""
    origin: str = ""
    prefix: str = ""
    after: str = ""
    limit: int = LIST_LIMIT_DEFAULT
    request_id: str = ""
    http_host: str = ""
    bucket: str = ""
    makes_bucket: bool = False
    """On /v1 a stream's bucket is made with it; the other surfaces never do that."""
    fork_source: str = ""
    """Core name of the stream that Stream-Forked-From names; empty: no fork."""
    fork_anchor: int | None = None
    fork_sub_offset: int = 0
    retention_bytes: int | None = None
    retention_age_s: int | None = None
    read_key: str | None = None
    since_ms: int | None = None
    raw: bool = False
    """format=raw: the messages' own bytes end to end, whatever the content type."""
    timeout_ms: int | None = None
    """Of a long-poll, as its client asks for it."""
    snapshot_offset: int = -1

    @property
    def takes_body(self) -> bool:
        return self.kind is Kind.CREATE or self.kind is Kind.APPEND


class BadRequest(Exception):
    """The request ends here, with this reply."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def refuse(status: int, code: str, message: str, extra_headers: bytes = b"") -> BadRequest:
    return BadRequest(error(status, code, message, extra_headers=extra_headers))


_WANTED: Final = frozenset(
    {
        *(b"host", b"content-type", b"content-length", b"content-encoding", b"if-none-match", b"origin", b"x-request-id"),
        *(b"stream-ttl", b"stream-expires-at", b"stream-closed", b"stream-seq", b"stream-key", b"stream-timestamp"),
        *(b"producer-id", b"producer-epoch", b"producer-seq"),
        *(b"stream-forked-from", b"stream-fork-offset", b"stream-fork-sub-offset"),
    }
)
_STREAM_METHODS: Final = {b"PUT": Kind.CREATE, b"POST": Kind.APPEND, b"GET": Kind.READ, b"HEAD": Kind.HEAD, b"DELETE": Kind.DELETE}
_STREAM_ALLOW: Final = b"Allow: GET, POST, PUT, DELETE, HEAD, OPTIONS\r\n"
_LIST_ALLOW: Final = b"Allow: GET, OPTIONS\r\n"
_LIVE: Final = {b"long-poll": "long-poll", b"sse": "sse"}

_integer: Final = re.compile(rb"0|[1-9][0-9]{0,15}").fullmatch
_nanoseconds: Final = re.compile(rb"0|[1-9][0-9]{0,18}").fullmatch
_offset: Final = re.compile(rb"[0-9]{20}").fullmatch
_printable: Final = re.compile(rb"[\x20-\x7e]+").fullmatch
_host: Final = re.compile(rb"[A-Za-z0-9._\-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?").fullmatch
_request_id: Final = re.compile(rb"[A-Za-z0-9._\-]{1,128}").fullmatch
_token: Final = r"[A-Za-z0-9!#$%&'*+\-.^_`|~]+"
_media_type: Final = re.compile(rf'{_token}/{_token}([ \t]*;[ \t]*({_token}=({_token}|"[\x20\x21\x23-\x5b\x5d-\x7e]*"))?)*').fullmatch
_timestamp: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
).fullmatch
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_content_types: dict[bytes, str] = {}
_CONTENT_TYPES_MAX: Final = 256


def parse(head: Head) -> Request:
    """Everything that can be known before the body. Raises BadRequest and nothing else, whatever the bytes."""
    method, target, headers = head
    path, question, query = target.partition(b"?")
    if path.startswith(STREAM_PREFIX):
        kind = _STREAM_METHODS.get(method)
        if kind is None:
            if method == b"OPTIONS":
                return Request(Kind.PREFLIGHT)
            raise refuse(405, "method_not_allowed", "this resource does not have that method", _STREAM_ALLOW)
        try:
            stream, shown, reserved, internal = stream_route(path)
        except BadPath as bad:
            raise refuse(400, bad.code, str(bad)) from None
        if reserved:
            if kind is Kind.CREATE:
                raise refuse(400, "reserved_name", "a stream's name may not end or begin like an operation")
            if internal:
                raise refuse(404, "unknown_route", "there is nothing at this path")
    elif path == LIST_PATH:
        return _parse_list(method, query, _collect(headers))
    elif method == b"OPTIONS":
        return Request(Kind.PREFLIGHT)
    else:
        raise refuse(404, "unknown_route", "there is nothing at this path")

    got = _collect(headers)
    host = _host_of(got)
    origin = got.get(b"origin")
    request_id = got.get(b"x-request-id")
    origin_text = origin.decode("latin-1") if origin else ""
    id_text = request_id.decode() if request_id and _request_id(request_id) is not None else ""

    if kind is Kind.READ:
        return _parse_read(stream, shown, query if question else b"", got, origin_text, id_text, host)
    if kind is Kind.HEAD or kind is Kind.DELETE:
        return Request(kind, stream, shown, origin=origin_text, request_id=id_text, http_host=host)

    encoding = got.get(b"content-encoding")
    if encoding is not None and encoding.lower() != b"identity":
        raise refuse(415, "content_encoding", "bodies are taken without Content-Encoding only")
    raw_type = got.get(b"content-type")
    content_type = ""
    if raw_type:
        content_type = _content_types.get(raw_type) or _check_content_type(raw_type)
    closed = got.get(b"stream-closed", b"").lower() == b"true"
    if kind is Kind.APPEND:
        return Request(
            kind,
            stream,
            shown,
            content_type,
            closed=closed,
            seq=_text(got, b"stream-seq", "Stream-Seq"),
            producer=_producer(got),
            key=_text(got, b"stream-key", "Stream-Key") or "",
            timestamp_ms=_append_time(got),
            origin=origin_text,
            request_id=id_text,
            http_host=host,
        )
    for name in (b"stream-forked-from", b"stream-fork-offset", b"stream-fork-sub-offset"):
        if name in got:
            # Silently making an empty stream of what was meant as a fork would lose the inherited part.
            raise refuse(501, "forks_not_served", "this server does not make forks yet")
    ttl_s, expires_at_ms, expires_at = _lifetime(got)
    return Request(
        kind,
        stream,
        shown,
        content_type or DEFAULT_CONTENT_TYPE,
        ttl_s,
        expires_at_ms,
        expires_at,
        closed,
        origin=origin_text,
        request_id=id_text,
        http_host=host,
    )


def _collect(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    got: dict[bytes, bytes] = {}
    wanted = _WANTED
    for name, value in headers:
        if name in wanted:
            if name in got:
                if name != b"if-none-match":
                    raise refuse(400, "duplicate_header", f"more than one {name.decode()} header")
                value = got[name] + b", " + value
            got[name] = value.strip(b" \t")
    return got


def _host_of(got: dict[bytes, bytes]) -> str:
    host = got.get(b"host")
    if not host:
        return ""
    if len(host) > TOKEN_BYTES_MAX or _host(host) is None:
        raise refuse(400, "bad_host", "malformed Host header")
    return host.decode()


def _check_content_type(raw: bytes) -> str:
    text = raw.decode("latin-1")
    if len(raw) > TOKEN_BYTES_MAX or _media_type(text) is None:
        raise refuse(400, "bad_content_type", "malformed Content-Type header")
    if len(_content_types) >= _CONTENT_TYPES_MAX:
        _content_types.clear()
    _content_types[raw] = text
    return text


def _text(got: dict[bytes, bytes], name: bytes, shown: str) -> str | None:
    raw = got.get(name)
    if raw is None:
        return None
    if len(raw) > TOKEN_BYTES_MAX or _printable(raw) is None:
        raise refuse(400, "bad_header", f"{shown} must be 1 to {TOKEN_BYTES_MAX} printable ASCII characters")
    return raw.decode()


def _integer_of(raw: bytes, shown: str) -> int:
    if _integer(raw) is None:
        raise refuse(400, "bad_header", f"{shown} must be a non-negative integer without leading zeros")
    value = int(raw)
    if value > INTEGER_MAX:
        raise refuse(400, "bad_header", f"{shown} must be below 2^53")
    return value


def _producer(got: dict[bytes, bytes]) -> Producer | None:
    name, epoch, seq = got.get(b"producer-id"), got.get(b"producer-epoch"), got.get(b"producer-seq")
    if name is None and epoch is None and seq is None:
        return None
    if name is None or epoch is None or seq is None:
        raise refuse(400, "incomplete_producer", "Producer-Id, Producer-Epoch and Producer-Seq come together")
    text = _text(got, b"producer-id", "Producer-Id")
    assert text is not None
    return Producer(text, _integer_of(epoch, "Producer-Epoch"), _integer_of(seq, "Producer-Seq"))


def _lifetime(got: dict[bytes, bytes]) -> tuple[int | None, int | None, str]:
    ttl, expires = got.get(b"stream-ttl"), got.get(b"stream-expires-at")
    if ttl is not None and expires is not None:
        raise refuse(400, "ttl_and_expiry", "Stream-TTL and Stream-Expires-At exclude each other")
    if ttl is not None:
        return _integer_of(ttl, "Stream-TTL"), None, ""
    if expires is not None:
        return None, _time_ms(expires, "Stream-Expires-At"), expires.decode()
    return None, None, ""


def _append_time(got: dict[bytes, bytes]) -> int | None:
    """RFC 3339, or nanoseconds since 1970."""
    raw = got.get(b"stream-timestamp")
    if raw is None:
        return None
    if _nanoseconds(raw) is not None:
        return int(raw) // 1_000_000
    return _time_ms(raw, "Stream-Timestamp")


def _time_ms(raw: bytes, shown: str) -> int:
    """RFC 3339, always with its offset from UTC. Before 1970 is 1970."""
    found = _timestamp(raw.decode("latin-1"))
    if found is None:
        raise refuse(400, "bad_header", f"{shown} must be an RFC 3339 timestamp")
    year, month, day, hour, minute, second, fraction, sign, zone_hours, zone_minutes = found.groups()
    try:
        moment = datetime(int(year), int(month), int(day), int(hour), int(minute), min(int(second), 59), tzinfo=UTC)
    except ValueError:
        raise refuse(400, "bad_header", f"{shown} must be an RFC 3339 timestamp") from None
    if int(second) > 60 or (sign and (int(zone_hours) > 23 or int(zone_minutes) > 59)):
        raise refuse(400, "bad_header", f"{shown} must be an RFC 3339 timestamp")
    at_ms = (moment - _EPOCH) // timedelta(milliseconds=1) + int(((fraction or "") + "000")[:3])
    if sign:
        ahead_ms = (int(zone_hours) * 60 + int(zone_minutes)) * 60_000
        at_ms += ahead_ms if sign == "-" else -ahead_ms
    return max(0, at_ms)


def _query(raw: bytes, wanted: frozenset[bytes]) -> dict[bytes, bytes]:
    """Unknown parameters are ignored; a known one may come once."""
    got: dict[bytes, bytes] = {}
    if len(raw) > QUERY_BYTES_MAX:
        raise refuse(414, "query_too_long", f"a query may have {QUERY_BYTES_MAX} bytes")
    for pair in raw.split(b"&"):
        name, _, value = pair.partition(b"=")
        if name in wanted:
            if name in got:
                raise refuse(400, "duplicate_parameter", f"more than one {name.decode()} parameter")
            if b"%" in value or b"+" in value:
                try:
                    value = percent_decode(value.replace(b"+", b" "))
                except ValueError:
                    raise refuse(400, "bad_parameter", f"{name.decode()} is not valid percent-encoding") from None
            got[name] = value
    return got


_READ_PARAMETERS: Final = frozenset({b"offset", b"live", b"cursor", b"max_bytes"})
_LIST_PARAMETERS: Final = frozenset({b"prefix", b"after", b"limit"})


def _parse_read(stream: str, shown: str, query: bytes, got: dict[bytes, bytes], origin: str, request_id: str, host: str) -> Request:
    offset, has_offset, live, cursor, max_bytes = START, False, "", "", None
    if query:
        given = _query(query, _READ_PARAMETERS)
        raw = given.get(b"offset")
        if raw is not None:
            has_offset = True
            if _offset(raw) is not None:
                offset = int(raw)
                if offset > OFFSET_MAX:
                    raise refuse(400, "bad_offset", "offset is not one that this server gave out")
            elif raw == b"now":
                offset = NOW
            elif raw != b"-1":
                raise refuse(400, "bad_offset", "offset must be -1, now or 20 digits")
        raw = given.get(b"live")
        if raw is not None:
            live = _LIVE.get(raw, "")
            if not live:
                raise refuse(400, "bad_live", "live must be long-poll or sse")
            if not has_offset:
                raise refuse(400, "offset_required", "a live read needs an offset")
        raw = given.get(b"cursor")
        if raw is not None and _integer(raw) is not None:
            cursor = raw.decode()
        raw = given.get(b"max_bytes")
        if raw is not None:
            max_bytes = _integer_of(raw, "max_bytes")
            if not max_bytes:
                raise refuse(400, "bad_parameter", "max_bytes must be positive")
    match = got.get(b"if-none-match")
    return Request(
        Kind.READ,
        stream,
        shown,
        offset=offset,
        has_offset=has_offset,
        live=live,
        max_bytes=max_bytes,
        if_none_match=match.decode("latin-1") if match else "",
        cursor=cursor,
        origin=origin,
        request_id=request_id,
        http_host=host,
    )


def _parse_list(method: bytes, query: bytes, got: dict[bytes, bytes]) -> Request:
    if method == b"OPTIONS":
        return Request(Kind.PREFLIGHT)
    if method != b"GET":
        raise refuse(405, "method_not_allowed", "this resource does not have that method", _LIST_ALLOW)
    given = _query(query, _LIST_PARAMETERS)
    limit = LIST_LIMIT_DEFAULT
    raw = given.get(b"limit")
    if raw is not None:
        limit = _integer_of(raw, "limit")
        if not 1 <= limit <= LIST_LIMIT_MAX:
            raise refuse(400, "bad_parameter", f"limit must be 1 to {LIST_LIMIT_MAX}")
    try:
        prefix, after = given.get(b"prefix", b"").decode("utf-8"), given.get(b"after", b"").decode("utf-8")
    except UnicodeDecodeError:
        raise refuse(400, "bad_parameter", "prefix and after must be UTF-8") from None
    request_id = got.get(b"x-request-id")
    id_text = request_id.decode() if request_id and _request_id(request_id) is not None else ""
    return Request(Kind.LIST, prefix=prefix, after=after, limit=limit, request_id=id_text, http_host=_host_of(got))

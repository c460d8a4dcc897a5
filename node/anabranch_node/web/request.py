"""The head of a request -> a typed Request, strictly, or BadRequest. Before us: the driver cut the bytes into a head. After us: write.py and
the files beside them make a command or a query of it; what depends on the body is decided there.

METHODS says what can be done with what a path names, HEADERS which headers are looked at; docs/protocol.md is made from them. Not here: framing (the
driver), paths (routes.py), authentication, subscriptions (not served yet)."""

import re
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from anabranch_node.core.stream.commands import Producer
from anabranch_node.core.stream.queries import NOW, START
from anabranch_node.web import routes
from anabranch_node.web.reply import Reply, error
from anabranch_node.web.routes import KEY_BYTES_MAX, BadPath, Route, percent_decode, route_of

INTEGER_MAX: Final = (1 << 53) - 1
OFFSET_MAX: Final = (1 << 63) - 1
TOKEN_BYTES_MAX: Final = 256
"""Of Producer-Id, Stream-Seq, Stream-Key and Content-Type."""
QUERY_BYTES_MAX: Final = 4096
LIST_LIMIT_DEFAULT: Final = 100
LIST_LIMIT_MAX: Final = 1000
LIST_ROW_MAX: Final = 4000
"""Of a listing by row: every group gives all rows before it, too."""
TIMEOUT_MAX_MS: Final = 60_000
"""A client may ask a long-poll to wait this long and no longer."""
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
    row: int = -1
    """Of a listing that is asked for by row: the first one that is wanted."""
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
    json_only: bool = False
    """format=json: refused where the stream is something else."""
    timeout_ms: int | None = None
    """Of a long-poll, as its client asks for it."""
    snapshot_offset: int = -1

    @property
    def takes_body(self) -> bool:
        kind = self.kind
        return kind is Kind.APPEND or kind is Kind.CREATE or kind is Kind.BATCH or kind is Kind.SNAPSHOT_PUBLISH


class BadRequest(Exception):
    """The request ends here, with this reply."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def refuse(status: int, code: str, message: str, extra_headers: bytes = b"") -> BadRequest:
    return BadRequest(error(status, code, message, extra_headers=extra_headers))


METHODS: Final[dict[str, dict[bytes, Kind]]] = {
    routes.STREAM: {b"GET": Kind.READ, b"POST": Kind.APPEND, b"PUT": Kind.CREATE, b"DELETE": Kind.DELETE, b"HEAD": Kind.HEAD},
    routes.BATCH: {b"POST": Kind.BATCH},
    routes.SNAPSHOT: {b"GET": Kind.SNAPSHOT_LATEST},
    routes.SNAPSHOT_AT: {b"GET": Kind.SNAPSHOT_READ, b"PUT": Kind.SNAPSHOT_PUBLISH, b"DELETE": Kind.SNAPSHOT_DELETE},
    routes.BOOTSTRAP: {b"GET": Kind.BOOTSTRAP},
    routes.KEY: {b"GET": Kind.READ},
    routes.BUCKET: {b"GET": Kind.BUCKET_INFO, b"PUT": Kind.BUCKET_CREATE, b"DELETE": Kind.BUCKET_DELETE},
    routes.BUCKET_STREAMS: {b"GET": Kind.BUCKET_LIST},
    routes.STREAMS: {b"GET": Kind.LIST},
    routes.UNSERVED: {},
    routes.RESERVED: {},
}
"""What can be done with what a path names. OPTIONS besides, everywhere, and before anything else is looked at."""

HEADERS: Final[dict[str, str]] = {
    "Content-Type": "of the stream, of the bytes that are appended, of the snapshot; none at a fork: as its source",
    "Content-Encoding": "`identity`, or 415",
    "Content-Length": "framing; the driver's",
    "Host": "for `Location`; malformed: 400",
    "If-None-Match": "reads: 304 if the tag is still right",
    "Origin": "not looked at: every origin is allowed, none with credentials",
    "X-Request-Id": "up to 128 of `A-Za-z0-9._-`: repeated in the response",
    "Stream-TTL": "create: sliding window in seconds",
    "Stream-Expires-At": "create: RFC 3339; excludes `Stream-TTL`",
    "Stream-Retention-Bytes": "create: trim what lies further back than this many bytes; positive",
    "Stream-Retention-Age": "create: trim what is older than this many seconds; positive",
    "Stream-Forked-From": "create: a path on this server, of any surface, or a URL with such a path",
    "Stream-Fork-Offset": "create: 20 digits, or sixteen zeros, `_`, sixteen zeros; none: the tail of the source",
    "Stream-Fork-Sub-Offset": "create: JSON messages or bytes past the fork offset; without leading zeros",
    "Stream-Closed": "create, append: `true` closes the stream with this request",
    "Stream-Seq": "append: must be greater, byte by byte, than the last one",
    "Stream-Key": "append: routing key of its messages",
    "Stream-Timestamp": "append: RFC 3339 or nanoseconds since 1970; clamped to [last append time, now]",
    "Producer-Id": "append: with the next two, the exactly-once tuple",
    "Producer-Epoch": "append",
    "Producer-Seq": "append",
}
"""Of requests: what is looked at, each at most once (`If-None-Match` excepted)."""
_WANTED: Final = frozenset(name.lower().encode() for name in HEADERS)
_LIVE: Final = {b"long-poll": "long-poll", b"true": "long-poll", b"sse": "sse"}

_integer: Final = re.compile(rb"0|[1-9][0-9]{0,15}").fullmatch
_nanoseconds: Final = re.compile(rb"0|[1-9][0-9]{0,18}").fullmatch
_offset: Final = re.compile(rb"[0-9]{20}").fullmatch
_foreign_offset: Final = re.compile(rb"[0-9]{16}_[0-9]{16}").fullmatch
_count: Final = re.compile(rb"0|[1-9][0-9]*").fullmatch
_url: Final = re.compile(rb"https?://[^/?#]+(/[^?#]*)", re.IGNORECASE).fullmatch
_duration: Final = re.compile(rb"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)?").fullmatch
_UNIT_MS: Final = {None: 1_000, b"ms": 1, b"s": 1_000, b"m": 60_000, b"h": 3_600_000}
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
    if method == b"OPTIONS":
        return Request(Kind.PREFLIGHT)
    path, _, query = target.partition(b"?")
    try:
        route = route_of(path)
    except BadPath as bad:
        raise refuse(bad.status, bad.code, str(bad)) from None
    kind = METHODS[route.place].get(method)
    if kind is None:
        raise _no_such_method(route, method)

    got = _collect(headers)
    host = _host_of(got)
    origin = got.get(b"origin")
    request_id = got.get(b"x-request-id")
    origin_text = origin.decode("latin-1") if origin else ""
    id_text = request_id.decode() if request_id and _request_id(request_id) is not None else ""
    stream, shown = route.stream, route.path

    if kind is Kind.READ:
        return _parse_read(route, query, got, origin_text, id_text, host)
    if kind is Kind.HEAD or kind is Kind.DELETE:
        return Request(kind, stream, shown, origin=origin_text, request_id=id_text, http_host=host)
    if kind not in _WITH_BODY:
        return _parse_rare(kind, route, query, origin_text, id_text, host)

    encoding = got.get(b"content-encoding")
    if encoding is not None and encoding.lower() != b"identity":
        raise refuse(415, "content_encoding", "bodies are taken without Content-Encoding only")
    raw_type = got.get(b"content-type")
    content_type = ""
    if raw_type:
        content_type = _content_types.get(raw_type) or _check_content_type(raw_type)
    if kind is Kind.SNAPSHOT_PUBLISH:
        at = _offset_of(route.argument.encode(), "the offset of a snapshot")
        return Request(
            kind,
            stream,
            shown,
            content_type or DEFAULT_CONTENT_TYPE,
            origin=origin_text,
            request_id=id_text,
            http_host=host,
            snapshot_offset=at,
        )
    closed = got.get(b"stream-closed", b"").lower() == b"true"
    if kind is not Kind.CREATE:
        if kind is Kind.BATCH and (b"stream-closed" in got or b"stream-seq" in got):
            raise refuse(400, "unsupported_header", "append-batch takes neither Stream-Closed nor Stream-Seq")
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
    ttl_s, expires_at_ms, expires_at = _lifetime(got)
    source, anchor, sub_offset = _fork(got)
    return Request(
        kind,
        stream,
        shown,
        content_type or ("" if source else DEFAULT_CONTENT_TYPE),
        ttl_s,
        expires_at_ms,
        expires_at,
        closed,
        origin=origin_text,
        request_id=id_text,
        http_host=host,
        makes_bucket=route.makes_bucket,
        fork_source=source,
        fork_anchor=anchor,
        fork_sub_offset=sub_offset,
        retention_bytes=_positive(got, b"stream-retention-bytes", "Stream-Retention-Bytes"),
        retention_age_s=_positive(got, b"stream-retention-age", "Stream-Retention-Age"),
    )


_WITH_BODY: Final = (Kind.APPEND, Kind.CREATE, Kind.BATCH, Kind.SNAPSHOT_PUBLISH)


def _no_such_method(route: Route, method: bytes) -> BadRequest:
    place = route.place
    if method == b"PUT" and (place is routes.RESERVED or route.makes_bucket):
        return refuse(400, "reserved_name", "a stream's name may not end or begin like an operation")
    allowed = METHODS[place]
    if not allowed:
        return refuse(404, "unknown_route", "there is nothing at this path")
    return refuse(405, "method_not_allowed", "this resource does not have that method", allow_header(place))


def allow_header(place: str) -> bytes:
    return b"Allow: " + b", ".join([*METHODS[place], b"OPTIONS"]) + b"\r\n"


def _parse_rare(kind: Kind, route: Route, query: bytes, origin: str, request_id: str, host: str) -> Request:
    """What has no body and is neither a read nor about the stream as a whole."""
    prefix, after, limit, row, at = "", "", LIST_LIMIT_DEFAULT, -1, -1
    if kind is Kind.LIST:
        prefix, after, limit, row = _page_of(query, LIST_LIMIT_DEFAULT)
    elif kind is Kind.BUCKET_LIST:
        prefix, after, limit, _ = _page_of(query, LIST_LIMIT_MAX)
    elif kind is Kind.SNAPSHOT_READ or kind is Kind.SNAPSHOT_DELETE:
        at = _offset_of(route.argument.encode(), "the offset of a snapshot")
    elif kind is Kind.BOOTSTRAP and _query(query, _BOOTSTRAP_PARAMETERS):
        raise refuse(400, "bad_live", "a bootstrap is not live: go on reading from its Stream-Next-Offset")
    return Request(
        kind,
        route.stream,
        route.path,
        origin=origin,
        prefix=prefix,
        after=after,
        limit=limit,
        row=row,
        request_id=request_id,
        http_host=host,
        bucket=route.bucket,
        snapshot_offset=at,
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


def _positive(got: dict[bytes, bytes], name: bytes, shown: str) -> int | None:
    raw = got.get(name)
    if raw is None:
        return None
    value = _integer_of(raw, shown)
    if not value:
        raise refuse(400, "bad_header", f"{shown} must be positive")
    return value


def _offset_of(raw: bytes, shown: str) -> int:
    if _offset(raw) is None:
        raise refuse(400, "bad_offset", f"{shown} must be 20 digits")
    offset = int(raw)
    if offset > OFFSET_MAX:
        raise refuse(400, "bad_offset", f"{shown} is not one that this server gave out")
    return offset


def _fork(got: dict[bytes, bytes]) -> tuple[str, int | None, int]:
    """(core name of the source or "", anchor, sub-offset)."""
    source, anchor, sub_offset = got.get(b"stream-forked-from"), got.get(b"stream-fork-offset"), got.get(b"stream-fork-sub-offset")
    if source is None:
        if anchor is not None or sub_offset is not None:
            raise refuse(400, "not_a_fork", "Stream-Fork-Offset and Stream-Fork-Sub-Offset need Stream-Forked-From")
        return "", None, 0
    url = _url(source)
    try:
        route = route_of(url[1] if url is not None else source)
    except BadPath:
        route = None
    if route is None or route.place != routes.STREAM:
        raise refuse(400, "bad_fork_source", "Stream-Forked-From must be the path of a stream on this server")
    at: int | None = None
    if anchor is not None:
        if _foreign_offset(anchor) is None:
            at = _offset_of(anchor, "Stream-Fork-Offset")
        elif anchor.strip(b"0_"):
            # Clients that know another server's offsets try one that is surely too large, or the first: the only one that both have.
            raise refuse(400, "offset_beyond_tail", "Stream-Fork-Offset is not one that this server gave out")
        else:
            at = 0
    past = 0
    if sub_offset is not None:
        if _count(sub_offset) is None or len(sub_offset) > len(str(OFFSET_MAX)) or int(sub_offset) > OFFSET_MAX:
            raise refuse(400, "bad_header", "Stream-Fork-Sub-Offset must be a non-negative integer without leading zeros")
        past = int(sub_offset)
        if past and anchor is None:
            raise refuse(400, "sub_offset_alone", "Stream-Fork-Sub-Offset counts from Stream-Fork-Offset, which is missing")
    return route.stream, at, past


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


def _since_ms(raw: bytes) -> int:
    """Rounded up: our times are whole milliseconds, and none before the time that was asked for may match."""
    if _nanoseconds(raw) is not None:
        return -(-int(raw) // 1_000_000)
    fraction = _timestamp(raw.decode("latin-1"))
    return _time_ms(raw, "since") + (1 if fraction is not None and (fraction[7] or "")[3:].strip("0") else 0)


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


READ_PARAMETERS: Final[dict[str, str]] = {
    "offset": "`-1` (start, the default), `now` (tail), or 20 digits",
    "since": "RFC 3339 or nanoseconds since 1970: from the first message that was appended then or later; with `offset` it counts for nothing",
    "live": "`long-poll` (or `true`), `sse`; needs an `offset` or a `since`",
    "timeout": "of a long-poll: `5s`, `500ms`, a plain number of seconds; at most 60 s",
    "timeout_ms": "the same in milliseconds",
    "cursor": "of a live read: echoes `Stream-Cursor`",
    "max_bytes": "bounds a response, which still ends at a message boundary",
    "key": "only messages with this `Stream-Key`; the offset advances over the others",
    "format": "`json`: refused unless the stream is; `raw`: the messages' own bytes end to end, as `application/octet-stream`, not live",
}
LIST_PARAMETERS: Final[dict[str, str]] = {
    "prefix": "names that begin so",
    "after": "names behind this one",
    "offset": f"`/v1/streams` only: the first row that is wanted, at most {LIST_ROW_MAX}; the answer is then a bare array of descriptors",
    "limit": f"1 to {LIST_LIMIT_MAX}; `/v1/streams` gives {LIST_LIMIT_DEFAULT} by default, a bucket's listing {LIST_LIMIT_MAX}",
}
_READ_PARAMETERS: Final = frozenset(name.encode() for name in READ_PARAMETERS)
_LIST_PARAMETERS: Final = frozenset(name.encode() for name in LIST_PARAMETERS)
_BOOTSTRAP_PARAMETERS: Final = frozenset({b"live"})


def _parse_read(route: Route, query: bytes, got: dict[bytes, bytes], origin: str, request_id: str, host: str) -> Request:
    offset, has_offset, live, cursor, max_bytes = START, False, "", "", None
    key: str | None = route.argument if route.place is routes.KEY else None
    since_ms = timeout_ms = None
    form = b""
    given = None
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
    if given and len(given) > has_offset:  # most name an offset and nothing else
        raw = given.get(b"since")
        if raw is not None:
            since_ms = _since_ms(raw)
            if has_offset:
                since_ms = None
        raw = given.get(b"live")
        if raw is not None:
            live = _LIVE.get(raw, "")
            if not live:
                raise refuse(400, "bad_live", "live must be long-poll, true or sse")
            if not has_offset and since_ms is None:
                raise refuse(400, "offset_required", "a live read needs an offset")
        raw = given.get(b"cursor")
        if raw is not None and _integer(raw) is not None:
            cursor = raw.decode()
        raw = given.get(b"max_bytes")
        if raw is not None:
            max_bytes = _integer_of(raw, "max_bytes")
            if not max_bytes:
                raise refuse(400, "bad_parameter", "max_bytes must be positive")
        if b"key" in given and key is None:
            key = _key_of(given[b"key"])
        form = given.get(b"format", b"")
        if b"format" in given and form != b"json" and form != b"raw":
            raise refuse(400, "bad_format", "format must be json or raw")
        if form == b"raw" and live:
            raise refuse(400, "bad_format", "a live read has the stream's own format")
        timeout_ms = _timeout_ms(given)
    match = got.get(b"if-none-match")
    return Request(
        Kind.READ,
        route.stream,
        route.path,
        offset=offset,
        has_offset=has_offset,
        live=live,
        max_bytes=max_bytes,
        if_none_match=match.decode("latin-1") if match else "",
        cursor=cursor,
        origin=origin,
        request_id=request_id,
        http_host=host,
        read_key=key,
        since_ms=since_ms,
        raw=form == b"raw",
        json_only=form == b"json",
        timeout_ms=timeout_ms,
    )


def _key_of(raw: bytes) -> str:
    try:
        key = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise refuse(400, "bad_parameter", "key must be UTF-8") from None
    if not key or len(raw) > KEY_BYTES_MAX:
        raise refuse(400, "bad_parameter", f"key must have 1 to {KEY_BYTES_MAX} bytes")
    return key


def _timeout_ms(given: dict[bytes, bytes]) -> int | None:
    raw, raw_ms = given.get(b"timeout"), given.get(b"timeout_ms")
    if raw is not None and raw_ms is not None:
        raise refuse(400, "bad_parameter", "timeout and timeout_ms exclude each other")
    if raw_ms is not None:
        return min(TIMEOUT_MAX_MS, _integer_of(raw_ms, "timeout_ms"))
    if raw is None:
        return None
    found = _duration(raw)
    if found is None:
        raise refuse(400, "bad_parameter", "timeout must be a duration such as 5s or 500ms, or a number of seconds")
    return min(TIMEOUT_MAX_MS, int(float(found[1]) * _UNIT_MS[found[2]]))


def _page_of(query: bytes, limit: int) -> tuple[str, str, int, int]:
    """(prefix, after, limit, row)"""
    given = _query(query, _LIST_PARAMETERS)
    raw = given.get(b"limit")
    if raw is not None:
        limit = _integer_of(raw, "limit")
        if not 1 <= limit <= LIST_LIMIT_MAX:
            raise refuse(400, "bad_parameter", f"limit must be 1 to {LIST_LIMIT_MAX}")
    row = -1
    raw = given.get(b"offset")
    if raw is not None:
        row = _integer_of(raw, "offset")
        if row > LIST_ROW_MAX:
            raise refuse(400, "bad_parameter", f"offset may be {LIST_ROW_MAX} at most; go on with after, which has no end")
    try:
        return given.get(b"prefix", b"").decode("utf-8"), given.get(b"after", b"").decode("utf-8"), limit, row
    except UnicodeDecodeError:
        raise refuse(400, "bad_parameter", "prefix and after must be UTF-8") from None

"""Heads of requests: what is understood, what is refused, and that nothing hostile raises anything but BadRequest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.stream.commands import Producer
from anabranch_node.core.stream.queries import NOW, START
from anabranch_node.web.request import BadRequest, Head, Kind, Request, parse
from anabranch_node.web.routes import CACHE_ENTRIES_MAX, _cache, path_of, route_of

S = b"/v1/stream/"


def ask(method: str, path: str, **headers: str) -> Request:
    return parse(Head(method.encode(), S + path.encode(), [(k.replace("_", "-").encode(), v.encode("latin-1")) for k, v in headers.items()]))


def refused(method: str, path: str, **headers: str) -> tuple[int, bytes]:
    with pytest.raises(BadRequest) as caught:
        ask(method, path, **headers)
    reply = caught.value.reply
    return reply.status, reply.body.split(b'"')[5]


@pytest.mark.parametrize(
    ("path", "stream"),
    [
        ("x", "_default/x"),
        ("bucket/x", "bucket/x"),
        ("bucket/a/b", "bucket/a/b"),
        ("abc/x", "_default/abc/x"),
        ("ABCD/x", "_default/ABCD/x"),
        ("bucket", "_default/bucket"),
        ("a%20b", "_default/a b"),
        ("%C3%A9", "_default/é"),
        ("a:b", "_default/a:b"),
        ("%2561", "_default/%61"),
    ],
)
def test_a_path_names_one_stream(path: str, stream: str) -> None:
    assert ask("GET", path).stream == stream


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "a/",
        "a//b",
        ".",
        "..",
        "a/../b",
        "%2e%2e",
        "a%2Fb",
        "a%5Cb",
        "%00",
        "a%0d%0a",
        "%c0%ae",
        "%",
        "%zz",
        "%ff",
        "a\\b",
        "a#b",
        "é",
        "a b",
    ],
)
def test_hostile_paths_are_refused(path: str) -> None:
    assert refused("GET", path) == (400, b"bad_path")


def test_the_default_bucket_has_no_second_address() -> None:
    assert refused("GET", "_default/x") == (400, b"reserved_name")
    assert ask("GET", "_default").stream == "_default/_default"


@pytest.mark.parametrize(
    "path", ["s/_schema", "bootstrap", "bucket/s/snapshot", "snapshot/00000000000000000001", "s/pk/k", "__ds/x", "__ds", "s/%5Fschema", "pk/k"]
)
def test_reserved_names_are_refused_at_create(path: str) -> None:
    assert refused("PUT", path) == (400, b"reserved_name")


def test_below_ds_there_is_nothing() -> None:
    assert refused("GET", "__ds/subscriptions/x") == (404, b"unknown_route")
    assert ask("GET", "__dsx").stream == "_default/__dsx"


def test_routes_and_methods() -> None:
    for method, kind in [
        ("PUT", Kind.CREATE),
        ("POST", Kind.APPEND),
        ("GET", Kind.READ),
        ("HEAD", Kind.HEAD),
        ("DELETE", Kind.DELETE),
        ("OPTIONS", Kind.PREFLIGHT),
    ]:
        request = ask(method, "x")
        assert request.kind is kind
        assert request.takes_body == (kind in (Kind.CREATE, Kind.APPEND))
    with pytest.raises(BadRequest) as caught:
        ask("PATCH", "x")
    assert caught.value.reply.status == 405 and b"Allow: GET" in caught.value.reply.headers
    for target, status in [(b"/", 404), (b"/v1/stream", 404), (b"/v1", 404), (b"/ds", 404), (b"*", 404), (b"http://h/v1/stream/x", 404)]:
        with pytest.raises(BadRequest) as caught:
            parse(Head(b"GET", target, []))
        assert caught.value.reply.status == status


def test_listing() -> None:
    request = parse(Head(b"GET", b"/v1/streams?prefix=a%2Fb&after=c&limit=7", []))
    assert (request.kind, request.prefix, request.after, request.limit) == (Kind.LIST, "a/b", "c", 7)
    assert parse(Head(b"GET", b"/v1/streams?offset=7", [])).row == 7 and parse(Head(b"GET", b"/v1/streams", [])).row == -1
    assert parse(Head(b"GET", b"/ds/bucket/streams?offset=7", [])).row == -1
    for query in [b"offset=4001", b"offset=-1", b"offset=", b"limit=0", b"limit=1001", b"limit=+1", b"prefix=%ff", b"limit=1&limit=2"]:
        with pytest.raises(BadRequest):
            parse(Head(b"GET", b"/v1/streams?" + query, []))
    with pytest.raises(BadRequest) as caught:
        parse(Head(b"POST", b"/v1/streams", []))
    assert caught.value.reply.status == 405


def test_offsets() -> None:
    assert (ask("GET", "x").offset, ask("GET", "x").has_offset) == (START, False)
    assert ask("GET", "x?offset=-1").has_offset
    assert ask("GET", "x?offset=now").offset == NOW
    assert ask("GET", "x?offset=00000000000000000042&unknown=1").offset == 42
    for bad in ["", "0", "42", "-2", "0,1", "0 1", "99999999999999999999", "0000000000000000004a", "%00", "NOW", "../x", "+0000000000000000042"]:
        assert refused("GET", f"x?offset={bad.replace(' ', '%20')}") == (400, b"bad_offset"), bad
    assert refused("GET", "x?offset=-1&offset=-1")[0] == 400


def test_live_reads() -> None:
    assert ask("GET", "x?offset=-1&live=sse&cursor=12").live == "sse"
    assert ask("GET", "x?offset=now&live=long-poll&cursor=12").cursor == "12"
    assert ask("GET", "x?offset=now&live=long-poll&cursor=abc").cursor == ""
    assert refused("GET", "x?live=sse") == (400, b"offset_required")
    assert refused("GET", "x?offset=-1&live=yes") == (400, b"bad_live")


def test_create_headers() -> None:
    assert ask("PUT", "x").content_type == "application/octet-stream"
    assert ask("PUT", "x", stream_ttl="0").ttl_s == 0
    for bad in ["", "01", "+1", "1.0", "1e3", "-1", "abc", "1_0", "99999999999999999", "9999999999999999"]:
        assert refused("PUT", "x", stream_ttl=bad)[0] == 400, bad
    assert ask("PUT", "x", stream_expires_at="2026-01-01T00:00:00.5Z").expires_at_ms == 1767225600500
    assert ask("PUT", "x", stream_expires_at="2026-01-01T01:00:00+01:00").expires_at_ms == 1767225600000
    for bad in [
        "",
        "tomorrow",
        "2026-01-01",
        "2026-13-01T00:00:00Z",
        "2026-01-01T00:00:00",
        "2026-01-01T00:00:61Z",
        "0000-01-01T00:00:00Z",
        "٢٠٢٦-01-01T00:00:00Z"[4:],
    ]:
        with pytest.raises(BadRequest):
            parse(Head(b"PUT", S + b"x", [(b"stream-expires-at", bad.encode())]))
    assert refused("PUT", "x", stream_ttl="1", stream_expires_at="2026-01-01T00:00:00Z") == (400, b"ttl_and_expiry")


def test_retention() -> None:
    made = ask("PUT", "x", stream_retention_bytes="1000", stream_retention_age="60")
    assert (made.retention_bytes, made.retention_age_s) == (1000, 60)
    assert ask("PUT", "x").retention_bytes is None
    for bad in ["0", "-1", "1.5", "01", "1h", "", "9007199254740992"]:
        assert refused("PUT", "x", stream_retention_bytes=bad) == (400, b"bad_header"), bad
        assert refused("PUT", "x", stream_retention_age=bad) == (400, b"bad_header"), bad


@pytest.mark.parametrize(
    ("source", "stream"),
    [
        ("/v1/stream/a%20b", "_default/a b"),
        ("/v1/stream/bucket/y", "bucket/y"),
        ("/ds/bucket/y", "bucket/y"),
        ("/bucket/y", "bucket/y"),
        ("http://host:4437/v1/stream/y", "_default/y"),
        ("https://[::1]/ds/bucket/y", "bucket/y"),
    ],
)
def test_forks_name_their_source_on_any_surface(source: str, stream: str) -> None:
    made = ask("PUT", "x", stream_forked_from=source)
    assert (made.kind, made.fork_source, made.fork_anchor, made.fork_sub_offset) == (Kind.CREATE, stream, None, 0)
    assert made.content_type == ""  # its source's
    assert ask("PUT", "x", stream_forked_from=source, content_type="a/b").content_type == "a/b"
    assert ask("PUT", "x").content_type == "application/octet-stream"


@pytest.mark.parametrize(
    "source",
    ["", "y", "/", "/v1/stream/", "/v1/stream/a/../b", "/ds/bucket", "/v1/stream/s/bootstrap", "/v1/stream/__ds/x", "ftp://h/v1/stream/y"]
    + ["http://h", "/v1/stream/y?x=1", "/v1/stream/y#x", "/ds/BAD/y", "//h/v1/stream/y", "/v1/stream/\xe9", "/v1/streams"],
)
def test_what_is_no_source(source: str) -> None:
    assert refused("PUT", "x", stream_forked_from=source) == (400, b"bad_fork_source")


def test_fork_points() -> None:
    fork = {"stream_forked_from": "/v1/stream/y"}
    assert ask("PUT", "x", **fork, stream_fork_offset="00000000000000000042").fork_anchor == 42
    assert ask("PUT", "x", **fork, stream_fork_offset="0000000000000000_0000000000000000").fork_anchor == 0
    for foreign in ["9999999999999999_9999999999999999", "0000000000000000_0000000000000001"]:
        assert refused("PUT", "x", **fork, stream_fork_offset=foreign) == (400, b"offset_beyond_tail")
    for bad in ["-1", "now", "0", "42", "", "99999999999999999999", "0000000000000000_000000000000000", "not-an-offset"]:
        assert refused("PUT", "x", **fork, stream_fork_offset=bad) == (400, b"bad_offset"), bad
    at = {**fork, "stream_fork_offset": "00000000000000000042"}
    assert ask("PUT", "x", **at, stream_fork_sub_offset="3").fork_sub_offset == 3
    assert ask("PUT", "x", **fork, stream_fork_sub_offset="0").fork_sub_offset == 0
    assert refused("PUT", "x", **fork, stream_fork_sub_offset="1") == (400, b"sub_offset_alone")
    for bad in ["-1", "01", "1.5", "abc", "", "+1", "1" * 20, "9" * 19]:
        assert refused("PUT", "x", **at, stream_fork_sub_offset=bad)[0] == 400, bad
    for alone in [{"stream_fork_sub_offset": "0"}, {"stream_fork_offset": "00000000000000000000"}]:
        assert refused("PUT", "x", **alone) == (400, b"not_a_fork")
    assert ask("POST", "x", stream_fork_offset="x").kind is Kind.APPEND  # of creates only


def test_keys() -> None:
    assert ask("GET", "x?key=a%2Fb+c").read_key == "a/b c" and ask("GET", "x").read_key is None
    for bad in ["key=", "key=%ff", "key=" + "k" * 257, "key=a&key=b"]:
        assert refused("GET", f"x?{bad}")[0] == 400, bad


def test_since() -> None:
    assert ask("GET", "x?since=1767225600500000000").since_ms == 1767225600500
    assert ask("GET", "x?since=1767225600500000001").since_ms == 1767225600501  # what was appended a moment before must not match
    assert ask("GET", "x?since=2026-01-01T00:00:00.5Z").since_ms == 1767225600500
    assert ask("GET", "x?since=2026-01-01T00:00:00.5001Z").since_ms == 1767225600501
    assert ask("GET", "x?since=2026-01-01T01:00:00%2B01:00").since_ms == 1767225600000
    assert ask("GET", "x?since=0&offset=-1").since_ms is None
    live = ask("GET", "x?since=0&live=long-poll")
    assert live.live == "long-poll" and live.since_ms == 0
    for bad in ["", "yesterday", "-1", "1e9", "2026-01-01"]:
        assert refused("GET", f"x?since={bad}") == (400, b"bad_header"), bad
        assert refused("GET", f"x?since={bad}&offset=-1") == (400, b"bad_header"), bad


def test_formats() -> None:
    assert ask("GET", "x?format=raw").raw and ask("GET", "x?format=json").json_only
    assert not ask("GET", "x").raw and not ask("GET", "x").json_only
    for bad in ["format=", "format=xml", "format=RAW", "format=raw&offset=now&live=sse", "format=raw&offset=now&live=long-poll"]:
        assert refused("GET", f"x?{bad}") == (400, b"bad_format"), bad


@pytest.mark.parametrize(
    ("query", "timeout_ms"),
    [("timeout=5s", 5_000), ("timeout=500ms", 500), ("timeout=2", 2_000), ("timeout=0.25", 250), ("timeout=1m", 60_000), ("timeout=2h", 60_000)]
    + [("timeout=0", 0), ("timeout_ms=750", 750), ("timeout_ms=999999", 60_000), ("timeout_ms=0", 0), ("", None)],
)
def test_timeouts(query: str, timeout_ms: int | None) -> None:
    assert ask("GET", f"x?offset=now&live=true&{query}").timeout_ms == timeout_ms


@pytest.mark.parametrize(
    "query", ["timeout=", "timeout=-1", "timeout=5x", "timeout=1e3", "timeout_ms=1.5", "timeout_ms=-1", "timeout=1&timeout_ms=1"]
)
def test_bad_timeouts(query: str) -> None:
    assert refused("GET", f"x?offset=now&live=long-poll&{query}")[0] == 400


def test_live_true_is_a_long_poll() -> None:
    assert ask("GET", "x?offset=now&live=true").live == "long-poll"


def test_only_true_closes() -> None:
    assert ask("POST", "x", stream_closed="true").closed and ask("POST", "x", stream_closed="TRUE").closed
    for value in ["false", "yes", "1", ""]:
        assert not ask("POST", "x", stream_closed=value).closed


def test_content_types() -> None:
    for good in ["text/plain", "application/json; charset=utf-8", 'a/b;c="d e"', "application/vnd.x+json"]:
        assert ask("POST", "x", content_type=good).content_type == good
    for bad in ["text", "text/", "a/b\r\nX: y", "a/b; c", "a/b;c=é", "a b/c", 'a/b;c="', "x" * 300 + "/y"]:
        assert refused("POST", "x", content_type=bad) == (400, b"bad_content_type"), bad
    assert refused("POST", "x", content_encoding="gzip")[0] == 415
    assert ask("POST", "x", content_encoding="identity").kind is Kind.APPEND


def test_producers() -> None:
    assert ask("POST", "x", producer_id="p", producer_epoch="0", producer_seq="7").producer == Producer("p", 0, 7)
    assert refused("POST", "x", producer_id="p", producer_epoch="0") == (400, b"incomplete_producer")
    for bad in ["1abc", "1e3", "-1", "+1", "", "01", "9007199254740992", "\xb2"]:
        assert refused("POST", "x", producer_id="p", producer_epoch="0", producer_seq=bad) == (400, b"bad_header"), bad
        assert refused("POST", "x", producer_id="p", producer_epoch=bad, producer_seq="0") == (400, b"bad_header"), bad
    assert refused("POST", "x", producer_id="", producer_epoch="0", producer_seq="0") == (400, b"bad_header")


def test_append_times() -> None:
    assert ask("POST", "x", stream_timestamp="1767225600500000000").timestamp_ms == 1767225600500
    assert ask("POST", "x", stream_timestamp="2026-01-01T00:00:00.500999Z").timestamp_ms == 1767225600500
    assert refused("POST", "x", stream_timestamp="now") == (400, b"bad_header")


@pytest.mark.parametrize("name", [b"host", b"content-type", b"content-length", b"producer-id", b"producer-epoch", b"producer-seq", b"stream-seq"])
def test_duplicates_are_refused(name: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(Head(b"POST", S + b"x", [(name, b"1"), (name, b"1")]))
    assert b"duplicate_header" in caught.value.reply.body


def test_host() -> None:
    assert ask("PUT", "x", host="example.com:80").http_host == "example.com:80"
    assert ask("PUT", "x", host="[::1]:80").http_host == "[::1]:80"
    for bad in ["a/b", "a@b", "a b", "a\r\nb"]:
        assert refused("PUT", "x", host=bad) == (400, b"bad_host")


ends = st.sampled_from(["", "/append-batch", "/snapshot/00000000000000000001", "/bootstrap", "/pk/k", "?since=1", "?timeout=1&key=a"])
raw_targets = st.binary(max_size=40) | st.builds(
    lambda surface, name, end: bytes(surface + name.encode() + end.encode()),
    st.sampled_from([S, b"/ds/", b"/", b"/ds/bucket/", b"/bucket/"]),
    st.text(alphabet="ab/%2eE5cCfF.0?&=_-" + "\x00é", max_size=30),
    ends,
)


@given(
    st.sampled_from([b"GET", b"PUT", b"POST", b"HEAD", b"DELETE", b"X"]),
    raw_targets,
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    b"stream-ttl",
                    b"stream-expires-at",
                    b"content-type",
                    b"producer-id",
                    b"producer-epoch",
                    b"producer-seq",
                    b"stream-seq",
                    b"host",
                    b"origin",
                    b"if-none-match",
                    b"stream-timestamp",
                    b"stream-forked-from",
                    b"stream-fork-offset",
                    b"stream-fork-sub-offset",
                    b"stream-retention-bytes",
                    b"x-request-id",
                ]
            ),
            st.binary(max_size=12),
        ),
        max_size=4,
    ),
)
def test_nothing_hostile_raises_anything_else(method: bytes, target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    request: Request | None
    try:
        request = parse(Head(method, target, headers))
    except BadRequest as bad:
        reply, request = bad.reply, None
    if request is None:
        assert 400 <= reply.status < 600
        reply.body.decode()
    else:
        for text in (request.path, request.content_type, request.http_host, request.request_id, request.expires_at):
            assert text.isascii() and (not text or text.isprintable())


segments = st.lists(st.text(alphabet="abcdABC_-%. é", min_size=1, max_size=6).filter(lambda s: s not in (".", "..")), min_size=1, max_size=3)


@given(segments, segments)
def test_distinct_names_stay_distinct(left: list[str], right: list[str]) -> None:
    routes = []
    for parts in (left, right):
        raw = S + "/".join(path_of("_default/" + part)[len(S) :] for part in parts).encode()
        if len(parts) > 1 and parts[0] == "_default":
            return
        routes.append(route_of(raw).stream)
        assert route_of(path_of(routes[-1]).encode()).stream == routes[-1]
    assert (routes[0] == routes[1]) == (left == right)


def test_the_route_cache_is_bounded() -> None:
    for number in range(CACHE_ENTRIES_MAX + 10):
        route_of(S + b"n%d" % number)
    assert len(_cache) <= CACHE_ENTRIES_MAX

"""Paths: three surfaces, one resource; what stands behind a stream; what can be done with each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.web.request import METHODS, BadRequest, Head, Kind, Request, parse
from anabranch_node.web.routes import BadPath, path_of, route_of

AT = "/snapshot/00000000000000000007"


def ask(method: str, target: str, **headers: str) -> Request:
    return parse(Head(method.encode(), target.encode(), [(k.replace("_", "-").encode(), v.encode("latin-1")) for k, v in headers.items()]))


def refused(method: str, target: str, **headers: str) -> tuple[int, str]:
    with pytest.raises(BadRequest) as caught:
        ask(method, target, **headers)
    return caught.value.reply.status, caught.value.reply.body.split(b'"')[5].decode()


def test_three_surfaces_name_one_stream() -> None:
    for path in ("/v1/stream/bucket/s", "/ds/bucket/s", "/bucket/s"):
        request = ask("PUT", path)
        assert (request.kind, request.stream, request.path) == (Kind.CREATE, "bucket/s", path)
        assert request.makes_bucket == path.startswith("/v1/")  # the extensions: PUT /ds/{bucket}/{stream} never makes a bucket
    assert ask("GET", "/ds/_default/x").stream == ask("GET", "/v1/stream/x").stream == "_default/x"
    assert ask("GET", "/ds/bucket/%C3%A9").stream == "bucket/é"
    assert ask("GET", "/ds/buck%65t/s").stream == "bucket/s"


OPERATIONS = [
    ("POST", "/append-batch", Kind.BATCH),
    ("GET", "/snapshot", Kind.SNAPSHOT_LATEST),
    ("PUT", AT, Kind.SNAPSHOT_PUBLISH),
    ("GET", AT, Kind.SNAPSHOT_READ),
    ("DELETE", AT, Kind.SNAPSHOT_DELETE),
    ("GET", "/bootstrap", Kind.BOOTSTRAP),
    ("GET", "/pk/k", Kind.READ),
]


@pytest.mark.parametrize(("method", "behind", "kind"), OPERATIONS)
@pytest.mark.parametrize("surface", ["/v1/stream/bucket/s", "/ds/bucket/s", "/bucket/s"])
def test_operations_behind_a_stream(surface: str, method: str, behind: str, kind: Kind) -> None:
    request = ask(method, surface + behind)
    assert (request.kind, request.stream, request.path) == (kind, "bucket/s", surface)
    assert request.snapshot_offset == (7 if "snapshot/" in behind else -1)
    assert request.read_key == ("k" if kind is Kind.READ else None)
    assert request.takes_body == (kind in (Kind.BATCH, Kind.SNAPSHOT_PUBLISH))


@pytest.mark.parametrize("path", ["/v1/stream/s", "/v1/stream/a/b/c/s"])
def test_operations_behind_any_name_on_v1(path: str) -> None:
    stream = "_default/" + path.removeprefix("/v1/stream/")
    for method, behind, kind in OPERATIONS:
        request = ask(method, path + behind)
        assert (request.kind, request.stream, request.path) == (kind, stream, path)


def test_a_path_of_v1_that_ends_like_an_operation_is_one() -> None:
    for end in ("append-batch", "snapshot", "bootstrap", "pk/k", "_schema", "_details"):
        assert refused("PUT", f"/v1/stream/s/{end}") == (400, "reserved_name")
    assert ask("GET", "/v1/stream/bucket/bootstrap").stream == "_default/bucket"
    # A key may be spelt like an operation.
    assert ask("GET", "/v1/stream/s/pk/bootstrap").read_key == "bootstrap"
    for path in ("/v1/stream/snapshot/x", "/v1/stream/bootstrap", "/v1/stream/s/_schema", "/ds/bucket/s/_search", "/ds/bucket/bootstrap"):
        assert refused("GET", path) == (404, "unknown_route")
    # On the other surfaces such a stream would have no address on /v1.
    for local in ("bootstrap", "append-batch", "snapshot", "_schema", "__ds"):
        assert refused("PUT", f"/ds/bucket/{local}") == (400, "reserved_name")
    assert ask("PUT", "/ds/bucket/pk").stream == "bucket/pk"


def test_buckets() -> None:
    for prefix in ("/ds/", "/"):
        for method, kind in [("PUT", Kind.BUCKET_CREATE), ("GET", Kind.BUCKET_INFO), ("DELETE", Kind.BUCKET_DELETE)]:
            request = ask(method, prefix + "agents")
            assert (request.kind, request.bucket, request.stream) == (kind, "agents", "")
        listing = ask("GET", prefix + "agents/streams?prefix=user-&after=user-%2F&limit=7")
        assert (listing.kind, listing.bucket, listing.prefix, listing.after, listing.limit) == (Kind.BUCKET_LIST, "agents", "user-", "user-/", 7)
        assert ask("GET", prefix + "agents/streams").limit == 1000
        for bad in ("limit=0", "limit=1001", "limit=x", "prefix=%ff"):
            assert refused("GET", f"{prefix}agents/streams?{bad}")[0] == 400
    assert ask("GET", "/v1/streams").limit == 100


@pytest.mark.parametrize("bucket", ["abc", "ABCD", "a" * 65, "a.bcd", "b%C3%A9bcd", "fav.ico", "a b c d".replace(" ", "%20")])
def test_a_bucket_has_4_to_64_of_a_few_characters(bucket: str) -> None:
    for path in (f"/ds/{bucket}", f"/{bucket}", f"/ds/{bucket}/s", f"/{bucket}/s/bootstrap", f"/ds/{bucket}/streams"):
        for method in ("PUT", "GET", "DELETE"):
            assert refused(method, path) == (400, "bad_bucket")
    assert ask("PUT", "/ds/" + "a" * 64).bucket == "a" * 64


@pytest.mark.parametrize(
    "local", ["a%2Fb", "a%00", "a..b", "..", "%2e%2e", "", ".", "a%5Cb", "%ff", "%", "a/b", "a/b/c", "s/snapshot/a/b", "s/append-batch/"]
)
def test_a_stream_id_is_one_segment(local: str) -> None:
    for prefix in ("/ds/bucket/", "/bucket/"):
        for method in ("PUT", "GET"):
            assert refused(method, prefix + local) == (400, "bad_path")


def test_lengths_with_a_bucket() -> None:
    assert ask("PUT", "/ds/bucket/" + "s" * 115).stream == "bucket/" + "s" * 115  # 122 bytes with its bucket
    for prefix in ("/ds", ""):
        assert refused("PUT", prefix + "/bucket/" + "s" * 116) == (400, "name_too_long")
        assert refused("PUT", prefix + "/bucket/" + "%C3%A9" * 58) == (400, "name_too_long")
    assert ask("PUT", "/v1/stream/bucket/" + "s" * 300).kind is Kind.CREATE


def test_the_listing_of_a_bucket_is_no_stream() -> None:
    assert refused("PUT", "/ds/bucket/streams")[0] == 405
    assert refused("POST", "/ds/bucket/streams/append-batch") == (400, "reserved_name")
    assert ask("PUT", "/v1/stream/bucket/streams").stream == "bucket/streams"


def test_subscriptions_keep_their_place() -> None:
    for path in ("/__ds", "/__ds/subscriptions/x", "/ds/__ds/x", "/v1/stream/__ds/jwks.json"):
        assert refused("GET", path) == (404, "unknown_route")
    assert refused("PUT", "/ds/__ds") == (404, "unknown_route")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PATCH", "/ds/bucket/s", "GET, POST, PUT, DELETE, HEAD, OPTIONS"),
        ("GET", "/bucket/s/append-batch", "POST, OPTIONS"),
        ("POST", "/v1/stream/s/snapshot", "GET, OPTIONS"),
        ("POST", "/v1/stream/s" + AT, "GET, PUT, DELETE, OPTIONS"),
        ("HEAD", "/ds/bucket/s/bootstrap", "GET, OPTIONS"),
        ("POST", "/ds/bucket", "GET, PUT, DELETE, OPTIONS"),
        ("PUT", "/ds/bucket/s/bootstrap", "GET, OPTIONS"),
        ("PUT", "/ds/bucket/streams", "GET, OPTIONS"),
        ("DELETE", "/v1/stream/s/pk/k", "GET, OPTIONS"),
        ("POST", "/v1/streams", "GET, OPTIONS"),
    ],
)
def test_wrong_methods_are_told_the_right_ones(method: str, path: str, allow: str) -> None:
    with pytest.raises(BadRequest) as caught:
        ask(method, path)
    assert caught.value.reply.status == 405
    assert f"Allow: {allow}\r\n".encode() in caught.value.reply.headers


def test_a_preflight_is_the_same_everywhere() -> None:
    for path in ("/v1/stream/s", "/ds/bucket", "/bad", "*", "/v1/stream/%zz", "/__ds", "/"):
        assert ask("OPTIONS", path) == Request(Kind.PREFLIGHT)


@pytest.mark.parametrize(
    "argument", ["1", "-1", "now", "0000000000000000000a", "99999999999999999999", "append-batch", "0000000000000000_0000000000000000"]
)
def test_a_snapshot_is_at_20_digits(argument: str) -> None:
    for method in ("PUT", "GET", "DELETE"):
        assert refused(method, f"/v1/stream/s/snapshot/{argument}") == (400, "bad_offset")


def test_keys_in_the_path_are_decoded_once() -> None:
    assert ask("GET", "/ds/bucket/s/pk/a%2Fb%20%2520?key=other").read_key == "a/b %20"
    for bad in ("", "%2e%2e", "a%00", "%ff", "k" * 257):
        assert refused("GET", f"/ds/bucket/s/pk/{bad}") == (400, "bad_path")


def test_every_place_has_its_methods() -> None:
    served = {kind for methods in METHODS.values() for kind in methods.values()} | {Kind.PREFLIGHT}
    assert served == set(Kind)


@given(st.text(alphabet="abpk_.é %/-s", min_size=1, max_size=12), st.sampled_from(["bucket", "_default", "snapshot", "bootstrap"]))
def test_path_of_is_the_inverse(local: str, bucket: str) -> None:
    """Whatever stream one of the surfaces may create, its path in a listing leads to it."""
    quoted = "".join(f"%{byte:02X}" if chr(byte) not in "abcdefghijklmnopqrstuvwxyz_-./" else chr(byte) for byte in local.encode())
    for path in (f"/v1/stream/{quoted}", f"/v1/stream/{bucket}/{quoted}", f"/ds/{bucket}/{quoted}", f"/{bucket}/{quoted}"):
        try:
            route = route_of(path.encode())
        except BadPath:
            continue
        if METHODS[route.place].get(b"PUT") is Kind.CREATE:
            assert route_of(path_of(route.stream).encode()).stream == route.stream

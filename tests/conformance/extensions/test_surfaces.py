"""One stream, three addresses: `/ds/{bucket}/{stream}`, `/{bucket}/{stream}`, `/v1/stream/{path}`; names that belong to operations; /v1/streams."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.extensions.client import Streams

RESERVED_ENDS = [
    *("_schema", "_profile", "_search", "_aggregate", "_routing_keys", "_index_status", "_details", "bootstrap", "append-batch", "snapshot"),
]


@pytest.mark.parametrize("first", range(3))
def test_three_addresses_of_one_stream(http: Streams, bucket: str, first: int) -> None:
    """specs/README.md decisions: "On `/v1`, a path of two or more segments whose first is a valid bucket id is that bucket and the rest the stream
    id"; "`/{bucket}/{stream}` (Ursula's; same semantics)\""""
    paths = [f"/v1/stream/{bucket}/x", f"/ds/{bucket}/x", f"/{bucket}/x"]
    http.create(paths[first], body=b"0")
    for number, path in enumerate(paths):
        http.put(path, b"", "text/plain").expect(200)
        http.append(path, b"%d" % (number + 1))
    for path in paths:
        assert http.read_bytes(path) == b"0123"
        assert http.tail(path) == f"{4:020d}"
    http.delete(paths[first - 1]).expect(204)
    for path in paths:
        http.get(path).expect(404)


def test_one_segment_lives_in_the_default_bucket(http: Streams, fresh: Callable[[], str]) -> None:
    """specs/README.md decisions: "anything else lives in bucket `_default`\""""
    name = fresh()
    http.create(f"/v1/stream/{name}", body=b"a")
    for path in (f"/ds/_default/{name}", f"/_default/{name}"):
        assert http.read_bytes(path) == b"a"
    http.append(f"/ds/_default/{name}", b"b")
    assert http.read_bytes(f"/v1/stream/{name}") == b"ab"
    assert [each["stream_id"] for each in http.get("/ds/_default/streams", prefix=name).expect(200).json()["streams"]] == [name]
    http.delete(f"/_default/{name}").expect(204)
    http.head(f"/v1/stream/{name}").expect(404)


@pytest.mark.parametrize("first", ["abc", "Abcd", "a.bcd", "é" * 4])
def test_a_first_segment_that_is_no_bucket(http: Streams, fresh: Callable[[], str], first: str) -> None:
    """specs/README.md decisions: "a path of two or more segments whose first is a valid bucket id is that bucket ...; anything else lives in bucket
    `_default`\""""
    segment = "".join(f"%{byte:02X}" for byte in first.encode())
    name = fresh()
    http.create(f"/v1/stream/{segment}/{name}")
    found = http.get("/ds/_default/streams", prefix=f"{first}/{name}").expect(200).json()["streams"]
    assert [each["stream_id"] for each in found] == [f"{first}/{name}"]
    http.delete(f"/v1/stream/{segment}/{name}").expect(204)


def test_slashes_on_v1(http: Streams, bucket: str) -> None:
    """specs/README.md decisions: "the rest the stream id (slashes allowed)\""""
    http.create(f"/v1/stream/{bucket}/a/b/c", body=b"deep")
    http.create(f"/v1/stream/{bucket}/a", body=b"flat")
    assert http.read_bytes(f"/v1/stream/{bucket}/a/b/c") == b"deep"
    assert http.read_bytes(f"/ds/{bucket}/a") == b"flat"
    page = http.get(f"/ds/{bucket}/streams").expect(200).json()
    assert [each["stream_id"] for each in page["streams"]] == ["a", "a/b/c"]
    assert http.get(f"/ds/{bucket}").expect(200).json()["streams"] == 2


def test_location_is_the_address_that_was_used(http: Streams, bucket: str) -> None:
    """durable-streams-protocol.txt 5.1: "Servers SHOULD include a Location header equal to {stream-url} in 201 Created responses.\""""
    for number, path in enumerate((f"/v1/stream/{bucket}/l0", f"/ds/{bucket}/l1", f"/{bucket}/l2")):
        location = http.create(path, body=b"x" * number).headers["location"]
        assert location.endswith(path), location
        assert http.get(path).expect(200)


@pytest.mark.parametrize("end", RESERVED_ENDS)
def test_reserved_ends_on_v1(http: Streams, fresh: Callable[[], str], bucket: str, end: str) -> None:
    """specs/README.md decisions: "a stream id ending so is refused at create: 400 `reserved_name`\""""
    for path in (f"/v1/stream/{end}", f"/v1/stream/{fresh()}/{end}", f"/v1/stream/{bucket}/{end}", f"/v1/stream/{bucket}/a/{end}"):
        answer = http.put(path, b"", "text/plain").expect(400)
        assert answer.code == "reserved_name"
    http.create(f"/v1/stream/{bucket}/{end}x")  # only a whole segment is one


@pytest.mark.parametrize("end", ["pk/some-key", "pk/bootstrap"])
def test_reserved_parents_on_v1(http: Streams, bucket: str, end: str) -> None:
    """specs/README.md decisions: "a path ending in ... `snapshot/{offset}` or `pk/{key}` is always that operation; a stream id ending so is refused
    at create: 400 `reserved_name`\""""
    answer = http.put(f"/v1/stream/{bucket}/{end}", b"", "text/plain").expect(400)
    assert answer.code == "reserved_name"


def test_an_operation_never_names_a_stream(http: Streams, bucket: str) -> None:
    """specs/README.md decisions: "a path ending in ... `bootstrap` ... `snapshot` ... is always that operation\""""
    http.create(f"/v1/stream/{bucket}/s", body=b"x")
    assert http.get(f"/v1/stream/{bucket}/s/bootstrap").expect(200).headers["content-type"].startswith("multipart/mixed")
    http.get(f"/v1/stream/{bucket}/s/snapshot").expect(404)
    assert http.post(f"/v1/stream/{bucket}/s/append-batch", b"\0\0\0\1y").expect(200).json()[0]["status"] == 204
    assert http.get(f"/ds/{bucket}").expect(200).json()["streams"] == 1


@pytest.mark.parametrize("surface", ["/v1/stream/{}/s", "/ds/{}/s", "/{}/s"])
def test_every_operation_on_every_surface(http: Streams, bucket: str, surface: str) -> None:
    """extensions.txt 1.6: "All stream operations defined in the base protocol apply under {base_url}/ds/{bucket_id}/{stream_id}."; specs/README.md
    decisions: "served as additions on every surface\""""
    path = surface.format(bucket)
    http.create(path, "application/json")
    tail = http.append_json(path, {"n": 1}, headers={"Stream-Key": "k"})
    http.append_json(path, {"n": 2})
    assert http.read_json(path) == [{"n": 1}, {"n": 2}]
    assert http.read_json(path, key="k") == [{"n": 1}]
    assert http.get(path, offset=tail, live="long-poll").expect(200).json() == [{"n": 2}]
    assert http.get(path, format="raw").expect(200).body == b'{"n": 1}{"n": 2}'
    http.put(f"{path}/snapshot/{tail}", b"fold", "text/plain").expect(204)
    location = http.get(f"{path}/snapshot").expect(307).headers["location"]
    assert location.endswith(f"{path}/snapshot/{tail}"), location
    assert http.get(f"{path}/snapshot/{tail}").expect(200).body == b"fold"
    http.get(f"{path}/bootstrap").expect(200)
    frame = json.dumps({"n": 3}).encode()
    http.post(f"{path}/append-batch", len(frame).to_bytes(4, "big") + frame, "application/json").expect(200)
    http.close(path)
    assert http.head(path).expect(200).closed
    http.delete(path).expect(204)


def test_list_of_all_streams(http: Streams, fresh: Callable[[], str], bucket: str) -> None:
    """prisma-streams-http.txt 4.2: "Returns a JSON array of stream descriptors. ... Each descriptor should expose the stream profile."; prisma 1.4:
    "bare array `[{"name", "created_at", "expires_at": null, "epoch", "next_offset", "sealed_through", "uploaded_through", "profile"}]`\""""
    name = fresh()
    http.create(f"/v1/stream/{name}", body=b"abc")
    http.create(f"/v1/stream/{bucket}/deep/name", headers={"Stream-Expires-At": "2100-01-01T00:00:00Z"})
    rows = {row["name"]: row for row in all_streams(http)}
    assert rows[name]["profile"] == "generic"
    assert int(rows[name]["next_offset"]) == 3
    assert rows[name]["expires_at"] is None
    assert rows[name]["created_at"][:2] == "20" and rows[name]["created_at"].endswith("Z")
    assert rows[f"{bucket}/deep/name"]["expires_at"].startswith("2100-01-01T00:00:00")
    assert set(rows[name]) >= {"name", "created_at", "expires_at", "epoch", "next_offset", "sealed_through", "uploaded_through", "profile"}
    http.delete(f"/v1/stream/{name}").expect(204)
    assert name not in {row["name"] for row in all_streams(http)}


@pytest.mark.parametrize("limit", ["0", "1001", "abc", "-1"])
def test_list_of_all_streams_bad_limit(http: Streams, limit: str) -> None:
    """prisma 1.4: "GET /v1/streams?limit=100(max 1000)\""""
    http.get("/v1/streams", limit=limit).expect(400)


def all_streams(http: Streams) -> list[dict[str, Any]]:
    """prisma 1.4: "limit=100(max 1000)&offset=0 (row index, ordered by name ...)\""""
    rows: list[dict[str, Any]] = []
    while True:
        page = http.get("/v1/streams", limit=1000, offset=len(rows)).expect(200).json()
        assert isinstance(page, list)
        assert len(page) <= 1000
        rows += page
        if len(page) < 1000:
            return rows

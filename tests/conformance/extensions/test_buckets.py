"""Buckets: create, metadata, delete, what a missing bucket means, and the limits of identifiers. Their lists: test_bucket_list.py; many hands at
once: test_bucket_races.py."""

from collections.abc import Callable

import pytest

from tests.conformance.extensions.client import Streams

INVALID_BUCKETS = ["abc", "a" * 65, "Abcd", "ab.d", "ab%20cd", "ab%C3%A9d", "abcd%00", "abc%2Fd", "abcd%0A"]
SURFACES = ["/ds/{}", "/{}"]


@pytest.mark.parametrize("surface", SURFACES)
def test_create_once(http: Streams, fresh: Callable[[], str], surface: str) -> None:
    """extensions.txt 1.2: "201 Created: Bucket created successfully. ... 409 Conflict: Bucket already exists."
    specs/README.md decisions: "201, then 409 (extensions). On Ursula's root surface the same\""""
    path = surface.format(fresh())
    http.put(path).expect(201)
    http.put(path).expect(409)
    http.put(path).expect(409)


def test_one_bucket_on_both_surfaces(http: Streams, fresh: Callable[[], str]) -> None:
    """extensions.txt 1.1: "Globally unique within the service."; specs/README.md decisions: "`/{bucket}/{stream}` (Ursula's; same semantics)\""""
    name = fresh()
    http.put(f"/{name}").expect(201)
    http.put(f"/ds/{name}").expect(409)
    assert http.get(f"/ds/{name}").expect(200).json() == http.get(f"/{name}").expect(200).json()
    http.delete(f"/{name}").expect(204)
    http.get(f"/ds/{name}").expect(404)


@pytest.mark.parametrize("name", INVALID_BUCKETS)
def test_invalid_bucket_id(http: Streams, name: str) -> None:
    """extensions.txt 1.1: "bucket_id: MUST match ^[a-z0-9_-]{4,64}$", and 1.2 to 1.5: "400 Bad Request: bucket_id is invalid.\""""
    for method in ("PUT", "GET", "DELETE"):
        http.request(method, f"/ds/{name}").expect(400)
    http.get(f"/ds/{name}/streams").expect(400)
    http.put(f"/ds/{name}/s").expect(400)


@pytest.mark.parametrize("name", ["a" * 60, "0-_9"])
def test_valid_bucket_ids(http: Streams, fresh: Callable[[], str], name: str) -> None:
    """extensions.txt 1.1: "bucket_id: MUST match ^[a-z0-9_-]{4,64}$": 4 and 64 characters and each kind of them"""
    http.put(f"/ds/{name}").expect(201, 409)  # another test run may have left it
    http.get(f"/ds/{name}").expect(200)
    http.delete(f"/ds/{name}").expect(204)
    longest = (fresh() + "-" * 64)[:64]
    http.put(f"/ds/{longest}").expect(201)
    assert http.get(f"/ds/{longest}").expect(200).json()["bucket_id"] == longest


def test_metadata_counts_streams(http: Streams, bucket: str) -> None:
    """extensions.txt 1.3: "Returns a JSON object with at least bucket_id (string) and streams (integer, count of streams in the bucket).\""""
    path = f"/ds/{bucket}"
    answer = http.get(path).expect(200)
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.json()["bucket_id"] == bucket
    for count in range(6):  # they spread over several groups
        streams = http.get(path).expect(200).json()["streams"]
        assert type(streams) is int
        assert streams == count
        http.create(f"{path}/s{count}")
    http.delete(f"{path}/s2").expect(204)
    assert http.get(path).expect(200).json()["streams"] == 5


def test_metadata_of_a_missing_bucket(http: Streams, fresh: Callable[[], str]) -> None:
    """extensions.txt 1.3: "404 Not Found: Bucket does not exist.\""""
    http.get(f"/ds/{fresh()}").expect(404)
    http.get(f"/{fresh()}").expect(404)


def test_delete_missing(http: Streams, fresh: Callable[[], str]) -> None:
    """extensions.txt 1.5: "404 Not Found: Bucket does not exist.\""""
    name = fresh()
    http.delete(f"/ds/{name}").expect(404)
    http.delete(f"/{name}").expect(404)


def test_delete_only_when_empty(http: Streams, bucket: str) -> None:
    """extensions.txt 1.5: "A bucket MUST be empty (zero streams) before deletion. ... 409 Conflict: Bucket is not empty.\""""
    path = f"/ds/{bucket}"
    http.create(f"{path}/one")
    http.create(f"{path}/two")
    http.delete(path).expect(409)
    http.delete(f"{path}/one").expect(204)
    http.delete(path).expect(409)
    assert http.head(f"{path}/two").expect(200)
    http.create(f"{path}/three")  # a refused delete leaves the bucket open
    http.delete(f"{path}/two").expect(204)
    http.delete(f"{path}/three").expect(204)
    http.delete(path).expect(204)
    http.get(path).expect(404)
    http.delete(path).expect(404)


def test_nothing_in_a_deleted_bucket(http: Streams, bucket: str) -> None:
    """extensions.txt 1.6: "When the bucket does not exist, the server MUST return 404 Not Found.\""""
    path = f"/ds/{bucket}"
    for number in range(8):
        http.create(f"{path}/s{number}", body=b"x")
        http.delete(f"{path}/s{number}").expect(204)
    http.delete(path).expect(204)
    for number in range(8):
        http.get(f"{path}/s{number}").expect(404)
        http.put(f"{path}/s{number}").expect(404)
    http.get(f"{path}/streams").expect(404)


def test_recreated_bucket_is_empty(http: Streams, bucket: str) -> None:
    """extensions.txt 1.2: "201 Created: Bucket created successfully.", as often as it was deleted; DESIGN 9: "no stream is created in it any more,
    until a newer BucketOpen" (core/stream/commands.py)"""
    path = f"/ds/{bucket}"
    for life in range(4):
        assert http.get(path).expect(200).json()["streams"] == 0
        assert http.get(f"{path}/streams").expect(200).json()["streams"] == []
        http.create(f"{path}/s", body=b"life %d" % life)
        assert http.read_bytes(f"{path}/s") == b"life %d" % life
        http.delete(f"{path}/s").expect(204)
        http.delete(path).expect(204)
        http.put(f"{path}/s").expect(404)
        http.put(path).expect(201)


@pytest.mark.parametrize("surface", ["/ds/{}/s", "/{}/s"])
def test_every_stream_operation_in_a_missing_bucket(http: Streams, fresh: Callable[[], str], surface: str) -> None:
    """extensions.txt 1.6: "When the bucket does not exist, the server MUST return 404 Not Found." and 1.2: "PUT /ds/{bucket_id}/{stream_id} MUST NOT
    implicitly create a bucket."; specs/README.md decisions: "`/v1` creates buckets implicitly, the other two never do\""""
    name = fresh()
    path = surface.format(name)
    zero = "0" * 20
    http.put(path, b"x", "text/plain").expect(404)
    http.post(path, b"x").expect(404)
    http.get(path).expect(404)
    http.get(path, offset="-1", live="long-poll").expect(404)
    http.head(path).expect(404)
    http.delete(path).expect(404)
    http.get(f"{path}/bootstrap").expect(404)
    http.get(f"{path}/snapshot").expect(404)
    http.get(f"{path}/snapshot/{zero}").expect(404)
    http.put(f"{path}/snapshot/{zero}", b"x").expect(404)
    http.delete(f"{path}/snapshot/{zero}").expect(404)
    http.post(f"{path}/append-batch", b"\0\0\0\1x").expect(404)
    http.get(f"/ds/{name}").expect(404)


def test_v1_creates_the_bucket(http: Streams, fresh: Callable[[], str]) -> None:
    """specs/README.md decisions: "`/v1` creates buckets implicitly\""""
    name = fresh()
    http.get(f"/v1/stream/{name}/s").expect(404)
    http.get(f"/ds/{name}").expect(404)  # a read creates nothing
    http.create(f"/v1/stream/{name}/s", body=b"x")
    assert http.get(f"/ds/{name}").expect(200).json()["streams"] == 1
    http.put(f"/ds/{name}").expect(409)
    http.create(f"/ds/{name}/t")
    http.delete(f"/v1/stream/{name}/s").expect(204)
    http.delete(f"/v1/stream/{name}/t").expect(204)
    http.delete(f"/ds/{name}").expect(204)  # it does not go by itself, and can be deleted like any other
    http.create(f"/v1/stream/{name}/s")
    http.get(f"/ds/{name}").expect(200)


def test_combined_limit_of_122_bytes(http: Streams, bucket: str) -> None:
    """extensions.txt 1.1: "stream_id: Any UTF-8 string. MUST NOT exceed 122 bytes. ... On the bucketed /ds/ surface, the combined
    {bucket_id}/{stream_id} key MUST also not exceed 122 bytes.\""""
    room = 122 - len(bucket) - 1
    http.create(f"/ds/{bucket}/{'a' * room}", body=b"fits")
    assert http.read_bytes(f"/ds/{bucket}/{'a' * room}") == b"fits"
    http.put(f"/ds/{bucket}/{'a' * (room + 1)}").expect(400)
    http.put(f"/ds/{bucket}/{'a' * 123}").expect(400)


def test_the_limit_counts_bytes(http: Streams, bucket: str) -> None:
    """extensions.txt 1.1: "stream_id: Any UTF-8 string. MUST NOT exceed 122 bytes.": bytes of UTF-8, not characters, not of percent-encoding"""
    room = 122 - len(bucket) - 1
    two_bytes = "%C3%A9"
    http.create(f"/ds/{bucket}/{two_bytes * (room // 2)}")
    http.put(f"/ds/{bucket}/{two_bytes * (room // 2 + 1)}").expect(400)


@pytest.mark.parametrize("name", ["a..b", "..", "%2E%2E", "a%2Fb", "a%00b", "%00", "%FF", "%zz"])
def test_forbidden_in_a_stream_id(http: Streams, bucket: str, name: str) -> None:
    """extensions.txt 1.1: "stream_id: Any UTF-8 string. ... MUST NOT contain /, \\0, or ..\""""
    http.put(f"/ds/{bucket}/{name}").expect(400)
    assert http.get(f"/ds/{bucket}").expect(200).json()["streams"] == 0


def test_no_slash_on_the_bucket_surfaces(http: Streams, bucket: str) -> None:
    """extensions.txt 1.1: stream_id "MUST NOT contain /\""""
    http.put(f"/ds/{bucket}/a/b").expect(400, 404)
    http.put(f"/{bucket}/a/b").expect(400, 404)
    assert http.get(f"/ds/{bucket}").expect(200).json()["streams"] == 0


def test_the_name_streams_is_reserved(http: Streams, bucket: str) -> None:
    """extensions.txt 1.1: "On the bucketed /ds/ surface, the literal local stream ID streams is reserved for the bucket listing endpoint.\""""
    answer = http.put(f"/ds/{bucket}/streams", b"x", "text/plain")
    assert answer.status in (400, 405), answer
    http.post(f"/ds/{bucket}/streams", b"x").expect(400, 404, 405)
    assert http.get(f"/ds/{bucket}/streams").expect(200).json()["streams"] == []


@pytest.mark.parametrize("name", ["hello world", "ünïcödé", "a+b", "50%", "~x", "semi;colon", "q?uestion", "日本語", "😀", "a.b"])
def test_any_utf8_string_is_a_stream_id(http: Streams, bucket: str, name: str) -> None:
    """extensions.txt 1.1: "stream_id: Any UTF-8 string." and 5: "Clients and servers MUST apply standard URL encoding/decoding\""""
    encoded = "".join(f"%{byte:02x}" for byte in name.encode())
    http.create(f"/ds/{bucket}/{encoded}", body=name.encode())
    assert http.read_bytes(f"/ds/{bucket}/{encoded}") == name.encode()
    assert [each["stream_id"] for each in http.get(f"/ds/{bucket}/streams").expect(200).json()["streams"]] == [name]

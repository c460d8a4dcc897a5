"""The list of a bucket: its shape, order, prefix, and pages in which a stream appears exactly once, whatever its group."""

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.conformance.extensions.at_once import at_once
from tests.conformance.extensions.client import Streams

NAMES = ["A", "Z", "_", "a", "aa", "b-1", "b-10", "b-2", "b%", "b+c", "b c", "z", "é", "日本", "😀"]


def encoded(name: str) -> str:
    return "".join(f"%{byte:02X}" for byte in name.encode())


def pages(http: Streams, bucket: str, limit: int, **query: object) -> list[dict[str, Any]]:
    found, after = [], ""
    while True:
        page = http.get(f"/ds/{bucket}/streams", limit=limit, **query, **({"after": after} if after else {})).expect(200).json()
        assert len(page["streams"]) <= limit
        found.append(page)
        if not page["has_more"]:
            return found
        assert page["streams"] and page["next_cursor"] > after, page
        after = page["next_cursor"]


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [each["stream_id"] for page in found for each in page["streams"]]


@pytest.fixture(scope="module")
def filled(http: Streams) -> str:
    """For tests that only look: 15 creates for each of them would take most of their time."""
    bucket = f"t-{uuid.uuid4().hex[:12]}"
    http.put(f"/ds/{bucket}").expect(201)
    for name in NAMES:
        http.create(f"/ds/{bucket}/{encoded(name)}")
    return bucket


@pytest.mark.parametrize("surface", ["/ds/{}/streams", "/{}/streams"])
def test_shape(http: Streams, bucket: str, surface: str) -> None:
    """extensions.txt 1.4: "The response body is: {"bucket_id": ..., "prefix": ..., "stream_count": 2, "streams": [{"stream_id", "status": "Open",
    "content_type", "tail_offset", "created_at_ms", "last_write_at_ms"}], "next_cursor", "has_more"}\""""
    http.create(f"/ds/{bucket}/user-1", "text/plain", b"x" * 42)
    http.create(f"/ds/{bucket}/user-2", "application/json")
    http.create(f"/ds/{bucket}/other")
    http.close(f"/ds/{bucket}/user-2")
    answer = http.get(surface.format(bucket), prefix="user-").expect(200)
    assert answer.headers["content-type"].startswith("application/json")
    page = answer.json()
    assert page["bucket_id"] == bucket
    assert page["prefix"] == "user-"
    assert page["stream_count"] == 2
    assert page["has_more"] is False
    assert "next_cursor" in page
    one, two = page["streams"]
    assert one.items() >= {"stream_id": "user-1", "status": "Open", "content_type": "text/plain", "tail_offset": 42}.items()
    assert two.items() >= {"stream_id": "user-2", "status": "Closed", "content_type": "application/json", "tail_offset": 0}.items()
    for each in (one, two):
        assert type(each["created_at_ms"]) is int and type(each["last_write_at_ms"]) is int
        assert 1_600_000_000_000 < each["created_at_ms"] <= each["last_write_at_ms"]


def test_times_follow_writes(http: Streams, bucket: str) -> None:
    """extensions.txt 1.4: "created_at_ms", "last_write_at_ms\""""
    path = f"/ds/{bucket}/s"
    http.create(path)
    created = http.get(f"/ds/{bucket}/streams").expect(200).json()["streams"][0]
    http.append(path, b"x")
    written = http.get(f"/ds/{bucket}/streams").expect(200).json()["streams"][0]
    assert written["created_at_ms"] == created["created_at_ms"]
    assert written["last_write_at_ms"] >= created["last_write_at_ms"]
    assert written["tail_offset"] == 1


def test_order(http: Streams, filled: str) -> None:
    """extensions.txt 1.4: "streams is sorted lexicographically by stream_id.\""""
    page = http.get(f"/ds/{filled}/streams").expect(200).json()
    assert [each["stream_id"] for each in page["streams"]] == sorted(NAMES, key=str.encode)
    assert page["stream_count"] == len(NAMES)


@pytest.mark.parametrize("prefix", ["b", "b-1", "b%", "b+", "b ", "é", "日", "nothing", "a"])
def test_prefix(http: Streams, filled: str, prefix: str) -> None:
    """extensions.txt 1.4: "prefix filters bucket-local stream IDs by prefix.\""""
    page = http.get(f"/ds/{filled}/streams", prefix=prefix).expect(200).json()
    wanted = sorted((name for name in NAMES if name.startswith(prefix)), key=str.encode)
    assert [each["stream_id"] for each in page["streams"]] == wanted
    assert page["prefix"] == prefix
    assert page["stream_count"] == len(wanted)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 14, 15, 16, 1000])
def test_pages_hold_every_stream_once(http: Streams, filled: str, limit: int) -> None:
    """DESIGN 9: "a stream that exists throughout appears exactly once"; extensions.txt 1.4: "after is an exclusive cursor over bucket-local
    stream IDs.\""""
    found = pages(http, filled, limit)
    assert ids(found) == sorted(NAMES, key=str.encode)
    assert len(found) == -(-len(NAMES) // limit), "a page is shorter than its limit only at the end"


def test_pages_with_prefix(http: Streams, filled: str) -> None:
    """extensions.txt 1.4: "GET /ds/{bucket_id}/streams?prefix={prefix}&after={cursor}&limit={n}\""""
    assert ids(pages(http, filled, 2, prefix="b")) == sorted((name for name in NAMES if name.startswith("b")), key=str.encode)


def test_after_is_exclusive_and_need_not_exist(http: Streams, filled: str) -> None:
    """extensions.txt 1.4: "after is an exclusive cursor over bucket-local stream IDs.\""""
    for after in ("b", "b-1", "a", "zz", "😀"):
        page = http.get(f"/ds/{filled}/streams", after=after).expect(200).json()
        assert [each["stream_id"] for each in page["streams"]] == sorted((n for n in NAMES if n.encode() > after.encode()), key=str.encode)


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "abc", "1.5", ""])
def test_bad_limit(http: Streams, bucket: str, limit: str) -> None:
    """extensions.txt 1.4: "limit defaults to 1000 and must be in 1..=1000." and "400 Bad Request: bucket_id or query parameters are invalid.\""""
    http.get(f"/ds/{bucket}/streams", limit=limit).expect(400)


def test_missing_bucket(http: Streams, fresh: Callable[[], str]) -> None:
    """extensions.txt 1.4: "404 Not Found: Bucket does not exist.\""""
    http.get(f"/ds/{fresh()}/streams").expect(404)


def test_other_buckets_do_not_show(http: Streams, fresh: Callable[[], str]) -> None:
    """extensions.txt 1.4: "prefix filters bucket-local stream IDs": a bucket whose name begins like ours is another one"""
    name = fresh()
    for each in (name, name + "-", name + "0"):
        http.put(f"/ds/{each}").expect(201)
        http.create(f"/ds/{each}/of-{each}")
    assert ids(pages(http, name, 10)) == [f"of-{name}"]
    assert http.get(f"/ds/{name}").expect(200).json()["streams"] == 1


def test_default_limit_is_1000(http: Streams, bucket: str) -> None:
    """extensions.txt 1.4: "limit defaults to 1000\""""
    names = [f"s{number:04d}" for number in range(1003)]

    def make(part: list[str]) -> None:
        for name in part:
            http.create(f"/ds/{bucket}/{name}")

    at_once([partial(make, names[start::8]) for start in range(8)])
    page = http.get(f"/ds/{bucket}/streams").expect(200).json()
    assert [each["stream_id"] for each in page["streams"]] == names[:1000]
    assert page["has_more"] is True
    rest = http.get(f"/ds/{bucket}/streams", after=page["next_cursor"]).expect(200).json()
    assert [each["stream_id"] for each in rest["streams"]] == names[1000:]
    assert rest["has_more"] is False
    assert http.get(f"/ds/{bucket}").expect(200).json()["streams"] == 1003


def test_pages_while_others_come_and_go(http: Streams, bucket: str) -> None:
    """DESIGN 9: "Listing merges the groups' pages ...: not a snapshot, but a stream that exists throughout appears exactly once\""""
    stay = [f"m{number:02d}" for number in range(20)]
    for name in stay:
        http.create(f"/ds/{bucket}/{name}")

    def churn(hand: int) -> list[str]:
        for number in range(30):
            path = f"/ds/{bucket}/m{number % 20:02d}-{hand}"
            http.put(path).expect(201)
            http.delete(path).expect(204)
        return []

    def walk() -> list[str]:
        seen: list[str] = []
        for _ in range(10):
            found = ids(pages(http, bucket, 3))
            assert found == sorted(set(found)), "in order, and none twice"
            assert [name for name in found if name in stay] == stay
            seen += found
        return seen

    seen = at_once([partial(churn, 1), partial(churn, 2), walk])[2]
    assert len(seen) >= 10 * len(stay)

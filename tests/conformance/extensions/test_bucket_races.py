"""Buckets and their streams made and deleted by many hands at once. Never is a stream in a bucket
that is gone, never does an acknowledged one vanish.

DESIGN 9: "Delete: DELETING in meta; `BucketFence(meta_index)` in every group returns its count, pinned soft-deleted streams included; all zero:
DELETED, else unfenced. ... creates under a fence are 503, definite". So a create may be told 503 here, and then nothing was made."""

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from tests.conformance.extensions.at_once import at_once
from tests.conformance.extensions.client import Streams

ROUNDS = 8


def status_of(http: Streams, method: str, path: str, *statuses: int) -> Callable[[], int]:
    """To be called later: the request, and one of these statuses."""
    return lambda: http.request(method, path).expect(*statuses).status


def agree(http: Streams, name: str, streams: list[str]) -> None:
    """When all is quiet the bucket, its list, its count and its streams tell one story, through every node."""
    for _ in http.hosts:
        there = {stream for stream in streams if http.head(f"/v1/stream/{name}/{stream}").expect(200, 404).status == 200}
        info = http.get(f"/ds/{name}").expect(200, 404)
        if info.status == 404:
            assert not there, f"streams in a bucket that is gone: {there}"
            http.get(f"/ds/{name}/streams").expect(404)
            http.put(f"/ds/{name}/late").expect(404)
        else:
            listed = {each["stream_id"] for each in http.get(f"/ds/{name}/streams").expect(200).json()["streams"]}
            assert listed == there
            assert info.json()["streams"] == len(there)


def test_one_of_many_creates_wins(http: Streams, fresh: Callable[[], str]) -> None:
    """extensions.txt 1.2: "201 Created: Bucket created successfully. ... 409 Conflict: Bucket already exists.\""""
    for _ in range(ROUNDS):
        name = fresh()
        statuses = Counter(at_once([status_of(http, "PUT", f"/ds/{name}", 201, 409)] * 6))
        assert statuses == {201: 1, 409: 5}


def test_many_deletes_at_once(http: Streams, fresh: Callable[[], str]) -> None:
    """extensions.txt 1.5: "204 No Content: Bucket deleted. ... 404 Not Found: Bucket does not exist.": whoever asks
    while it is being deleted may be told either, whoever asks later only the second"""
    for _ in range(ROUNDS):
        name = fresh()
        http.put(f"/ds/{name}").expect(201)
        statuses = Counter(at_once([status_of(http, "DELETE", f"/ds/{name}", 204, 404, 503)] * 4))
        assert statuses[204] or statuses[503], f"an empty bucket is deleted: {statuses}"
        if statuses[204]:
            http.get(f"/ds/{name}").expect(404)
            http.delete(f"/ds/{name}").expect(404)


@pytest.mark.parametrize("surface", ["/ds/{}/{}", "/{}/{}"])
def test_delete_against_creates_of_streams(http: Streams, fresh: Callable[[], str], surface: str) -> None:
    """extensions.txt 1.5: "A bucket MUST be empty (zero streams) before deletion."; 1.6: "When the bucket does not exist, the server MUST return
    404\""""
    streams = [f"s{number}" for number in range(6)]
    for _ in range(ROUNDS):
        name = fresh()
        http.put(f"/ds/{name}").expect(201)
        makers = [status_of(http, "PUT", surface.format(name, stream), 201, 404, 503) for stream in streams]
        *made, deleted = at_once([*makers, status_of(http, "DELETE", f"/ds/{name}", 204, 409, 503)])
        if deleted == 204:
            assert 201 not in made, "a bucket with a stream was deleted"
            http.get(f"/ds/{name}").expect(404)
        elif 404 in made:
            pytest.fail(f"404 in a bucket that was never gone: {made}, {deleted}")
        for stream, status in zip(streams, made, strict=True):
            assert http.head(f"/ds/{name}/{stream}").status == (200 if status == 201 else 404)
        agree(http, name, streams)


def test_delete_against_implicit_creation(http: Streams, fresh: Callable[[], str]) -> None:
    """specs/README.md decisions: "`/v1` creates buckets implicitly": a stream that was made so has a bucket, whoever deletes at that moment"""
    streams = [f"s{number}" for number in range(4)]
    for _ in range(ROUNDS):
        name = fresh()
        http.put(f"/ds/{name}").expect(201)
        makers = [status_of(http, "PUT", f"/v1/stream/{name}/{stream}", 201, 503) for stream in streams]
        *made, _ = at_once([*makers, status_of(http, "DELETE", f"/ds/{name}", 204, 409, 503)])
        for stream, status in zip(streams, made, strict=True):
            assert http.head(f"/v1/stream/{name}/{stream}").status == (200 if status == 201 else 404)
        if 201 in made:
            http.get(f"/ds/{name}").expect(200)
        agree(http, name, streams)


def test_everything_at_once(http: Streams, fresh: Callable[[], str]) -> None:
    """DESIGN 9: "a group knows a bucket only by the replicated `BucketOpen(bucket, meta_index)`, proposed after a linearizable meta read. ... An Open
    below the group's highest fence is refused and asked again\""""
    name = fresh()
    streams = [f"s{number}" for number in range(6)]

    def open_and_shut() -> None:
        for _ in range(12):
            http.put(f"/ds/{name}").expect(201, 409, 503)
            http.delete(f"/ds/{name}").expect(204, 404, 409, 503)

    def come_and_go(stream: str, surface: str) -> None:
        path = surface.format(name, stream)
        for _ in range(12):
            if http.put(path, b"x", "text/plain").expect(201, 404, 503).status == 201:
                assert http.read_bytes(path) == b"x", "nobody else may delete it, so it is there"
                http.get(f"/ds/{name}").expect(200)
                http.delete(path).expect(204)

    surfaces = ["/ds/{}/{}", "/{}/{}", "/v1/stream/{}/{}"]
    hands = [partial(come_and_go, stream, surfaces[at % 3]) for at, stream in enumerate(streams)]
    at_once([open_and_shut, open_and_shut, *hands])
    agree(http, name, streams)
    if http.get(f"/ds/{name}").status == 200:
        http.delete(f"/ds/{name}").expect(204)
    http.put(f"/ds/{name}").expect(201)
    http.create(f"/ds/{name}/after")
    agree(http, name, [*streams, "after"])


def test_a_stream_deleted_while_the_bucket_is(http: Streams, fresh: Callable[[], str]) -> None:
    """extensions.txt 1.5: "A bucket MUST be empty (zero streams) before deletion.\""""
    for _ in range(ROUNDS):
        name = fresh()
        http.put(f"/ds/{name}").expect(201)
        http.create(f"/ds/{name}/s")
        stream, deleted = at_once([status_of(http, "DELETE", f"/ds/{name}/s", 204), status_of(http, "DELETE", f"/ds/{name}", 204, 409, 503)])
        assert stream == 204
        if deleted != 204:
            http.delete(f"/ds/{name}").expect(204)
        http.get(f"/ds/{name}").expect(404)

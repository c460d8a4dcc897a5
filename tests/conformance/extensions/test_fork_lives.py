"""How forks and their sources come, go and hold each other: settings, repeated PUTs, soft delete, cascade, TTL, buckets, what is not inherited."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.conformance.extensions.at_once import at_once
from tests.conformance.extensions.client import Streams, eventually, offset


@pytest.fixture
def source(http: Streams, stream: str) -> str:
    http.create(stream, body=b"abc")
    http.append(stream, b"def")
    return stream


def gone(http: Streams, path: str) -> None:
    """It is really deleted, through every node."""
    eventually(f"{path} is freed", lambda: all(http.head(path).expect(404, 410).status == 404 for _ in http.hosts))


def expired(http: Streams, path: str) -> None:
    eventually(f"{path} expires", lambda: http.head(path).status in (404, 410))


def soft_deleted(http: Streams, path: str) -> None:
    """specs/README.md forks: "Deleting a source that has forks is a soft delete: GET, HEAD, POST and DELETE on it answer 410, PUT answers 409\""""
    http.get(path).expect(410)
    http.get(path, offset="-1", live="long-poll").expect(410)
    http.get(path, offset="now", live="sse").expect(410)
    http.head(path).expect(410)
    http.post(path, b"x").expect(410)
    http.delete(path).expect(410)
    http.put(path, b"", "text/plain").expect(409)


@pytest.mark.parametrize("target", ["/v1/stream/{}/f", "/ds/{}/f", "/{}/f"])
@pytest.mark.parametrize("named", ["/v1/stream/{}/s", "/ds/{}/s", "/{}/s"])
def test_source_by_each_of_its_paths(http: Streams, bucket: str, named: str, target: str) -> None:
    """specs/README.md forks: "`Stream-Forked-From: <path of the source on this server>`"; decisions: the three surfaces"""
    http.create(f"/ds/{bucket}/s", body=b"abc")
    fork = target.format(bucket)
    http.fork(fork, named.format(bucket)).expect(201)
    http.append(fork, b"def")
    assert http.read_bytes(f"/ds/{bucket}/f") == b"abcdef"
    # The same source by another of its paths is the same source.
    http.fork(fork, f"/v1/stream/{bucket}/s").expect(200)
    http.fork(fork, f"/ds/{bucket}/s").expect(200)


def test_source_path_is_decoded(http: Streams, bucket: str) -> None:
    """extensions.txt 5: "Clients and servers MUST apply standard URL encoding/decoding\""""
    http.create(f"/ds/{bucket}/%C3%A9%20x", body=b"abc")
    http.fork(f"/ds/{bucket}/f", f"/v1/stream/{bucket}/%c3%a9%20%78").expect(201)
    assert http.read_bytes(f"/ds/{bucket}/f") == b"abc"


@pytest.mark.parametrize("named", ["", "not-a-path", "/", "/v1/stream/", "/ds/abc/s", "/v1/stream/a/../b", "/v1/stream/x/bootstrap"])
def test_malformed_source(http: Streams, stream: str, named: str) -> None:
    """specs/README.md forks: "404 source missing; 400 ... malformed": what names no stream makes no fork, and no plain stream either"""
    http.fork(stream, named).expect(400, 404)
    http.head(stream).expect(404)


def test_missing_source(http: Streams, stream: str, fresh: Callable[[], str]) -> None:
    """specs/README.md forks: "404 source missing\""""
    for number in range(6):
        http.fork(f"{stream}-{number}", f"/v1/stream/{fresh()}").expect(404)
        http.fork(f"{stream}-{number}", f"/ds/{fresh()}/s").expect(404)
        http.head(f"{stream}-{number}").expect(404)
    http.create(f"{stream}-0")  # the name is not held


def test_repeated_put(http: Streams, source: str) -> None:
    """specs/README.md forks: "PUT again: 200 if source, offset and sub-offset match, else 409.\""""
    fork = f"{source}-fork"
    http.fork(fork, source, offset(3)).expect(201)
    http.append(fork, b"own")
    http.append(source, b"more")
    for _ in range(3):
        answer = http.fork(fork, source, offset(3)).expect(200)
        assert answer.next_offset == offset(6)
    http.fork(fork, source, offset(0)).expect(409)
    http.fork(fork, source, offset(3), 1).expect(409)
    http.create(f"{source}-other", body=b"abc")
    http.fork(fork, f"{source}-other", offset(3)).expect(409)
    assert http.read_bytes(fork) == b"abcown"


def test_repeated_put_without_an_offset(http: Streams, source: str) -> None:
    """specs/README.md forks: "optional `Stream-Fork-Offset` (default: the source's tail)"; "PUT again: 200 if source, offset and sub-offset match":
    the same request matches although that tail has moved since; so does the point that it meant"""
    fork = f"{source}-fork"
    http.fork(fork, source).expect(201)
    http.append(source, b"more")
    http.fork(fork, source).expect(200)
    http.fork(fork, source, offset(6)).expect(200)
    http.fork(fork, source, offset(10)).expect(409)


def test_without_an_offset_means_the_tail(http: Streams, source: str) -> None:
    """specs/README.md forks: "default: the source's tail", and "PUT again: 200 if source, offset and sub-offset match, else 409.": a fork at 3 does
    not match a request for one at the tail, 10"""
    fork = f"{source}-fork"
    http.fork(fork, source, offset(3)).expect(201)
    http.append(source, b"more")
    http.fork(fork, source).expect(409)


def test_the_name_is_taken(http: Streams, source: str) -> None:
    """specs/README.md forks: "PUT again: 200 if source, offset and sub-offset match, else 409.": a stream that is no fork of it matches nothing"""
    other = f"{source}-other"
    http.create(other)
    http.fork(other, source).expect(409)
    http.fork(source, source).expect(409)
    assert http.read_bytes(other) == b""
    http.delete(source).expect(204)
    http.head(source).expect(404)  # "A rejected fork leaks no reference."


def test_a_fork_is_also_a_plain_stream(http: Streams, source: str) -> None:
    """specs/README.md forks: "No fork header in any response." (the client checks that for every answer)"""
    fork = f"{source}-fork"
    made = http.fork(fork, source).expect(201)
    assert made.headers["content-type"] == "text/plain" and made.headers["location"].endswith(fork)
    head = http.head(fork).expect(200)
    assert head.headers["content-type"] == "text/plain" and head.next_offset == offset(6)
    http.close(fork)
    assert http.get(fork, offset=offset(6)).expect(200).closed
    assert not http.head(source).expect(200).closed


def test_rejected_forks_hold_nothing(http: Streams, source: str, fresh: Callable[[], str]) -> None:
    """specs/README.md forks: "A rejected fork leaks no reference.\""""
    http.put(f"{source}-f1", b"", "application/json", {"Stream-Forked-From": source}).expect(409)
    http.fork(f"{source}-f2", source, offset(7)).expect(400)
    http.fork(f"{source}-f3", source, offset(3), 9).expect(400)
    http.fork(f"/ds/{fresh()}/f", source).expect(404)  # no such bucket
    http.create(f"{source}-f4")
    http.fork(f"{source}-f4", source).expect(409)
    http.delete(source).expect(204)
    gone(http, source)
    http.create(source)


def test_content_type(http: Streams, source: str) -> None:
    """specs/README.md forks: "inherits the content type (409 if another is given)\""""
    http.put(f"{source}-other", b"", "application/octet-stream", {"Stream-Forked-From": source}).expect(409)
    http.put(f"{source}-same", b"", "text/plain", {"Stream-Forked-From": source}).expect(201)
    http.create(f"{source}-json", "application/json", b"[1]")
    http.fork(f"{source}-json-fork", f"{source}-json", body=b"[2,3]").expect(201)
    assert http.read_json(f"{source}-json-fork") == [1, 2, 3]


def test_initial_body(http: Streams, source: str) -> None:
    """specs/README.md forks: "an initial body is appended after the inherited part\""""
    fork = f"{source}-fork"
    assert http.fork(fork, source, offset(3), body=b"own").expect(201).next_offset == offset(6)
    assert http.read_bytes(fork) == b"abcown"
    assert http.read_bytes(fork, offset(3)) == b"own"
    http.fork(f"{source}-bad", source, body=b"x", Stream_Closed="true").expect(201)
    assert http.get(f"{source}-bad", offset=offset(6)).expect(200).body == b"x"
    assert http.head(f"{source}-bad").expect(200).closed


def test_closed_source(http: Streams, source: str) -> None:
    """specs/README.md forks: "starts open even if the source is closed\""""
    http.close(source)
    fork = f"{source}-fork"
    http.fork(fork, source).expect(201)
    assert not http.head(fork).expect(200).closed
    assert not http.get(fork).expect(200).closed
    http.append(fork, b"own")
    assert http.read_bytes(fork) == b"abcdefown"
    http.fork(f"{source}-closed", source, Stream_Closed="true").expect(201)
    assert http.get(f"{source}-closed", offset=offset(6)).expect(200).closed
    http.post(f"{source}-closed", b"x").expect(409)


def test_producers_are_not_inherited(http: Streams, source: str) -> None:
    """specs/README.md forks: "has its own producer and Stream-Seq state\""""
    first = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
    http.post(source, b"one", headers=first).expect(200)
    http.post(source, b"two", headers={"Stream-Seq": "m"}).expect(204)
    fork = f"{source}-fork"
    http.fork(fork, source).expect(201)
    http.post(fork, b"1", headers=first).expect(200)
    http.post(fork, b"1", headers=first).expect(204)
    http.post(fork, b"2", headers={"Stream-Seq": "a"}).expect(204)
    http.post(fork, b"2", headers={"Stream-Seq": "a"}).expect(409)
    assert http.read_bytes(fork) == b"abcdefonetwo12"


# --- deleting ---------------------------------------------------------------------------------------------------------------------------------


def test_soft_delete(http: Streams, source: str) -> None:
    """specs/README.md forks: "Deleting a source that has forks is a soft delete: ... forks keep reading; the last fork's deletion frees it\""""
    forks = [f"{source}-{number}" for number in range(4)]
    for fork in forks:
        http.fork(fork, source).expect(201)
    http.delete(source).expect(204)
    soft_deleted(http, source)
    for fork in forks:
        assert http.read_bytes(fork) == b"abcdef"
        http.append(fork, b"own")
    for fork in forks[:-1]:
        http.delete(fork).expect(204)
        http.head(fork).expect(404)
    soft_deleted(http, source)
    assert http.read_bytes(forks[-1]) == b"abcdefown"
    http.delete(forks[-1]).expect(204)
    gone(http, source)
    http.create(source, "application/json")  # its name is free, and nothing of it is left
    assert http.read_json(source) == []


def test_every_operation_on_a_soft_deleted_stream(http: Streams, source: str) -> None:
    """specs/README.md decisions: "soft-deleted 410"; forks: "409 source soft-deleted\""""
    http.fork(f"{source}-fork", source).expect(201)
    http.put(f"{source}/snapshot/{offset(3)}", b"fold").expect(204)
    http.delete(source).expect(204)
    http.get(f"{source}/bootstrap").expect(410)
    http.get(f"{source}/snapshot").expect(410)
    http.get(f"{source}/snapshot/{offset(3)}").expect(410)
    http.put(f"{source}/snapshot/{offset(6)}", b"fold").expect(410)
    http.delete(f"{source}/snapshot/{offset(3)}").expect(410)
    http.post(f"{source}/append-batch", b"\0\0\0\1x").expect(410)
    http.get(f"{source}/pk/k").expect(410)
    http.get(source, since="2020-01-01T00:00:00Z").expect(410)
    http.fork(f"{source}-late", source).expect(409)
    http.head(f"{source}-late").expect(404)
    http.put(source, b"", "text/plain", {"Stream-Forked-From": f"{source}-fork"}).expect(409)


def test_cascade(http: Streams, stream: str) -> None:
    """specs/README.md forks: "the last fork's deletion frees it, cascading up the chain\""""
    chain = [stream, *(f"{stream}-{level}" for level in range(5))]
    http.create(stream, body=b"0")
    for level in range(1, 6):
        http.fork(chain[level], chain[level - 1]).expect(201)
        http.append(chain[level], b"%d" % level)
    for path in chain[:-1]:
        http.delete(path).expect(204)
        soft_deleted(http, path)
    assert http.read_bytes(chain[-1]) == b"012345"
    http.delete(chain[-1]).expect(204)
    for path in chain:
        gone(http, path)
        http.create(path)


def test_cascade_stops_at_the_living(http: Streams, stream: str) -> None:
    """specs/README.md forks: "the last fork's deletion frees it, cascading up the chain": as far as nothing else needs it"""
    http.create(stream, body=b"0")
    http.fork(f"{stream}-1", stream, body=b"1").expect(201)
    http.fork(f"{stream}-2", f"{stream}-1", body=b"2").expect(201)
    http.fork(f"{stream}-side", stream, body=b"s").expect(201)
    http.delete(stream).expect(204)
    http.delete(f"{stream}-1").expect(204)
    http.delete(f"{stream}-2").expect(204)
    gone(http, f"{stream}-1")
    soft_deleted(http, stream)
    assert http.read_bytes(f"{stream}-side") == b"0s"
    http.delete(f"{stream}-side").expect(204)
    gone(http, stream)


def test_a_living_source_outlives_its_forks(http: Streams, source: str) -> None:
    """specs/README.md forks: "the last fork's deletion frees it": a source that was deleted, and no other"""
    for number in range(4):
        http.fork(f"{source}-{number}", source).expect(201)
        http.delete(f"{source}-{number}").expect(204)
        gone(http, f"{source}-{number}")
    assert http.read_bytes(source) == b"abcdef"
    http.delete(source).expect(204)
    gone(http, source)


def test_a_freed_name_forgets_everything(http: Streams, source: str) -> None:
    """specs/README.md forks: a new stream of a freed name has nothing to do with the old forks"""
    fork = f"{source}-fork"
    http.fork(fork, source).expect(201)
    http.delete(source).expect(204)
    http.delete(fork).expect(204)
    gone(http, source)
    http.create(source, body=b"new")
    http.create(fork, body=b"plain")
    http.delete(source).expect(204)
    gone(http, source)
    assert http.read_bytes(fork) == b"plain"


def test_hidden_from_lists(http: Streams, bucket: str) -> None:
    """issue: "soft delete"; extensions.txt 1.4 lists streams: one that answers 410 is none"""
    http.create(f"/ds/{bucket}/source", body=b"x")
    http.fork(f"/ds/{bucket}/fork", f"/ds/{bucket}/source").expect(201)
    assert [each["stream_id"] for each in http.get(f"/ds/{bucket}/streams").expect(200).json()["streams"]] == ["fork", "source"]
    http.delete(f"/ds/{bucket}/source").expect(204)
    page = http.get(f"/ds/{bucket}/streams").expect(200).json()
    assert [each["stream_id"] for each in page["streams"]] == ["fork"]
    assert page["stream_count"] == 1
    assert http.get(f"/ds/{bucket}/streams", prefix="source").expect(200).json()["streams"] == []


def test_a_pinned_source_keeps_its_bucket(http: Streams, bucket: str, fresh: Callable[[], str]) -> None:
    """DESIGN 9: "`BucketFence(meta_index)` in every group returns its count, pinned soft-deleted streams included; all zero: DELETED\""""
    other = fresh()
    http.put(f"/ds/{other}").expect(201)
    http.create(f"/ds/{bucket}/source", body=b"x")
    http.fork(f"/ds/{other}/fork", f"/ds/{bucket}/source").expect(201)
    http.delete(f"/ds/{bucket}/source").expect(204)
    http.delete(f"/ds/{bucket}").expect(409)
    assert http.read_bytes(f"/ds/{other}/fork") == b"x"
    http.delete(f"/ds/{other}/fork").expect(204)
    gone(http, f"/ds/{bucket}/source")
    http.delete(f"/ds/{bucket}").expect(204)
    http.delete(f"/ds/{other}").expect(204)


def test_into_another_bucket(http: Streams, bucket: str, fresh: Callable[[], str]) -> None:
    """specs/README.md forks: "`PUT <url>` with `Stream-Forked-From: <path of the source on this server>`"; decisions: "`/v1` creates buckets
    implicitly, the other two never do\""""
    http.create(f"/ds/{bucket}/source", body=b"x")
    other = fresh()
    http.fork(f"/ds/{other}/fork", f"/ds/{bucket}/source").expect(404)
    http.get(f"/ds/{other}").expect(404)
    http.fork(f"/{other}/fork", f"/{bucket}/source").expect(404)
    http.fork(f"/v1/stream/{other}/fork", f"/v1/stream/{bucket}/source", body=b"y").expect(201)
    assert http.get(f"/ds/{other}").expect(200).json()["streams"] == 1
    assert http.read_bytes(f"/ds/{other}/fork") == b"xy"
    http.fork(f"/v1/stream/{fresh()}", f"/ds/{other}/fork").expect(201)


def test_forks_against_the_deletion_of_their_source(http: Streams, fresh: Callable[[], str]) -> None:
    """specs/README.md forks: "404 source missing", "409 source soft-deleted", "A rejected fork leaks no reference.": whichever comes first"""
    for _ in range(5):
        source = f"/v1/stream/{fresh()}"
        forks = [f"/v1/stream/{fresh()}" for _ in range(5)]
        http.create(source, body=b"abc")
        makers = [lambda fork=fork, source=source: http.fork(fork, source).expect(201, 404, 409).status for fork in forks]
        *made, deleted = at_once([*makers, lambda source=source: http.delete(source).expect(204).status])
        assert deleted == 204
        for fork, status in zip(forks, made, strict=True):
            if status == 201:
                assert http.read_bytes(fork) == b"abc"
                http.delete(fork).expect(204)
            else:
                http.head(fork).expect(404)
        gone(http, source)


def test_the_same_fork_by_many(http: Streams, source: str) -> None:
    """specs/README.md forks: "PUT again: 200 if source, offset and sub-offset match": also at the same moment, and it holds its source once"""
    fork = f"{source}-fork"
    made = at_once([lambda: http.fork(fork, source, offset(3)).expect(200, 201).status] * 5)
    assert sorted(made) == [200, 200, 200, 200, 201]
    assert http.read_bytes(fork) == b"abc"
    http.delete(source).expect(204)
    soft_deleted(http, source)
    http.delete(fork).expect(204)
    gone(http, source)


# --- time -------------------------------------------------------------------------------------------------------------------------------------


def test_ttl_is_inherited(http: Streams, stream: str) -> None:
    """specs/README.md forks: "unless the request sets its own, the source's TTL window (refreshed on its own) or its Expires-At\""""
    http.create(stream, headers={"Stream-TTL": "3600"})
    http.fork(f"{stream}-1", stream).expect(201)
    http.fork(f"{stream}-2", stream, Stream_TTL="1800").expect(201)
    http.fork(f"{stream}-3", f"{stream}-2").expect(201)
    assert [http.head(f"{stream}-{number}").expect(200).headers["stream-ttl"] for number in (1, 2, 3)] == ["3600", "1800", "1800"]
    at = "2100-01-01T00:00:00Z"
    http.create(f"{stream}-at", headers={"Stream-Expires-At": at})
    http.fork(f"{stream}-at-1", f"{stream}-at").expect(201)
    http.fork(f"{stream}-at-2", f"{stream}-at", Stream_TTL="60").expect(201)
    assert http.head(f"{stream}-at-1").expect(200).headers["stream-expires-at"] == at
    head = http.head(f"{stream}-at-2").expect(200)
    assert head.headers["stream-ttl"] == "60" and "stream-expires-at" not in head.headers


def test_an_expired_fork_frees_its_source(http: Streams, source: str) -> None:
    """DESIGN 9: "Deleting or expiring a fork puts `Unpin` in a replicated outbox\""""
    fork = f"{source}-fork"
    http.fork(fork, source, Stream_TTL="1").expect(201)
    http.delete(source).expect(204)
    soft_deleted(http, source)
    expired(http, fork)
    http.head(fork).expect(404)
    gone(http, source)


def test_an_expired_source_keeps_its_forks(http: Streams, stream: str) -> None:
    """issue: "trimmed and expired sources"; specs/README.md forks: "its TTL window (refreshed on its own)"; "forks keep reading\""""
    http.create(stream, body=b"abc", headers={"Stream-TTL": "1"})
    fork = f"{stream}-fork"
    http.fork(fork, stream, Stream_TTL="3600").expect(201)
    expired(http, stream)
    assert http.read_bytes(fork) == b"abc"
    http.fork(f"{stream}-late", stream).expect(404, 409)
    http.delete(fork).expect(204)
    gone(http, stream)
    http.create(stream)


def test_a_fork_that_expires_at_a_time(http: Streams, source: str) -> None:
    """specs/README.md: "`Stream-Expires-At` stays absolute."; forks: "unless the request sets its own\""""
    fork = f"{source}-fork"
    soon = (datetime.now(UTC) + timedelta(seconds=1.5)).isoformat()
    http.fork(fork, source, Stream_Expires_At=soon).expect(201)
    assert http.read_bytes(fork) == b"abcdef"
    expired(http, fork)
    http.delete(source).expect(204)
    gone(http, source)

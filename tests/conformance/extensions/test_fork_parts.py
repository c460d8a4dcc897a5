"""Forks together with snapshots, bootstrap and retention: on both sides of the fork point, and of sources that are trimmed before or after."""

import json
from collections.abc import Callable

import pytest

from tests.conformance.extensions import multipart
from tests.conformance.extensions.client import Answer, Streams, eventually, offset
from tests.conformance.extensions.multipart import Part


def bootstrap(http: Streams, path: str) -> tuple[Answer, Part, list[bytes]]:
    answer = http.get(f"{path}/bootstrap").expect(200)
    first, *rest = multipart.parts(answer.headers["content-type"], answer.body)
    assert len({part.content_type for part in rest}) <= 1
    return answer, first, [part.body for part in rest]


def publish(http: Streams, path: str, at: str, body: bytes = b"fold") -> Answer:
    return http.put(f"{path}/snapshot/{at}", body, "text/plain")


def gone(answer: Answer, earliest: str) -> None:
    assert answer.expect(410).headers["stream-earliest-offset"] == earliest, answer


@pytest.fixture(params=["application/json", "text/plain", "application/octet-stream"])
def forked(http: Streams, stream: str, request: pytest.FixtureRequest) -> tuple[str, str, list[str]]:
    """(source, its fork, the offsets around the messages): four inherited messages, a middle fork's two, two of its own."""
    http.create(stream, request.param)
    bounds = [offset(0)]
    paths = [stream, f"{stream}-middle", f"{stream}-fork"]
    for number in range(8):
        if number in (4, 6):
            http.fork(paths[number // 2 - 1], paths[number // 2 - 2]).expect(201)
        bounds.append(http.append(paths[max(0, number // 2 - 1)], b'"m-%d"' % number, request.param))
    return stream, paths[-1], bounds


def own(body: bytes) -> bytes:
    """Messages end to end, whichever the content type."""
    return body if not body.startswith(b"[") else b"".join(json.dumps(each).encode() for each in json.loads(body))


def messages(start: int, end: int = 8) -> list[bytes]:
    return [b'"m-%d"' % number for number in range(start, end)]


def test_bootstrap_of_a_fork(http: Streams, forked: tuple[str, str, list[str]]) -> None:
    """extensions.txt 3.2: "Retained updates after the snapshot point, one update message per part.": the inherited ones, too"""
    _, fork, bounds = forked
    answer, first, updates = bootstrap(http, fork)
    assert first == Part("application/octet-stream", b"")
    assert updates == messages(0)
    assert answer.headers["stream-snapshot-offset"] == "-1"
    assert answer.next_offset == bounds[8] and answer.up_to_date
    assert answer.body.count(http.head(fork).headers["content-type"].encode()) >= 8


@pytest.mark.parametrize("at", [1, 3, 4, 5, 6, 7, 8])
def test_snapshot_on_a_fork(http: Streams, forked: tuple[str, str, list[str]], at: int) -> None:
    """extensions.txt 2.2: "204 ... the server MUST treat snapshot_offset as the new earliest retained offset", at any boundary, inherited ones too"""
    source, fork, bounds = forked
    publish(http, fork, bounds[at], b"fold").expect(204)
    gone(http.get(fork, offset="-1"), bounds[at])
    gone(http.get(fork, offset=bounds[at - 1]), bounds[at])
    assert own(http.read_bytes(fork, bounds[at])) == b"".join(messages(at))
    head = http.head(fork).expect(200)
    assert head.headers["stream-snapshot-offset"] == head.headers["stream-earliest-offset"] == bounds[at]
    assert http.get(f"{fork}/snapshot/{bounds[at]}").expect(200).body == b"fold"
    _, first, updates = bootstrap(http, fork)
    assert first == Part("text/plain", b"fold") and updates == messages(at)
    assert own(http.read_bytes(source)) == b"".join(messages(0, 4)), "a fork's snapshot is its own"
    assert "stream-snapshot-offset" not in http.head(source).headers


def test_snapshot_inside_an_inherited_message(http: Streams, forked: tuple[str, str, list[str]]) -> None:
    """extensions.txt 2.2: "400 Bad Request: snapshot_offset is invalid or not aligned to a committed message boundary.\""""
    _, fork, bounds = forked
    for at in (0, 3, 4, 5, 6, 7):
        for inside in (int(bounds[at]) + 1, int(bounds[at + 1]) - 1):
            publish(http, fork, offset(inside)).expect(400)
    publish(http, fork, offset(int(bounds[8]) + 1)).expect(409)
    http.get(f"{fork}/snapshot").expect(404)


def test_source_trimmed_after_the_fork(http: Streams, forked: tuple[str, str, list[str]]) -> None:
    """DESIGN 9: "Trimming a pinned source hides bytes but keeps them for its forks.\""""
    source, fork, bounds = forked
    publish(http, source, bounds[4]).expect(204)
    gone(http.get(source, offset="-1"), bounds[4])
    assert own(http.read_bytes(fork)) == b"".join(messages(0))
    assert bootstrap(http, fork)[2] == messages(0)
    publish(http, f"{source}-middle", bounds[6]).expect(204)
    assert own(http.read_bytes(fork, bounds[1])) == b"".join(messages(1))
    http.delete(source).expect(204)
    http.delete(f"{source}-middle").expect(204)
    assert own(http.read_bytes(fork)) == b"".join(messages(0))


def test_fork_of_a_trimmed_source(http: Streams, stream: str) -> None:
    """issue: "trimmed and expired sources"; specs/README.md forks: "The fork inherits the source strictly before that point": what the source still
    shows"""
    http.create(stream, "application/json")
    bounds = [offset(0), *(http.append_json(stream, number) for number in range(6))]
    publish(http, stream, bounds[3]).expect(204)
    fork = f"{stream}-fork"
    http.fork(fork, stream).expect(201)
    http.append_json(fork, "own")
    gone(http.get(fork, offset=bounds[2]), bounds[3])
    assert http.head(fork).expect(200).headers["stream-earliest-offset"] == bounds[3]
    assert http.read_json(fork, bounds[3]) == [3, 4, 5, "own"]
    assert bootstrap(http, fork)[2] == [b"3", b"4", b"5", b'"own"']
    again = f"{stream}-again"
    http.fork(again, fork, bounds[5]).expect(201)
    assert http.read_json(again, bounds[3]) == [3, 4]
    gone(http.get(again, offset=bounds[2]), bounds[3])


def test_fork_at_the_earliest(http: Streams, stream: str) -> None:
    """specs/README.md forks: "The fork inherits the source strictly before that point": nothing, at the earliest offset that is shown"""
    http.create(stream)
    bounds = [offset(0), *(http.append(stream, b"%d" % number) for number in range(4))]
    publish(http, stream, bounds[2]).expect(204)
    fork = f"{stream}-fork"
    assert http.fork(fork, stream, bounds[2]).expect(201).next_offset == bounds[2]
    assert http.append(fork, b"own") == offset(5)
    assert http.read_bytes(fork, bounds[2]) == b"own"


def test_fork_below_the_earliest(http: Streams, stream: str) -> None:
    """specs/README.md decisions: "older offsets ... answer 410, with the earliest offset in `Stream-Earliest-Offset`\""""
    http.create(stream)
    bounds = [offset(0), *(http.append(stream, b"%d" % number) for number in range(4))]
    publish(http, stream, bounds[2]).expect(204)
    gone(http.fork(f"{stream}-fork", stream, bounds[1]), bounds[2])
    http.head(f"{stream}-fork").expect(404)
    http.delete(stream).expect(204)
    http.head(stream).expect(404)  # "A rejected fork leaks no reference."


def test_retention_is_not_inherited_silently(http: Streams, stream: str) -> None:
    """specs/README.md forks name what is inherited: "the content type ... and, unless the request sets its own, the source's TTL window ... or its
    Expires-At": so a fork keeps everything unless it asks for retention itself"""
    http.create(stream, headers={"Stream-Retention-Age": "86400"})
    http.append(stream, b"now")
    fork = f"{stream}-fork"
    http.fork(fork, stream).expect(201)
    assert "stream-retention-age" not in http.head(fork).expect(200).headers
    http.append(fork, b"own")
    assert http.read_bytes(fork) == b"nowown"


def test_retention_of_a_fork(http: Streams, stream: str) -> None:
    """specs/README.md decisions: "`Stream-Retention-Bytes` ... at create": of a fork, which then hides what it inherited; the source keeps it"""
    http.create(stream)
    for number in range(20):
        http.append(stream, b"%09d\n" % number)
    fork = f"{stream}-fork"
    http.fork(fork, stream, Stream_Retention_Bytes="100").expect(201)
    for number in range(20, 60):
        http.append(fork, b"%09d\n" % number)

    def look() -> int:
        first = int(http.head(fork).expect(200).headers["stream-earliest-offset"])
        return first if 600 - first <= 200 else 0

    first = eventually("the fork is trimmed", look)
    assert first % 10 == 0
    assert http.read_bytes(fork, offset(first)) == b"".join(b"%09d\n" % number for number in range(first // 10, 60))
    gone(http.get(fork, offset=offset(0)), http.head(fork).headers["stream-earliest-offset"])
    assert len(http.read_bytes(stream)) == 200


def test_source_under_retention(http: Streams, stream: str) -> None:
    """DESIGN 9: "Trimming a pinned source hides bytes but keeps them for its forks.\""""
    http.create(stream, headers={"Stream-Retention-Bytes": "100"})
    for number in range(8):
        http.append(stream, b"%09d\n" % number)
    fork = f"{stream}-fork"
    http.fork(fork, stream).expect(201)
    for number in range(8, 60):
        http.append(stream, b"%09d\n" % number)
    eventually("the source is trimmed beyond the fork point", lambda: int(http.head(stream).headers["stream-earliest-offset"]) > 80)
    assert http.read_bytes(fork) == b"".join(b"%09d\n" % number for number in range(8))
    assert bootstrap(http, fork)[2] == [b"%09d\n" % number for number in range(8)]


def test_bootstrap_of_a_long_fork(http: Streams, stream: str, fresh: Callable[[], str]) -> None:
    """extensions.txt 3.2: "Each update part contains exactly one retained update message from the stream.": 2,000 inherited ones from another group,
    then own ones"""
    http.create(stream, "application/json")
    http.append_json(stream, *range(2000))
    for _ in range(3):
        fork = f"/v1/stream/{fresh()}"
        http.fork(fork, stream).expect(201)
        http.append_json(fork, *range(2000, 2500))
        answer, _, updates = bootstrap(http, fork)
        assert [int(body) for body in updates] == list(range(2500))
        tail = http.append_json(fork, "more")
        assert http.get(fork, offset=answer.next_offset).expect(200).json() == ["more"]
        assert http.tail(fork) == tail


def test_a_message_cut_by_its_fork_point(http: Streams, stream: str) -> None:
    """specs/README.md forks: "Stream-Fork-Sub-Offset ... bytes, past the anchor"; extensions.txt 3.2 "exactly one retained update message": the part
    of it that the fork has inherited is a message of the fork"""
    http.create(stream)
    http.append(stream, b"hello")
    http.append(stream, b"world")
    fork = f"{stream}-fork"
    http.fork(fork, stream, offset(5), 2).expect(201)
    http.append(fork, b"!")
    assert bootstrap(http, fork)[2] == [b"hello", b"wo", b"!"]
    publish(http, fork, offset(6)).expect(400)
    publish(http, fork, offset(7)).expect(204)
    assert http.read_bytes(fork, offset(7)) == b"!"

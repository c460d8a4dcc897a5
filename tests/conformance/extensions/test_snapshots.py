"""Published snapshots: every status of extensions.txt 2.2 to 2.6, the retention effect, on JSON, text and binary streams. On forks:
test_fork_parts.py; with bootstrap: test_bootstrap.py."""

import threading
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

import pytest

from tests.conformance.extensions.at_once import at_once
from tests.conformance.extensions.client import Answer, Streams, looks, offset
from tests.conformance.extensions.events import Events

MIB = 1 << 20


class Filled(NamedTuple):
    path: str
    bounds: list[str]
    """The offset before the first message and after each."""
    content_type: str


@pytest.fixture(params=["application/json", "text/plain", "application/octet-stream"])
def filled(http: Streams, stream: str, request: pytest.FixtureRequest) -> Filled:
    """Four messages of 8 bytes, each its own append."""
    http.create(stream, request.param)
    bounds = [http.tail(stream)]
    for number in range(4):
        bounds.append(http.append(stream, b'"msg-%02d"' % number, request.param))
    return Filled(stream, bounds, request.param)


def publish(http: Streams, path: str, at: str, body: bytes = b"fold", content_type: str = "text/plain") -> Answer:
    return http.put(f"{path}/snapshot/{at}", body, content_type)


def gone(answer: Answer, earliest: str) -> None:
    assert answer.expect(410).headers["stream-earliest-offset"] == earliest, answer


@pytest.mark.parametrize("at", [1, 2, 4])
def test_publish_and_read(http: Streams, filled: Filled, at: int) -> None:
    """extensions.txt 2.2: "204 No Content: Snapshot published successfully."; 2.5: "Content-Type: The content type stored at publish time.
    Stream-Snapshot-Offset: The snapshot offset. Stream-Next-Offset: The next offset after the snapshot. Stream-Up-To-Date: Boolean indicating
    whether the stream has updates beyond the snapshot.\""""
    publish(http, filled.path, filled.bounds[at], b"\0fold\r\n\xff", "image/png").expect(204)
    answer = http.get(f"{filled.path}/snapshot/{filled.bounds[at]}").expect(200)
    assert answer.body == b"\0fold\r\n\xff"
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["stream-snapshot-offset"] == filled.bounds[at]
    assert answer.next_offset == filled.bounds[at]
    assert answer.headers.get("stream-up-to-date", "false") == ("true" if at == 4 else "false")


def test_content_type_defaults_to_octet_stream(http: Streams, filled: Filled) -> None:
    """extensions.txt 2.2: "Servers MUST store this value and return it on subsequent reads. Defaults to application/octet-stream.\""""
    publish(http, filled.path, filled.bounds[1], b"x", "").expect(204)
    assert http.get(f"{filled.path}/snapshot/{filled.bounds[1]}").expect(200).headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize("content_type", ["application/json", "text/plain; charset=utf-8", "application/vnd.loro+x"])
def test_blob_is_opaque(http: Streams, stream: str, content_type: str) -> None:
    """extensions.txt 2.2: "The content type of the snapshot blob.": it is the blob's, which nobody parses or reframes, and not the stream's"""
    http.create(stream, "application/json")
    tail = http.append_json(stream, 1, 2)
    publish(http, stream, tail, b"{not json, \xc3\x28", content_type).expect(204)
    answer = http.get(f"{stream}/snapshot/{tail}").expect(200)
    assert (answer.body, answer.headers["content-type"]) == (b"{not json, \xc3\x28", content_type)
    assert http.head(stream).expect(200).headers["content-type"] == "application/json"


def test_inside_a_message(http: Streams, filled: Filled) -> None:
    """extensions.txt 2.2: "400 Bad Request: snapshot_offset is invalid or not aligned to a committed message boundary."; specs/README.md decisions:
    "snapshot offset not at a message boundary | 400, always\""""
    low, high = int(filled.bounds[1]), int(filled.bounds[2])
    for inside in range(low + 1, high):
        publish(http, filled.path, offset(inside)).expect(400)
    http.get(f"{filled.path}/snapshot").expect(404)
    assert http.get(filled.path, offset="-1").expect(200)


def test_inside_an_append_of_many_messages(http: Streams, stream: str) -> None:
    """extensions.txt 2.1: "Servers ... MUST use one consistent retained-message boundary model across ordinary reads, snapshot-offset validation, and
    bootstrap responses.": each element of a JSON array that was posted is a message"""
    http.create(stream, "application/json")
    tail = http.append_json(stream, {"a": 1}, {"b": 22}, {"c": 333})
    small = [answer.next_offset for answer in http.read_all(stream, max_bytes=1)]
    assert len(small) == 3 and small[-1] == tail
    for at in small[:2]:
        publish(http, stream, at).expect(204)
    assert http.read_json(stream, small[1]) == [{"c": 333}]


@pytest.mark.parametrize(
    "at", ["-1", "now", "abc", "12", "0000000000000000000", "+0000000000000000008", "0x000000000000000008", "99999999999999999999"]
)
def test_malformed_offset(http: Streams, filled: Filled, at: str) -> None:
    """extensions.txt 2.2: "400 Bad Request: snapshot_offset is invalid"; specs/README.md decisions: "anything else that is not 20 digits is 400\""""
    publish(http, filled.path, at).expect(400)
    http.get(f"{filled.path}/snapshot").expect(404)


def test_url_encoded_offset(http: Streams, filled: Filled) -> None:
    """extensions.txt 5: "Clients and servers MUST apply standard URL encoding/decoding when using offset values in path segments.\""""
    encoded = "".join(f"%3{digit}" for digit in filled.bounds[2])
    http.put(f"{filled.path}/snapshot/{encoded}", b"fold").expect(204)
    assert http.get(f"{filled.path}/snapshot/{encoded}").expect(200).body == b"fold"
    assert http.get(f"{filled.path}/snapshot/{filled.bounds[2]}").expect(200).body == b"fold"


def test_missing_stream(http: Streams, stream: str) -> None:
    """extensions.txt 2.2: "404 Not Found: Stream does not exist."; 2.5: "404 Not Found: Snapshot does not exist\""""
    zero = offset(0)
    publish(http, stream, zero).expect(404)
    http.get(f"{stream}/snapshot").expect(404)
    http.get(f"{stream}/snapshot/{zero}").expect(404)
    http.delete(f"{stream}/snapshot/{zero}").expect(404)
    http.head(stream).expect(404)  # nothing came into being


def test_beyond_the_tail(http: Streams, filled: Filled) -> None:
    """extensions.txt 2.2: "409 Conflict: snapshot_offset exceeds the current tail\""""
    publish(http, filled.path, offset(int(filled.bounds[4]) + 1)).expect(409)
    publish(http, filled.path, offset(10**15)).expect(409)
    tail = http.append(filled.path, b'"msg-04"', filled.content_type)
    publish(http, filled.path, tail).expect(204)


def test_older_than_the_earliest(http: Streams, filled: Filled) -> None:
    """extensions.txt 2.2: "410 Gone: snapshot_offset is older than the current earliest retained offset."; specs/README.md decisions: "with the
    earliest offset in `Stream-Earliest-Offset`\""""
    publish(http, filled.path, filled.bounds[2], b"two").expect(204)
    gone(publish(http, filled.path, filled.bounds[1], b"one"), filled.bounds[2])
    assert http.get(f"{filled.path}/snapshot/{filled.bounds[2]}").expect(200).body == b"two"


def test_largest_snapshot(http: Streams, stream: str) -> None:
    """specs/README.md decisions: "published snapshot size | 10 MiB while it travels through the log"; extensions.txt 2.2: "413 Payload Too Large:
    Snapshot exceeds the server's size limit.\""""
    http.create(stream)
    tail = http.append(stream, b"x")
    body = bytes(range(256)) * (10 * MIB // 256)
    publish(http, stream, tail, body).expect(204)
    assert http.get(f"{stream}/snapshot/{tail}").expect(200).body == body
    connection_closes_after_413(http, f"{stream}/snapshot/{tail}", 10 * MIB + 1)
    assert http.get(f"{stream}/snapshot/{tail}").expect(200).body == body


def connection_closes_after_413(http: Streams, path: str, length: int) -> None:
    """Only the head is sent: the length alone decides, and whoever is refused need not send 10 MiB for nothing."""
    http.request("PUT", path, None, {"Content-Length": str(length), "Expect": "100-continue"}).expect(413)


def test_overwrite(http: Streams, filled: Filled) -> None:
    """extensions.txt 2.2: "Publishing a new snapshot replaces the previously visible snapshot immediately."; 2.6: "deleting an older offset will
    return 404 Not Found\""""
    for at in (1, 3, 4):
        publish(http, filled.path, filled.bounds[at], b"at %d" % at, f"text/v{at}").expect(204)
        answer = http.get(f"{filled.path}/snapshot/{filled.bounds[at]}").expect(200)
        assert (answer.body, answer.headers["content-type"]) == (b"at %d" % at, f"text/v{at}")
        for old in range(at):
            http.get(f"{filled.path}/snapshot/{filled.bounds[old]}").expect(404)
            http.delete(f"{filled.path}/snapshot/{filled.bounds[old]}").expect(404)


def test_overwrite_at_the_same_offset(http: Streams, filled: Filled) -> None:
    """extensions.txt 2.2: "Publishing a new snapshot replaces the previously visible snapshot immediately.": also at its own offset, which is not
    older than the earliest; so a publish whose answer was lost can be sent again"""
    for body in (b"one", b"one", b"two"):
        publish(http, filled.path, filled.bounds[2], body).expect(204)
        assert http.get(f"{filled.path}/snapshot/{filled.bounds[2]}").expect(200).body == body


def test_latest_is_a_redirect(http: Streams, filled: Filled) -> None:
    """extensions.txt 2.3: "404 Not Found when no snapshot exists."; "307 Temporary Redirect when a latest snapshot exists. The Location header points
    to {stream_url}/snapshot/{snapshot_offset}.\""""
    http.get(f"{filled.path}/snapshot").expect(404)
    for at in (1, 4):
        publish(http, filled.path, filled.bounds[at], b"at %d" % at).expect(204)
        location = http.get(f"{filled.path}/snapshot").expect(307).headers["location"]
        target = urlsplit(urljoin(f"http://{http.hosts[0]}{filled.path}/snapshot", location)).path
        assert target == f"{filled.path}/snapshot/{filled.bounds[at]}"
        assert http.get(target).expect(200).body == b"at %d" % at


def test_head_names_the_latest(http: Streams, filled: Filled) -> None:
    """extensions.txt 2.4: "Absence of Stream-Snapshot-Offset means the stream has no visible snapshot. When present, the value MUST refer to the same
    latest visible snapshot that GET {stream_url}/snapshot would resolve to.\""""
    assert "stream-snapshot-offset" not in http.head(filled.path).expect(200).headers
    for at in (2, 4):
        publish(http, filled.path, filled.bounds[at]).expect(204)
        head = http.head(filled.path).expect(200)
        assert head.headers["stream-snapshot-offset"] == filled.bounds[at]
        assert head.headers["stream-earliest-offset"] == filled.bounds[at]
        assert head.next_offset == filled.bounds[4]


def test_read_another_offset(http: Streams, filled: Filled) -> None:
    """extensions.txt 2.5: "404 Not Found: Snapshot does not exist or has been garbage-collected.\""""
    publish(http, filled.path, filled.bounds[2]).expect(204)
    for at in (0, 1, 3, 4):
        http.get(f"{filled.path}/snapshot/{filled.bounds[at]}").expect(404)
    http.get(f"{filled.path}/snapshot/abc").expect(400, 404)


def test_delete_rules(http: Streams, filled: Filled) -> None:
    """extensions.txt 2.6: "404 Not Found: Snapshot does not exist or has been superseded. 409 Conflict: snapshot_offset refers to the latest visible
    snapshot and cannot be deleted\""""
    http.delete(f"{filled.path}/snapshot/{filled.bounds[1]}").expect(404)
    publish(http, filled.path, filled.bounds[1]).expect(204)
    http.delete(f"{filled.path}/snapshot/{filled.bounds[1]}").expect(409)
    http.delete(f"{filled.path}/snapshot/{filled.bounds[2]}").expect(404)
    assert http.get(f"{filled.path}/snapshot/{filled.bounds[1]}").expect(200).body == b"fold"


def test_retention_effect(http: Streams, filled: Filled) -> None:
    """extensions.txt 2.2: "For any offset less than snapshot_offset (including -1), the server MUST return 410 Gone"; specs/README.md decisions:
    "older offsets and `-1` answer 410, with the earliest offset in `Stream-Earliest-Offset`\""""
    publish(http, filled.path, filled.bounds[2]).expect(204)
    for old in ("-1", filled.bounds[0], filled.bounds[1]):
        gone(http.get(filled.path, offset=old), filled.bounds[2])
        gone(http.get(filled.path, offset=old, live="long-poll"), filled.bounds[2])
        gone(http.get(filled.path, offset=old, live="sse"), filled.bounds[2])
    gone(http.get(filled.path), filled.bounds[2])  # no offset: "semantically equivalent to" -1 (durable-streams-protocol.txt 6)
    rest = http.read_bytes(filled.path, filled.bounds[2])
    assert rest in (b'"msg-02""msg-03"', b'["msg-02","msg-03"]')
    assert http.get(filled.path, offset=filled.bounds[3]).expect(200)
    assert http.get(filled.path, offset="now").expect(200).next_offset == filled.bounds[4]


def test_offset_zero_after_publishing(http: Streams, filled: Filled) -> None:
    """extensions.txt 2.2: "the server MUST treat snapshot_offset as the new earliest retained offset": also an offset inside what is gone"""
    publish(http, filled.path, filled.bounds[4]).expect(204)
    gone(http.get(filled.path, offset=offset(3)), filled.bounds[4])
    assert http.get(filled.path, offset=filled.bounds[4]).expect(200).up_to_date


def test_at_the_tail_and_then_appends(http: Streams, filled: Filled) -> None:
    """extensions.txt 2.2: "updates at or beyond that offset MUST NOT be folded into the snapshot"; 3.4: "Regular GET {stream_url}?offset=... MUST NOT
    return snapshot bytes.\""""
    publish(http, filled.path, filled.bounds[4], b"FOLD").expect(204)
    empty = http.get(filled.path, offset=filled.bounds[4]).expect(200)
    assert empty.body in (b"", b"[]") and empty.up_to_date
    tail = http.append(filled.path, b'"next"', filled.content_type)
    assert tail > filled.bounds[4]
    assert http.read_bytes(filled.path, filled.bounds[4]) in (b'"next"', b'["next"]')
    answer = http.get(f"{filled.path}/snapshot/{filled.bounds[4]}").expect(200)
    assert answer.body == b"FOLD" and answer.headers.get("stream-up-to-date", "false") == "false"


def test_live_readers_behind_the_snapshot_go_on(http: Streams, filled: Filled) -> None:
    """extensions.txt 2.2: "For any offset less than snapshot_offset ... 410": a reader that is at the tail already misses nothing by it"""
    with Events(http, filled.path, offset=filled.bounds[4]) as events:
        publish(http, filled.path, filled.bounds[4]).expect(204)
        tail = http.append(filled.path, b'"next"', filled.content_type)
        assert "".join(events.until_offset(tail))


def test_on_a_closed_stream(http: Streams, filled: Filled) -> None:
    """extensions.txt 2.2: "204 No Content", "404 ..., 409 Conflict: snapshot_offset exceeds the current tail": a closed stream can be folded, too"""
    http.close(filled.path)
    publish(http, filled.path, filled.bounds[4], b"all").expect(204)
    head = http.head(filled.path).expect(200)
    assert head.closed and head.headers["stream-snapshot-offset"] == filled.bounds[4]
    answer = http.get(filled.path, offset=filled.bounds[4]).expect(200)
    assert answer.closed and answer.body in (b"", b"[]")


def test_gone_with_its_stream(http: Streams, filled: Filled) -> None:
    """durable-streams-protocol.txt 5.4 (delete), extensions.txt 2.5: "404 Not Found: Snapshot does not exist": a new stream of that name has none"""
    publish(http, filled.path, filled.bounds[2]).expect(204)
    http.delete(filled.path).expect(204)
    http.get(f"{filled.path}/snapshot/{filled.bounds[2]}").expect(404)
    http.create(filled.path, filled.content_type)
    http.append(filled.path, b'"again"', filled.content_type)
    assert "stream-snapshot-offset" not in http.head(filled.path).expect(200).headers
    http.get(f"{filled.path}/snapshot").expect(404)
    assert http.read_bytes(filled.path) in (b'"again"', b'["again"]')


def test_appends_are_not_blocked(http: Streams, stream: str) -> None:
    """extensions.txt 2.2: "Snapshot creation MUST NOT block concurrent appends. The snapshot's consistency boundary is snapshot_offset\""""
    http.create(stream)
    seen = [http.append(stream, b"00000000")]
    done = threading.Event()
    rounds = 60

    def write() -> int:
        for number in range(1, rounds):
            seen.append(http.append(stream, b"%08d" % number))
        done.set()
        return rounds

    def fold() -> int:
        for number in looks():
            if number and done.is_set():
                return number
            count = len(seen)
            publish(http, stream, offset(8 * count), b"%d" % count).expect(204)
        return 0

    _, published = at_once([write, fold])
    assert published
    assert seen == [offset(8 * number) for number in range(1, rounds + 1)]
    at = http.head(stream).expect(200).headers["stream-snapshot-offset"]
    assert int(http.get(f"{stream}/snapshot/{at}").expect(200).body) == int(at) // 8, "a fold of what lies before its offset"
    assert http.read_bytes(stream, at) == b"".join(b"%08d" % number for number in range(int(at) // 8, rounds))


def test_one_winner_of_publishes_at_once(http: Streams, filled: Filled) -> None:
    """extensions.txt 2.2: "Publishing a new snapshot replaces the previously visible snapshot immediately.": never one that is older"""
    answers = at_once([lambda at=at: publish(http, filled.path, filled.bounds[at], b"at %d" % at).expect(204, 410).status for at in (1, 2, 3, 4)])
    assert answers[3] == 204, "nothing is newer than the tail"
    assert http.head(filled.path).expect(200).headers["stream-snapshot-offset"] == filled.bounds[4]
    assert http.get(f"{filled.path}/snapshot/{filled.bounds[4]}").expect(200).body == b"at 4"

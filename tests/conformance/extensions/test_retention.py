"""Stream-Retention-Bytes and Stream-Retention-Age: what is old goes, at message boundaries, and whoever asks for it is told where the rest begins.

specs/README.md decisions: "retention | `Stream-Retention-Bytes`, `Stream-Retention-Age` (seconds) at create, ours: the trim is a replicated command
on message boundaries; older offsets answer 410". When a trim comes is the server's affair, so these tests wait for it."""

import json

import pytest

from tests.conformance.extensions import multipart
from tests.conformance.extensions.client import Streams, eventually, offset

LONG_AGO = {"Stream-Timestamp": "2020-01-01T00:00:00Z"}


def earliest(http: Streams, path: str) -> int:
    return int(http.head(path).expect(200).headers["stream-earliest-offset"])


def filled(http: Streams, path: str, kept_bytes: int, messages: int = 100) -> list[str]:
    """100 messages of 10 bytes; the offsets before the first one and after each."""
    http.create(path, headers={"Stream-Retention-Bytes": str(kept_bytes)})
    return [offset(0), *(http.append(path, b"%09d\n" % number) for number in range(messages))]


def trimmed(http: Streams, path: str, kept_bytes: int) -> int:
    """The earliest offset, once about as much is kept as was asked for."""

    def look() -> int:
        head = http.head(path).expect(200)
        first, tail = int(head.headers["stream-earliest-offset"]), int(head.next_offset)
        return first if tail - first <= 2 * kept_bytes else 0

    return eventually(f"{path} is trimmed", look)


def test_head_shows_the_settings(http: Streams, stream: str) -> None:
    """specs/README.md decisions: "`Stream-Retention-Bytes`, `Stream-Retention-Age` (seconds) at create"; issue: "`Stream-Earliest-Offset` on 410 and
    HEAD\""""
    http.create(stream, headers={"Stream-Retention-Bytes": "1000", "Stream-Retention-Age": "3600"})
    head = http.head(stream).expect(200)
    assert (head.headers["stream-retention-bytes"], head.headers["stream-retention-age"]) == ("1000", "3600")
    assert head.headers["stream-earliest-offset"] == offset(0)


def test_none_by_default(http: Streams, stream: str) -> None:
    """specs/README.md decisions: retention is asked for "at create\""""
    http.create(stream)
    head = http.head(stream).expect(200)
    assert "stream-retention-bytes" not in head.headers and "stream-retention-age" not in head.headers


@pytest.mark.parametrize(
    ("first", "again", "status"),
    [
        ({"Bytes": "100"}, {"Bytes": "100"}, 200),
        ({"Age": "100"}, {"Age": "100"}, 200),
        ({"Bytes": "100", "Age": "5000"}, {"Bytes": "100", "Age": "5000"}, 200),
        ({"Bytes": "100"}, {"Bytes": "101"}, 409),
        ({"Age": "100"}, {"Age": "101"}, 409),
        ({"Bytes": "100"}, {}, 409),
        ({}, {"Bytes": "100"}, 409),
        ({}, {"Age": "100"}, 409),
        ({"Bytes": "100"}, {"Age": "100"}, 409),
    ],
)
def test_repeated_put(http: Streams, stream: str, first: dict[str, str], again: dict[str, str], status: int) -> None:
    """durable-streams-protocol.txt 5.1: "return 200 OK if the existing stream's configuration ... matches the request, or return 409 Conflict if it
    does not.": retention is configuration"""
    http.create(stream, headers={f"Stream-Retention-{name}": value for name, value in first.items()})
    http.put(stream, b"", "text/plain", {f"Stream-Retention-{name}": value for name, value in again.items()}).expect(status)


@pytest.mark.parametrize("name", ["Bytes", "Age"])
@pytest.mark.parametrize("value", ["-1", "abc", "1.5", "01", "+1", "1e3", "10MiB"])
def test_malformed(http: Streams, stream: str, name: str, value: str) -> None:
    """specs/README.md decisions: "`Stream-Retention-Bytes`, `Stream-Retention-Age` (seconds)": whole numbers, as strictly as Stream-TTL:
    "non-negative integer in decimal notation without leading zeros, plus signs, decimal points, or scientific notation"
    (durable-streams-protocol.txt 5.1)"""
    http.put(stream, b"", "text/plain", {f"Stream-Retention-{name}": value}).expect(400)
    http.head(stream).expect(404)


def test_bytes(http: Streams, stream: str) -> None:
    """specs/README.md decisions: "the trim is a replicated command on message boundaries; older offsets answer 410"; "with the earliest offset in
    `Stream-Earliest-Offset`\""""
    bounds = filled(http, stream, 200)
    first = trimmed(http, stream, 200)
    assert offset(first) in bounds, "a message boundary"
    assert first <= 1000 - 200, "what was asked for is kept"
    gone = http.get(stream, offset=offset(0)).expect(410)
    assert gone.headers["stream-earliest-offset"] == offset(earliest(http, stream))
    assert http.read_bytes(stream, offset(first)) == b"".join(b"%09d\n" % number for number in range(first // 10, 100))
    assert http.tail(stream) == bounds[-1]


def test_bytes_of_json(http: Streams, stream: str) -> None:
    """specs/README.md decisions: "the trim is ... on message boundaries": within a JSON array that was posted as one, too"""
    http.create(stream, "application/json", headers={"Stream-Retention-Bytes": "300"})
    for start in range(0, 100, 50):
        http.append_json(stream, *(f"message-{number:03d}" for number in range(start, start + 50)))
    first = trimmed(http, stream, 300)
    rest = http.read_json(stream, offset(first))
    assert rest == [f"message-{number:03d}" for number in range(100 - len(rest), 100)]
    assert len(rest) >= 300 // 14 - 1


def test_earliest_never_goes_back(http: Streams, stream: str) -> None:
    """durable-streams-protocol.txt 4: "Immutability by Position: Bytes at a given offset never change": what is gone stays gone, through every
    node"""
    http.create(stream, headers={"Stream-Retention-Bytes": "100"})
    before = 0
    for number in range(150):
        http.append(stream, b"%09d\n" % number)
        now = earliest(http, stream)
        assert now >= before
        before = now
    assert trimmed(http, stream, 100) >= before


def test_a_large_last_message_stays(http: Streams, stream: str) -> None:
    """specs/README.md decisions: "the trim is ... on message boundaries": a message is kept whole or not at all, and the last one is kept"""
    http.create(stream, headers={"Stream-Retention-Bytes": "100"})
    http.append(stream, b"s" * 50)
    http.append(stream, b"L" * 5000)
    eventually("the small one goes", lambda: earliest(http, stream) == 50)
    assert http.read_bytes(stream, offset(50)) == b"L" * 5000


def test_age(http: Streams, stream: str) -> None:
    """specs/README.md decisions: "`Stream-Retention-Age` (seconds)"; DESIGN 7: times are those of the appends"""
    http.create(stream, headers={"Stream-Retention-Age": "86400"})
    http.append(stream, b"old1;", headers=LONG_AGO)
    old = http.append(stream, b"old2;", headers=LONG_AGO)
    tail = http.append(stream, b"new")
    eventually("the old ones go", lambda: earliest(http, stream) == int(old))
    assert http.get(stream, offset=offset(0)).expect(410).headers["stream-earliest-offset"] == old
    assert http.read_bytes(stream, old) == b"new"
    assert http.tail(stream) == tail


def test_age_of_everything(http: Streams, stream: str) -> None:
    """specs/README.md decisions: "`Stream-Retention-Age` (seconds)": a stream nobody writes to grows old, too; its tail stays, and it goes on"""
    http.create(stream, "application/json", headers={"Stream-Retention-Age": "1"})
    tail = http.append_json(stream, 1, 2)
    eventually("everything goes", lambda: earliest(http, stream) == int(tail))
    assert http.get(stream, offset=tail).expect(200).json() == []
    http.get(stream, offset=offset(0)).expect(410)
    http.append_json(stream, 3)
    assert http.get(stream, offset=tail).expect(200, 410).status in (200, 410)  # the new message grows old while we ask
    assert http.get(stream, offset="now").expect(200).up_to_date


def test_bootstrap_after_a_trim(http: Streams, stream: str) -> None:
    """extensions.txt 3.2: "If no snapshot exists ... Stream-Snapshot-Offset MUST be -1 ... Update parts then begin at the earliest retained
    offset.\""""
    filled(http, stream, 200)
    first = trimmed(http, stream, 200)
    answer = http.get(f"{stream}/bootstrap").expect(200)
    snapshot, *updates = multipart.parts(answer.headers["content-type"], answer.body)
    assert answer.headers["stream-snapshot-offset"] == "-1" and snapshot == ("application/octet-stream", b"")
    assert [part.body for part in updates] == [b"%09d\n" % number for number in range(first // 10, 100)]
    assert answer.next_offset == http.tail(stream)


def test_a_snapshot_holds_retention_back(http: Streams, stream: str) -> None:
    """extensions.txt 3.4: "the server MUST ensure /bootstrap is available and can provide a snapshot covering that earliest retained offset"; our
    decision: nothing behind the latest snapshot is trimmed by retention, since bootstrap must stay complete"""
    http.create(stream, headers={"Stream-Retention-Bytes": "100", "Stream-Retention-Age": "86400"})
    at = http.append(stream, b"%09d\n" % 0, headers=LONG_AGO)
    http.put(f"{stream}/snapshot/{at}", b"fold").expect(204)
    for number in range(1, 100):
        http.append(stream, b"%09d\n" % number, headers=LONG_AGO)
    control = f"{stream}-control"
    filled(http, control, 100)
    trimmed(http, control, 100)  # so the trimmer has been there since
    assert earliest(http, stream) == int(at)
    answer = http.get(f"{stream}/bootstrap").expect(200)
    snapshot, *updates = multipart.parts(answer.headers["content-type"], answer.body)
    assert snapshot.body == b"fold"
    assert [part.body for part in updates] == [b"%09d\n" % number for number in range(1, 100)]
    # A newer snapshot lets go of what lies before it.
    newer = offset(500)
    http.put(f"{stream}/snapshot/{newer}", b"newer").expect(204)
    assert earliest(http, stream) == 500


def test_publish_behind_a_trim(http: Streams, stream: str) -> None:
    """extensions.txt 2.2: "410 Gone: snapshot_offset is older than the current earliest retained offset.\""""
    filled(http, stream, 200)
    first = trimmed(http, stream, 200)
    answer = http.put(f"{stream}/snapshot/{offset(10)}", b"fold").expect(410)
    assert int(answer.headers["stream-earliest-offset"]) >= first
    http.put(f"{stream}/snapshot/{http.tail(stream)}", b"fold").expect(204)
    assert earliest(http, stream) == 1000


def test_keys_and_since_after_a_trim(http: Streams, stream: str) -> None:
    """specs/README.md decisions: "older offsets answer 410": a read by time has no offset, and begins with what is still there"""
    http.create(stream, "application/json", headers={"Stream-Retention-Bytes": "200"})
    for number in range(100):
        http.append_json(stream, f"{number:07d}", headers={"Stream-Key": "even" if number % 2 == 0 else "odd"})
    first = trimmed(http, stream, 200)
    rest = http.read_json(stream, offset(first))
    answer = http.get(stream, since="2000-01-01T00:00:00Z").expect(200)
    assert answer.json() == rest
    assert http.read_json(stream, offset(first), key="odd") == [value for value in rest if int(value) % 2]


def test_settings_with_a_batch(http: Streams, stream: str) -> None:
    """specs/README.md decisions: "the trim is ... on message boundaries": those of the frames of a batch, too"""
    http.create(stream, headers={"Stream-Retention-Bytes": "500"})
    body = b"".join((10).to_bytes(4, "big") + b"%09d\n" % number for number in range(300))
    http.post(f"{stream}/append-batch", body).expect(200)
    first = trimmed(http, stream, 500)
    assert first % 10 == 0 and first <= 2500
    assert http.read_bytes(stream, offset(first))[:10] == b"%09d\n" % (first // 10)


def test_long_poll_behind_a_trim(http: Streams, stream: str) -> None:
    """durable-streams-protocol.txt 5.6: "410 Gone: Offset is before the earliest retained position (retention/compaction)": in every mode"""
    filled(http, stream, 100)
    first = trimmed(http, stream, 100)
    for live in ("long-poll", "sse"):
        answer = http.get(stream, offset=offset(0), live=live).expect(410)
        assert int(answer.headers["stream-earliest-offset"]) >= first
        assert json.loads(answer.body)["error"]["code"]

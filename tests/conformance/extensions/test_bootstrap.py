"""Bootstrap: one multipart response with the snapshot and every message behind it, and a follow-up read without gap or repetition."""

import json
import threading
from typing import NamedTuple

import pytest

from tests.conformance.extensions import multipart
from tests.conformance.extensions.at_once import at_once
from tests.conformance.extensions.client import Answer, Streams, looks, offset
from tests.conformance.extensions.multipart import Part

OCTETS = "application/octet-stream"
NASTY = [
    b"--",
    b"\r\n",
    b"\n",
    b"\r\n\r\n",
    b"--boundary",
    b"\r\n--boundary\r\n",
    b"--boundary--\r\n",
    b"Content-Type: text/plain\r\n\r\nnot a part",
    b"\r\n--\r\n",
    b" ",
    b"a",
    b"ends with cr\r",
    b"--=_x\r\nContent-Type: a/b\r\n\r\n",
]
JSON_VALUES = [
    *(b"{}", b'""', b"null", b"0", b"false", b"[1]", b"1.0e5", b'{"b":1,"a":2,"b":3}', b"12345678901234567890.123456789", b'"\\r\\n--x\\r\\n"'),
    *(b'{ "a" : [ 1 , 2 ] }', '"é😀"'.encode(), b'"\\u00e9"', b"-0"),
]


class Bootstrap(NamedTuple):
    snapshot: Part
    updates: list[Part]
    snapshot_offset: str
    next_offset: str
    up_to_date: str


def bootstrap(http: Streams, path: str) -> Bootstrap:
    answer = http.get(f"{path}/bootstrap").expect(200)
    first, *rest = multipart.parts(answer.headers["content-type"], answer.body)
    return Bootstrap(first, rest, answer.headers["stream-snapshot-offset"], answer.next_offset, answer.headers.get("stream-up-to-date", "false"))


def bodies(found: Bootstrap) -> list[bytes]:
    return [part.body for part in found.updates]


def boundary_of(answer: Answer) -> bytes:
    return answer.headers["content-type"].partition("boundary=")[2].strip('"').encode()


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", OCTETS])
def test_empty_stream(http: Streams, stream: str, content_type: str) -> None:
    """extensions.txt 3.2: "If no snapshot exists, the server MUST still emit an empty first part, Stream-Snapshot-Offset MUST be -1, and that empty
    part's Content-Type MUST be application/octet-stream.\""""
    http.create(stream, content_type)
    found = bootstrap(http, stream)
    assert found == Bootstrap(Part(OCTETS, b""), [], "-1", offset(0), "true")


@pytest.mark.parametrize("content_type", ["text/plain", "text/plain; charset=utf-8", OCTETS])
def test_one_part_for_each_append(http: Streams, stream: str, content_type: str) -> None:
    """extensions.txt 3.2: "one update message per part. Each part body MUST be exactly one retained update message, and the part Content-Type MUST be
    the content type of that update."; "they MUST NOT reinterpret or reframe binary payloads\""""
    http.create(stream, content_type)
    messages = [*NASTY, bytes(range(256)), b"x" * 100_000]
    for message in messages:
        tail = http.append(stream, message, content_type)
    found = bootstrap(http, stream)
    assert found.snapshot == Part(OCTETS, b"")
    assert found.updates == [Part(content_type, message) for message in messages]
    assert (found.snapshot_offset, found.next_offset, found.up_to_date) == ("-1", tail, "true")


def test_one_part_for_each_json_message(http: Streams, stream: str) -> None:
    """extensions.txt 3.2: "Each part body MUST be exactly one retained update message"; specs/README.md decisions: "each message is stored as its own
    bytes, verbatim (numbers and key order untouched)\""""
    http.create(stream, "application/json", b"[" + b",".join(JSON_VALUES[:3]) + b"]")
    for value in JSON_VALUES[3:6]:
        http.append(stream, b"[" + value + b"]", "application/json")
    http.append(stream, b" [ " + b" , ".join(JSON_VALUES[6:]) + b" ] ", "application/json")
    http.append(stream, b"[[]]", "application/json")
    found = bootstrap(http, stream)
    assert found.updates == [Part("application/json", value) for value in [*JSON_VALUES, b"[]"]]


def test_initial_body_is_a_message(http: Streams, stream: str) -> None:
    """extensions.txt 2.1: "one consistent retained-message boundary model\""""
    http.create(stream, OCTETS, b"first\r\n")
    http.append(stream, b"second", OCTETS)
    assert bodies(bootstrap(http, stream)) == [b"first\r\n", b"second"]


def test_the_boundary_is_no_secret(http: Streams, stream: str) -> None:
    """RFC 2046 5.1.1, by extensions.txt 3.2 "The body is an RFC 2046 multipart/mixed entity": "Boundary delimiters must not appear within the
    encapsulated material": also if somebody appends the boundary that he was told, in a way that looks like a part or like the end"""
    http.create(stream, OCTETS)
    messages = []
    for number in range(4):
        boundary = boundary_of(http.get(f"{stream}/bootstrap").expect(200))
        forged = b"%d\r\n--%b\r\nContent-Type: text/html\r\n\r\nforged\r\n--%b--\r\n" % (number, boundary, boundary)
        http.append(stream, forged, OCTETS)
        messages.append(forged)
        assert bodies(bootstrap(http, stream)) == messages


def test_snapshot_and_updates(http: Streams, stream: str) -> None:
    """extensions.txt 3.2: "If a snapshot exists, the part body MUST be the raw snapshot bytes and the part Content-Type MUST equal the snapshot
    blob's stored content type. ... Retained updates after the snapshot point, one update message per part.\""""
    http.create(stream, "application/json")
    bounds = [http.append_json(stream, {"n": number}) for number in range(6)]
    fold = b"--x\r\n\r\n\0 fold\r\n"
    http.put(f"{stream}/snapshot/{bounds[3]}", fold, "application/x-fold; v=2").expect(204)
    found = bootstrap(http, stream)
    assert found.snapshot == Part("application/x-fold; v=2", fold)
    assert bodies(found) == [b'{"n": 4}', b'{"n": 5}']
    assert (found.snapshot_offset, found.next_offset, found.up_to_date) == (bounds[3], bounds[5], "true")


def test_snapshot_at_the_tail(http: Streams, stream: str) -> None:
    """extensions.txt 3.2: "a snapshot (if any) plus all retained updates after the snapshot point\""""
    http.create(stream)
    tail = http.append(stream, b"abc")
    http.put(f"{stream}/snapshot/{tail}", b"fold").expect(204)
    assert bootstrap(http, stream) == Bootstrap(Part(OCTETS, b"fold"), [], tail, tail, "true")
    tail = http.append(stream, b"d")
    found = bootstrap(http, stream)
    assert bodies(found) == [b"d"] and found.next_offset == tail


def test_headers(http: Streams, stream: str) -> None:
    """extensions.txt 3.2: "Content-Type: multipart/mixed; boundary=<token>", "Stream-Next-Offset", "Stream-Up-To-Date: Boolean.", and in its example
    "Cache-Control: no-store\""""
    http.create(stream, body=b"x")
    answer = http.get(f"{stream}/bootstrap").expect(200)
    assert answer.headers["content-type"].startswith("multipart/mixed; boundary=")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["stream-up-to-date"] == "true"


@pytest.mark.parametrize("live", ["sse", "long-poll", "true", ""])
def test_live_is_refused(http: Streams, stream: str, live: str) -> None:
    """extensions.txt 3.1: "Servers SHOULD reject any live query parameter on /bootstrap with 400 Bad Request.\""""
    http.create(stream, body=b"x")
    http.get(f"{stream}/bootstrap", live=live).expect(400)


def test_missing_stream(http: Streams, stream: str) -> None:
    """extensions.txt 3.2: "404 Not Found: Stream does not exist.\""""
    http.get(f"{stream}/bootstrap").expect(404)
    http.head(stream).expect(404)


@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_follow_up(http: Streams, stream: str, content_type: str) -> None:
    """extensions.txt 3.3: "After applying the bootstrap response, clients MUST continue tailing through the ordinary stream read APIs using the
    returned Stream-Next-Offset.": without gap or repetition"""
    http.create(stream, content_type)
    bounds = [http.append(stream, b'"%d"' % number, content_type) for number in range(3)]
    http.put(f"{stream}/snapshot/{bounds[0]}", b"fold").expect(204)
    found = bootstrap(http, stream)
    assert bodies(found) == [b'"1"', b'"2"']
    tail = http.append(stream, b'"3"', content_type)
    answer = http.get(stream, offset=found.next_offset, live="long-poll").expect(200)
    assert answer.body in (b'"3"', b'["3"]') and answer.next_offset == tail


def test_while_others_append(http: Streams, stream: str) -> None:
    """extensions.txt 3: "a snapshot (if any) plus all retained updates after the snapshot point, returned as a single ordered response"; 3.2:
    "Stream-Next-Offset: The next offset after all returned data.\""""
    http.create(stream)
    width, rounds, done = 12, 80, threading.Event()
    expected = [b"%0*d" % (width, number) for number in range(rounds)]

    def write() -> int:
        for message in expected:
            http.append(stream, message)
        done.set()
        return rounds

    def look() -> int:
        for number in looks():
            if number and done.is_set():
                return number
            found = bootstrap(http, stream)
            count = int(found.next_offset) // width
            assert bodies(found) == expected[:count], "exactly what lies before its Stream-Next-Offset"
            rest = http.read_bytes(stream, found.next_offset)
            assert rest == b"".join(expected[count : count + len(rest) // width])
        return 0

    assert at_once([write, look])[1]
    assert bodies(bootstrap(http, stream)) == expected


def test_snapshots_while_bootstrapping(http: Streams, stream: str) -> None:
    """extensions.txt 3: "a snapshot (if any) plus all retained updates after the snapshot point": of ONE snapshot, also while newer ones come"""
    http.create(stream)
    width, rounds, done = 10, 40, threading.Event()

    def write() -> int:
        for number in range(rounds):
            tail = http.append(stream, b"%0*d" % (width, number))
            if number % 3 == 2:
                http.put(f"{stream}/snapshot/{tail}", b"%d" % (number + 1)).expect(204)
        done.set()
        return 0

    def look() -> int:
        for number in looks():
            if number and done.is_set():
                return number
            found = bootstrap(http, stream)
            start = max(0, int(found.snapshot_offset)) // width
            if start:
                assert int(found.snapshot.body) == start
            assert bodies(found) == [b"%0*d" % (width, number) for number in range(start, int(found.next_offset) // width)]
        return 0

    assert at_once([write, look])[1]


def test_thousands_of_json_messages(http: Streams, stream: str) -> None:
    """extensions.txt 3.2: "Each update part contains exactly one retained update message from the stream.", for any length (issue: streamed)"""
    http.create(stream, "application/json")
    values = [{"n": number, "text": "é" * (number % 7)} for number in range(5000)]
    for start in range(0, 5000, 1250):
        tail = http.append_json(stream, *values[start : start + 1250])
    found = bootstrap(http, stream)
    assert [json.loads(part.body) for part in found.updates] == values
    assert found.next_offset == tail


def test_more_than_one_read_answers(http: Streams, stream: str) -> None:
    """extensions.txt 3: "Bootstrap provides single-request initialization": a stream of several MB, which ordinary reads cut into pieces"""
    http.create(stream, OCTETS)
    messages = [bytes([number]) * 300_000 for number in range(12)]
    for message in messages:
        tail = http.append(stream, message, OCTETS)
    assert not http.get(stream).expect(200).up_to_date
    found = bootstrap(http, stream)
    assert bodies(found) == messages
    assert (found.next_offset, found.up_to_date) == (tail, "true")


def test_closed_stream(http: Streams, stream: str) -> None:
    """extensions.txt 3.2: "Stream-Next-Offset: The next offset after all returned data.": also when there will never be more"""
    http.create(stream)
    tail = http.append(stream, b"last")
    http.close(stream)
    found = bootstrap(http, stream)
    assert bodies(found) == [b"last"] and found.next_offset == tail
    assert http.get(stream, offset=found.next_offset).expect(200).closed


def test_after_410(http: Streams, stream: str) -> None:
    """extensions.txt 3.4: "When a server returns 410 Gone for a read (because retention has advanced), clients SHOULD call /bootstrap to rebuild
    state, then continue tailing from the returned Stream-Next-Offset"; "the server MUST ensure /bootstrap is available and can provide a snapshot
    covering that earliest retained offset\""""
    http.create(stream, "application/json")
    bounds = [http.append_json(stream, number) for number in range(10)]
    http.put(f"{stream}/snapshot/{bounds[6]}", json.dumps(list(range(7))).encode(), "application/json").expect(204)
    earliest = http.get(stream, offset=bounds[2]).expect(410).headers["stream-earliest-offset"]
    found = bootstrap(http, stream)
    assert found.snapshot_offset == earliest == bounds[6]
    assert [*json.loads(found.snapshot.body), *(json.loads(part.body) for part in found.updates)] == list(range(10))
    assert http.get(stream, offset=found.next_offset).expect(200).up_to_date

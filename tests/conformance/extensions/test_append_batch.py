"""append-batch: framing, limits, acknowledgements frame by frame, producers over the whole batch, and that one request is one log entry.

The text is ursula-behaviour 1.6 (their 4.1 to 4.4) with our row of the decisions: "one request is one log entry: without a producer the refused
frames are reported and the others appended together, with a producer tuple it is all or nothing"."""

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from tests.conformance.extensions import multipart
from tests.conformance.extensions.at_once import at_once
from tests.conformance.extensions.client import Answer, Streams, looks, offset


def frames(*payloads: bytes) -> bytes:
    return b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)


def send(http: Streams, path: str, body: bytes, content_type: str = "text/plain", headers: Mapping[str, str] | None = None) -> Answer:
    return http.post(f"{path}/append-batch", body, content_type, headers)


def acks(answer: Answer, *statuses: int) -> list[dict[str, Any]]:
    """ursula-behaviour 1.6, 4.3: "the response is 200 OK with a JSON array. The array order matches the request frame order.\""""
    found = answer.expect(200).json()
    assert answer.headers["content-type"].startswith("application/json")
    assert [ack["status"] for ack in found] == list(statuses), found
    for ack in found:
        if ack["status"] >= 400:
            assert ack["error_code"] and ack["error"], "error_code and error for failed frames"
        else:
            assert "error" not in ack and "error_code" not in ack
    return list(found)


def producer(epoch: int, seq: int, name: str = "p") -> dict[str, str]:
    return {"Producer-Id": name, "Producer-Epoch": str(epoch), "Producer-Seq": str(seq)}


def refused(answer: Answer) -> set[int]:
    """A batch of which nothing was taken: the status of the whole, or of each frame."""
    return {ack["status"] for ack in answer.json()} if answer.status == 200 else {answer.status}


def test_acknowledgements(http: Streams, stream: str) -> None:
    """ursula-behaviour 1.6, 4.3: `[ { "status": 204, "stream_next_offset": 3 }, { "status": 204, "stream_next_offset": 6 } ]`; 4.4: "successful
    frames advance the same stream offsets that standard POST would have produced\""""
    http.create(stream)
    found = acks(send(http, stream, frames(b"abc", b"def", b"g")), 204, 204, 204)
    assert [ack["stream_next_offset"] for ack in found] == [3, 6, 7]
    assert http.read_bytes(stream) == b"abcdefg"
    assert http.tail(stream) == offset(7)
    assert [ack["stream_next_offset"] for ack in acks(send(http, stream, frames(b"h")), 204)] == [8]


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream"])
def test_frames_stay_messages(http: Streams, stream: str, content_type: str) -> None:
    """ursula-behaviour 1.6, 4: "each frame in the request is committed as an independent logical append with its own acknowledgement. Servers MUST
    NOT concatenate the frames into one stream record.\""""
    http.create(stream, content_type)
    payloads = [b"a", b"\r\n", bytes(range(256)), b"\0\0\0\1x", b"z" * 70_000]
    found = acks(send(http, stream, frames(*payloads), content_type), *[204] * 5)
    answer = http.get(f"{stream}/bootstrap").expect(200)
    assert [part.body for part in multipart.parts(answer.headers["content-type"], answer.body)[1:]] == payloads
    http.put(f"{stream}/snapshot/{offset(found[1]['stream_next_offset'])}", b"fold").expect(204)  # a boundary
    http.put(f"{stream}/snapshot/{offset(found[2]['stream_next_offset'] - 1)}", b"fold").expect(400)


def test_json_frames(http: Streams, stream: str) -> None:
    """ursula-behaviour 1.6, 4.4: "For a single stream, successful frames advance the same stream offsets that standard POST would have produced.";
    durable-streams-protocol.txt 7.1: "servers MUST flatten exactly one level of the array\""""
    http.create(stream, "application/json")
    found = acks(send(http, stream, frames(b'{"a":1}', b"[1,2]", b"[[3]]", b' "x" '), "application/json"), 204, 204, 204, 204)
    assert http.read_json(stream) == [{"a": 1}, 1, 2, [3], "x"]
    tails = [ack["stream_next_offset"] for ack in found]
    assert tails == sorted(set(tails)) and offset(tails[-1]) == http.tail(stream)
    assert http.read_json(stream, offset(tails[0])) == [1, 2, [3], "x"]


@pytest.mark.parametrize(
    "body",
    [b"", b"\0", b"\0\0\0", b"\0\0\0\5abc", b"\0\0\0\1a\0\0", b"\0\0\0\1ab", b"\xff\xff\xff\xffabc", frames(b"ok") + b"\0\0\0\2x", b"plain text"],
)
def test_malformed_framing(http: Streams, stream: str, body: bytes) -> None:
    """ursula-behaviour 1.6, 4.1: "uint32_be payload_len ... the number of payload bytes that immediately follow"; 4.3: "Malformed framing ... 400";
    "empty body -> 400"; nothing of such a request is appended"""
    http.create(stream)
    send(http, stream, body).expect(400)
    assert http.tail(stream) == offset(0)


def test_512_frames(http: Streams, stream: str) -> None:
    """specs/README.md decisions: "at most 512 frames\""""
    http.create(stream)
    found = acks(send(http, stream, frames(*[b"%03d" % number for number in range(512)])), *[204] * 512)
    assert [ack["stream_next_offset"] for ack in found] == list(range(3, 3 * 512 + 1, 3))
    assert http.read_bytes(stream) == b"".join(b"%03d" % number for number in range(512))


def test_513_frames(http: Streams, stream: str) -> None:
    """specs/README.md decisions: "at most 512 frames"; ursula-behaviour 1.6: "> 512 frames -> 413\""""
    http.create(stream)
    send(http, stream, frames(*[b"x"] * 513)).expect(413)
    assert http.tail(stream) == offset(0)


def test_empty_frame(http: Streams, stream: str) -> None:
    """ursula-behaviour 1.6, 4.1: "Zero-length frames are invalid."; specs/README.md decisions: "without a producer the refused frames are reported
    and the others appended together\""""
    http.create(stream)
    found = acks(send(http, stream, frames(b"a", b"", b"b")), 204, 400, 204)
    assert [ack.get("stream_next_offset") for ack in (found[0], found[2])] == [1, 2]
    assert http.read_bytes(stream) == b"ab"
    acks(send(http, stream, frames(b"")), 400)
    acks(send(http, stream, frames(b"", b"")), 400, 400)
    assert http.read_bytes(stream) == b"ab"


@pytest.mark.parametrize("bad", [b"{", b"", b"[]", b"{'a':1}", b"\xff", b"1 2", b'"a', b"nul", b"\xef\xbb\xbf1"])
def test_invalid_json_frame(http: Streams, stream: str, bad: bytes) -> None:
    """specs/README.md decisions: "without a producer the refused frames are reported and the others appended together"; durable-streams-protocol.txt
    7.1: "Servers MUST reject POST requests containing empty JSON arrays"; "Servers MUST validate that appended data is valid JSON.\""""
    http.create(stream, "application/json")
    acks(send(http, stream, frames(b'{"n":1}', bad, b"[2,3]"), "application/json"), 204, 400, 204)
    assert http.read_json(stream) == [{"n": 1}, 2, 3]


def test_all_frames_refused(http: Streams, stream: str) -> None:
    """ursula-behaviour 1.6, 4.3: "A successful outer 200 OK does not mean every frame committed. Clients MUST inspect every acknowledgement.\""""
    http.create(stream, "application/json")
    acks(send(http, stream, frames(b"{", b"]"), "application/json"), 400, 400)
    assert http.tail(stream) == offset(0)


@pytest.mark.parametrize("bad", [b"", b"{"])
def test_producer_is_all_or_nothing(http: Streams, stream: str, bad: bytes) -> None:
    """specs/README.md decisions: "with a producer tuple it is all or nothing\""""
    http.create(stream, "application/json")
    answer = send(http, stream, frames(b"1", bad, b"3"), "application/json", producer(0, 0))
    assert min(refused(answer)) >= 400, answer
    assert http.tail(stream) == offset(0)
    # The tuple was not used up: the mended batch is sent with the same one.
    assert send(http, stream, frames(b"1", b"2", b"3"), "application/json", producer(0, 0)).expect(200)
    assert http.read_json(stream) == [1, 2, 3]


def test_producer_retry(http: Streams, stream: str) -> None:
    """ursula-behaviour 1.6: "one (id, epoch, seq) covers the whole batch, applied all-or-nothing, and a retry returns the stored per-item results.
    Outer response echoes Producer-Epoch/-Seq.\""""
    http.create(stream)
    body = frames(b"abc", b"de", b"f")
    first = send(http, stream, body, headers=producer(0, 0)).expect(200)
    assert [ack["stream_next_offset"] for ack in first.json()] == [3, 5, 6]
    assert all(ack["status"] in (200, 204) for ack in first.json())
    assert (first.headers["producer-epoch"], first.headers["producer-seq"]) == ("0", "0")
    for _ in range(3):  # through every node
        again = send(http, stream, body, headers=producer(0, 0)).expect(200, 204)
        if again.status == 200:
            assert all(ack["status"] in (200, 204) for ack in again.json())
            assert [ack["stream_next_offset"] for ack in again.json()][-1] == 6
        assert http.read_bytes(stream) == b"abcdef"
    assert send(http, stream, frames(b"g"), headers=producer(0, 1)).expect(200).json()[0]["stream_next_offset"] == 7


def test_producer_rules(http: Streams, stream: str) -> None:
    """specs/README.md: "epoch < current: 403 + `Producer-Epoch` ...; larger: 409 + `Producer-Expected-Seq`, `Producer-Received-Seq`. Unknown
    producer: any epoch with seq 0, else 409"; ursula-behaviour 1.6: "one (id, epoch, seq) covers the whole batch\""""
    http.create(stream)
    assert refused(send(http, stream, frames(b"x", b"y"), headers=producer(0, 5))) == {409}
    send(http, stream, frames(b"a", b"b"), headers=producer(1, 0)).expect(200)
    assert refused(send(http, stream, frames(b"x", b"y"), headers=producer(1, 2))) == {409}
    assert refused(send(http, stream, frames(b"x", b"y"), headers=producer(0, 0))) == {403}
    assert refused(send(http, stream, frames(b"x", b"y"), headers=producer(2, 1))) == {400}
    assert http.read_bytes(stream) == b"ab"
    http.post(stream, b"c", headers=producer(1, 1)).expect(200)  # the same table as plain appends use
    assert http.post(stream, b"c", headers=producer(1, 1)).status == 204
    assert http.read_bytes(stream) == b"abc"


def test_incomplete_producer(http: Streams, stream: str) -> None:
    """ursula-behaviour 1.3: "`Producer-Id/-Epoch/-Seq` (all three or none)\""""
    http.create(stream)
    send(http, stream, frames(b"a"), headers={"Producer-Id": "p"}).expect(400)
    assert http.tail(stream) == offset(0)


def test_closed_stream(http: Streams, stream: str) -> None:
    """ursula-behaviour 1.6, 4.3: "`stream_closed` present and true if the append observes a closed stream"; "`stream_next_offset` present when the
    frame append succeeds or when an error can report the stream tail\""""
    http.create(stream, body=b"xyz")
    http.close(stream)
    found = acks(send(http, stream, frames(b"a", b"b")), 409, 409)
    assert all(ack["stream_closed"] is True and ack["stream_next_offset"] == 3 for ack in found)
    assert http.read_bytes(stream) == b"xyz"
    assert refused(send(http, stream, frames(b"a"), headers=producer(0, 0))) == {409}


def test_missing_stream(http: Streams, stream: str) -> None:
    """durable-streams-protocol.txt 5.2: "404 Not Found: Stream does not exist"; ursula-behaviour 1.5: "404 bucket/stream/snapshot missing\""""
    send(http, stream, frames(b"a")).expect(404)
    http.head(stream).expect(404)


def test_content_type(http: Streams, stream: str) -> None:
    """ursula-behaviour 1.6, 4.1: "The request `Content-Type` applies to every frame and MUST match the stream's configured content type."; 4.3:
    "missing `Content-Type` ... 400"; specs/README.md decisions: "content type mismatch | 409\""""
    http.create(stream)
    assert refused(send(http, stream, frames(b"a", b"b"), "application/octet-stream")) == {409}
    send(http, stream, frames(b"a"), "").expect(400)
    assert http.tail(stream) == offset(0)


def test_whole_batch_at_once(http: Streams, stream: str) -> None:
    """specs/README.md decisions: "one request is one log entry": who tails the stream arrives at the ends of batches and nowhere else"""
    http.create(stream)
    rounds, per_batch = 40, 16
    ends = {offset(number * per_batch * 4) for number in range(rounds + 1)}
    done = threading.Event()

    def write() -> list[str]:
        for number in range(rounds):
            payloads = [b"%03d." % at for at in range(per_batch)]
            headers = producer(0, number // 2) if number % 2 else {}  # with a producer and without one by turns
            send(http, stream, frames(*payloads), headers=headers).expect(200)
        done.set()
        return []

    def poll() -> list[str]:
        seen = [offset(0)]
        for _ in looks():
            answer = http.get(stream, offset=seen[-1], live="long-poll").expect(200, 204)
            if answer.status == 200:
                seen.append(answer.next_offset)
            if seen[-1] == offset(rounds * per_batch * 4):
                break
        return seen

    def look() -> list[str]:
        seen = []
        for _ in looks():
            seen.append(http.tail(stream))
            seen.append(http.get(stream, offset="now").expect(200).next_offset)
            if done.is_set():
                break
        return seen

    for seen in at_once([write, poll, look])[1:]:
        assert set(seen) <= ends
        assert len(seen) > 1
    assert http.read_bytes(stream) == b"".join(b"%03d." % at for at in range(per_batch)) * rounds


def test_batches_of_many_do_not_mix(http: Streams, stream: str) -> None:
    """specs/README.md decisions: "one request is one log entry ... appended together": nobody else's message is between two frames of a batch"""
    http.create(stream, "application/json")
    hands, rounds, per_batch = 4, 8, 10

    def write(hand: int) -> None:
        for number in range(rounds):
            payloads = [b'"%d-%d-%d"' % (hand, number, at) for at in range(per_batch)]
            acks(send(http, stream, frames(*payloads), "application/json"), *[204] * per_batch)

    at_once([lambda hand=hand: write(hand) for hand in range(hands)])
    found = http.read_json(stream)
    assert len(found) == hands * rounds * per_batch == len(set(found))
    for start in range(0, len(found), per_batch):
        batch = found[start].rpartition("-")[0]
        assert found[start : start + per_batch] == [f"{batch}-{at}" for at in range(per_batch)]

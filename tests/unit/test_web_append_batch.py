"""append-batch: framing, one command for many frames, and an acknowledgement for each."""

import json
from struct import pack, unpack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.stream.commands import Append, Producer
from anabranch_node.core.stream.results import Appended, ContentTypeMismatch, SequenceGap, StreamClosed, StreamGone, StreamNotFound
from anabranch_node.web import batch as web
from anabranch_node.web.batch import FRAMES_MAX, batch
from anabranch_node.web.request import BadRequest, Head, Request, parse

JSON = "application/json"


def framed(*payloads: bytes) -> bytes:
    return b"".join(pack(">I", len(payload)) + payload for payload in payloads)


def ask(content_type: str = "text/plain", **headers: str) -> Request:
    given_headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    if content_type:
        given_headers.append((b"content-type", content_type.encode()))
    return parse(Head(b"POST", b"/ds/bucket/s/append-batch", given_headers))


PRODUCER = {"producer_id": "p", "producer_epoch": "1", "producer_seq": "2"}


def refused(body: bytes, request: Request | None = None) -> tuple[int, str]:
    with pytest.raises(BadRequest) as caught:
        batch(request or ask(), body)
    return caught.value.reply.status, json.loads(caught.value.reply.body)["error"]["code"]


def acks(frames: list[web.Frame], result: object) -> list[dict[str, Any]]:
    reply = web.answer(frames, result)
    assert reply.status == 200 and b"Content-Type: application/json\r\n" in reply.headers
    found: list[dict[str, Any]] = json.loads(reply.body)
    return found


def test_many_frames_are_one_command() -> None:
    made, frames = batch(ask(stream_key="k", stream_timestamp="7000000"), framed(b"ab", b"c", b"def"))
    assert made == Append("bucket/s", b"abcdef", 0, None, "text/plain", pack("<3I", 2, 1, 3), key="k", timestamp_ms=7)
    assert acks(frames, Appended(10, 16)) == [
        {"status": 204, "stream_next_offset": 12},
        {"status": 204, "stream_next_offset": 13},
        {"status": 204, "stream_next_offset": 16},
    ]
    assert batch(ask(), framed(b"x")).append == Append("bucket/s", b"x", 0, content_type="text/plain")


@pytest.mark.parametrize("body", [b"", b"\0", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\2a", framed(b"a") + b"\0", b"\xff\xff\xff\xffa"])
def test_bad_framing_refuses_the_whole(body: bytes) -> None:
    assert refused(body) == (400, "bad_framing")


def test_limits() -> None:
    assert len(batch(ask(), framed(*[b"x"] * FRAMES_MAX)).frames) == FRAMES_MAX == 512
    assert refused(framed(*[b"x"] * (FRAMES_MAX + 1))) == (413, "too_many_frames")
    many = b"[" + b",".join([b"1"] * 40_000) + b"]"
    assert refused(framed(many, many), ask(JSON)) == (413, "too_many_messages")


def test_what_a_batch_does_not_take() -> None:
    assert refused(framed(b"x"), ask("")) == (400, "content_type_required")
    for name, value in [("stream_closed", "true"), ("stream_closed", "false"), ("stream_seq", "1")]:
        with pytest.raises(BadRequest) as caught:
            ask(**{name: value})
        assert caught.value.reply.status == 400 and b"unsupported_header" in caught.value.reply.body


def test_refused_frames_are_reported_and_the_others_appended() -> None:
    made, frames = batch(ask(), framed(b"", b"ab", b"", b"c"))
    assert made is not None and made.body == b"abc" and unpack("<2I", made.lengths) == (2, 1)
    found = acks(frames, Appended(0, 3))
    assert [ack["status"] for ack in found] == [400, 204, 400, 204]
    assert found[0] == {"status": 400, "error_code": "empty_body", "error": "a frame needs at least one byte"}
    assert found[1] == {"status": 204, "stream_next_offset": 2} and found[3] == {"status": 204, "stream_next_offset": 3}
    nothing, frames = batch(ask(), framed(b""))
    assert nothing is None and [ack["status"] for ack in acks(frames, None)] == [400]


def test_json_frames() -> None:
    made, frames = batch(ask(JSON), framed(b'{"a" : 1.0}', b"[1, [2]]", b"{", b"[]", b"", b" 3 "))
    assert made is not None and made.body == b'{"a" : 1.0},1,[2],3,' and unpack("<4I", made.lengths) == (12, 2, 4, 2)
    found = acks(frames, Appended(5, 25))
    assert [(ack["status"], ack.get("stream_next_offset"), ack.get("error_code")) for ack in found] == [
        (204, 17, None),
        (204, 23, None),  # behind the last of its messages
        (400, None, "bad_json"),
        (400, None, "empty_array"),
        (400, None, "empty_body"),
        (204, 25, None),
    ]


@pytest.mark.parametrize(("bad", "code"), [(b"", "empty_body"), (b"{", "bad_json"), (b"[]", "empty_array")])
def test_with_a_producer_it_is_all_or_nothing(bad: bytes, code: str) -> None:
    assert refused(framed(b"1", bad, b"2"), ask(JSON, **PRODUCER)) == (400, code)
    made = batch(ask(JSON, **PRODUCER), framed(b"1", b"2")).append
    assert made is not None and made.producer == Producer("p", 1, 2)


def test_acks_of_a_producer() -> None:
    frames = batch(ask(**PRODUCER), framed(b"ab", b"c")).frames
    reply = web.answer(frames, Appended(0, 3, producer=True, epoch=1, seq=2))
    assert (
        reply.status == 200
        and b"Producer-Epoch: 1\r\nProducer-Seq: 2\r\n" in reply.headers
        and b"Stream-Next-Offset: 00000000000000000003" in reply.headers
    )
    # Repeated: as the first time.
    again = web.answer(frames, Appended(0, 3, duplicate=True, producer=True, epoch=1, seq=2))
    assert again == reply
    # Older than the last: its offsets are not kept any more, nor those of another batch with the same tuple.
    for result in (Appended(9, 9, duplicate=True, producer=True), Appended(2, 9, duplicate=True, producer=True)):
        assert acks(frames, result) == [{"status": 204, "stream_next_offset": 9}] * 2
    assert acks(frames, Appended(0, 3, duplicate=True, producer=True, closed=True))[0]["stream_closed"] is True


def test_a_closed_stream_is_told_to_each_frame() -> None:
    frames = batch(ask(), framed(b"ab", b"", b"c")).frames
    closed = {"status": 409, "stream_next_offset": 7, "stream_closed": True, "error_code": "stream_closed", "error": "the stream is closed at 7"}
    assert [acks(frames, StreamClosed(7))[index] for index in (0, 2)] == [closed] * 2
    assert acks(frames, StreamClosed(7))[1]["status"] == 400


@pytest.mark.parametrize(
    ("result", "status"), [(StreamNotFound("x"), 404), (StreamGone("x"), 410), (ContentTypeMismatch("a/b"), 409), (SequenceGap(0, 2), 409)]
)
def test_what_concerns_the_stream_is_answered_for_the_whole(result: object, status: int) -> None:
    assert web.answer(batch(ask(), framed(b"x")).frames, result).status == status


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=20), st.integers(0, 1 << 40))
def test_an_ack_says_what_one_append_after_the_other_would_have(payloads: list[bytes], start: int) -> None:
    made, frames = batch(ask(), framed(*payloads))
    size = 0 if made is None else len(made.body)
    tail, expected = start, []
    for payload in payloads:
        tail += len(payload)
        expected.append(tail if payload else None)
    found = acks(frames, Appended(start, start + size) if made is not None else None)
    assert [ack.get("stream_next_offset") for ack in found] == expected


@given(st.binary(max_size=30))
def test_nothing_hostile_raises_anything_else(body: bytes) -> None:
    for request in (ask(), ask(JSON)):
        try:
            made, frames = batch(request, body)
        except BadRequest as bad:
            status = bad.reply.status
        else:
            status = web.answer(frames, StreamNotFound("x") if made is not None else None).status
            assert (made is None) == all(frame.code for frame in frames)
        assert status in (200, 400, 404, 413)

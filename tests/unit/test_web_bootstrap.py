"""A bootstrap, step by step: which questions it asks, which bytes it sends, and what it does when the stream changes under it."""

from struct import pack
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.errors import ReadUnavailable
from anabranch_node.core.stream.queries import Head as HeadQuery
from anabranch_node.core.stream.queries import ReadMessages, ReadSnapshot
from anabranch_node.core.stream.results import (
    MessageSlice,
    NoSnapshot,
    OffsetBeyondTail,
    SnapshotBlob,
    StreamGone,
    StreamInfo,
    StreamNotFound,
    Trimmed,
)
from anabranch_node.service.bootstrap import LOOKS_MAX, PIECE_BYTES, Ask, Bootstrap, CutOff, Refuse, Send
from anabranch_node.web.bootstrap import boundary_of
from anabranch_node.web.request import BadRequest, Head, Request, parse
from tests.unit.multipart import Part, Torn, bootstrapped

BOUNDARY = boundary_of(0xA1, 1, 1)


def ask(target: str = "/ds/bucket/s/bootstrap") -> Request:
    return parse(Head(b"GET", target.encode(), [(b"x-request-id", b"r-1")]))


def info(tail: int, earliest: int = 0, snapshot: int = -1, content_type: str = "text/plain", incarnation: int = 5) -> StreamInfo:
    return StreamInfo(incarnation, content_type, tail, earliest, False, None, "", False, snapshot)


def slice_of(start: int, *messages: bytes, tail: int, incarnation: int = 5) -> MessageSlice:
    data = b"".join(messages)
    end = start + len(data)
    return MessageSlice(start, end, data, pack(f"<{len(messages)}I", *map(len, messages)), incarnation, end == tail, "text/plain", tail=tail)


def begun(it: Bootstrap, *results: object) -> None:
    for result in results:
        assert type(it.step(result)) is Ask


def test_without_a_snapshot_an_empty_first_part() -> None:
    it = Bootstrap(ask(), BOUNDARY)
    assert it.query() == HeadQuery("bucket/s")
    begun(it, info(5, earliest=2))
    assert it.query() == ReadMessages("bucket/s", 2, PIECE_BYTES, 5, 5)
    step = it.step(slice_of(2, b"ab", b"c", tail=5))
    assert type(step) is Send and step.first and step.last and step.stream_bytes == 3
    found = bootstrapped(step.data + it.closing())
    assert found.status == 200 and found.parts == [Part("application/octet-stream", b""), Part("text/plain", b"ab"), Part("text/plain", b"c")]
    assert found.headers["stream-snapshot-offset"] == "-1" and found.headers["stream-next-offset"] == "00000000000000000005"
    assert found.headers["stream-up-to-date"] == "true" and found.headers["cache-control"] == "no-store" and found.headers["x-request-id"] == "r-1"


def test_with_a_snapshot() -> None:
    it = Bootstrap(ask(), BOUNDARY)
    begun(it, info(9, 4, 4))
    assert it.query() == ReadSnapshot("bucket/s", 4, True)
    begun(it, SnapshotBlob(4, "image/x", b"\r\n--fold", 9, False, 5))
    assert it.query() == ReadMessages("bucket/s", 4, PIECE_BYTES, 5, 9)
    step = it.step(slice_of(4, b"hello", tail=9))
    assert type(step) is Send and step.last
    found = bootstrapped(step.data + it.closing())
    assert found.parts == [Part("image/x", b"\r\n--fold"), Part("text/plain", b"hello")]
    assert found.headers["stream-snapshot-offset"] == "00000000000000000004"


def test_of_an_empty_stream() -> None:
    it = Bootstrap(ask(), BOUNDARY)
    begun(it, info(0))
    step = it.step(slice_of(0, tail=0))
    assert type(step) is Send and step.last
    assert bootstrapped(step.data + it.closing()).parts == [Part("application/octet-stream", b"")]


def test_json_messages_are_their_own_bytes() -> None:
    it = Bootstrap(ask(), BOUNDARY)
    begun(it, info(12, content_type="application/json"))
    step = it.step(slice_of(0, b'{"a": 1},', b"[],", tail=12))
    assert type(step) is Send
    assert [part.body for part in bootstrapped(step.data + it.closing()).parts] == [b"", b'{"a": 1}', b"[]"]


def test_one_piece_after_the_other_up_to_the_first_tail() -> None:
    it = Bootstrap(ask(), BOUNDARY)
    begun(it, info(6))
    first = it.step(slice_of(0, b"ab", tail=6))
    assert type(first) is Send and first.first and not first.last
    assert it.query() == ReadMessages("bucket/s", 2, PIECE_BYTES, 5, 6)
    second = it.step(slice_of(2, b"cd", tail=100))  # what was appended meanwhile is not asked for
    assert type(second) is Send and not second.first and not second.last
    third = it.step(slice_of(4, b"ef", tail=100))
    assert type(third) is Send and third.last
    with pytest.raises(Torn):
        bootstrapped(first.data + second.data + third.data)
    found = bootstrapped(first.data + second.data + third.data + it.closing())
    assert [part.body for part in found.parts] == [b"", b"ab", b"cd", b"ef"]
    assert found.headers["stream-next-offset"] == "00000000000000000006"


@pytest.mark.parametrize(
    "result",
    [
        Trimmed(4),
        StreamNotFound("bucket/s"),
        StreamGone("bucket/s"),
        ReadUnavailable(),
        OffsetBeyondTail(2, 1),
        slice_of(2, b"x", tail=6, incarnation=6),  # another stream of that name
        slice_of(3, b"x", tail=6),
        slice_of(2, tail=6),  # no progress: it would never end
        slice_of(2, b"abcdef", tail=8),
    ],
)
def test_what_cannot_go_on_is_cut_off(result: object) -> None:
    it = Bootstrap(ask(), BOUNDARY)
    begun(it, info(6))
    assert type(it.step(slice_of(0, b"ab", tail=6))) is Send
    assert type(it.step(result)) is CutOff


@pytest.mark.parametrize("result", [StreamNotFound("bucket/s"), StreamGone("bucket/s"), ReadUnavailable()])
def test_refusals_of_the_first_look(result: object) -> None:
    assert Bootstrap(ask(), BOUNDARY).step(result) == Refuse(result)


def test_before_the_first_byte_a_changed_stream_means_another_look() -> None:
    it = Bootstrap(ask(), BOUNDARY)
    begun(it, info(9, 4, 4), NoSnapshot())  # a later one was published meanwhile
    assert it.query() == HeadQuery("bucket/s")
    begun(it, info(9, 6, 6), SnapshotBlob(6, "a/b", b"other", 9, False, 6))  # of another incarnation
    assert it.query() == HeadQuery("bucket/s")
    begun(it, info(9, 6), Trimmed(8))
    assert it.query() == HeadQuery("bucket/s")
    begun(it, info(9, 8, 8), SnapshotBlob(8, "a/b", b"fold", 9, False, 5))
    step = it.step(slice_of(8, b"x", tail=9))
    assert type(step) is Send and [part.body for part in bootstrapped(step.data + it.closing()).parts] == [b"fold", b"x"]


def test_a_stream_that_always_changes_is_given_up() -> None:
    it = Bootstrap(ask(), BOUNDARY)
    for _ in range(LOOKS_MAX - 1):
        begun(it, info(9, 4), Trimmed(8))
    begun(it, info(9, 4))
    assert it.step(Trimmed(8)) == Refuse(ReadUnavailable())


@pytest.mark.parametrize("query", ["live=sse", "live=long-poll", "live=", "live", "live=no&offset=-1"])
def test_a_bootstrap_is_never_live(query: str) -> None:
    with pytest.raises(BadRequest) as caught:
        ask(f"/v1/stream/s/bootstrap?{query}")
    assert caught.value.reply.status == 400
    assert ask("/v1/stream/s/bootstrap?offset=now&other=1").stream == "_default/s"


def test_boundaries_differ_by_all_that_makes_a_request_one() -> None:
    made = {boundary_of(incarnation, boot, token) for incarnation in (1, 2) for boot in (1, 2) for token in (1, 2)}
    assert len(made) == 8 and all(len(boundary) == 32 for boundary in made)


messages = st.lists(st.binary(max_size=8) | st.sampled_from([b"\r\n--", b"--\r\n", b"\r\n", b"\r\n\r\n", b"0\r\n\r\n"]), max_size=8)


@given(st.lists(messages.filter(bool), min_size=1, max_size=4))
def test_every_message_is_one_part_byte_for_byte(pieces: list[list[bytes]]) -> None:
    pieces = [[message or b"x" for message in piece] for piece in pieces]
    tail = sum(len(message) for piece in pieces for message in piece)
    it = Bootstrap(ask(), BOUNDARY)
    begun(it, info(tail))
    sent, at = b"", 0
    for piece in pieces:
        step = it.step(slice_of(at, *piece, tail=tail))
        assert type(step) is Send
        sent += step.data
        at += sum(map(len, piece))
    assert [part.body for part in bootstrapped(sent + it.closing()).parts] == [b"", *[message for piece in pieces for message in piece]]


def test_rendering_is_cheap() -> None:
    """100,000 messages of 256 bytes at 50 MB per CPU-second or more; ten times slower than it is fails."""
    count = 1_000
    piece = slice_of(0, *[b"m" * 256] * count, tail=1 << 40)
    it = Bootstrap(ask(), BOUNDARY)
    begun(it, info(1 << 40))
    assert type(it.step(piece)) is Send
    started, size = process_time(), 0
    for number in range(1, 100):
        start = number * len(piece.data)
        step = it.step(MessageSlice(start, start + len(piece.data), piece.data, piece.lengths, 5, False, "text/plain", tail=1 << 40))
        assert type(step) is Send
        size += step.stream_bytes
    assert size / (process_time() - started) > 50e6

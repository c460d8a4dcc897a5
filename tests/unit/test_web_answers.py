"""Results as responses, JSON splitting, and the table of errors, which must be complete."""

import json
from struct import unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core import errors as core_errors
from anabranch_node.core.errors import Failure, NotLeading, OutcomeUnknown, TooLarge
from anabranch_node.core.stream.commands import Append, Create, Delete
from anabranch_node.core.stream.queries import NOW, ReadAt
from anabranch_node.core.stream.results import (
    Appended,
    Created,
    Deleted,
    ReadSlice,
    Refusal,
    SequenceGap,
    StaleEpoch,
    StreamClosed,
    StreamInfo,
    StreamNotFound,
    StreamPage,
)
from anabranch_node.web import errors, read, write
from anabranch_node.web.reply import Reply, error, render
from anabranch_node.web.request import BadRequest, Head, Kind, Request, parse
from anabranch_node.web.write import split_json

JSON = "application/json"


def subclasses(kind: type) -> set[type]:
    return {kind for sub in kind.__subclasses__() for kind in {sub} | subclasses(sub)}


def test_the_table_of_errors_is_complete() -> None:
    assert core_errors
    assert subclasses(Failure) | subclasses(Refusal) == set(errors.ANSWERS)
    for row in errors.ANSWERS.values():
        assert (row.retry_after_s is not None) == (row.status in (429, 503))


def test_errors_carry_what_a_client_needs() -> None:
    assert errors.answer(StaleEpoch(3, 2)).headers.endswith(b"Producer-Epoch: 3\r\n") and errors.answer(StaleEpoch(3, 2)).status == 403
    assert b"Producer-Expected-Seq: 1\r\nProducer-Received-Seq: 5\r\n" in errors.answer(SequenceGap(1, 5)).headers
    closed = errors.answer(StreamClosed(7))
    assert closed.status == 409 and b"Stream-Closed: true\r\nStream-Next-Offset: 00000000000000000007\r\n" in closed.headers
    assert b"Retry-After: 1\r\n" in errors.answer(NotLeading(0)).headers
    assert json.loads(errors.answer(OutcomeUnknown("x")).body)["error"]["code"] == "outcome_unknown"
    assert errors.answer(TooLarge(1)).status == 413
    assert errors.answer(object()).status == 500
    hostile = errors.answer(StreamNotFound('b/"\r\n<script>'))
    assert json.loads(hostile.body)["error"]["message"] == 'stream b/"\r\n<script> does not exist'


def test_rendering() -> None:
    text = render(Reply(204, b"A: b\r\n"), keep_alive=True)
    assert text.startswith(b"HTTP/1.1 204 No Content\r\n") and text.endswith(b"\r\nA: b\r\n\r\n") and b"Content-Length" not in text
    text = render(error(404, "c", "m"), keep_alive=False, request_id="r-1")
    assert b"Connection: close\r\n" in text and b"X-Request-Id: r-1\r\n" in text and b"nosniff" in text and text.endswith(b'"message":"m"}}')
    head = render(error(404, "c", "m"), keep_alive=True, head_only=True)
    assert head.endswith(b"\r\n\r\n") and b"Content-Length: 36\r\n" in head
    assert b"Content-Length: 0\r\n" in render(Reply(200, b""), keep_alive=True)


def append(**more: object) -> Request:
    return Request(Kind.APPEND, "_default/x", "/v1/stream/x", **more)  # type: ignore[arg-type]


def test_append_commands() -> None:
    assert write.command(append(content_type="text/plain"), b"hi") == Append("_default/x", b"hi", 0, content_type="text/plain")
    made = write.command(append(content_type=JSON), b' [1, {"a" : 0.10} ,[2]] ')
    assert isinstance(made, Append) and made.body == b'1,{"a" : 0.10},[2],' and unpack("<3I", made.lengths) == (2, 13, 4)
    assert write.command(append(content_type=JSON), b" 7 ") == Append("_default/x", b"7,", 0, content_type=JSON)
    assert write.command(append(closed=True, content_type="a/b"), b"") == Append("_default/x", b"", 0, close=True)
    for request, body in [(append(content_type="a/b"), b""), (append(), b"x"), (append(content_type=JSON), b"[]"), (append(content_type=JSON), b"{")]:
        with pytest.raises(BadRequest) as caught:
            write.command(request, body)
        assert caught.value.reply.status == 400


def test_create_and_delete_commands() -> None:
    made = write.command(Request(Kind.CREATE, "_default/x", content_type=JSON, closed=True), b"[]")
    assert made == Create("_default/x", JSON, 0, closed=True)
    assert write.command(Request(Kind.DELETE, "_default/x"), b"") == Delete("_default/x", 0)


def test_write_answers() -> None:
    request = Request(Kind.CREATE, "_default/x", "/v1/stream/x", "a/b", http_host="h:1")
    made = write.answer(request, Created(0, False, True))
    assert made.status == 201 and b"Location: http://h:1/v1/stream/x\r\n" in made.headers and b"Stream-Closed: true" in made.headers
    assert write.answer(request, Created(0, True)) == Reply(200, b"Content-Type: a/b\r\nStream-Next-Offset: 00000000000000000000\r\n")
    assert write.answer(append(), Appended(0, 5)) == Reply(204, b"Stream-Next-Offset: 00000000000000000005\r\n")
    produced = write.answer(append(), Appended(0, 5, producer=True, epoch=1, seq=2))
    assert produced.status == 200 and produced.headers.endswith(b"Producer-Epoch: 1\r\nProducer-Seq: 2\r\n")
    assert write.answer(append(), Appended(0, 5, duplicate=True, producer=True)).status == 204
    assert write.answer(append(), Appended(5, 5, producer=True, closed=True)).status == 204
    assert write.answer(append(), Deleted(1)) == Reply(204, b"")
    assert write.answer(append(), StreamNotFound("x")).status == 404


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[01]", b"[1]x", b"NaN", b'"\n"', b"\xef\xbb\xbf1", b'"\xff"', b"[" * 9999 + b"]" * 9999, b"[1,]", "1".encode("utf-16")]
)
def test_bad_json(body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        split_json(body)
    assert caught.value.reply.status == 400


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3),
)


@given(st.lists(values, max_size=4), st.booleans(), st.sampled_from([None, 1]))
def test_json_messages_keep_their_values(items: list[object], ascii_only: bool, indent: int | None) -> None:
    messages = split_json(json.dumps(items, ensure_ascii=ascii_only, indent=indent).encode())
    assert [json.loads(message) for message in messages] == items


def get(query: str = "", **headers: str) -> Request:
    return parse(Head(b"GET", b"/v1/stream/x" + query.encode(), [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]))


def test_reads() -> None:
    assert read.query(get("?max_bytes=10"), 100) == ReadAt("_default/x", -1, 10)
    assert read.query(get("?max_bytes=1000"), 100) == ReadAt("_default/x", -1, 100)
    found = read.answer(get(), ReadSlice(0, 2, b"hi", True, 255, "text/plain"), 0)
    assert found.status == 200 and found.body == b"hi"
    assert b'ETag: "ff-0-2"\r\n' in found.headers and b"Stream-Up-To-Date: true" in found.headers and b"Stream-Closed" not in found.headers
    part = read.answer(get(), ReadSlice(0, 2, b"hi", False, 255, "text/plain"), 0)
    assert b"Up-To-Date" not in part.headers and b"max-age" in part.headers
    closed = read.answer(get(), ReadSlice(2, 2, b"", True, 255, "text/plain", True), 0)
    assert closed.status == 200 and b'ETag: "ff-2-2:c"' in closed.headers and b"Stream-Closed: true" in closed.headers
    now = read.answer(get("?offset=now"), ReadSlice(2, 2, b"", True, 255, JSON), 0)
    assert now.body == b"[]" and b"no-store" in now.headers and b"ETag" not in now.headers and get("?offset=now").offset == NOW
    assert read.answer(get(), ReadSlice(0, 4, b"1,2,", True, 1, "Application/JSON; charset=utf-8"), 0).body == b"[1,2]"
    assert b"attachment" in read.answer(get(), ReadSlice(0, 1, b"x", True, 1, "text/html"), 0).headers
    assert b"sandbox" in read.answer(get(), ReadSlice(0, 1, b"x", True, 1, "image/svg+xml"), 0).headers


@pytest.mark.parametrize(
    ("given_tags", "status"), [('"ff-0-2"', 304), ('W/"ff-0-2"', 304), ('"a", "ff-0-2"', 304), ("*", 304), ('"ff-0-2:c"', 200), ("ff-0-2", 200)]
)
def test_if_none_match(given_tags: str, status: int) -> None:
    found = read.answer(get(if_none_match=given_tags), ReadSlice(0, 2, b"hi", True, 255, "text/plain"), 0)
    assert found.status == status and (status == 200 or not found.body)


def test_long_polls() -> None:
    request = get("?offset=now&live=long-poll")
    over = read.answer(request, ReadSlice(2, 2, b"", True, 1, "a/b", True), 1_728_432_040_000)
    assert over.status == 204 and b"Stream-Closed: true" in over.headers and b"Stream-Cursor: 2\r\n" in over.headers
    data = read.answer(request, ReadSlice(2, 3, b"x", True, 1, "a/b"), 1_728_432_040_000)
    assert data.status == 200 and b"Stream-Cursor: 2\r\n" in data.headers


def test_head_listing_and_preflight() -> None:
    told = read.answer(Request(Kind.HEAD), StreamInfo(1, "a/b", 5, 0, True, 60, "", False), 0)
    assert told.status == 200 and b"Stream-TTL: 60\r\n" in told.headers and b"no-store" in told.headers
    page = json.loads(read.answer(Request(Kind.LIST), StreamPage(["_default/a b", "bucket/c"], True), 0).body)
    assert [item["path"] for item in page["streams"]] == ["/v1/stream/a%20b", "/v1/stream/bucket/c"] and page["after"] == "bucket/c"
    with pytest.raises(BadRequest) as caught:
        read.query(Request(Kind.PREFLIGHT), 1)
    assert caught.value.reply.status == 204 and b"If-None-Match" in caught.value.reply.headers

"""Results as responses, JSON splitting, and the table of errors, which must be complete."""

import json
from struct import pack, unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core import errors as core_errors
from anabranch_node.core.errors import Failure, NotLeading, OutcomeUnknown, TooLarge
from anabranch_node.core.stream.commands import Append, Create, Delete
from anabranch_node.core.stream.queries import NOW, ReadAt, ReadMessages
from anabranch_node.core.stream.results import (
    Appended,
    BucketUnknown,
    Created,
    Deleted,
    MessageSlice,
    NameHeld,
    ReadSlice,
    Refusal,
    SequenceGap,
    StaleEpoch,
    StreamClosed,
    StreamGone,
    StreamInfo,
    StreamNotFound,
    StreamPage,
    StreamRow,
    Trimmed,
)
from anabranch_node.web import errors, read, write
from anabranch_node.web.reply import PREFLIGHT, Reply, error, render
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


def test_the_limits_of_json() -> None:
    assert split_json(b"1" * 4300) == [b"1" * 4300]
    assert split_json(b"[" * 900 + b"]" * 900)
    for body in (b"1" * 4301, b"1e400", b'"\\ud800"', b"[" * 1500 + b"]" * 1500):
        with pytest.raises(BadRequest):
            split_json(body)


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


def test_reads_tell_the_tail() -> None:
    found = read.answer(get(), ReadSlice(0, 2, b"hi", False, 255, "text/plain", tail=9), 0)
    assert b"Stream-Next-Offset: 00000000000000000002\r\nStream-End-Offset: 00000000000000000009\r\n" in found.headers
    over = read.nothing_new(get("?offset=now&live=long-poll"), ReadSlice(9, 9, b"", True, 1, "a/b", tail=9), 0)
    assert b"Stream-End-Offset: 00000000000000000009\r\n" in over.headers
    # A node of the version before ours does not know the field.
    assert b"Stream-End-Offset: 00000000000000000002\r\n" in read.answer(get(), ReadSlice(0, 2, b"hi", True, 255, "text/plain"), 0).headers


def test_head_tells_what_is_kept() -> None:
    told = read.answer(Request(Kind.HEAD), StreamInfo(1, "a/b", 9, 4, False, None, "", False, 4, 1000, 60), 0).headers
    for line in [b"Stream-Earliest-Offset: %020d" % 4, b"Stream-End-Offset: %020d" % 9, b"Stream-Snapshot-Offset: %020d" % 4]:
        assert line + b"\r\n" in told
    assert b"Stream-Retention-Bytes: 1000\r\n" in told and b"Stream-Retention-Age: 60\r\n" in told
    plain = read.answer(Request(Kind.HEAD), StreamInfo(1, "a/b", 9, 0, False, None, "", False), 0).headers
    assert b"Stream-Earliest-Offset: %020d\r\n" % 0 in plain and b"Snapshot" not in plain and b"Retention" not in plain


def test_what_is_trimmed_names_the_earliest_offset() -> None:
    gone = errors.answer(Trimmed(42))
    assert gone.status == 410 and b"Stream-Earliest-Offset: 00000000000000000042\r\n" in gone.headers
    assert errors.answer(StreamGone("b/s")).status == 410 and errors.answer(NameHeld("b/s")).status == 409
    assert json.loads(errors.answer(BucketUnknown("b")).body)["error"]["code"] == "bucket_not_found"


def test_reads_by_key() -> None:
    asked = read.query(get("?key=k&max_bytes=10&offset=00000000000000000003"), 100)
    assert asked == ReadAt("_default/x", 3, 10, "k")
    assert read.query(get("?since=7000000"), 100) == ReadAt("_default/x", -1, 100, None, 7)
    # Nothing matched in what was looked at: the offset advances over it.
    nothing = read.answer(get("?key=k"), ReadSlice(0, 50, b"", False, 1, JSON, tail=99), 0)
    assert nothing.status == 200 and nothing.body == b"[]" and b"Stream-Next-Offset: 00000000000000000050" in nothing.headers
    polled = read.answer(get("?key=k&offset=-1&live=long-poll"), ReadSlice(0, 50, b"", False, 1, "a/b", tail=99), 0)
    assert polled.status == 200 and polled.body == b"" and b"Up-To-Date" not in polled.headers


def test_tags_differ_by_key_and_format() -> None:
    found = ReadSlice(0, 2, b"1,", True, 1, JSON, tail=2)
    raw = MessageSlice(0, 2, b"1,", pack("<I", 2), 1, True, JSON, tail=2)
    tags = [
        read.answer(get(query), raw if "raw" in query else found, 0).headers.partition(b"ETag: ")[2].partition(b"\r\n")[0]
        for query in ["", "?key=a", "?key=b", "?key=%22,%20%22", "?format=raw", "?key=a&format=raw"]
    ]
    assert len(set(tags)) == len(tags) and all(tag.count(b'"') == 2 and b"," not in tag for tag in tags)
    assert read.answer(get("?format=json"), found, 0).headers.partition(b"ETag: ")[2].startswith(tags[0])  # the same bytes
    again = get("?key=a", if_none_match=tags[1].decode())
    assert read.answer(again, found, 0).status == 304
    assert read.answer(get("?key=b", if_none_match=tags[1].decode()), found, 0).status == 200


def test_formats() -> None:
    request = get("?format=raw&key=k&max_bytes=7&offset=00000000000000000003")
    assert read.query(request, 100) == ReadMessages("_default/x", 3, 7, key="k")
    own = read.answer(request, MessageSlice(3, 15, b'{"a": 1},[],', pack("<2I", 9, 3), 1, True, JSON, tail=15), 0)
    assert own.body == b'{"a": 1}[]' and b"Content-Type: application/octet-stream\r\n" in own.headers
    plain = read.answer(request, MessageSlice(3, 6, b"a,,", pack("<2I", 2, 1), 1, False, "text/html", tail=14), 0)
    assert plain.body == b"a,," and b"Content-Type: application/octet-stream\r\n" in plain.headers
    assert read.answer(get("?format=json"), ReadSlice(0, 2, b"1,", True, 1, JSON, tail=2), 0).status == 200
    refused = read.answer(get("?format=json"), ReadSlice(0, 2, b"hi", True, 1, "text/plain", tail=2), 0)
    assert refused.status == 400 and json.loads(refused.body)["error"]["code"] == "bad_format"


def test_new_headers_are_shown_to_other_origins() -> None:
    text = render(Reply(204, b""), keep_alive=True)
    for name in [b"Stream-Earliest-Offset", b"Stream-Snapshot-Offset", b"Stream-End-Offset", b"Stream-Retention-Bytes", b"Stream-Retention-Age"]:
        assert name in text
    for name in [b"Stream-Forked-From", b"Stream-Retention-Age", b"Stream-Fork-Sub-Offset"]:
        assert name in PREFLIGHT.headers


def test_a_listing_by_row_is_an_array_of_descriptors() -> None:
    page = StreamPage(
        ["_default/a b", "bucket/c"], False, [StreamRow("a/b", 3, False, 1_767_225_600_500, 0), StreamRow("a/b", 0, False, 0, 0, "2100")]
    )
    first, second = json.loads(read.answer(Request(Kind.LIST, row=0), page, 0).body)
    assert first == {
        "name": "a b",
        "path": "/v1/stream/a%20b",
        "content_type": "a/b",
        "created_at": "2026-01-01T00:00:00.500Z",
        "expires_at": None,
        "next_offset": "3",
        "epoch": 0,
        "sealed_through": "-1",
        "uploaded_through": "-1",
        "profile": "generic",
    }
    assert (second["name"], second["expires_at"]) == ("bucket/c", "2100")
    assert json.loads(read.answer(Request(Kind.LIST, row=1), page, 0).body) == [second]
    assert json.loads(read.answer(Request(Kind.LIST, row=2), page, 0).body) == []

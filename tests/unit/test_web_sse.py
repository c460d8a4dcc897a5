"""What a conforming reader of server-sent events gets is what was sent."""

import base64
import json
import re

from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.stream.results import ReadSlice
from anabranch_node.web import sse
from anabranch_node.web.request import Kind, Request


def unchunk(raw: bytes) -> bytes:
    size, _, rest = raw.partition(b"\r\n")
    assert rest[int(size, 16) :] == b"\r\n"
    return rest[: int(size, 16)]


def events(raw: bytes) -> list[tuple[str, str]]:
    """The parsing rules of the HTML standard."""
    found, kind, data = [], "", []
    for line in re.split(r"\r\n|\r|\n", unchunk(raw).decode()):
        if not line:
            if data:
                found.append((kind, "\n".join(data)))
            kind, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        else:
            assert field == "event"
            kind = value
    return found


@given(st.text(alphabet=st.sampled_from("a \r\n:é{") | st.characters(exclude_categories=["Cs"]), min_size=1))
def test_text_arrives_as_it_was_sent(text: str) -> None:
    data, control = events(sse.event(ReadSlice(0, 9, text.encode(), True, 1, "text/plain"), "5"))
    assert data == ("data", re.sub(r"\r\n|\r|\n", "\n", text))
    assert control[0] == "control"
    assert json.loads(control[1]) == {"streamNextOffset": f"{9:020d}", "streamCursor": "5", "upToDate": True}


@given(st.binary(min_size=1))
def test_bytes_arrive_as_base64(payload: bytes) -> None:
    data, _ = events(sse.event(ReadSlice(0, 9, payload, False, 1, "image/png"), "5"))
    assert base64.b64decode(data[1]) == payload
    events(sse.event(ReadSlice(0, 9, payload, False, 1, "text/plain"), "5"))  # whatever it holds, the event stream stays UTF-8


def test_json_and_control_events() -> None:
    data, control = events(sse.event(ReadSlice(0, 9, b'{"a":\r\n 1},2,', False, 1, "application/json"), "5"))
    assert json.loads(data[1]) == [{"a": 1}, 2] and "upToDate" not in json.loads(control[1])
    (last,) = events(sse.event(ReadSlice(9, 9, b"", True, 1, "application/json", True), "5"))
    assert json.loads(last[1]) == {"streamNextOffset": f"{9:020d}", "streamClosed": True}
    assert unchunk(sse.KEEP_ALIVE) == b":\n\n"


def test_head() -> None:
    text = sse.head(Request(Kind.READ), ReadSlice(0, 0, b"", True, 1, "text/plain"), 0)
    assert (
        b"text/event-stream" in text
        and b"no-cache" in text
        and b"base64" not in text
        and text.endswith(b"\r\n\r\n")
        and b"Content-Length" not in text
    )
    assert b"Stream-SSE-Data-Encoding: base64" in sse.head(Request(Kind.READ), ReadSlice(0, 0, b"", True, 1, "a/b"), 0)


def test_cursors() -> None:
    now_ms = sse.CURSOR_EPOCH_MS + 100 * sse.CURSOR_INTERVAL_MS
    assert sse.cursor_for("", now_ms) == sse.cursor_for("99", now_ms) == "100"
    for theirs in (100, 101, 9_999_999_999_999_999):
        answer = int(sse.cursor_for(str(theirs), now_ms, "s"))
        assert theirs < answer <= theirs + sse.JITTER_INTERVALS_MAX
        assert sse.cursor_for(str(theirs), now_ms, "s") == str(answer)

"""Routing keys and append times as additions to every read: Stream-Key, key=, /pk/{key}, since=, Stream-Timestamp, Stream-End-Offset, format=,
timeout=."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.conformance.extensions.at_once import at_once
from tests.conformance.extensions.client import Streams, looks, offset
from tests.conformance.extensions.events import Events

DAY_1, DAY_2, DAY_3 = "2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z", "2020-01-03T00:00:00.500Z"


def keyed(http: Streams, path: str, *pairs: tuple[str, object]) -> str:
    tail = ""
    for key, value in pairs:
        tail = http.append_json(path, value, headers={"Stream-Key": key} if key else {})
    return tail


@pytest.fixture
def mixed(http: Streams, stream: str) -> str:
    http.create(stream, "application/json")
    keyed(http, stream, ("a", 1), ("b", 2), ("", 3), ("a", 4), ("A", 5), ("a b", 6), ("ab", 7), ("a", 8), ("b", 9))
    return stream


@pytest.fixture
def timed(http: Streams, stream: str) -> str:
    """Three days, one message each; the middle one has a key."""
    http.create(stream, "application/json")
    http.append_json(stream, 1, headers={"Stream-Timestamp": DAY_1})
    http.append_json(stream, 2, headers={"Stream-Timestamp": DAY_2, "Stream-Key": "k"})
    http.append_json(stream, 3, headers={"Stream-Timestamp": DAY_3})
    return stream


def nanos(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000


# --- keys -----------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "wanted"), [("a", [1, 4, 8]), ("b", [2, 9]), ("A", [5]), ("ab", [7]), ("a b", [6]), ("c", []), ("a ", [])])
def test_key_is_exact(http: Streams, mixed: str, key: str, wanted: list[int]) -> None:
    """prisma-streams-http.txt 8.4: "`key=<k>` or `/pk/<k>` selects only entries whose routing key equals <k>."; "Key-filtering is exact\""""
    assert http.read_json(mixed, key=key) == wanted
    assert http.read_json(mixed) == list(range(1, 10))


def test_key_on_text(http: Streams, stream: str) -> None:
    """prisma-streams-http.txt 7.1: "Exactly one entry is appended. Routing key is taken from Stream-Key if present.\""""
    http.create(stream)
    for number in range(6):
        http.append(stream, b"%d;" % number, headers={"Stream-Key": "even" if number % 2 == 0 else "odd"})
    assert http.read_bytes(stream, key="even") == b"0;2;4;"
    assert http.read_bytes(stream, key="odd", max_bytes=1) == b"1;3;5;"


def test_key_of_each_message_of_an_array(http: Streams, stream: str) -> None:
    """prisma-streams-http.txt 3.1: "Optional routing key for the appended entry (byte mode) or for each entry (JSON mode when allowed).\""""
    http.create(stream, "application/json")
    http.append_json(stream, 1, 2, 3, headers={"Stream-Key": "k"})
    http.append_json(stream, 4, 5)
    assert http.read_json(stream, key="k") == [1, 2, 3]


def test_cursor_advances_past_other_keys(http: Streams, mixed: str) -> None:
    """prisma 1.4: "key= / pk/{k}: exact; cursor advances past non-matching entries\""""
    answer = http.get(mixed, offset="-1", key="nobody").expect(200)
    assert answer.json() == []
    assert answer.up_to_date and answer.next_offset == http.tail(mixed)
    last = http.read_all(mixed, key="a")[-1]
    assert last.up_to_date and last.next_offset == http.tail(mixed)
    assert http.get(mixed, offset=last.next_offset, key="b").expect(200).json() == []


@pytest.mark.parametrize("max_bytes", [1, 3, 10, 1000])
def test_key_in_small_pieces(http: Streams, mixed: str, max_bytes: int) -> None:
    """prisma 1.4: "cursor advances past non-matching entries": piece by piece, each once"""
    assert http.read_json(mixed, key="b", max_bytes=max_bytes) == [2, 9]


@pytest.mark.parametrize("surface", ["/v1/stream/{}/s", "/ds/{}/s", "/{}/s"])
def test_key_on_every_surface(http: Streams, bucket: str, surface: str) -> None:
    """specs/README.md decisions: "`Stream-End-Offset`, `since`, `key`, `filter`, `Stream-Key`, `Stream-Timestamp` | served as additions on every
    surface\""""
    path = surface.format(bucket)
    http.create(path, "application/json")
    tail = keyed(http, path, ("a", 1), ("b", 2))
    answer = http.get(path, key="b").expect(200)
    assert answer.json() == [2]
    assert answer.headers["stream-end-offset"] == tail
    assert http.head(path).expect(200).headers["stream-end-offset"] == tail
    assert http.get(path, since="2100-01-01T00:00:00Z").expect(200).json() == []


@pytest.mark.parametrize("key", ["plain", "with space", "a/b", "50%", "a+b", "q?x=1&y", "#", "a%2Fb", "bootstrap", "snapshot", "~!$'()*,;:@"])
def test_path_form(http: Streams, stream: str, key: str) -> None:
    """prisma-streams-http.txt 4.1: "Path form (equivalent to key=): GET /v1/stream/{name}/pk/{url-escaped-key}?offset=...\""""
    http.create(stream, "application/json")
    keyed(http, stream, ("other", 1), (key, 2), ("", 3), (key, 4))
    escaped = "".join(f"%{byte:02X}" for byte in key.encode())
    answer = http.get(f"{stream}/pk/{escaped}", offset="-1").expect(200)
    assert answer.json() == [2, 4]
    assert answer.next_offset == http.tail(stream)
    assert http.get(stream, offset="-1", key=key).expect(200).json() == [2, 4]


def test_path_form_wins(http: Streams, mixed: str) -> None:
    """prisma 1.4: "pk wins over key=\""""
    assert http.get(f"{mixed}/pk/b", key="A").expect(200).json() == [2, 9]


def test_path_form_of_a_missing_stream(http: Streams, stream: str) -> None:
    """durable-streams-protocol.txt 5.6: "404 Not Found: Stream does not exist\""""
    http.get(f"{stream}/pk/k").expect(404)


def test_long_poll_with_key(http: Streams, stream: str) -> None:
    """prisma 1.4: "Live + key supported.": what others append is never delivered, and does not lose what comes behind it"""
    http.create(stream, "application/json")
    rounds = 12

    def write() -> list[int]:
        for number in range(rounds):
            keyed(http, stream, ("other", -1), ("k", number), ("", -2))
        return []

    def poll() -> list[int]:
        at, found = offset(0), []
        for _ in looks():
            answer = http.get(stream, offset=at, live="long-poll", key="k").expect(200, 204)
            assert answer.next_offset >= at
            at = answer.next_offset
            found += answer.json() if answer.status == 200 else []
            if len(found) >= rounds:
                break
        return found

    assert at_once([write, poll])[1] == list(range(rounds))


def test_events_with_key(http: Streams, stream: str) -> None:
    """prisma 1.4: "Live + key supported."; specs/README.md: "Every SSE `event: data` is followed by its own `event: control`, and each data event
    decodes alone.\""""
    http.create(stream)
    http.append(stream, b"old", headers={"Stream-Key": "k"})
    http.append(stream, b"no", headers={"Stream-Key": "other"})
    with Events(http, stream, offset="-1", key="k") as events:
        for number in range(5):
            http.append(stream, b"no", headers={"Stream-Key": "other"})
            tail = http.append(stream, b"new%d" % number, headers={"Stream-Key": "k"})
        assert "".join(events.until_offset(tail)) == "old" + "".join(f"new{number}" for number in range(5))


# --- times ----------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("since", "wanted"),
    [
        ("1970-01-01T00:00:00Z", [1, 2, 3]),
        (DAY_1, [1, 2, 3]),
        ("2020-01-01T00:00:00.001Z", [2, 3]),
        ("2020-01-01T12:00:00Z", [2, 3]),
        ("2020-01-02T01:00:00+01:00", [2, 3]),
        ("2020-01-01T23:00:00-01:00", [2, 3]),
        ("2020-01-02T00:00:00.000000000Z", [2, 3]),
        ("2020-01-03T00:00:00.499Z", [3]),
        (DAY_3, [3]),
        ("2020-01-03T00:00:00.501Z", []),
        ("2100-01-01T00:00:00Z", []),
    ],
)
def test_since(http: Streams, timed: str, since: str, wanted: list[int]) -> None:
    """prisma 1.4: "since=: only if no offset. Digits = unix **nanos**; else RFC3339. Result = first entry ... whose append time >= since, else
    tail.\""""
    for given in (since, str(nanos(since))):
        answer = http.get(timed, since=given).expect(200)
        assert answer.json() == wanted
        assert answer.up_to_date and answer.next_offset == http.tail(timed)


def test_since_with_key(http: Streams, timed: str) -> None:
    """prisma 1.4: "Result = first entry (with that key, if key=) whose append time >= since\""""
    assert http.get(timed, since=DAY_1, key="k").expect(200).json() == [2]
    assert http.get(timed, since=DAY_3, key="k").expect(200).json() == []
    assert http.get(f"{timed}/pk/k", since=DAY_2).expect(200).json() == [2]


def test_offset_wins_over_since(http: Streams, timed: str) -> None:
    """prisma-streams-http.txt 4.1: "If both offset and since are present, offset wins.\""""
    assert http.get(timed, offset="-1", since=DAY_3).expect(200).json() == [1, 2, 3]
    assert http.get(timed, offset=http.tail(timed), since=DAY_1).expect(200).json() == []


@pytest.mark.parametrize("since", ["yesterday", "2020-01-01", "2020-13-01T00:00:00Z", "-5", "1.5", "2020-01-01T00:00:00"])
def test_bad_since(http: Streams, timed: str, since: str) -> None:
    """prisma-streams-http.txt 4.1: "Seek by append time (RFC3339/RFC3339Nano or unix nanos).": anything else is 400"""
    http.get(timed, since=since).expect(400)


def test_since_in_pieces(http: Streams, timed: str) -> None:
    """prisma 1.4: since chooses the first entry; from there the offsets of the answers lead on"""
    found = http.get(timed, since=DAY_2, max_bytes=1).expect(200)
    assert found.json() == [2] and not found.up_to_date
    assert http.get(timed, offset=found.next_offset).expect(200).json() == [3]


@pytest.mark.parametrize("stamp", ["2020-01-05T00:00:00Z", "2020-01-05T02:00:00.000+02:00", "2020-01-05T00:00:00.123456789Z", "1578182400000000000"])
def test_stream_timestamp_formats(http: Streams, stream: str, stamp: str) -> None:
    """prisma-streams-http.txt 3.1: "Stream-Timestamp: <rfc3339 | rfc3339nano | unix_nanos>\""""
    http.create(stream, "application/json")
    http.append_json(stream, 1, headers={"Stream-Timestamp": stamp})
    assert http.get(stream, since="2020-01-05T00:00:00Z").expect(200).json() == [1]
    assert http.get(stream, since="2020-01-05T00:00:00.124Z").expect(200).json() == []


@pytest.mark.parametrize("stamp", ["yesterday", "2020-01-05", "12:00", "-1", "1e18"])
def test_bad_stream_timestamp(http: Streams, stream: str, stamp: str) -> None:
    """prisma-streams-http.txt 3.1: "Stream-Timestamp: <rfc3339 | rfc3339nano | unix_nanos>": anything else is 400, and nothing is appended"""
    http.create(stream)
    http.post(stream, b"x", headers={"Stream-Timestamp": stamp}).expect(400)
    assert http.tail(stream) == offset(0)


def test_times_never_go_back(http: Streams, stream: str) -> None:
    """prisma-streams-http.txt 7.3: "The server clamps timestamps so they never go backwards per stream."; DESIGN 7: "`Stream-Timestamp` is clamped
    to [last append time, now]\""""
    http.create(stream, "application/json")
    http.append_json(stream, 1, headers={"Stream-Timestamp": DAY_2})
    http.append_json(stream, 2, headers={"Stream-Timestamp": DAY_1})
    http.append_json(stream, 3, headers={"Stream-Timestamp": DAY_3})
    assert http.get(stream, since="2020-01-01T12:00:00Z").expect(200).json() == [1, 2, 3]
    assert http.get(stream, since=DAY_2).expect(200).json() == [1, 2, 3], "equal times are allowed"
    assert http.get(stream, since="2020-01-02T00:00:00.001Z").expect(200).json() == [3]


def test_times_never_run_ahead(http: Streams, stream: str) -> None:
    """DESIGN 7: "`Stream-Timestamp` is clamped to [last append time, now]"; specs/README.md decisions: "append time | monotone per stream without
    running ahead of the clock: equal times are allowed\""""
    http.create(stream, "application/json")
    http.append_json(stream, 1, headers={"Stream-Timestamp": "2100-01-01T00:00:00Z"})
    for number in range(2, 60):  # a server that adds a millisecond for each would be ahead by now
        http.append_json(stream, number)
    assert http.get(stream, since="2099-01-01T00:00:00Z").expect(200).json() == []
    soon = datetime.now(UTC) + timedelta(minutes=1)  # all of it runs on one machine, with one clock
    assert http.get(stream, since=soon.isoformat()).expect(200).json() == []
    recent = datetime.now(UTC) - timedelta(minutes=5)
    assert len(http.get(stream, since=recent.isoformat()).expect(200).json()) == 59


def test_unstamped_appends_have_the_servers_time(http: Streams, stream: str) -> None:
    """prisma-streams-http.txt 7.3: "If omitted, the server assigns append time.\""""
    http.create(stream, "application/json")
    http.append_json(stream, 1, headers={"Stream-Timestamp": DAY_1})
    before = time.time_ns() // 1_000_000 * 1_000_000
    http.append_json(stream, 2)
    assert http.get(stream, since=before).expect(200).json() == [2]
    http.append_json(stream, 3, headers={"Stream-Timestamp": DAY_2})  # clamped to the last append time
    assert http.get(stream, since=before).expect(200).json() == [2, 3]


# --- the end, formats, patience --------------------------------------------------------------------------------------------------------------


def test_end_offset(http: Streams, stream: str) -> None:
    """prisma-streams-http.txt 3.4: "Reads should also include: Stream-End-Offset: <offset>: A checkpoint representing the current end of stream (at
    response time)."; 9: HEAD "Headers: Stream-End-Offset\""""
    http.create(stream, "application/json")
    assert http.get(stream).expect(200).headers["stream-end-offset"] == offset(0)
    tail = http.append_json(stream, 1, 2, 3)
    assert http.head(stream).expect(200).headers["stream-end-offset"] == tail
    first = http.get(stream, max_bytes=1).expect(200)
    assert first.next_offset < tail == first.headers["stream-end-offset"]
    assert http.get(stream, offset="now").expect(200).headers["stream-end-offset"] == tail


def test_format_raw(http: Streams, stream: str) -> None:
    """prisma 1.4: "format=raw gives concatenated stored bytes"; prisma-streams-http.txt 8.3: "Default (raw): response body is concatenated bytes of
    returned entries." (our default for JSON streams is the base protocol's array)"""
    http.create(stream, "application/json")
    http.append(stream, b'[{"b":1,  "a":2}, 1.50, "x"]', "application/json")
    raw = http.get(stream, format="raw").expect(200)
    assert raw.body == b'{"b":1,  "a":2}1.50"x"'
    assert raw.next_offset == http.tail(stream) and raw.up_to_date
    assert http.get(stream, offset="now", format="raw").expect(200).body == b""
    assert b"".join(each.body for each in http.read_all(stream, format="raw", max_bytes=1)) == raw.body
    for form in ("json", ""):
        answer = http.get(stream, **({"format": form} if form else {})).expect(200)
        assert answer.body == b'[{"b":1,  "a":2},1.50,"x"]'
        assert answer.headers["content-type"] == "application/json"


def test_format_raw_with_key(http: Streams, mixed: str) -> None:
    """prisma 1.4: "format=raw gives concatenated stored bytes", of those entries that were asked for"""
    assert http.get(mixed, format="raw", key="b").expect(200).body == b"29"


def test_format_on_text(http: Streams, stream: str) -> None:
    """prisma 1.4: "format=json on non-JSON stream 400\""""
    http.create(stream, body=b"abc")
    http.get(stream, format="json").expect(400)
    assert http.get(stream, format="raw").expect(200).body == b"abc"
    http.get(stream, format="xml").expect(400)


@pytest.mark.parametrize(("name", "value"), [("timeout", "50ms"), ("timeout", "1"), ("timeout", "1s"), ("timeout_ms", "50")])
def test_timeout(http: Streams, stream: str, name: str, value: str) -> None:
    """prisma-streams-http.txt 4.1: "timeout=<duration> (optional). Only meaningful with live."; durable-streams-protocol.txt 5.7: "Servers MAY
    accept a timeout query parameter (in seconds)"; ursula-behaviour 1.2: "`timeout_ms` (long-poll ...)\""""
    http.create(stream, body=b"x")
    tail = http.tail(stream)
    started = time.monotonic()
    answer = http.get(stream, offset=tail, live="long-poll", **{name: value}).expect(204)
    assert time.monotonic() - started < 3.0, "the server's own patience is longer"
    assert answer.up_to_date and answer.next_offset == tail


@pytest.mark.parametrize("timeout", ["abc", "-1", "-5s", "5 s", "1e3"])
def test_bad_timeout(http: Streams, stream: str, timeout: str) -> None:
    """prisma-streams-http.txt 4.1: "timeout=<duration>": anything else is 400, and not a wait of some length"""
    http.create(stream, body=b"x")
    http.get(stream, offset="-1", live="long-poll", timeout=timeout).expect(400)


def test_timeout_does_not_delay_data(http: Streams, stream: str) -> None:
    """prisma-streams-http.txt 8.2: "If data exists after `off`, return immediately. Otherwise, wait for new data or timeout.\""""
    http.create(stream, body=b"x")
    assert http.get(stream, offset="-1", live="long-poll", timeout="5s").expect(200).body == b"x"
    tail = http.tail(stream)

    def append() -> bytes:
        http.append(stream, b"y")
        return b"y"

    def poll() -> bytes:
        return http.get(stream, offset=tail, live="long-poll", timeout="5s").expect(200).body

    actions: list[Callable[[], bytes]] = [append, poll]
    assert at_once(actions) == [b"y", b"y"]

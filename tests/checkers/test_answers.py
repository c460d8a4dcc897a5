"""The judge of HTTP answers, judged: each rule lets the true answer pass and notices the false one. The log is written by hand."""

import json
from struct import pack
from typing import Any

import pytest

from anabranch_node.core.raft import entry as entries_of
from anabranch_node.core.stream.commands import (
    Append,
    BucketOpen,
    Command,
    Create,
    CreateFork,
    Delete,
    Pin,
    Producer,
    PublishSnapshot,
    Range,
    Unpin,
    encode_commands,
)
from tests.checkers.answers import NOW, START, Exchange, Judge
from tests.checkers.timeline import Timeline
from tests.sim.http_wire import Event, EventStream, Malformed, Response, parse_response

S = "_default/s"
FORK = S + "-fork"
TYPE = "text/plain; try=c1"


class Log:
    def __init__(self) -> None:
        self.timeline = Timeline()
        self.judge = Judge({1: self.timeline})
        self._index = 0
        assert self.commit(BucketOpen("_default", 0, 0)) == ""

    def commit(self, *commands: Command) -> str:
        self._index += 1
        entry = entries_of.encode(1, entries_of.COMMANDS_V1, encode_commands(list(commands)))
        return self.judge.committed(self.timeline.add(self._index, entry), self.timeline)

    def ask(self, method: str, mark: str = "", **fields: Any) -> Exchange:
        exchange = Exchange(1, method, S, self.timeline.count, mark, **fields)
        self.judge.sent(exchange)
        return exchange

    def says(self, exchange: Exchange, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> str:
        return self.judge.judge(exchange, Response(status, headers or {}, body), self.timeline)

    def refuses(self, exchange: Exchange, status: int, code: str, **headers: str) -> str:
        return self.says(exchange, status, headers, json.dumps({"error": {"code": code}}).encode())


def at(offset: int, *flags: str, **more: str) -> dict[str, str]:
    return {"stream-next-offset": f"{offset:020d}", **dict.fromkeys(flags, "true"), **more}


@pytest.fixture
def log() -> Log:
    """A stream with one message of five bytes, made by try c1."""
    log = Log()
    log.ask("PUT", "c1", data=b"hello")
    assert log.commit(Create(S, TYPE, 1, body=b"hello")) == ""
    return log


def page(log: Log, end: int, *flags: str, start: int = 0) -> dict[str, str]:
    life = log.timeline.latest(S).life
    assert life is not None
    return at(end, *flags, **{"content-type": TYPE, "etag": f'"{life.incarnation:x}-{start}-{end}"'})


def append(log: Log, mark: str, body: bytes, producer: tuple[str, int, int] | None = None) -> Exchange:
    exchange = log.ask("POST", mark, data=body, producer=producer)
    claim = None if producer is None else Producer(*producer)
    assert log.commit(Append(S, body, 2, claim, "text/plain", key=mark)) == ""
    return exchange


def test_an_append_is_acknowledged_where_it_lies(log: Log) -> None:
    assert log.says(append(log, "k2", b"abc"), 204, at(8)) == ""
    assert "the log says" in log.says(append(log, "k3", b"abc"), 204, at(8))
    assert "the log says" in log.says(append(log, "k4", b"abc"), 200, at(14))


def test_a_long_poll_says_nothing_new_only_of_a_look_after_its_time(log: Log) -> None:
    def poll(offset: int) -> Exchange:
        return log.ask("GET", offset=offset, live="long-poll")

    early, empty = poll(START), poll(5)
    append(log, "k2", b"abc")
    early.waited_low = empty.waited_low = log.timeline.count
    assert "not true" in log.says(empty, 204, at(5, "stream-up-to-date"))
    # Its first look, which took longer than its patience, found data before the append: that was true after it arrived.
    assert log.says(early, 200, page(log, 5, "stream-up-to-date"), b"hello") == ""


def test_an_acknowledgement_without_a_command_is_noticed(log: Log) -> None:
    assert "where it is not" in log.says(log.ask("POST", "k2"), 204, at(5))
    assert "where it is not" in log.refuses(log.ask("POST", "k3"), 404, "stream_not_found")


def test_a_refusal_of_what_is_committed_is_noticed_before_and_after(log: Log) -> None:
    assert "definitely refused" in log.refuses(append(log, "k2", b"abc"), 503, "no_leader")
    later = log.ask("POST", "k3", data=b"abc")
    assert log.refuses(later, 503, "overloaded") == ""
    assert "definitely refused" in log.commit(Append(S, b"abc", 2, None, "text/plain", key="k3"))


def test_an_unknown_outcome_says_nothing(log: Log) -> None:
    assert log.refuses(append(log, "k2", b"abc"), 503, "outcome_unknown") == ""
    assert log.refuses(log.ask("POST", "k3"), 503, "outcome_unknown") == ""
    assert "unknown" in log.refuses(log.ask("GET"), 503, "outcome_unknown")


def test_a_try_that_is_committed_twice_is_noticed(log: Log) -> None:
    append(log, "k2", b"abc")
    assert "twice" in log.commit(Append(S, b"abc", 2, None, "text/plain", key="k2"))


def test_a_changed_command_is_noticed(log: Log) -> None:
    log.ask("POST", "k2", data=b"abc", producer=("p", 0, 0))
    assert "not what was asked" in log.commit(Append(S, b"abc", 2, None, "text/plain", key="k2"))
    assert "nobody asked" in log.commit(Append(S, b"abc", 2, None, "text/plain", key="k9"))


def test_a_producers_answers(log: Log) -> None:
    first, again = append(log, "k2", b"abc", ("p", 0, 0)), append(log, "k3", b"abc", ("p", 0, 0))
    state = {"producer-epoch": "0", "producer-seq": "0"}
    assert log.says(first, 200, at(8, **state)) == ""
    assert log.says(again, 204, at(8, **state)) == ""
    assert log.says(again, 200, at(8, **state)) != ""
    gap = append(log, "k4", b"abc", ("p", 0, 5))
    assert log.refuses(gap, 409, "sequence_gap", **{"producer-expected-seq": "1", "producer-received-seq": "5"}) == ""
    assert log.refuses(gap, 409, "sequence_gap", **{"producer-expected-seq": "2", "producer-received-seq": "5"}) != ""
    assert log.refuses(gap, 404, "stream_not_found") != ""


def test_deletes_are_claimed_once(log: Log) -> None:
    first, second = log.ask("DELETE"), log.ask("DELETE")
    log.commit(Delete(S, 2))
    assert log.says(first, 204) == ""
    assert log.says(second, 204) != ""
    log.commit(Delete(S, 2))
    assert log.says(second, 404) == ""
    assert log.judge.at_the_end() == ""
    log.commit(Delete(S, 2))
    assert "deletes" in log.judge.at_the_end()


def test_a_read_is_true_between_its_arrival_and_its_answer(log: Log) -> None:
    early = log.ask("GET")
    append(log, "k2", b"abc")
    late = log.ask("GET")
    assert log.says(early, 200, page(log, 5, "stream-up-to-date"), b"hello") == ""
    assert "not true" in log.says(late, 200, page(log, 5, "stream-up-to-date"), b"hello")
    assert log.says(late, 200, page(log, 8, "stream-up-to-date"), b"helloabc") == ""
    assert log.says(late, 200, page(log, 5), b"hello") == "", "less than all is allowed"


@pytest.mark.parametrize(
    ("status", "end", "flags", "body"),
    [
        (200, 8, ("stream-up-to-date",), b"helloabc"),  # not committed yet
        (200, 5, (), b"hello"),  # it is up to date
        (200, 5, ("stream-up-to-date", "stream-closed"), b"hello"),
        (200, 5, ("stream-up-to-date",), b"HELLO"),
        (200, 3, (), b"hel"),
        (204, 5, ("stream-up-to-date",), b""),
        (404, 0, (), b""),
    ],
)
def test_a_false_read_is_noticed(log: Log, status: int, end: int, flags: tuple[str, ...], body: bytes) -> None:
    assert log.says(log.ask("GET"), 200, page(log, 5, "stream-up-to-date"), b"hello") == ""
    assert "not true" in log.says(log.ask("GET"), status, page(log, end, *flags), body)


def test_a_long_poll_may_say_nothing_only_at_the_tail(log: Log) -> None:
    assert log.says(log.ask("GET", offset=5, live="long-poll"), 204, at(5, "stream-up-to-date")) == ""
    assert log.says(log.ask("GET", offset=0, live="long-poll"), 204, at(0, "stream-up-to-date")) != ""
    waiting = log.ask("GET", offset=NOW, live="long-poll")
    append(log, "k2", b"abc")
    assert log.says(waiting, 200, page(log, 8, "stream-up-to-date", start=5), b"abc") == ""


def test_events_continue_each_other(log: Log) -> None:
    live = log.ask("GET", offset=START, live="sse")
    first = Event(b"hello", {"streamNextOffset": f"{5:020d}", "upToDate": True})
    assert log.judge.event(live, first, log.timeline) == ""
    assert log.judge.event(live, first, log.timeline) != "", "twice"
    second = Event(b"abc", {"streamNextOffset": f"{8:020d}", "upToDate": True})
    assert log.judge.event(live, second, log.timeline) != "", "before its commit"
    append(log, "k2", b"abc")
    append(log, "k3", b"xyz")
    assert log.judge.event(live, Event(b"xyz", {"streamNextOffset": f"{11:020d}", "upToDate": True}), log.timeline) != "", "a gap"
    assert log.judge.event(live, second, log.timeline) == "", "its replica may be one entry behind"


def test_events_do_not_go_on_in_another_incarnation(log: Log) -> None:
    live = log.ask("GET", offset=START, live="sse")
    assert log.judge.event(live, Event(b"hello", {"streamNextOffset": f"{5:020d}", "upToDate": True}), log.timeline) == ""
    log.commit(Delete(S, 2))
    log.ask("PUT", "c2", data=b"hello")
    log.commit(Create(S, "text/plain; try=c2", 2, body=b"hello"))
    append(log, "k3", b"abc")
    assert log.judge.event(live, Event(b"abc", {"streamNextOffset": f"{8:020d}", "upToDate": True}), log.timeline) != ""


def test_a_listing_is_complete(log: Log) -> None:
    listing = Exchange(9, "LIST", "", lows={1: log.timeline.count})
    body = {"streams": [{"name": S}], "more": False}
    assert log.says(listing, 200, {}, json.dumps(body).encode()) == ""
    assert "not listed" in log.says(listing, 200, {}, b'{"streams": [], "more": false}')
    assert "never were" in log.says(listing, 200, {}, json.dumps({"streams": [{"name": S}, {"name": "z"}], "more": False}).encode())


def test_a_window_ends_by_the_clock_of_the_log() -> None:
    log = Log()
    log.ask("PUT", "c1")
    log.commit(Create(S, TYPE, 1_000, ttl_s=1))
    assert log.says(log.ask("HEAD"), 404) != ""
    log.commit(Delete("_default/other", 2_125))
    assert log.says(log.ask("HEAD"), 404) == ""


@pytest.mark.parametrize(
    "raw", [b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", b"HTTP/1.1 204 No Content\r\n\r\nab", b"HTTP/1.1 200 OK\r\nA: b\r\nA: b\r\n\r\n", b"x"]
)
def test_a_malformed_response_is_noticed(raw: bytes) -> None:
    with pytest.raises((Malformed, KeyError, ValueError)):
        parse_response(raw)


def test_an_event_stream_is_decoded() -> None:
    events = EventStream()
    text = b'event: data\ndata:a\ndata:  b\n\nevent: control\ndata:{"streamNextOffset":"1"}\n\n'
    assert events.feed(b"%x\r\n%b\r\n3\r\n:\n\n\r\n" % (len(text), text), is_text=True) == [Event(b"a\n b", {"streamNextOffset": "1"})]
    assert events.feed(b"0\r\n\r\n", is_text=True) == [] and events.ended
    with pytest.raises(Malformed):
        events.feed(b"3\r\n:\n\n\r\n", is_text=True)
    with pytest.raises(Malformed):
        EventStream().feed(b"10\r\nevent: data\ndata\n\r\n", is_text=True)


def fork_of(log: Log, end: int) -> CreateFork:
    life = log.timeline.latest(S).life
    assert life is not None
    return CreateFork(FORK, "u", S, life.incarnation, None, 0, end, 0, [Range(S, life.incarnation, 0, end)], TYPE, 3)


def test_a_fork_shows_what_it_inherits_and_then_its_own(log: Log) -> None:
    log.commit(fork_of(log, 5), Append(FORK, b"own", 3), Append(S, b"other", 3))
    version = log.timeline.latest(FORK)
    assert version.life is not None
    assert (bytes(version.life.content), sorted(version.life.ends), version.tail) == (b"helloown", [0, 5, 8], 8)


def test_what_a_snapshot_replaces_is_refused(log: Log) -> None:
    exchange = log.ask("PUBLISH", "p1", offset=5, data=b"fold")
    assert log.commit(PublishSnapshot(S, 5, "t; try=p1", b"fold", 3)) == ""
    assert log.says(exchange, 204) == ""
    assert log.refuses(log.ask("GET", offset=0), 410, "trimmed", **{"stream-earliest-offset": f"{5:020d}"}) == ""
    assert "not true" in log.refuses(log.ask("GET", offset=0), 410, "trimmed", **{"stream-earliest-offset": f"{4:020d}"})
    assert "not true" in log.says(log.ask("GET", offset=0), 200, page(log, 5), b"hello")


def test_a_deleted_source_is_gone_for_everybody_else(log: Log) -> None:
    life = log.timeline.latest(S).life
    assert life is not None
    log.commit(Pin(S, "u", FORK, 5, 0, "", 3), Delete(S, 3))
    assert log.refuses(log.ask("GET", offset=0), 410, "stream_gone") == ""
    assert "not true" in log.refuses(log.ask("GET", offset=0), 404, "stream_not_found")
    log.commit(Unpin(S, life.incarnation, "u", 3))
    assert log.refuses(log.ask("GET", offset=0), 404, "stream_not_found") == ""


def batch(log: Log, mark: str, *frames: tuple[list[bytes], str], producer: tuple[str, int, int] | None = None) -> Exchange:
    messages = [message for frame, _ in frames for message in frame]
    exchange = log.ask("BATCH", mark, data=b"".join(messages), producer=producer, frames=list(frames))
    lengths = b"" if len(messages) == 1 else pack(f"<{len(messages)}I", *map(len, messages))
    claim = None if producer is None else Producer(*producer)
    if messages:
        assert log.commit(Append(S, b"".join(messages), 2, claim, "text/plain", lengths, key=mark)) == ""
    return exchange


def acks(log: Log, exchange: Exchange, headers: dict[str, str], *told: dict[str, Any]) -> str:
    return log.says(exchange, 200, headers, json.dumps(told).encode())


def ack(offset: int) -> dict[str, Any]:
    return {"status": 204, "stream_next_offset": offset}


NO_FRAME = {"status": 400, "error_code": "empty_body", "error": "so"}


def test_each_frame_of_a_batch_is_told_where_it_ends(log: Log) -> None:
    exchange = batch(log, "k2", ([b"abc"], ""), ([], "empty_body"), ([b"de"], ""))
    assert acks(log, exchange, at(10), ack(8), NO_FRAME, ack(10)) == ""
    assert "which means" in acks(log, exchange, at(10), ack(10), NO_FRAME, ack(10))
    assert "which means" in acks(log, exchange, at(10), ack(8), ack(8), ack(10))
    assert "which means" in acks(log, exchange, at(10), ack(8), NO_FRAME)
    assert "the answer (9, False)" in acks(log, exchange, at(9), ack(8), NO_FRAME, ack(10))
    assert "frame by frame" in log.says(exchange, 204, at(10))


def test_messages_of_a_batch_are_not_cut_otherwise(log: Log) -> None:
    log.ask("BATCH", "k2", data=b"abcde", frames=[([b"abc"], ""), ([b"de"], "")])
    assert "instead of" in log.commit(Append(S, b"abcde", 2, None, "text/plain", pack("<2I", 2, 3), key="k2"))


def test_a_batch_that_is_repeated(log: Log) -> None:
    state = {"producer-epoch": "0", "producer-seq": "0"}
    frames = (([b"abc"], ""), ([b"de"], ""))
    assert acks(log, batch(log, "k2", *frames, producer=("p", 0, 0)), at(10, **state), ack(8), ack(10)) == ""
    again = batch(log, "k3", *frames, producer=("p", 0, 0))
    assert acks(log, again, at(10, **state), ack(8), ack(10)) == ""
    assert "which means" in acks(log, again, at(10, **state), ack(13), ack(15))


def test_a_batch_in_which_nothing_is_left_changes_nothing(log: Log) -> None:
    exchange = batch(log, "k2", ([], "empty_body"))
    assert acks(log, exchange, {}, NO_FRAME) == ""
    assert "not what was asked" in log.commit(Append(S, b"abc", 2, None, "text/plain", key="k2"))
    assert "acknowledged" in acks(log, log.ask("BATCH", "k3", data=b"abc", frames=[([b"abc"], "")]), at(8), ack(8))


def test_a_batch_to_a_closed_stream(log: Log) -> None:
    log.ask("POST", "q2", close=True)
    log.commit(Append(S, b"", 2, None, close=True, seq="q2"))
    exchange = batch(log, "k3", ([b"abc"], ""))
    closed = {"status": 409, "stream_next_offset": 5, "stream_closed": True, "error_code": "stream_closed", "error": "so"}
    assert acks(log, exchange, at(5, "stream-closed"), closed) == ""
    assert "which means" in acks(log, exchange, at(5, "stream-closed"), ack(8))


def test_a_read_of_a_key_has_all_of_its_messages_and_no_other(log: Log) -> None:
    append(log, "k2", b"abc")
    batch(log, "k3", ([b"de"], ""), ([b"fg"], ""))

    def read(key: str, start: int, end: int, body: bytes, max_bytes: int = 1 << 40, tag: str = ":k1") -> str:
        headers = page(log, end, *(["stream-up-to-date"] if end == 12 else []), start=start)
        headers["etag"] = headers["etag"][:-1] + tag + '"'
        return log.says(log.ask("GET", offset=start, key=key, max_bytes=max_bytes), 200, headers, body)

    assert read("k2", 0, 12, b"abc") == "" == read("k3", 5, 12, b"defg")
    assert read("k3", 0, 12, b"") != "" != read("k3", 0, 12, b"de")
    assert read("k2", 0, 12, b"abcde") != ""
    assert read("k3", 0, 12, b"defg", max_bytes=2) != "" and read("k3", 0, 10, b"de", max_bytes=2) == ""
    assert read("k2", 0, 12, b"abc", tag="") != "", "the tag of all messages is another's"


def test_a_long_poll_for_a_key_says_nothing_new_where_nothing_is(log: Log) -> None:
    append(log, "k2", b"abc")
    polls = [log.ask("GET", offset=5, live="long-poll", key=key) for key in ("k2", "k3")]
    assert [log.says(poll, 204, at(8, "stream-up-to-date")) == "" for poll in polls] == [False, True]
    headers = page(log, 8, "stream-up-to-date", start=5)
    headers["etag"] = headers["etag"][:-1] + ':k1"'
    assert log.says(polls[0], 200, headers, b"abc") == "" != log.says(polls[1], 200, headers, b"")


def test_events_of_a_key(log: Log) -> None:
    live = log.ask("GET", offset=START, live="sse", key="k3")
    append(log, "k2", b"abc")
    append(log, "k3", b"de")
    event = Event(b"de", {"streamNextOffset": f"{10:020d}", "upToDate": True})
    assert log.judge.event(live, event._replace(data=b"abcde"), log.timeline) != ""
    assert log.judge.event(live, event._replace(data=None), log.timeline) != ""
    assert log.judge.event(live, event, log.timeline) == ""


def test_a_mark_may_stand_beside_a_key(log: Log) -> None:
    log.ask("POST", "k2", data=b"abc")
    assert log.commit(Append(S, b"abc", 2, None, "text/plain; try=k2", key="shared")) == ""
    assert log.timeline.latest(S).life.keyed("shared", 0, 8) == [b"abc"]  # type: ignore[union-attr]


def parts(*bodies: bytes, kind: str = TYPE, first: str = "application/octet-stream", end: bool = True) -> bytes:
    kinds = [first, *[kind] * (len(bodies) - 1)]
    whole = b"\r\n".join(b"--B\r\nContent-Type: %b\r\n\r\n%b" % (kind.encode(), body) for kind, body in zip(kinds, bodies, strict=True))
    return whole + b"\r\n--B--\r\n" if end else whole


def test_a_bootstrap_is_one_version_of_its_stream(log: Log) -> None:
    def found(body: bytes, tail: int, snapshot: str = "-1", complete: bool = True, high: int | None = None) -> str:
        headers = at(tail, **{"content-type": "multipart/mixed; boundary=B", "stream-snapshot-offset": snapshot})
        position = log.timeline.count if high is None else high
        return log.judge.bootstrap(exchange, body, Response(200, headers, b""), complete, log.timeline, position)

    exchange = log.ask("BOOTSTRAP")
    begun = log.timeline.count
    append(log, "k2", b"abc")
    assert found(parts(b"", b"hello"), 5) == "" == found(parts(b"", b"hello", b"abc"), 8)
    assert "not true" in found(parts(b"", b"hello", b"abc"), 8, high=begun), "it ends where the stream ended when it began"
    assert "not true" in found(parts(b"", b"hello"), 8)
    assert "not true" in found(parts(b"", b"hello", b"abd"), 8)
    assert "not true" in found(parts(b"", b"helloabc"), 8)
    assert "not true" in found(parts(b"", b"hello", end=False), 5)
    assert found(parts(b"", b"hello", end=False), 8, complete=False) == ""
    assert "not true" in found(parts(b"", b"abc", end=False), 8, complete=False)
    log.ask("PUBLISH", "p1", offset=5, data=b"fold")
    assert log.commit(PublishSnapshot(S, 5, "t; try=p1", b"fold", 3)) == ""
    assert found(parts(b"fold", b"abc", first="t; try=p1"), 8, f"{5:020d}") == ""
    assert "not true" in found(parts(b"fold", b"hello", b"abc", first="t; try=p1"), 8, f"{5:020d}")


def test_a_published_snapshot_is_the_latest(log: Log) -> None:
    latest, named = log.ask("SNAPSHOT"), log.ask("SNAPSHOT", offset=5)
    assert log.refuses(latest, 404, "snapshot_not_found") == "" == log.refuses(named, 404, "snapshot_not_found")
    log.ask("PUBLISH", "p1", offset=5, data=b"fold")
    log.commit(PublishSnapshot(S, 5, "t; try=p1", b"fold", 3))
    place = {"stream-snapshot-offset": f"{5:020d}"}
    assert log.says(latest, 307, {**place, "location": f"/v1/stream/s/snapshot/{5:020d}"}) == ""
    assert "not true" in log.says(latest, 307, {**place, "location": f"/v1/stream/s/snapshot/{4:020d}"})
    content = {**place, "content-type": "t; try=p1", "stream-up-to-date": "true"}
    assert log.says(named, 200, content, b"fold") == ""
    assert "not true" in log.says(named, 200, content, b"fald")
    assert "not true" in log.says(named, 200, {**content, "stream-up-to-date": "false"}, b"fold")
    assert "not true" in log.refuses(log.ask("SNAPSHOT"), 404, "snapshot_not_found")
    assert "not true" in log.says(log.ask("SNAPSHOT", offset=4), 200, {**content, **place}, b"fold")

"""Is an HTTP answer one that the committed log allows? Judged when a node gives it, against timeline.py, one answer at a time.

An answer given while `high` commands are committed, to a request that arrived when `low` were, must be true at a position of [low, high]. That every
request falls between its arrival and its answer is linearizability; that nothing beyond `high` is shown, that an unacknowledged tail never is.
A write names its try by a mark (timeline.mark_of), so that its command is found in the log: acknowledged means there, once, with that result;
a definite refusal means that it is not there and never comes. `outcome_unknown` and silence say nothing.

Before us: tests/sim/front_door.py. Not here: that there is exactly one answer, and when."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from anabranch_node.core.stream.commands import Create, CreateFork, PublishSnapshot
from anabranch_node.core.stream.results import Appended, Created, Deleted, Result, SnapshotPublished, StreamClosed, StreamGone, StreamNotFound
from tests.checkers.bucket_log import BucketLog
from tests.checkers.stream_model import split
from tests.checkers.timeline import Life, Timeline, Version
from tests.sim.http_wire import Event, Response

NOW, START = -2, -1
UNKNOWN = "outcome_unknown"
_WRITES = ("POST", "PUT", "DELETE", "PUBLISH", "BATCH")
_NOT_NOW = {"no_leader", "overloaded", "disk_full", "hot_full", "fenced", "read_unavailable", "not_hosted", "initializing", "stale_open"}
"""503s that say: it did not happen."""
_REFUSALS = {
    "stream_not_found": (404, "StreamNotFound"),
    "stream_exists": (409, "StreamExists"),
    "stale_epoch": (403, "StaleEpoch"),
    "bad_epoch_start": (400, "BadEpochStart"),
    "sequence_gap": (409, "SequenceGap"),
    "too_many_producers": (429, "TooManyProducers"),
    "stream_closed": (409, "StreamClosed"),
    "content_type_mismatch": (409, "ContentTypeMismatch"),
    "seq_regression": (409, "SeqRegression"),
    "stream_gone": (410, "StreamGone"),
    "name_held": (409, "NameHeld"),
    "fork_too_late": (503, "ForkTooLate"),
    "trimmed": (410, "Trimmed"),
    "offset_beyond_tail": (409, "OffsetBeyondTail"),
    "offset_inside_message": (400, "OffsetInsideMessage"),
}
"""What a stream's state refuses a write for: the command is in the log, and changed nothing."""


@dataclass(slots=True, eq=False)
class Exchange:
    """One request and what became of it."""

    token: int
    method: str
    stream: str
    low: int = 0
    """Committed commands of its group when it arrived."""
    mark: str = ""
    data: bytes = b""
    producer: tuple[str, int, int] | None = None
    close: bool = False
    """What a write asked for."""
    fork: tuple[str, int | None, int] | None = None
    """Source, offset and sub-offset. What refuses a fork is mostly its source's state, in another group: no entry of the fork's own log says it."""
    offset: int = START
    max_bytes: int = 1 << 40
    live: str = ""
    etag: str = ""
    prefix: str = ""
    after: str = ""
    limit: int = 100
    lows: dict[int, int] = field(default_factory=dict)
    """Of a listing: for each group."""
    at: int = START
    """Where an event stream stands."""
    lives: list[Life] | None = None
    """Of an event stream: the incarnations that it can be a reading of."""
    bucket: str = ""
    """Of a request about a bucket."""
    moment: int = 0
    """Of bucket_log.py, when it arrived."""
    makes_bucket: bool = True
    """Of a create: asked for where its bucket is made with it."""
    frames: list[tuple[list[bytes], str]] | None = None
    """Of an append-batch: the messages of each as they are stored, or why it is refused."""
    key: str | None = None
    """Of a read: only messages with that key."""
    waited_low: int = 0
    """Of a long-poll: when its time was over. "Nothing new" is said after one more look, which began then or later."""

    def __str__(self) -> str:
        if self.bucket:
            return f"{self.method} bucket {self.bucket}"
        asked = f" offset={self.offset}" if self.method == "GET" else ""
        return f"{self.method} {self.stream}{asked}{f' live={self.live}' if self.live else ''}{f' mark={self.mark}' if self.mark else ''}"


class Judge:
    def __init__(self, timelines: dict[int, Timeline], buckets: BucketLog | None = None) -> None:
        self.timelines = timelines
        self.buckets = buckets
        """None: nobody can ask for a bucket."""
        self._writes: dict[str, Exchange] = {}  # by mark
        self.refused: dict[str, Exchange] = {}  # by mark: must never be committed
        self._claimed: set[tuple[str, int]] = set()  # deletes that an answer has spoken for
        self._deletes: dict[str, int] = {}  # stream -> delete requests that may have happened
        self.judged = 0

    # --- what happens ------------------------------------------------------------------------------------------------------------

    def committed(self, marks: Iterable[str], timeline: Timeline) -> str:
        """New commands are in the log."""
        for mark in marks:
            asked = self._writes.get(mark)
            wrong = "nobody asked for it" if asked is None else _differs(asked, timeline.tagged[mark][-1].command)
            if wrong:
                return f"{asked}: what is committed is not what was asked: {wrong}"
            if mark in self.refused:
                return f"{self.refused[mark]} was definitely refused, and is committed"
            if len(timeline.tagged[mark]) > 1:
                return f"the request with mark {mark} is in the log twice: {timeline.tagged[mark]}"
        return ""

    def sent(self, exchange: Exchange) -> None:
        if exchange.mark:
            self._writes[exchange.mark] = exchange
        if exchange.method == "DELETE" and exchange.stream:
            self._deletes[exchange.stream] = self._deletes.get(exchange.stream, 0) + 1

    def never_arrived(self, exchange: Exchange) -> None:
        if exchange.mark:
            self.refused[exchange.mark] = exchange
        if exchange.method == "DELETE" and exchange.stream:
            self._deletes[exchange.stream] -= 1

    def at_the_end(self) -> str:
        for timeline in self.timelines.values():
            for stream, deletes in timeline.deletes.items():
                if len(deletes) > self._deletes.get(stream, 0):
                    return f"{len(deletes)} deletes of {stream} are committed, {self._deletes.get(stream, 0)} were asked for and not refused"
        return ""

    # --- one answer --------------------------------------------------------------------------------------------------------------

    def judge(self, exchange: Exchange, response: Response, timeline: Timeline) -> str:
        """ "": true at some position since the request arrived."""
        self.judged += 1
        status, code = response.status, response.code
        if exchange.bucket:
            assert self.buckets is not None
            return self.buckets.judge(exchange, response)
        if status == 500:
            return f"internal error: {response.body!r}"
        if status == 503:
            if code == UNKNOWN:
                return "" if exchange.method in _WRITES else "a read has no unknown outcome"
            if code == "bucket_deleting":
                known = exchange.method == "PUT" and self.buckets is not None and self.buckets.was_deleting(exchange.moment)
                return self._refuse(exchange, timeline) if known else "no bucket was being deleted"
            if code == "fork_too_late":
                return self._write(exchange, response, code, timeline)
            if code not in _NOT_NOW and exchange.method != "HEAD":  # its answer has no body
                return f"a 503 without a known code: {code!r}"
            return self._refuse(exchange, timeline)
        if exchange.method in ("POST", "PUT", "PUBLISH", "BATCH"):
            return self._write(exchange, response, code, timeline)
        if exchange.method == "DELETE":
            return self._delete(exchange, response, timeline)
        if exchange.method == "LIST":
            return self._list(exchange, response)
        return self._read(exchange, response, code, timeline)

    def _refuse(self, exchange: Exchange, timeline: Timeline) -> str:
        if exchange.mark and exchange.mark in timeline.tagged:
            return "definitely refused, and committed"
        if exchange.method in _WRITES:
            self.never_arrived(exchange)
        return ""

    def _write(self, exchange: Exchange, response: Response, code: str, timeline: Timeline) -> str:
        done = timeline.tagged.get(exchange.mark, [])
        if not done:
            if code == "bucket_not_found":
                absent = self.buckets is not None and self.buckets.was_absent(exchange.stream.partition("/")[0], exchange.moment)
                wrong = "" if absent and not exchange.makes_bucket else "its bucket was there, or is made with it"
                return wrong or self._refuse(exchange, timeline)
            if exchange.frames is not None and response.status == 200:
                return _acks(exchange, response, None) or self._refuse(exchange, timeline)
            if exchange.fork is not None and response.status != 201:
                return self._looked(exchange, response, timeline) or self._refuse(exchange, timeline)
            if exchange.method == "PUBLISH" and self._is_elsewhere(exchange, code, timeline):
                return self._refuse(exchange, timeline)
            if response.status < 400 or code in _REFUSALS:
                return "answered from a state of the log, where it is not"
            return self._refuse(exchange, timeline)
        if done[0].position <= exchange.low:
            return f"committed at {done[0].position}, before it arrived at {exchange.low}"
        result = done[0].result
        if exchange.frames is not None and response.status == 200:
            return _acks(exchange, response, result)
        if response.status >= 400:
            status, name = _REFUSALS.get(code, (0, ""))
            if (response.status, type(result).__name__) != (status, name):
                return f"the log says {result}"
            return _figures(response, result)
        if exchange.method == "PUBLISH":
            done_so = response.status == 204 and isinstance(result, SnapshotPublished) and result.offset == exchange.offset
            return "" if done_so else f"the log says {result}"
        if exchange.frames is not None:
            return "a batch is answered by 200, frame by frame"
        return _created(response, result) if exchange.method == "PUT" else _appended(response, result)

    def _is_elsewhere(self, exchange: Exchange, code: str, timeline: Timeline) -> bool:
        """Found out where a fork inherits: no boundary, or the fork went away meanwhile."""
        versions = [version for _, version in timeline.between(exchange.stream, exchange.low, timeline.count)]
        if code == "offset_inside_message":
            return any(version.life is not None and exchange.offset not in version.life.ends for version in versions)
        return code == "stream_not_found" and any(version.life is None or version.gone for version in versions)

    def _looked(self, exchange: Exchange, response: Response, timeline: Timeline) -> str:
        """A fork that is there already is not made again."""
        if response.status != 200:
            return ""
        tails = [v.tail for _, v in timeline.between(exchange.stream, exchange.low, timeline.count) if v.life is not None and not v.gone]
        return "" if int(response.headers["stream-next-offset"]) in tails else f"it was never there with that tail: {tails}"

    def _delete(self, exchange: Exchange, response: Response, timeline: Timeline) -> str:
        wanted = {204: Deleted, 404: StreamNotFound, 410: StreamGone}.get(response.status)
        if wanted is None:
            return "no answer to a delete"
        # Answers are judged in the order in which they are given, so the first free one never takes what only a later one could have.
        for done in timeline.deletes.get(exchange.stream, []):
            key = (exchange.stream, done.position)
            if done.position > exchange.low and type(done.result) is wanted and key not in self._claimed:
                self._claimed.add(key)
                return ""
        return f"no delete in the log since {exchange.low} has that result"

    # --- reads -------------------------------------------------------------------------------------------------------------------

    def _read(self, exchange: Exchange, response: Response, code: str, timeline: Timeline) -> str:
        low = max(exchange.low, exchange.waited_low) if response.status == 204 else exchange.low
        versions = timeline.between(exchange.stream, low, timeline.count)
        if any(self._fits(exchange, response, code, version) for _, version in versions):
            return ""
        return f"not true at any position of [{low}, {timeline.count}], where it was {_shown(versions)}"

    def _fits(self, exchange: Exchange, response: Response, code: str, version: Version) -> bool:
        life, tail, closed, earliest, gone, _ = version
        status, headers = response.status, response.headers
        if life is None:
            return status == 404
        if gone:
            return status == 410 and code in ("stream_gone", "")
        if exchange.method == "HEAD":
            given = (headers.get("content-type"), headers.get("stream-next-offset"), headers.get("stream-closed"))
            lifetime = (headers.get("stream-ttl"), headers.get("stream-expires-at", ""))
            wanted = (None if life.ttl_s is None else str(life.ttl_s), life.expires_at)
            return status == 200 and given == (life.content_type, f"{tail:020d}", "true" if closed else None) and lifetime == wanted
        start = {NOW: tail, START: 0}.get(exchange.offset, exchange.offset)
        if exchange.offset == NOW and exchange.live and status == 200:  # it waited: "now" was when it began to
            start = int(headers["stream-next-offset"]) - len(unwrapped(response.body, life.content_type))
        if exchange.method == "BOOTSTRAP":
            return False  # judged piece by piece
        if exchange.method == "SNAPSHOT":
            return _is_snapshot(exchange, response, version)
        if start < earliest and not (status == 204 and exchange.key is not None and exchange.live):
            # A long-poll for a key may have passed what was trimmed since, and found nothing there (seed 408).
            return status == 410 and code == "trimmed" and int(headers["stream-earliest-offset"]) == earliest
        if status == 400:
            return (code == "offset_beyond_tail" and start > tail) or (code == "offset_inside_message" and start < tail and start not in life.ends)
        if status not in (200, 204, 304):
            return False
        end = int(headers["stream-next-offset"])
        if start > tail or start not in life.ends or end not in life.ends or end > tail:
            return False
        at_tail = end == tail
        if ("stream-closed" in headers) != (closed and at_tail) or ("stream-up-to-date" in headers) != at_tail:
            return False
        if status == 204:
            if exchange.key is not None:
                return exchange.live == "long-poll" and end == tail and not life.keyed(exchange.key, start, end)
            return exchange.live == "long-poll" and start == end == tail
        etag = f'"{life.incarnation:x}-{start}-{end}{":c" if closed and at_tail else ""}"'
        given = headers.get("etag", "")
        if exchange.key is not None:
            etag = _etag_of_key(exchange, life, given, etag, start, end)
        if exchange.offset != NOW and given != etag:
            return False
        if status == 304:
            return exchange.etag == etag
        if exchange.live and not response.body:
            return False
        data = unwrapped(response.body, life.content_type)
        if exchange.key is not None:
            wanted = life.keyed(exchange.key, start, end)
            whole = (wanted or not exchange.live) and (len(wanted) < 2 or sum(map(len, wanted)) <= exchange.max_bytes)
            return headers["content-type"] == life.content_type and data == b"".join(wanted) and bool(whole) and (end > start or at_tail)
        return headers["content-type"] == life.content_type and data == life.content[start:end] and _whole(exchange, life, start, end, tail)

    def event(self, exchange: Exchange, event: Event, timeline: Timeline) -> str:
        """The next piece of an event stream: it continues the piece before, in the same incarnation, and is committed."""
        self.judged += 1
        versions = timeline.between(exchange.stream, exchange.low, timeline.count)
        control = event.control
        end = int(control["streamNextOffset"])
        fitting: list[tuple[int, Life]] = []
        for position, (life, tail, closed, _, gone, _) in versions:
            if life is None or gone or (exchange.lives is not None and life not in exchange.lives):
                continue
            start = exchange.at if exchange.lives is not None else {NOW: tail, START: 0}.get(exchange.offset, exchange.offset)
            at_tail = end == tail
            if start not in life.ends or end not in life.ends or not start <= end <= tail:
                continue
            if bool(control.get("streamClosed")) != (closed and at_tail) or (not closed and bool(control.get("upToDate")) != at_tail):
                continue
            data = b"" if event.data is None else unwrapped(event.data, life.content_type)
            wanted = life.content[start:end] if exchange.key is None else b"".join(life.keyed(exchange.key, start, end))
            if data == wanted and (data or at_tail):
                fitting.append((position, life))
        if not fitting:
            where = f"[{exchange.low}, {timeline.count}], where it was {_shown(versions)}"
            return f"event {control} with {(event.data or b'')[:60]!r} after {exchange.at} is not true at any position of {where}"
        exchange.low = fitting[0][0]
        exchange.lives = [life for _, life in fitting]
        exchange.at = end
        return ""

    def bootstrap(self, exchange: Exchange, body: bytes, response: Response, complete: bool, timeline: Timeline, high: int) -> str:
        """What a client got of a multipart body that began when `high` commands were committed: a snapshot and each message behind it, exactly;
        or how that begins, if it was cut off."""
        self.judged += 1
        versions = timeline.between(exchange.stream, exchange.low, high)
        if any(_is_bootstrap(body, response.headers, complete, version) for _, version in versions):
            return ""
        return f"{len(body)} bytes, {'all' if complete else 'cut off'}, not true at any position of [{exchange.low}, {high}]: {_shown(versions)}"

    def _list(self, exchange: Exchange, response: Response) -> str:
        if response.status != 200:
            return "no answer to a listing"
        page = json.loads(response.body)
        names = [item["name"] for item in page["streams"]]
        if names != sorted(set(names)) or len(names) > exchange.limit:
            return f"names are not in order, or too many: {names}"
        for group, timeline in self.timelines.items():
            for name in timeline.names():
                if not name.startswith(exchange.prefix) or name <= exchange.after or (page["more"] and (not names or name > names[-1])):
                    continue
                versions = timeline.between(name, exchange.lows.get(group, 0), timeline.count)
                listed = name in names
                if not any((version.life is not None and not version.gone) == listed for _, version in versions):
                    return f"{name} is {'' if listed else 'not '}listed, and was {_shown(versions)} all the time"
        known = {name for timeline in self.timelines.values() for name in timeline.names()}
        return f"streams that never were: {set(names) - known}" if set(names) - known else ""


def unwrapped(body: bytes, content_type: str) -> bytes:
    """In JSON mode a stream's bytes are its messages, each with a comma, and a response is an array of them."""
    if not content_type.startswith("application/json"):
        return body
    if body[:1] != b"[" or body[-1:] != b"]":
        return b"?" + body
    return body[1:-1] + b"," if len(body) > 2 else b""


def _etag_of_key(exchange: Exchange, life: Life, given: str, etag: str, start: int, end: int) -> str:
    """What names the key is the server's own. A long-poll may have passed messages of other keys while it waited, and names where it stood."""
    stood = given.partition("-")[2].partition("-")[0]
    if ":k" not in given or not stood.isdigit():
        return ""
    if exchange.live and start <= int(stood) <= end and int(stood) in life.ends and not life.keyed(exchange.key or "", start, int(stood)):
        etag = etag.replace(f"-{start}-", f"-{stood}-", 1)
    return f"{etag[:-1]}{given[given.rfind(':k') :]}"


def _is_snapshot(exchange: Exchange, response: Response, version: Version) -> bool:
    """The latest one is named, by its offset it is read."""
    headers, snapshot = response.headers, version.snapshot
    if snapshot is None or exchange.offset not in (START, snapshot.offset):
        return response.status == 404 and response.code == "snapshot_not_found"
    if headers.get("stream-snapshot-offset") != f"{snapshot.offset:020d}":
        return False
    if exchange.offset == START:
        return response.status == 307 and headers["location"].endswith(f"/snapshot/{snapshot.offset:020d}")
    at_tail = snapshot.offset == version.tail
    flags = (headers["stream-up-to-date"], "stream-closed" in headers)
    given = (response.status, headers["content-type"], response.body)
    return given == (200, snapshot.content_type, snapshot.body) and flags == ("true" if at_tail else "false", at_tail and version.closed)


def _is_bootstrap(body: bytes, headers: dict[str, str], complete: bool, version: Version) -> bool:
    life, tail, _, earliest, gone, snapshot = version
    if life is None or gone or int(headers["stream-next-offset"]) != tail:
        return False
    if headers["stream-snapshot-offset"] != ("-1" if snapshot is None else f"{snapshot.offset:020d}"):
        return False
    boundary = headers["content-type"].removeprefix("multipart/mixed; boundary=")
    first = ("application/octet-stream", b"") if snapshot is None else (snapshot.content_type, snapshot.body)
    ends = [earliest, *sorted(end for end in life.ends if earliest < end <= tail)]
    cut = 1 if life.content_type.startswith("application/json") else 0  # the comma
    parts = [first, *((life.content_type, bytes(life.content[start : end - cut])) for start, end in pairwise(ends))]
    whole = b"\r\n".join(f"--{boundary}\r\nContent-Type: {kind}\r\n\r\n".encode() + data for kind, data in parts)
    whole += f"\r\n--{boundary}--\r\n".encode()
    return body == whole if complete else whole.startswith(body)


def _whole(exchange: Exchange, life: Life, start: int, end: int, tail: int) -> bool:
    """No more than was asked for, but always a message, and nothing empty before the tail."""
    if end == start:
        return start == tail
    return end - start <= exchange.max_bytes or not any(start < boundary < end for boundary in life.ends)


def _differs(asked: Exchange, command: Any) -> str:
    if isinstance(command, PublishSnapshot):
        given: tuple[Any, ...] = (command.stream, command.body, command.offset)
        return "" if given == (asked.stream, asked.data, asked.offset) else f"{given}"
    if isinstance(command, CreateFork) and asked.fork != (command.source, command.anchor, command.sub_offset):
        return f"a fork of {command.source} instead of {asked.fork}"
    if isinstance(command, Create | CreateFork):
        given = (command.stream, command.body, None, command.closed)
    else:
        claim = command.producer
        given = (command.stream, command.body, None if claim is None else (claim.id, claim.epoch, claim.seq), command.close)
    wanted = (asked.stream, asked.data, asked.producer, asked.close)
    if given == wanted and asked.frames is not None and split(command.body, command.lengths) != [one for frame, _ in asked.frames for one in frame]:
        return f"messages {split(command.body, command.lengths)} instead of {asked.frames}"
    return "" if given == wanted else f"{given} instead of {wanted}"


def _figures(response: Response, result: Any) -> str:
    """What a refusal tells a producer or a closer."""
    headers = response.headers
    wanted = {
        "StaleEpoch": lambda: {"producer-epoch": result.current},
        "SequenceGap": lambda: {"producer-expected-seq": result.expected, "producer-received-seq": result.received},
        "StreamClosed": lambda: {"stream-next-offset": result.tail},
    }.get(type(result).__name__, dict)()
    wrong = {name: headers.get(name) for name, value in wanted.items() if int(headers.get(name, -1)) != value}
    return f"the log says {result}, the answer {wrong}" if wrong else ""


def _appended(response: Response, result: Result) -> str:
    if not isinstance(result, Appended):
        return f"acknowledged, the log says {result}"
    headers = response.headers
    wrote = result.producer and not result.duplicate and result.next_offset > result.start_offset
    given = (response.status, int(headers["stream-next-offset"]), "stream-closed" in headers)
    if given != (200 if wrote else 204, result.next_offset, result.closed):
        return f"the log says {result}, the answer {given}"
    if result.producer and (int(headers["producer-epoch"]), int(headers["producer-seq"])) != (result.epoch, result.seq):
        return f"the log says {result}, the answer names another producer state"
    return ""


def _acks(exchange: Exchange, response: Response, result: Result | None) -> str:
    """Of an append-batch, frame by frame. `result` None: nothing of it is in the log."""
    assert exchange.frames is not None
    given = [
        (ack["status"], ack.get("stream_next_offset"), ack.get("stream_closed", False), ack.get("error_code", ""))
        for ack in json.loads(response.body)
    ]
    at, wanted = 0, []
    if isinstance(result, Appended):
        at = result.start_offset
        known = result.start_offset + sum(len(message) for frame, _ in exchange.frames for message in frame) == result.next_offset
        figures = (int(response.headers["stream-next-offset"]), "stream-closed" in response.headers)
        if figures != (result.next_offset, result.closed) or not (known or result.duplicate):
            return f"the log says {result}, the answer {figures}"
        if result.producer and (int(response.headers["producer-epoch"]), int(response.headers["producer-seq"])) != (result.epoch, result.seq):
            return f"the log says {result}, the answer names another producer state"
    for messages, why in exchange.frames:
        at += sum(map(len, messages))
        if why:
            wanted.append((400, None, False, why))
        elif isinstance(result, Appended):
            wanted.append((204, at if known else result.next_offset, result.closed, ""))
        elif isinstance(result, StreamClosed):
            wanted.append((409, result.tail, True, "stream_closed"))
        else:
            return f"acknowledged, the log says {result}"
    return "" if given == wanted else f"the log says {result}, which means {wanted}, the answer is {given}"


def _created(response: Response, result: Result) -> str:
    if not isinstance(result, Created):
        return f"acknowledged, the log says {result}"
    given = (response.status, int(response.headers["stream-next-offset"]), "stream-closed" in response.headers)
    return "" if given == (200 if result.existed else 201, result.offset, result.closed) else f"the log says {result}, the answer {given}"


def _shown(versions: list[tuple[int, Version]]) -> str:
    def shown(life: Life | None, tail: int, closed: bool, earliest: int, gone: bool, _: object) -> str:
        if life is None:
            return "nothing"
        return f"{life.incarnation:x} [{earliest}:{tail}]{' closed' if closed else ''}{' gone' if gone else ''}"

    return "; ".join(f"{position}: {shown(*version)}" for position, version in versions[:6])

"""A stream machine that is obviously right and nothing else: dicts of lists, every rule spelled out, no columns, no eviction order.

tests/unit compares the real one with it, command by command; the simulator replays every committed log in it and holds all answers against that
(timeline.py). Knows nothing of entries, Raft snapshots or requests. It forgets no message: what is trimmed is hidden, and can be looked up."""

import struct
from dataclasses import dataclass, field
from typing import Any

from anabranch_node.core.stream.commands import (
    AckOutbox,
    Append,
    BucketFence,
    BucketOpen,
    Command,
    Create,
    CreateFork,
    Delete,
    Expire,
    Pin,
    Producer,
    PublishSnapshot,
    Range,
    ResolveFork,
    SettlePin,
    Touch,
    Trim,
    Unpin,
)
from anabranch_node.core.stream.queries import (
    NOW,
    START,
    BucketCount,
    ForkLook,
    Head,
    ListStreams,
    PointAt,
    Query,
    ReadAt,
    ReadInherited,
    ReadMessages,
    ReadSnapshot,
)
from anabranch_node.core.stream.results import (
    Appended,
    BadEpochStart,
    BucketFenced,
    BucketOpened,
    BucketUnknown,
    ContentTypeMismatch,
    Created,
    Deleted,
    EmptyBody,
    ForkResolved,
    ForkTooLate,
    Inherited,
    MessageSlice,
    NameHeld,
    NoSnapshot,
    NotDue,
    OffsetBeyondTail,
    OffsetInsideMessage,
    Pinned,
    Point,
    PointElsewhere,
    QueryResult,
    ReadSlice,
    Refusal,
    Result,
    SeqRegression,
    SequenceGap,
    SnapshotBlob,
    SnapshotPublished,
    StaleEpoch,
    StaleOpen,
    StreamClosed,
    StreamExists,
    StreamGone,
    StreamInfo,
    StreamNotFound,
    StreamPage,
    StreamRow,
    SubOffsetBeyond,
    TooManyProducers,
    Touched,
    TrimDone,
    Trimmed,
    Unpinned,
)

PRODUCERS_MAX = 10_000
IDLE_MS = 7 * 24 * 3600 * 1000


@dataclass
class ModelProducer:
    epoch: int
    seq: int
    start: int
    end: int
    active_ms: int


@dataclass
class ModelMessage:
    body: bytes
    time_ms: int
    key: str


@dataclass
class ModelPin:
    """Somebody's fork needs what lies in `pinned.ranges`."""

    fork: str
    pinned: Pinned
    made_ms: int
    pending: bool = True


@dataclass
class ModelSnapshot:
    offset: int
    content_type: str
    body: bytes


@dataclass
class ModelStream:
    incarnation: int
    content_type: str
    created_ms: int
    ttl_s: int | None = None
    expires_at_ms: int | None = None
    expires_at: str = ""
    retention_bytes: int | None = None
    retention_age_s: int | None = None
    touched_ms: int = 0
    closed: bool = False
    closer: Producer | None = None
    seq: str | None = None
    messages: list[ModelMessage] = field(default_factory=list)
    """Its own, all that ever were."""
    producers: dict[str, ModelProducer] = field(default_factory=dict)
    start: int = 0
    """Where its own part starts: the fork point."""
    earliest: int = 0
    """What lies before is not shown."""
    forked: CreateFork | None = None
    ranges: list[Range] = field(default_factory=list)
    """Of a fork: where the rest lies."""
    snapshot: ModelSnapshot | None = None
    pins: dict[str, ModelPin] = field(default_factory=dict)
    soft_deleted: bool = False

    @property
    def tail(self) -> int:
        return self.start + sum(len(message.body) for message in self.messages)

    @property
    def is_json(self) -> bool:
        return media_type(self.content_type) == "application/json"

    @property
    def fork_type(self) -> str:
        return "" if self.forked is None else self.content_type

    @property
    def grace_ms(self) -> int:
        assert self.ttl_s is not None
        return min(self.ttl_s * 1000 // 8, 60_000)

    def gone(self, clock: int) -> bool:
        if self.ttl_s is not None:
            return clock >= self.touched_ms + self.ttl_s * 1000 + self.grace_ms
        return self.expires_at_ms is not None and clock >= self.expires_at_ms

    def touch_due(self, now_ms: int) -> bool:
        return self.ttl_s is not None and (now_ms < self.touched_ms or now_ms - self.touched_ms >= self.grace_ms)

    def placed(self) -> list[tuple[int, int, ModelMessage]]:
        """(start, end, message) of its own messages."""
        found = []
        at = self.start
        for message in self.messages:
            found.append((at, at + len(message.body), message))
            at += len(message.body)
        return found

    def boundaries(self) -> list[int]:
        """Of its own part."""
        return [self.start, *(end for _, end, _ in self.placed())]

    def inside(self, offset: int) -> OffsetInsideMessage | None:
        """Why `offset`, which is in the own part, is no boundary."""
        for start, end, _ in self.placed():
            if start < offset < end:
                return OffsetInsideMessage(offset, start, end)
        return None

    def all_ranges(self, name: str, first: int, last: int) -> list[Range]:
        """Where [first, last) of its offsets lies, oldest first; its own part is the last."""
        return clipped([*self.ranges, Range(name, self.incarnation, self.start, self.tail)], first, last)

    def needed_from(self) -> int:
        """Its own bytes from here on are needed, by readers or by forks."""
        pinned = [pin.pinned for pin in self.pins.values()]
        return max(self.start, min([self.earliest, *[each.earliest for each in pinned if each.earliest < each.offset]]))

    def last_append_ms_before(self, offset: int) -> int:
        for start, end, message in self.placed():
            if start < offset <= end:
                return message.time_ms
        return 0 if self.forked is None else self.forked.last_append_ms

    def last_write_ms(self) -> int:
        return self.messages[-1].time_ms if self.messages else self.created_ms


@dataclass
class Model:
    clock: int = 0
    streams: dict[str, ModelStream] = field(default_factory=dict)
    producers_max: int = PRODUCERS_MAX
    idle_ms: int = IDLE_MS
    outbox: dict[int, Unpin] = field(default_factory=dict)
    outbox_last: int = 0
    refused: set[str] = field(default_factory=set)
    """uuids that no fork may be made with."""
    buckets_open: dict[str, int] = field(default_factory=dict)
    fence_highest: int = 0
    buckets_checked: bool = False
    """Off where a test does not open its buckets (tests/checkers/opened.py)."""

    # --- commands ----------------------------------------------------------------------------------------------------------------

    def apply(self, index: int, position: int, command: Command) -> Result:
        self.clock = max(self.clock, command.now_ms)
        if isinstance(command, Create | CreateFork):
            return self._create(index * 65536 + position, command)
        return getattr(self, f"_{type(command).__name__.lower()}")(command)

    def visible(self, name: str) -> ModelStream | None:
        found = self.look(name)
        return found if isinstance(found, ModelStream) else None

    def look(self, name: str) -> "ModelStream | StreamNotFound | StreamGone":
        found = self.streams.get(name)
        if found is None:
            return StreamNotFound(name)
        if found.soft_deleted or (found.gone(self.clock) and found.pins):
            return StreamGone(name)
        return StreamNotFound(name) if found.gone(self.clock) else found

    def _remove(self, name: str) -> None:
        """It is asked to go: a pinned one stays for its forks, a fork that goes owes its source the pin."""
        found = self.streams[name]
        if found.pins:
            found.soft_deleted = True
            return
        del self.streams[name]
        if found.forked is not None:
            self.outbox_last += 1
            self.outbox[self.outbox_last] = Unpin(found.forked.source, found.forked.source_incarnation, found.forked.uuid, 0)

    def _create(self, incarnation: int, command: Create | CreateFork) -> Result:
        name = command.stream
        bucket = name.split("/")[0]
        if isinstance(command, CreateFork) and command.uuid in self.refused:
            return ForkTooLate()
        if self.buckets_checked and bucket not in self.buckets_open:
            return BucketUnknown(bucket)
        found = self.look(name)
        if isinstance(found, StreamGone):
            return NameHeld(name)
        if isinstance(found, ModelStream):
            if not self._is_same(found, command):
                return StreamExists(name, found.content_type)
            found.touched_ms = self.clock
            return Created(found.tail, True, found.closed, found.incarnation, found.fork_type)
        if name in self.streams:  # past its due
            self._remove(name)
        made = ModelStream(
            incarnation,
            command.content_type,
            self.clock,
            command.ttl_s,
            command.expires_at_ms,
            command.expires_at,
            command.retention_bytes,
            command.retention_age_s,
            self.clock,
            command.closed,
        )
        if isinstance(command, CreateFork):
            made.forked, made.start, made.earliest, made.ranges = command, command.offset, command.earliest, list(command.ranges)
        made.messages = [ModelMessage(body, self.clock, "") for body in split(command.body, command.lengths)]
        self.streams[name] = made
        return Created(made.tail, False, command.closed, incarnation, made.fork_type)

    def _is_same(self, found: ModelStream, command: Create | CreateFork) -> bool:
        """Does this create ask for what there is?"""
        had = (found.ttl_s, found.expires_at_ms, found.closed, found.retention_bytes, found.retention_age_s)
        if had != (command.ttl_s, command.expires_at_ms, command.closed, command.retention_bytes, command.retention_age_s):
            return False
        if media_type(found.content_type) != media_type(command.content_type):
            return False
        if isinstance(command, Create):
            return True
        return self._is_same_point(found, command)

    def _is_same_point(self, found: ModelStream, command: "CreateFork | ForkLook") -> bool:
        made = found.forked
        if made is None or (made.source, made.sub_offset) != (command.source, command.sub_offset):
            return False
        if command.anchor == made.anchor:
            return True
        # "The tail" is the point that it meant when the fork was made; a sub-offset needs an anchor.
        if made.sub_offset == 0 and made.anchor is None:
            return command.anchor == made.offset
        return False

    def _look_for_fork(self, look: ForkLook) -> QueryResult:
        found = self.look(look.stream)
        if isinstance(found, StreamNotFound):
            return found
        if isinstance(found, StreamGone):
            return NameHeld(look.stream)
        had = (found.closed, found.retention_bytes, found.retention_age_s)
        same = self._is_same_point(found, look) and had == (look.closed, look.retention_bytes, look.retention_age_s)
        same = same and look.ttl_s in (None, found.ttl_s) and look.expires_at_ms in (None, found.expires_at_ms)
        if not same or (look.content_type and media_type(look.content_type) != media_type(found.content_type)):
            return StreamExists(look.stream, found.content_type)
        return Created(found.tail, True, found.closed, found.incarnation, found.fork_type)

    def _delete(self, command: Delete) -> Result:
        found = self.look(command.stream)
        if isinstance(found, Refusal):
            return found
        self._remove(command.stream)
        return Deleted(found.incarnation)

    def _touch(self, command: Touch) -> Result:
        found = self.visible(command.stream)
        if found is not None and found.incarnation == command.incarnation:
            found.touched_ms = self.clock
        return Touched()

    def _expire(self, command: Expire) -> Result:
        due = self.streams.get(command.stream)
        if due is None or due.incarnation != command.incarnation or due.soft_deleted or not due.gone(self.clock):
            return NotDue()
        self._remove(command.stream)
        return Deleted(due.incarnation)

    def _append(self, command: Append) -> Result:
        found = self.look(command.stream)
        if isinstance(found, Refusal):
            return found
        return self._append_to(found, command)

    def _append_to(self, target: ModelStream, command: Append) -> Result:
        claim, tail = command.producer, target.tail
        if target.closed:
            if claim is None and command.close and not command.body:
                target.touched_ms = self.clock
                return Appended(tail, tail, duplicate=True, closed=True)
            if claim is None or claim != target.closer:
                return StreamClosed(tail)
        if command.body and command.content_type and media_type(command.content_type) != media_type(target.content_type):
            if not target.closed:
                return ContentTypeMismatch(target.content_type)
        alive = target.producers
        if claim is not None:
            known = target.producers.get(claim.id)
            if known is None:
                if claim.seq != 0:
                    return SequenceGap(0, claim.seq)
                alive = {name: p for name, p in target.producers.items() if self.clock - p.active_ms < self.idle_ms}
                if len(alive) >= self.producers_max:
                    return TooManyProducers(self.producers_max)
            elif claim.epoch < known.epoch:
                return StaleEpoch(known.epoch, claim.epoch)
            elif claim.epoch > known.epoch and claim.seq != 0:
                return BadEpochStart(claim.epoch, claim.seq)
            elif claim.epoch == known.epoch and claim.seq <= known.seq:
                known.active_ms = target.touched_ms = self.clock
                start, end = (known.start, known.end) if claim.seq == known.seq else (tail, tail)
                return Appended(start, end, True, target.closed, True, known.epoch, known.seq)
            elif claim.epoch == known.epoch and claim.seq > known.seq + 1:
                return SequenceGap(known.seq + 1, claim.seq)
        if command.seq is not None:
            if target.seq is not None and command.seq.encode() <= target.seq.encode():
                return SeqRegression(target.seq)
        if not command.body and not command.close:
            return EmptyBody(command.stream)
        time_ms = self.clock
        if command.timestamp_ms is not None:
            last_ms = target.messages[-1].time_ms if target.messages else 0 if target.forked is None else target.forked.last_append_ms
            time_ms = min(max(command.timestamp_ms, last_ms), self.clock)
        target.messages += [ModelMessage(body, time_ms, command.key) for body in split(command.body, command.lengths)]
        target.touched_ms = self.clock
        target.seq = command.seq if command.seq is not None else target.seq
        if command.close:
            target.closed, target.closer = True, claim
        if claim is None:
            return Appended(tail, target.tail, closed=command.close)
        target.producers = {**alive, claim.id: ModelProducer(claim.epoch, claim.seq, tail, target.tail, self.clock)}
        return Appended(tail, target.tail, False, command.close, True, claim.epoch, claim.seq)

    # --- snapshots and retention -------------------------------------------------------------------------------------------------

    def _publishsnapshot(self, command: PublishSnapshot) -> Result:
        found = self.look(command.stream)
        if isinstance(found, Refusal):
            return found
        offset = command.offset
        if offset > found.tail:
            return OffsetBeyondTail(offset, found.tail)
        if offset < found.earliest:
            return Trimmed(found.earliest)
        if offset < found.start and command.aligned != found.incarnation:
            return PointElsewhere(found.incarnation, [r for r in found.ranges if r.end > offset], found.is_json)
        if wrong := found.inside(offset):
            return wrong
        found.snapshot = ModelSnapshot(offset, command.content_type, command.body)
        found.earliest = offset
        found.touched_ms = self.clock
        return SnapshotPublished(offset)

    def _trim(self, command: Trim) -> Result:
        found = self.visible(command.stream)
        if found is not None and found.incarnation == command.incarnation and found.snapshot is None:
            if found.earliest < command.offset <= found.tail and command.offset in found.boundaries():
                found.earliest = command.offset
        return TrimDone()

    def trims(self, now_ms: int) -> dict[str, int]:
        """What retention would trim now: stream -> offset."""
        due = {}
        for name, stream in self.streams.items():
            if stream.snapshot is not None or self.visible(name) is None:
                continue
            to = stream.earliest
            if stream.retention_bytes is not None and stream.messages:
                # What a fork inherits is kept or let go as a whole, for its boundaries are not known here.
                wanted = stream.tail - stream.retention_bytes
                if wanted > stream.earliest and wanted >= stream.start:
                    last_start = stream.placed()[-1][0]
                    to = max(to, min([last_start, *[at for at in stream.boundaries() if at >= wanted]]))
            if stream.retention_age_s is not None:
                for _, end, message in stream.placed():
                    if message.time_ms <= now_ms - stream.retention_age_s * 1000:
                        to = max(to, end)
            if to > stream.earliest:
                due[name] = to
        return due

    # --- forks -------------------------------------------------------------------------------------------------------------------

    def _pin(self, command: Pin) -> Result:
        found = self.look(command.stream)
        if isinstance(found, StreamGone):
            return NameHeld(command.stream)
        if isinstance(found, StreamNotFound):
            return found
        if command.uuid in found.pins:
            return found.pins[command.uuid].pinned
        if command.content_type and media_type(command.content_type) != media_type(found.content_type):
            return ContentTypeMismatch(found.content_type)
        anchor = found.tail if command.anchor == NOW else command.anchor
        if anchor > found.tail:
            return OffsetBeyondTail(anchor, found.tail)
        if anchor < found.earliest:
            return Trimmed(found.earliest)
        point = anchor
        if command.resolved != found.incarnation:
            if anchor < found.start:
                return PointElsewhere(found.incarnation, found.all_ranges(command.stream, anchor, found.tail), found.is_json)
            if wrong := found.inside(anchor):
                return wrong
            after = [(start, end) for start, end, _ in found.placed() if start >= anchor]
            if command.sub_offset and found.is_json:
                if command.sub_offset > len(after):
                    return SubOffsetBeyond()
                point = after[command.sub_offset - 1][1]
            elif command.sub_offset:
                if not after or command.sub_offset > after[0][1] - anchor:
                    return SubOffsetBeyond()
                point = anchor + command.sub_offset
        ranges = found.all_ranges(command.stream, found.earliest, point)
        pinned = Pinned(
            found.incarnation,
            point,
            found.earliest,
            found.content_type,
            found.ttl_s,
            found.expires_at_ms,
            found.expires_at,
            ranges,
            found.last_append_ms_before(point),
        )
        found.pins[command.uuid] = ModelPin(command.fork, pinned, self.clock)
        return pinned

    def _unpin(self, command: Unpin | SettlePin) -> Result:
        found = self.streams.get(command.stream)
        if found is not None and found.incarnation == command.incarnation and command.uuid in found.pins:
            del found.pins[command.uuid]
            if found.soft_deleted:
                self._remove(command.stream)
        return Unpinned()

    def _settlepin(self, command: SettlePin) -> Result:
        if not command.alive:
            return self._unpin(command)
        found = self.streams.get(command.stream)
        if found is not None and found.incarnation == command.incarnation and command.uuid in found.pins:
            found.pins[command.uuid].pending = False
        return Unpinned()

    def _resolvefork(self, command: ResolveFork) -> Result:
        found = self.streams.get(command.stream)
        if found is not None and found.forked is not None and found.forked.uuid == command.uuid:
            return ForkResolved(True)
        self.refused.add(command.uuid)
        return ForkResolved(False)

    def _ackoutbox(self, command: AckOutbox) -> Result:
        for number in command.numbers:
            self.outbox.pop(number, None)
        return Unpinned()

    # --- buckets -----------------------------------------------------------------------------------------------------------------

    def _bucketopen(self, command: BucketOpen) -> Result:
        if command.meta_index < self.fence_highest:
            return StaleOpen()
        self.buckets_open[command.bucket] = command.meta_index
        return BucketOpened()

    def _bucketfence(self, command: BucketFence) -> Result:
        self.fence_highest = max(self.fence_highest, command.meta_index)
        self.buckets_open.pop(command.bucket, None)
        return BucketFenced(self._count_in(command.bucket))

    def _count_in(self, bucket: str) -> int:
        return sum(1 for name in self.streams if name.startswith(bucket + "/"))

    # --- queries -----------------------------------------------------------------------------------------------------------------

    def query(self, query: Query, now_ms: int) -> QueryResult:
        if isinstance(query, ListStreams):
            return self._list(query)
        if isinstance(query, BucketCount):
            return BucketFenced(self._count_in(query.bucket))
        if isinstance(query, ReadInherited):
            return self._inherited(query)
        if isinstance(query, ForkLook):
            return self._look_for_fork(query)
        if isinstance(query, PointAt):
            return self._point(query)
        found = self.look(query.stream)
        if isinstance(found, Refusal):
            return found
        if isinstance(query, Head):
            return self._head(found, now_ms)
        if isinstance(query, ReadSnapshot):
            kept = found.snapshot
            if kept is None or query.offset not in (-1, kept.offset):
                return NoSnapshot()
            body = kept.body if query.blob else b""
            return SnapshotBlob(kept.offset, kept.content_type, body, found.tail, found.closed, found.incarnation, found.touch_due(now_ms))
        if isinstance(query, ReadMessages) and query.incarnation not in (0, found.incarnation):
            return StreamNotFound(query.stream)
        return self._read(found, query, now_ms)

    def _read(self, found: ModelStream, query: ReadAt | ReadMessages, now_ms: int) -> QueryResult:
        offset = {NOW: found.tail, START: 0}.get(query.offset, query.offset)
        if query.since_ms is not None:
            return self._read_since(found, query, now_ms)
        if offset > found.tail:
            return OffsetBeyondTail(offset, found.tail)
        if offset < found.earliest:
            return Trimmed(found.earliest)
        if offset < found.start:
            own = self._own(found, query, found.start, now_ms)
            return Inherited(offset, clipped(found.ranges, offset, found.start), own)
        return found.inside(offset) or self._own(found, query, offset, now_ms)

    def _read_since(self, found: ModelStream, query: ReadAt | ReadMessages, now_ms: int) -> QueryResult:
        assert query.since_ms is not None
        first = found.tail
        for start, _, message in reversed(found.placed()):
            if start >= found.earliest and message.time_ms >= query.since_ms:
                first = start
        own = self._own(found, query, first, now_ms)
        if found.earliest < found.start:
            return Inherited(found.earliest, clipped(found.ranges, found.earliest, found.start), own)
        return own

    def _own(self, found: ModelStream, query: ReadAt | ReadMessages, offset: int, now_ms: int) -> ReadSlice | MessageSlice:
        """From `offset`, a boundary of the own part."""
        placed = found.placed()
        if isinstance(query, ReadMessages) and query.end >= 0:
            placed = [place for place in placed if place[1] <= query.end]
        end, taken = walk(placed, offset, query.max_bytes, query.key)
        up_to_date = end == found.tail
        closed, touch_due = found.closed and up_to_date, found.touch_due(now_ms)
        data = b"".join(taken)
        common: tuple[Any, ...] = (found.incarnation, found.content_type)
        if isinstance(query, ReadAt):
            return ReadSlice(offset, end, data, up_to_date, *common, closed, touch_due, found.tail)
        return MessageSlice(offset, end, data, lengths_of(taken), common[0], up_to_date, common[1], closed, touch_due, found.tail)

    def _inherited(self, query: ReadInherited) -> QueryResult:
        """Asked for what a pin holds."""
        found = self.streams.get(query.stream)
        if found is None or found.incarnation != query.incarnation:
            return StreamNotFound(query.stream)
        return self._of_source(found, query)

    def _of_source(self, found: ModelStream, query: ReadInherited) -> QueryResult:
        placed = []
        for start, end, message in found.placed():
            if start < query.end:
                cut = min(end, query.end)
                placed.append((start, cut, ModelMessage(message.body[: cut - start], message.time_ms, message.key)))
        if query.offset < query.end and (wrong := found.inside(query.offset)):
            return wrong
        offset, first = query.offset, -1
        if query.since_ms is not None:
            for start, _, message in reversed(placed):
                if start >= query.offset and message.time_ms >= query.since_ms:
                    first = start
            offset = first if first >= 0 else query.end
        end, taken = walk(placed, offset, query.max_bytes, query.key)
        return MessageSlice(offset, end, b"".join(taken), lengths_of(taken), found.incarnation, found=first)

    def _point(self, query: PointAt) -> QueryResult:
        found = self.streams.get(query.stream)
        if found is None or found.incarnation != query.incarnation:
            return StreamNotFound(query.stream)
        if wrong := found.inside(query.anchor):
            return wrong
        left = query.sub_offset
        after = [end for start, end, _ in found.placed() if start >= query.anchor]
        if not left or query.anchor >= query.end:
            return Point(min(query.anchor, query.end), left)
        if not query.is_json:
            return Point(query.anchor + left, 0) if left <= min(after[0], query.end) - query.anchor else SubOffsetBeyond()
        within = [end for end in after if end <= query.end]
        return Point(within[left - 1], 0) if left <= len(within) else Point(query.end, left - len(within))

    def _head(self, found: ModelStream, now_ms: int) -> StreamInfo:
        return StreamInfo(
            found.incarnation,
            found.content_type,
            found.tail,
            found.earliest,
            found.closed,
            found.ttl_s,
            found.expires_at,
            found.touch_due(now_ms),
            -1 if found.snapshot is None else found.snapshot.offset,
            found.retention_bytes,
            found.retention_age_s,
        )

    def _list(self, query: ListStreams) -> StreamPage:
        shown = sorted(name for name in self.streams if name.startswith(query.prefix) and self.visible(name) is not None)
        names = [name for name in shown if name > query.after]
        page = names[: query.limit]
        if not query.details:
            return StreamPage(page, len(names) > query.limit)
        rows = []
        for name in page:
            stream = self.streams[name]
            rows.append(StreamRow(stream.content_type, stream.tail, stream.closed, stream.created_ms, stream.last_write_ms(), stream.expires_at))
        return StreamPage(page, len(names) > query.limit, rows, len(shown))


def walk(placed: list[tuple[int, int, ModelMessage]], offset: int, max_bytes: int, key: str | None) -> tuple[int, list[bytes]]:
    """Whole messages (with that key) from `offset` on while they fit; the first one always does. Answers how far it has looked, too."""
    at = offset
    taken: list[bytes] = []
    for start, end, message in placed:
        if start < offset:
            continue
        if key is None or message.key == key:
            if taken and sum(map(len, taken)) + len(message.body) > max_bytes:
                break
            taken.append(message.body)
        at = end
    return at, taken


def clipped(ranges: list[Range], first: int, last: int) -> list[Range]:
    """The parts of them that lie in [first, last)."""
    cut = [Range(r.stream, r.incarnation, max(r.start, first), min(r.end, last)) for r in ranges]
    return [r for r in cut if r.start < r.end]


def media_type(content_type: str) -> str:
    return content_type.split(";", maxsplit=1)[0].strip().lower()


def lengths_of(bodies: list[bytes]) -> bytes:
    return struct.pack(f"<{len(bodies)}I", *map(len, bodies))


def split(body: bytes, lengths: bytes) -> list[bytes]:
    if not lengths:
        return [body] if body else []
    parts = []
    for (size,) in struct.iter_unpack("<I", lengths):
        parts.append(body[:size])
        body = body[size:]
    assert not body
    return parts

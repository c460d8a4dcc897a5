"""A stream machine that is obviously right and nothing else: dicts of lists, every rule spelled out, no columns, no eviction order.

tests/unit compares the real one with it, command by command; the simulator replays every committed log in it and holds all answers against that
(timeline.py). Knows nothing of entries, snapshots or requests."""

import struct
from dataclasses import dataclass, field

from anabranch_node.core.stream.commands import Append, Command, Create, Delete, Expire, Producer, Touch
from anabranch_node.core.stream.results import (
    Appended,
    BadEpochStart,
    ContentTypeMismatch,
    Created,
    Deleted,
    EmptyBody,
    NotDue,
    ReadResult,
    ReadSlice,
    Result,
    SeqRegression,
    SequenceGap,
    StaleEpoch,
    StreamClosed,
    StreamExists,
    StreamInfo,
    StreamNotFound,
    TooManyProducers,
    Touched,
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
class ModelStream:
    incarnation: int
    content_type: str
    ttl_s: int | None = None
    expires_at_ms: int | None = None
    expires_at: str = ""
    touched_ms: int = 0
    closed: bool = False
    closer: Producer | None = None
    seq: str | None = None
    messages: list[ModelMessage] = field(default_factory=list)
    producers: dict[str, ModelProducer] = field(default_factory=dict)

    @property
    def tail(self) -> int:
        return sum(len(message.body) for message in self.messages)

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


@dataclass
class Model:
    clock: int = 0
    streams: dict[str, ModelStream] = field(default_factory=dict)
    producers_max: int = PRODUCERS_MAX
    idle_ms: int = IDLE_MS

    def apply(self, index: int, position: int, command: Command) -> Result:
        self.clock = max(self.clock, command.now_ms)
        if isinstance(command, Create):
            return self._create(index * 65536 + position, command)
        if isinstance(command, Expire):
            due = self.streams.get(command.stream)
            if due is None or due.incarnation != command.incarnation or not due.gone(self.clock):
                return NotDue()
            del self.streams[command.stream]
            return Deleted(due.incarnation)
        found = self.visible(command.stream)
        if isinstance(command, Touch):
            if found is not None and found.incarnation == command.incarnation:
                found.touched_ms = self.clock
            return Touched()
        if found is None:
            return StreamNotFound(command.stream)
        if isinstance(command, Delete):
            del self.streams[command.stream]
            return Deleted(found.incarnation)
        return self._append(found, command)

    def visible(self, name: str) -> ModelStream | None:
        found = self.streams.get(name)
        return None if found is None or found.gone(self.clock) else found

    def _create(self, incarnation: int, command: Create) -> Result:
        found = self.visible(command.stream)
        if found is not None:
            same = (found.ttl_s, found.expires_at_ms, found.closed) == (command.ttl_s, command.expires_at_ms, command.closed)
            if not same or media_type(found.content_type) != media_type(command.content_type):
                return StreamExists(command.stream, found.content_type)
            found.touched_ms = self.clock
            return Created(found.tail, True, found.closed, found.incarnation)
        made = ModelStream(incarnation, command.content_type, command.ttl_s, command.expires_at_ms, command.expires_at, self.clock, command.closed)
        made.messages = [ModelMessage(body, self.clock, "") for body in split(command.body, command.lengths)]
        self.streams[command.stream] = made
        return Created(made.tail, False, command.closed, incarnation)

    def _append(self, target: ModelStream, command: Append) -> Result:
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
            last_ms = target.messages[-1].time_ms if target.messages else 0
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

    def read(self, name: str, offset: int, max_bytes: int, now_ms: int) -> ReadResult | None:
        """None where the offset is no boundary: the test says then what it expects."""
        found = self.visible(name)
        if found is None:
            return StreamNotFound(name)
        at = 0
        taken: list[bytes] = []
        for body in (message.body for message in found.messages):
            if at >= offset and (not taken or sum(map(len, taken)) + len(body) <= max_bytes):
                if at != offset + sum(map(len, taken)):
                    return None
                taken.append(body)
            elif taken:
                break
            at += len(body)
        data = b"".join(taken)
        if not taken and offset != found.tail:
            return None
        end = offset + len(data)
        at_tail = end == found.tail
        closed = found.closed and at_tail
        return ReadSlice(offset, end, data, at_tail, found.incarnation, found.content_type, closed, found.touch_due(now_ms))

    def head(self, name: str, now_ms: int) -> StreamInfo | StreamNotFound:
        found = self.visible(name)
        if found is None:
            return StreamNotFound(name)
        touch_due = found.touch_due(now_ms)
        return StreamInfo(found.incarnation, found.content_type, found.tail, 0, found.closed, found.ttl_s, found.expires_at, touch_due)


def media_type(content_type: str) -> str:
    return content_type.split(";", maxsplit=1)[0].strip().lower()


def split(body: bytes, lengths: bytes) -> list[bytes]:
    if not lengths:
        return [body] if body else []
    parts = []
    for (size,) in struct.iter_unpack("<I", lengths):
        parts.append(body[:size])
        body = body[size:]
    assert not body
    return parts

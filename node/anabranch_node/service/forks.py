"""Forks: making one across two groups, and reading what one inherits from others. Pure; service.py brings requests and results here.

Making (DESIGN 9): look whether it is there, Pin at the source, CreateFork with what the pin said. A point inside what the source inherits itself is
found out by its owners first. Whatever is left undone (a node that dies, a client that leaves, an answer that is lost) the source's leader settles
later (cross.py); until CreateFork was sent, nothing has happened. Reading: the fork's own group says which ranges of which streams come first; they
are asked for one after the other, each behind its own ReadIndex, and put together as one slice.

Not here: what a group does with any of it (core/cross, core/stream)."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from anabranch_node.core.errors import NotLeading, OutcomeUnknown, ReadUnavailable
from anabranch_node.core.stream.commands import CreateFork, Pin, PublishSnapshot, Range
from anabranch_node.core.stream.queries import NOW, ForkLook, PointAt, ReadInherited
from anabranch_node.core.stream.results import (
    Inherited,
    MessageSlice,
    Pinned,
    Point,
    PointElsewhere,
    ReadSlice,
    StreamNotFound,
    SubOffsetBeyond,
)
from anabranch_node.service.life import Life
from anabranch_node.web import write as web_write
from anabranch_node.web.request import BadRequest

if TYPE_CHECKING:
    from anabranch_node.service.service import Service

READ_AGAIN_MAX = 3
"""Times that a read starts over because what it inherits went away under it: its fork was deleted, or replaced."""

Then = Callable[[Any], None]


class Forks:
    def __init__(self, service: "Service") -> None:
        self._service = service
        self._uuids = 0

    def _uuid(self) -> str:
        """Never the same again: node, incarnation and boot name this process."""
        host = self._service.host
        self._uuids += 1
        return f"{host.me.node_id:x}-{host.me.incarnation:x}-{host.boot:x}-{self._uuids:x}"

    # --- making ------------------------------------------------------------------------------------------------------------------

    def make(self, life: Life, body: bytes) -> None:
        """`life` is the client's request, known to the service, with its deadline; its answer is ours to give."""
        request = life.request
        assert request is not None
        look = ForkLook(
            request.stream,
            request.fork_source,
            request.fork_anchor,
            request.fork_sub_offset,
            request.content_type,
            request.ttl_s,
            request.expires_at_ms,
            request.closed,
            request.retention_bytes,
            request.retention_age_s,
        )
        self._ask(life, request.stream, False, look, lambda found: self._looked(life, body, found))

    def _looked(self, life: Life, body: bytes, found: Any) -> None:
        request = life.request
        assert request is not None
        if not isinstance(found, StreamNotFound):
            self._service.finish(life, found)
            return
        anchor = NOW if request.fork_anchor is None else request.fork_anchor
        self._pin(life, body, Pin(request.fork_source, self._uuid(), request.stream, anchor, request.fork_sub_offset, request.content_type, 0))

    def _pin(self, life: Life, body: bytes, pin: Pin) -> None:
        self._ask(life, pin.stream, True, pin, lambda pinned: self._pinned(life, body, pin, pinned))

    def _pinned(self, life: Life, body: bytes, pin: Pin, found: Any) -> None:
        if isinstance(found, Pinned):
            self._create(life, body, pin, found)
        elif isinstance(found, PointElsewhere):

            def go_on(offset: int) -> None:
                self._pin(life, body, Pin(pin.stream, pin.uuid, pin.fork, offset, 0, pin.content_type, 0, found.incarnation))

            self._find_point(life, found, pin.anchor, pin.sub_offset, go_on)
        elif isinstance(found, OutcomeUnknown):
            self._service.finish(life, NotLeading(0))  # there may be a pin, but no fork: that is settled later, and nobody sees it
        else:
            self._service.finish(life, found)

    def _create(self, life: Life, body: bytes, pin: Pin, pinned: Pinned) -> None:
        request = life.request
        assert request is not None
        try:
            content, lengths = web_write.initial_body(pinned.content_type, body)
        except BadRequest as refusal:
            self._service.refuse(life, refusal)
            return
        own = request.ttl_s is not None or request.expires_at_ms is not None
        lifetime = (request.ttl_s, request.expires_at_ms, request.expires_at) if own else (pinned.ttl_s, pinned.expires_at_ms, pinned.expires_at)
        command = CreateFork(
            request.stream,
            pin.uuid,
            pin.stream,
            pinned.incarnation,
            request.fork_anchor,
            request.fork_sub_offset,
            pinned.offset,
            pinned.earliest,
            pinned.ranges,
            request.content_type or pinned.content_type,
            0,
            *lifetime,
            request.closed,
            content,
            lengths,
            request.retention_bytes,
            request.retention_age_s,
            pinned.last_append_ms,
        )
        # From here on it is a create like any other: its bucket may have to be opened, its leader found, and silence means unknown.
        life.payload = command
        self._service.send_again(life)

    # --- points in inherited parts -----------------------------------------------------------------------------------------------

    def publish_elsewhere(self, life: Life, publish: PublishSnapshot, found: PointElsewhere) -> None:
        """The snapshot's offset lies in the inherited part: is it a message boundary there? Then publish it as one."""

        def go_on(offset: int) -> None:
            life.payload = PublishSnapshot(publish.stream, offset, publish.content_type, publish.body, 0, found.incarnation)
            self._service.send_again(life)

        self._find_point(life, found, publish.offset, 0, go_on)

    def _find_point(self, life: Life, found: PointElsewhere, anchor: int, sub_offset: int, then: Callable[[int], None]) -> None:
        ranges = found.ranges

        def ask(number: int, left: int) -> None:
            if number == len(ranges):
                self._service.finish(life, SubOffsetBeyond())
                return
            r = ranges[number]
            query = PointAt(r.stream, r.incarnation, max(anchor, r.start), r.end, left, found.is_json)
            self._ask(life, r.stream, False, query, lambda point: answered(number, point))

        def answered(number: int, point: Any) -> None:
            if not isinstance(point, Point):
                self._service.finish(life, point)
            elif point.left:
                ask(number + 1, point.left)
            else:
                then(point.offset)

        ask(0, sub_offset)

    # --- reading -----------------------------------------------------------------------------------------------------------------

    def gather(self, life: Life, inherited: Inherited) -> None:
        _Gathering(self, life, inherited).go_on()

    def put_together(self, life: Life, slice: ReadSlice | MessageSlice) -> None:
        if self._service.is_open(life):
            self._service.finish(life, slice)

    def could_not(self, life: Life, why: Any) -> None:
        if not self._service.is_open(life):
            return
        if isinstance(why, StreamNotFound):
            life.tries += 1
            if life.tries <= READ_AGAIN_MAX:
                self._service.send_again(life)
                return
            why = ReadUnavailable()
        self._service.finish(life, why)

    def ask_range(self, life: Life, query: ReadInherited, then: Then) -> None:
        self._ask(life, query.stream, False, query, then)

    def _ask(self, life: Life, stream: str, write: bool, payload: Any, then: Then) -> None:
        """A step of this request at the group of `stream`. A client that has left, or was answered for its deadline, goes no further."""

        def answered(result: Any) -> None:
            if self._service.is_open(life):
                then(result)

        self._service.ask(self._service.group_of(stream), write, payload, answered)


class _Gathering:
    """One read of a fork from before its fork point."""

    __slots__ = ("_at", "_end", "_forks", "_inherited", "_lengths", "_life", "_number", "_pieces", "_room", "_start")

    def __init__(self, forks: Forks, life: Life, inherited: Inherited) -> None:
        self._forks = forks
        self._life = life
        self._inherited = inherited
        self._number = 0
        self._start = -1 if life.payload.since_ms is not None else inherited.offset
        """Where the answer begins; -1: not found yet."""
        self._at = inherited.offset
        self._room = life.payload.max_bytes
        self._pieces: list[bytes] = []
        self._lengths: list[bytes] = []
        self._end = getattr(life.payload, "end", -1)

    def go_on(self) -> None:
        ranges, payload = self._inherited.ranges, self._life.payload
        if self._number == len(ranges):
            self._own_part()
            return
        r = self._clipped(ranges[self._number])
        if r.start >= r.end:
            self._number += 1
            self.go_on()
            return
        since_ms = payload.since_ms if self._start < 0 else None
        query = ReadInherited(r.stream, r.incarnation, r.start, r.end, max(1, self._room), payload.key, since_ms)
        self._forks.ask_range(self._life, query, lambda found: self._told(r, found))

    def _clipped(self, r: Range) -> Range:
        end = r.end if self._end < 0 else min(r.end, self._end)
        return Range(r.stream, r.incarnation, max(r.start, self._at), end)

    def _told(self, r: Range, found: Any) -> None:
        if not isinstance(found, MessageSlice):
            self._forks.could_not(self._life, found)
            return
        if self._start < 0:
            if found.found < 0:
                self._at, self._number = r.end, self._number + 1
                self.go_on()
                return
            self._start = found.found
        if self._pieces and len(found.data) > self._room:
            self._finish(None)  # even one message more is too much
            return
        if found.data:
            self._pieces.append(found.data)
            self._lengths.append(found.lengths)
        self._room -= len(found.data)
        self._at = found.next_offset
        if self._at < r.end:
            self._finish(None)
            return
        self._number += 1
        self.go_on()

    def _own_part(self) -> None:
        own = self._inherited.own
        # Nothing always fits, also where a message larger than was asked for has left less than no room: the reader is told that it is at the tail.
        fits = not self._pieces or not own.data or len(own.data) <= self._room
        self._finish(own if fits else None)

    def _finish(self, own: ReadSlice | MessageSlice | None) -> None:
        head = self._inherited.own
        if self._start < 0:
            self._start = head.start
        pieces, lengths, at, up_to_date, closed = self._pieces, self._lengths, self._at, False, False
        if own is not None:
            pieces, at, up_to_date, closed = [*pieces, own.data], own.next_offset, own.up_to_date, own.closed
            if isinstance(own, MessageSlice):
                lengths = [*lengths, own.lengths]
        data = b"".join(pieces)
        behind = own is None
        if isinstance(head, MessageSlice):
            joined = b"".join(lengths)
            slice: ReadSlice | MessageSlice = MessageSlice(
                self._start, at, data, joined, head.incarnation, up_to_date, head.content_type, closed, False, head.tail
            )
        else:
            slice = ReadSlice(self._start, at, data, up_to_date, head.incarnation, head.content_type, closed, False, head.tail, behind)
        self._forks.put_together(self._life, slice)

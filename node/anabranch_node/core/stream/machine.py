"""The stream state machine of one group: apply(entry) -> results. Dispatch and nothing else; the rules are in lifecycle.py and append.py.

Before us: Raft committed the entry. After us: the engine answers whoever waits and wakes live readers. Deterministic: no clock, no chance, no
order taken from a set; every replica that applied the same entries holds the same state (digest). An exception here fences the group."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from anabranch_node.core.cross import fences, pins
from anabranch_node.core.cross.outbox import Owed
from anabranch_node.core.raft import entry
from anabranch_node.core.stream import lifecycle, read_plan, snapshot
from anabranch_node.core.stream.append import append
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
    PublishSnapshot,
    ResolveFork,
    SettlePin,
    Touch,
    Trim,
    Unpin,
    decode_commands,
)
from anabranch_node.core.stream.queries import (
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
    BucketFenced,
    Created,
    Deleted,
    NoSnapshot,
    QueryResult,
    Result,
    SnapshotBlob,
    StreamInfo,
    StreamNotFound,
    StreamPage,
    StreamRow,
)
from anabranch_node.core.stream.snapshot import FrozenView
from anabranch_node.core.stream.stream import Stream
from anabranch_node.core.stream.table import StreamTable

COMMANDS_PER_ENTRY_MAX = 1 << 16
"""An incarnation has 16 bits for the place of its create in the entry."""


class UnknownCommandVersion(Exception):
    """A newer version wrote this entry. It is never skipped: the group is fenced until this node is upgraded."""

    def __init__(self, index: int, version: int) -> None:
        super().__init__(f"log entry {index} has command version {version}; this version applies up to {entry.COMMANDS_V1}: upgrade this node")
        self.index = index
        self.version = version


class StreamMachine:
    __slots__ = ("_table", "applied_index", "now_ms", "watched", "woken")

    def __init__(self) -> None:
        self.applied_index = 0
        self.now_ms = 0
        """The group's clock: the latest time in any command so far. One wrong stamp cannot make it go back."""
        self.watched: dict[str, Any] = {}
        """Names of streams that somebody waits on. The engine's; only looked at here."""
        self.woken: list[str] = []
        """Watched streams that changed visibly, once per entry. The engine takes them out."""
        self._table = StreamTable()

    def apply(self, index: int, version: int, payload: bytes) -> list[Result]:
        """Apply one committed entry, each exactly once and in order, those without commands included. One result per command."""
        if version == entry.COMMANDS_V1:
            return self.apply_commands(index, decode_commands(payload))
        if version != entry.NOOP and version != entry.CONFIG:
            raise UnknownCommandVersion(index, version)
        return self.apply_commands(index, ())

    def apply_commands(self, index: int, commands: Sequence[Command]) -> list[Result]:
        """The same for the leader, which still has the objects that it encoded."""
        assert index == self.applied_index + 1, (index, self.applied_index)
        table = self._table
        now_ms = self.now_ms
        watched = self.watched
        results: list[Result] = []
        for command in commands:
            if command.now_ms > now_ms:
                now_ms = command.now_ms
            if isinstance(command, Append):
                results.append(append(table, command, now_ms))
            elif isinstance(command, Create | CreateFork):
                assert len(results) < COMMANDS_PER_ENTRY_MAX, len(results)
                results.append(lifecycle.create(table, command, index << 16 | len(results), now_ms))
            else:
                results.append(_APPLY[type(command)](table, command, now_ms))
        if watched:
            self._wake(commands, results)
        self.now_ms = now_ms
        self.applied_index = index
        return results

    def _wake(self, commands: Sequence[Command], results: list[Result]) -> None:
        # A dict for its order: every replica, and every run of the simulator, wakes alike.
        changed: dict[str, None] = {}
        for command, result in zip(commands, results, strict=True):
            stream = getattr(command, "stream", None)  # what is of no stream has none
            if stream in self.watched and _is_change(result):
                changed[stream] = None
        self.woken.extend(changed)

    def query(self, query: Query, now_ms: int) -> QueryResult:
        """`now_ms` is the clock of the node that serves: it says whether a Touch is worth proposing. What is visible, the group's clock says."""
        if isinstance(query, ListStreams):
            return self._list(query)
        if isinstance(query, BucketCount):
            return BucketFenced(self._table.bucket_counts.get(query.bucket, 0))
        stream = self._table.streams.get(query.stream)
        if isinstance(query, ReadInherited):
            return read_plan.read_inherited(stream, query)
        if isinstance(query, PointAt):
            return read_plan.point_at(stream, query)
        if isinstance(query, ForkLook):
            return lifecycle.look_for_fork(stream, query, self.now_ms)
        absent = lifecycle.why_absent(query.stream, stream, self.now_ms)
        if stream is None or absent is not None:
            return absent or StreamNotFound(query.stream)
        if isinstance(query, ReadAt):
            return read_plan.read(stream, query, now_ms)
        if isinstance(query, ReadMessages):
            if query.incarnation not in (0, stream.incarnation):
                return StreamNotFound(query.stream)
            return read_plan.read(stream, query, now_ms)
        if isinstance(query, ReadSnapshot):
            return _published(stream, query, now_ms)
        assert isinstance(query, Head), query
        rare = stream.rare
        if rare is None:
            return StreamInfo(stream.incarnation, stream.content_type, stream.tail, stream.earliest, False, None, "", False)
        published = -1 if rare.published is None else rare.published.offset
        settings = (rare.closed, rare.ttl_s, rare.expires_at, rare.is_touch_due(now_ms), published, rare.retention_bytes, rare.retention_age_s)
        return StreamInfo(stream.incarnation, stream.content_type, stream.tail, stream.earliest, *settings)

    def _is_visible(self, stream: Stream) -> bool:
        return lifecycle.why_absent(stream.name, stream, self.now_ms) is None

    def _list(self, query: ListStreams) -> StreamPage:
        streams, names = self._table.streams, self._table.names()
        page: list[str] = []
        more = False
        for at in range(max(bisect_left(names, query.prefix), bisect_right(names, query.after)), len(names)):
            name = names[at]
            if not name.startswith(query.prefix):
                break
            if not self._is_visible(streams[name]):
                continue
            if len(page) >= query.limit:
                more = True
                break
            page.append(name)
        if not query.details:
            return StreamPage(page, more)
        first = bisect_left(names, query.prefix)
        alike = bisect_left(names, query.prefix + chr(0x10FFFF), first) - first
        count = alike - sum(name.startswith(query.prefix) and not self._is_visible(streams[name]) for name in self._table.mortal)
        return StreamPage(page, more, [_row(streams[name]) for name in page], count)

    def due(self, now_ms: int) -> list[Command]:
        """Expire and Trim commands, still to be stamped, for streams that are due by the leader's clock. Bounded, and each not again for a second."""
        table = self._table
        return [*table.expiry.due(table.streams, now_ms), *table.retention.due(table.streams, now_ms)]

    @property
    def outbox(self) -> dict[int, Owed]:
        """What this group owes others, by number."""
        return self._table.outbox.entries

    def pending_pins(self) -> list[tuple[str, int, str, str]]:
        """(stream, incarnation, uuid, fork) of pins of whose forks nothing is known yet."""
        found = []
        for uuid, name in self._table.pending_pins.items():
            stream = self._table.streams[name]
            assert stream.rare is not None
            assert stream.rare.pins is not None
            found.append((name, stream.incarnation, uuid, stream.rare.pins[uuid].fork))
        return found

    @property
    def hot_bytes(self) -> int:
        """Payload that all streams hold."""
        return self._table.hot_bytes

    @property
    def stream_count(self) -> int:
        return len(self._table.streams)

    def freeze(self) -> FrozenView:
        """The state as it is now, to be written out in slices while entries go on being applied."""
        return FrozenView(self.applied_index, self.now_ms, self._table.freeze())

    @classmethod
    def restore(cls, chunks: Iterable[bytes]) -> "StreamMachine":
        """The machine that `freeze().slices()` described. Raises Damaged or NewerFormat (anabranch_proto.formats)."""
        machine = cls()
        machine.applied_index, machine.now_ms, machine._table = snapshot.restore(chunks)
        return machine

    def digest(self) -> bytes:
        """16 bytes, equal on every replica that applied the same entries."""
        return snapshot.digest(self.applied_index, self.now_ms, self._table)


_APPLY: Final[dict[type[Any], Callable[[StreamTable, Any, int], Result]]] = {
    Delete: lifecycle.delete,
    Touch: lifecycle.touch,
    Expire: lifecycle.expire,
    PublishSnapshot: lifecycle.publish,
    Trim: lifecycle.trim,
    Pin: pins.pin,
    Unpin: pins.unpin,
    ResolveFork: pins.resolve,
    SettlePin: pins.settle,
    AckOutbox: pins.acknowledge,
    BucketOpen: fences.open_bucket,
    BucketFence: fences.fence_bucket,
}


def _published(stream: Stream, query: ReadSnapshot, now_ms: int) -> SnapshotBlob | NoSnapshot:
    published = None if stream.rare is None else stream.rare.published
    if published is None or query.offset not in (-1, published.offset):
        return NoSnapshot()
    assert stream.rare is not None
    data = published.data if query.blob else b""
    state = (stream.tail, stream.rare.closed, stream.incarnation, stream.rare.is_touch_due(now_ms))
    return SnapshotBlob(published.offset, published.content_type, data, *state)


def _row(stream: Stream) -> StreamRow:
    rare = stream.rare
    closed, expires_at = (False, "") if rare is None else (rare.closed, rare.expires_at)
    return StreamRow(stream.content_type, stream.tail, closed, stream.created_ms, stream.last_append_ms or stream.created_ms, expires_at)


def _is_change(result: Result) -> bool:
    """Did the command change what a reader sees?"""
    if isinstance(result, Appended):
        return not result.duplicate
    return isinstance(result, Deleted) or (isinstance(result, Created) and not result.existed)

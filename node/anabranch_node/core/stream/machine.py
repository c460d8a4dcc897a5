"""The stream state machine of one group: apply(entry) -> results. Dispatch and nothing else; the rules are in lifecycle.py and append.py.

Before us: Raft committed the entry. After us: the engine answers whoever waits and wakes live readers. Deterministic: no clock, no chance, no
order taken from a set; every replica that applied the same entries holds the same state (digest). An exception here fences the group."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

from anabranch_node.core.raft import entry
from anabranch_node.core.stream import lifecycle, read_plan, snapshot
from anabranch_node.core.stream.append import append
from anabranch_node.core.stream.commands import Append, Command, Create, Delete, Expire, Touch, decode_commands
from anabranch_node.core.stream.queries import Head, ListStreams, Query, ReadAt
from anabranch_node.core.stream.results import (
    Appended,
    Created,
    Deleted,
    QueryResult,
    Result,
    StreamInfo,
    StreamNotFound,
    StreamPage,
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
            else:
                results.append(_change_life(table, command, index, len(results), now_ms))
        if watched:
            self._wake(commands, results)
        self.now_ms = now_ms
        self.applied_index = index
        return results

    def _wake(self, commands: Sequence[Command], results: list[Result]) -> None:
        # A dict for its order: every replica, and every run of the simulator, wakes alike.
        changed = {
            command.stream: None for command, result in zip(commands, results, strict=True) if command.stream in self.watched and _is_change(result)
        }
        self.woken.extend(changed)

    def query(self, query: Query, now_ms: int) -> QueryResult:
        """`now_ms` is the clock of the node that serves: it says whether a Touch is worth proposing. What is visible, the group's clock says."""
        if isinstance(query, ListStreams):
            return self._list(query)
        stream = self._table.streams.get(query.stream)
        if stream is None or not self._is_visible(stream):
            return StreamNotFound(query.stream)
        if isinstance(query, ReadAt):
            return read_plan.read(stream, query.offset, query.max_bytes, now_ms)
        assert isinstance(query, Head), query
        rare = stream.rare
        if rare is None:
            return StreamInfo(stream.incarnation, stream.content_type, stream.tail, 0, False, None, "", False)
        touch_due = rare.is_touch_due(now_ms)
        return StreamInfo(stream.incarnation, stream.content_type, stream.tail, 0, rare.closed, rare.ttl_s, rare.expires_at, touch_due)

    def _is_visible(self, stream: Stream) -> bool:
        return stream.rare is None or not stream.rare.is_due(self.now_ms)

    def _list(self, query: ListStreams) -> StreamPage:
        streams, names = self._table.streams, self._table.names()
        page: list[str] = []
        for at in range(max(bisect_left(names, query.prefix), bisect_right(names, query.after)), len(names)):
            name = names[at]
            if not name.startswith(query.prefix):
                break
            if not self._is_visible(streams[name]):
                continue
            if len(page) >= query.limit:
                return StreamPage(page, True)
            page.append(name)
        return StreamPage(page, False)

    def due(self, now_ms: int) -> list[Command]:
        """Expire commands, still to be stamped, for streams that are due by the leader's clock. Bounded, and each not again for a second."""
        return [*self._table.expiry.due(self._table.streams, now_ms)]

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
        return snapshot.digest(self.applied_index, self.now_ms, self._table.streams)


def _change_life(table: StreamTable, command: Create | Delete | Touch | Expire, index: int, position: int, now_ms: int) -> Result:
    if isinstance(command, Create):
        assert position < COMMANDS_PER_ENTRY_MAX, position
        return lifecycle.create(table, command, index << 16 | position, now_ms)
    if isinstance(command, Delete):
        return lifecycle.delete(table, command, now_ms)
    if isinstance(command, Touch):
        return lifecycle.touch(table, command, now_ms)
    return lifecycle.expire(table, command, now_ms)


def _is_change(result: Result) -> bool:
    """Did the command change what a reader sees?"""
    if isinstance(result, Appended):
        return not result.duplicate
    return isinstance(result, Deleted) or (isinstance(result, Created) and not result.existed)

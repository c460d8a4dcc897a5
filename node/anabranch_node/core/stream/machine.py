"""The stream state machine of one group: apply(entry) -> results. Dispatch and nothing else; the rules are in lifecycle.py and append.py.

Before us: Raft committed the entry. After us: the engine answers whoever waits and wakes live readers. Deterministic: no clock, no chance, no
order taken from a set; every replica that applied the same entries holds the same state (digest). An exception here fences the group."""

from collections.abc import Iterable, Sequence

from anabranch_node.core.raft import entry
from anabranch_node.core.stream import read_plan, snapshot
from anabranch_node.core.stream.append import append
from anabranch_node.core.stream.commands import Append, Command, decode_commands
from anabranch_node.core.stream.lifecycle import create
from anabranch_node.core.stream.results import ReadResult, Result, StreamNotFound
from anabranch_node.core.stream.snapshot import FrozenView
from anabranch_node.core.stream.table import StreamTable


class UnknownCommandVersion(Exception):
    """A newer version wrote this entry. It is never skipped: the group is fenced until this node is upgraded."""

    def __init__(self, index: int, version: int) -> None:
        super().__init__(f"log entry {index} has command version {version}; this version applies up to {entry.COMMANDS_V1}: upgrade this node")
        self.index = index
        self.version = version


class StreamMachine:
    __slots__ = ("_table", "applied_index", "now_ms")

    def __init__(self) -> None:
        self.applied_index = 0
        self.now_ms = 0
        """The group's clock: the latest time in any command so far. One wrong stamp cannot make it go back."""
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
        results: list[Result] = []
        for command in commands:
            if command.now_ms > now_ms:
                now_ms = command.now_ms
            if isinstance(command, Append):
                results.append(append(table, command, now_ms))
            else:
                results.append(create(table, command, index))
        self.now_ms = now_ms
        self.applied_index = index
        return results

    def read(self, stream: str, offset: int, max_bytes: int) -> ReadResult:
        found = self._table.streams.get(stream)
        return StreamNotFound(stream) if found is None else read_plan.read(found, offset, max_bytes)

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

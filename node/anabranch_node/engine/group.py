"""One Raft member and its state machine on this node: requests in, one log entry per turn, applied results out. host.py calls finish() at the end of
each turn.

Before us: host.py found the group. After us: wal/ persists what Raft asks, outbox.py sends what it says. Not here: files and frames (host.py),
snapshots on their way (snapshots.py). An exception in here fences this group on this node and nothing else; the entry that caused it is never
skipped."""

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import msgspec

from anabranch_node.core.effects import Answer, Effect, Read
from anabranch_node.core.errors import NotLeading, Overloaded, ReadUnavailable, TooLarge
from anabranch_node.core.machine import Machine, MachineKind
from anabranch_node.core.raft import entry as entries_of
from anabranch_node.core.raft.errors import LeaderMoving, NotLeader, UncommittedFull
from anabranch_node.core.raft.raft import Raft, Role
from anabranch_node.engine.snapshots import SnapshotOptions, Snapshots, SnapshotSlots
from anabranch_node.engine.waiters import Waiters, pair

_encode_commands = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class GroupOptions:
    entry_bytes_max: int = 1 << 20  # commands of one turn share an entry up to this; a larger command has one of its own
    command_bytes_max: int = 16 << 20  # must fit half a WAL segment
    queue_bytes_max: int = 16 << 20  # proposed in this turn and not yet in the log
    reads_waiting_max: int = 10_000
    snapshots: SnapshotOptions = SnapshotOptions()


class Group:
    def __init__(
        self, group: int, raft: Raft, kind: MachineKind, machine: Machine, options: GroupOptions, cluster_id: str, slots: SnapshotSlots
    ) -> None:
        assert machine.applied_index == raft.applied, (machine.applied_index, raft.applied)
        self.id = group
        self.raft = raft
        self.kind = kind
        self.machine = machine
        self.options = options
        self.fenced = ""
        self.waiters = Waiters()
        self.snapshots = Snapshots(self, options.snapshots, cluster_id, slots)
        self._queue: list[tuple[int, Any]] = []
        self._queue_bytes = 0
        self._reads: dict[int, Read] = {}  # asked, not confirmed
        self._confirmed: list[tuple[int, int]] = []  # heap of (index, token): confirmed, not applied that far
        self._last_stamp_ms = 0

    @property
    def replica(self) -> int:
        return self.raft.id

    # --- requests ----------------------------------------------------------------------------------------------------------------

    def propose(self, token: int, command: Any, out: list[Effect]) -> None:
        raft = self.raft
        if raft.role is not Role.LEADER:
            out.append(Answer(token, NotLeading(raft.leader)))
        elif len(getattr(command, "body", b"")) > self.options.command_bytes_max:
            out.append(Answer(token, TooLarge(self.options.command_bytes_max)))
        elif self._queue_bytes > self.options.queue_bytes_max:
            out.append(Answer(token, Overloaded("commands of this turn")))
        else:
            self._queue.append((token, command))
            self._queue_bytes += len(getattr(command, "body", b""))

    def read(self, request: Read, out: list[Effect]) -> None:
        if len(self._reads) + len(self._confirmed) >= self.options.reads_waiting_max:
            out.append(Answer(request.token, Overloaded("reads waiting for this group")))
            return
        self._reads[request.token] = request
        self.raft.read_index(request.token)

    # --- the end of a turn -------------------------------------------------------------------------------------------------------

    def wants_finish(self) -> bool:
        """After a tick: is there anything to do? An idle group must cost next to nothing."""
        raft = self.raft
        return bool(
            raft.send_now
            or raft.send_after_sync
            or raft.persist
            or raft.read_failures
            or (self.waiters and raft.role is not Role.LEADER)
            or self.snapshots.wants_finish()
        )

    def finish(self, now_ms: int, out: list[Effect]) -> None:
        """Propose what was asked in this turn, let Raft finish its turn, apply what is committed, answer. The caller empties Raft's lists after
        us."""
        raft = self.raft
        if self._queue:
            self._propose_queued(now_ms, out)
        raft.flush()
        if raft.committed:
            for index, entry in raft.committed:
                self._apply(index, entry, out)
            raft.committed.clear()
        if self.waiters and (raft.role is not Role.LEADER or raft.term != self.waiters.term):
            out.extend(self.waiters.fail("this node lost the leadership before the commit"))
        self._finish_reads(out)
        self.snapshots.finish(out)

    def _propose_queued(self, now_ms: int, out: list[Effect]) -> None:
        queue, self._queue, self._queue_bytes = self._queue, [], 0
        self._last_stamp_ms = stamp = max(self._last_stamp_ms, now_ms)
        tokens: list[int] = []
        commands: list[Any] = []
        size = 0
        for token, command in queue:
            length = len(getattr(command, "body", b"")) + 64
            if commands and size + length > self.options.entry_bytes_max:
                self._propose_entry(tokens, commands, out)
                tokens, commands, size = [], [], 0
            tokens.append(token)
            commands.append(msgspec.structs.replace(command, now_ms=stamp))
            size += length
        self._propose_entry(tokens, commands, out)

    def _propose_entry(self, tokens: list[int], commands: list[Any], out: list[Effect]) -> None:
        try:
            index, term = self.raft.propose(entries_of.COMMANDS_V1, _encode_commands(commands))
        except NotLeader as refusal:
            out.extend(Answer(token, NotLeading(refusal.leader)) for token in tokens)
        except LeaderMoving as refusal:
            out.extend(Answer(token, NotLeading(refusal.target)) for token in tokens)
        except UncommittedFull:
            out.extend(Answer(token, Overloaded("uncommitted bytes of this group")) for token in tokens)
        else:
            self.waiters.add(index, term, tokens, commands)

    def _apply(self, index: int, entry: bytes, out: list[Effect]) -> None:
        waiting = self.waiters.take(index, entries_of.term_of(entry)) if self.waiters else None
        if isinstance(waiting, tuple):
            tokens, commands = waiting
            out.extend(pair(tokens, self.machine.apply_commands(index, commands)))
        else:
            self.machine.apply(index, entries_of.version_of(entry), entries_of.payload_of(entry))
            if waiting is not None:
                out.extend(waiting)
        self.snapshots.applied(len(entry))

    def _finish_reads(self, out: list[Effect]) -> None:
        raft = self.raft
        if raft.read_failures:
            out.extend(Answer(token, ReadUnavailable()) for token in raft.read_failures if self._reads.pop(token, None) is not None)
            raft.read_failures.clear()
        if raft.read_states:
            for token, index in raft.read_states:
                if token in self._reads:
                    heappush(self._confirmed, (index, token))
            raft.read_states.clear()
        while self._confirmed and self._confirmed[0][0] <= self.machine.applied_index:
            token = heappop(self._confirmed)[1]
            request = self._reads.pop(token, None)
            if request is not None:
                out.append(Answer(token, self.machine.read(request.stream, request.offset, request.max_bytes)))

    def abandon(self, reason: str) -> list[Effect]:
        """This group is fenced or destroyed: everyone who waits gets the honest answer."""
        answers: list[Effect] = list(self.waiters.fail(reason))
        # What is queued never reached a log.
        answers.extend(Answer(token, NotLeading(0)) for token, _ in self._queue)
        answers.extend(Answer(token, ReadUnavailable()) for token in self._reads)
        self.snapshots.stop_taking()
        self._queue.clear()
        self._reads.clear()
        self._confirmed.clear()
        return answers

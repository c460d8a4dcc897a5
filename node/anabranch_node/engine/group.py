"""One Raft member and its state machine on this node: requests in, one log entry per turn, applied results out. host.py calls finish() at the end of
each turn.

Before us: host.py found the group. After us: wal/ persists what Raft asks, outbox.py sends what it says. Not here: files and frames (host.py),
snapshots on their way (snapshots.py). An exception in here fences this group on this node and nothing else; the entry that caused it is never
skipped."""

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import msgspec

from anabranch_node.core.effects import Answer, Effect
from anabranch_node.core.errors import NotLeading, OutcomeUnknown, Overloaded, ReadUnavailable, Refused, TooLarge
from anabranch_node.core.machine import Machine, MachineKind
from anabranch_node.core.raft import entry as entries_of
from anabranch_node.core.raft.errors import LeaderMoving, NotLeader, UncommittedFull
from anabranch_node.core.raft.raft import Raft, Role
from anabranch_node.core.stream.commands import commands_payload
from anabranch_node.engine.counts import Counts
from anabranch_node.engine.snapshots import SnapshotOptions, Snapshots, SnapshotSlots
from anabranch_node.engine.waiters import Waiters, pair

_encode = msgspec.msgpack.Encoder().encode
_stamp = msgspec.structs.force_setattr


@dataclass(frozen=True, slots=True)
class GroupOptions:
    entry_bytes_max: int = 1 << 20  # commands of one turn share an entry up to this; a larger command has one of its own
    command_bytes_max: int = 16 << 20  # encoded; must fit half a WAL segment
    queue_bytes_max: int = 16 << 20  # proposed in this turn and not yet in the log
    reads_waiting_max: int = 10_000
    snapshots: SnapshotOptions = SnapshotOptions()


class Group:
    def __init__(
        self,
        group: int,
        raft: Raft,
        kind: MachineKind,
        machine: Machine,
        options: GroupOptions,
        cluster_id: str,
        slots: SnapshotSlots,
        counts: Counts,
    ) -> None:
        assert machine.applied_index == raft.applied, (machine.applied_index, raft.applied)
        self.id = group
        self.raft = raft
        self.kind = kind
        self.machine = machine
        self.options = options
        self.counts = counts
        self.fenced = ""
        self.busy = False  # something here waits for ticks; otherwise an idle group must cost next to nothing
        self.waiters = Waiters()
        self.snapshots = Snapshots(self, options.snapshots, cluster_id, slots)
        # Asked for in this turn, checked and encoded, not in the log yet: three columns.
        self._tokens: list[int] = []
        self._commands: list[Any] = []
        self._encoded: list[bytes] = []
        self._queue_bytes = 0
        self._reads: dict[int, Any] = {}  # token -> query: asked and not answered yet
        self._confirmed: list[tuple[int, int]] = []  # heap of (index, token): confirmed, not applied that far
        self.clock_ahead_ms = 0  # by how much our clock passes what the voters' clocks allow (host.py, once per tick)
        self.clock_term = 0  # of which term that was found out
        self._last_stamp_ms = 0

    @property
    def replica(self) -> int:
        return self.raft.id

    # --- requests ----------------------------------------------------------------------------------------------------------------

    def propose(self, token: int, command: Any, now_ms: int, out: list[Effect]) -> None:
        """Stamp, check and encode now, so that a request that cannot be spelt is refused by itself and harms nobody else. The command is ours from
        here on: it is stamped in place."""
        raft = self.raft
        if raft.role is not Role.LEADER:
            out.append(Answer(token, NotLeading(raft.leader)))
            return
        self._last_stamp_ms = stamp = max(self._last_stamp_ms, now_ms)  # `now_ms` is bounded by the voters' clocks already
        try:
            _stamp(command, "now_ms", stamp)
            encoded = _encode(command)
        except (TypeError, ValueError, OverflowError) as error:
            out.append(Answer(token, Refused(f"the command cannot be encoded: {error}")))
            return
        if len(encoded) > self.options.command_bytes_max:
            out.append(Answer(token, TooLarge(self.options.command_bytes_max)))
        elif self._queue_bytes + len(encoded) > self.options.queue_bytes_max and self._tokens:
            out.append(Answer(token, Overloaded("commands of this turn")))
        else:
            self._tokens.append(token)
            self._commands.append(command)
            self._encoded.append(encoded)
            self._queue_bytes += len(encoded)

    def read(self, token: int, query: Any, out: list[Effect]) -> None:
        if len(self._reads) >= self.options.reads_waiting_max:
            out.append(Answer(token, Overloaded("reads waiting for this group")))
            return
        self._reads[token] = query
        self.raft.read_index(token)

    # --- the end of a turn -------------------------------------------------------------------------------------------------------

    def finish(self, now_ms: int, out: list[Effect]) -> None:
        """Propose what was asked in this turn, let Raft finish its turn, apply what is committed, answer. The caller empties Raft's lists after
        us."""
        raft = self.raft
        if self._tokens:
            self._propose_queued(now_ms, out)
        raft.flush()
        if raft.committed:
            for index, entry in raft.committed:
                self._apply(index, entry, now_ms, out)
            raft.committed.clear()
        if self.waiters and (raft.role is not Role.LEADER or raft.term != self.waiters.term):
            out.extend(self.waiters.fail("this node lost the leadership before the commit"))
        if self._reads or raft.read_failures or raft.read_states:
            self._finish_reads(now_ms, out)
        snapshots = self.snapshots
        if snapshots.due or snapshots.sending or raft.snapshot_chunks or raft.snapshot_answers or raft.snapshots_wanted:
            snapshots.finish(out)
            self.busy = bool(self._confirmed) or snapshots.wants_tick()
        else:
            self.busy = bool(self._confirmed)

    def _propose_queued(self, now_ms: int, out: list[Effect]) -> None:
        tokens, commands, encoded, size = self._tokens, self._commands, self._encoded, self._queue_bytes
        self._tokens, self._commands, self._encoded, self._queue_bytes = [], [], [], 0
        if size <= self.options.entry_bytes_max:
            self._propose_entry(tokens, commands, encoded, now_ms, out)
            return
        first, size = 0, 0
        for number, one in enumerate(encoded):
            if size and size + len(one) > self.options.entry_bytes_max:
                self._propose_entry(tokens[first:number], commands[first:number], encoded[first:number], now_ms, out)
                first, size = number, 0
            size += len(one)
        self._propose_entry(tokens[first:], commands[first:], encoded[first:], now_ms, out)

    def _propose_entry(self, tokens: list[int], commands: list[Any], encoded: list[bytes], now_ms: int, out: list[Effect]) -> None:
        try:
            index, term = self.raft.propose(entries_of.COMMANDS_V1, commands_payload(encoded))
        except NotLeader as refusal:
            out.extend(Answer(token, NotLeading(refusal.leader)) for token in tokens)
        except LeaderMoving as refusal:
            out.extend(Answer(token, NotLeading(refusal.target)) for token in tokens)
        except UncommittedFull:
            out.extend(Answer(token, Overloaded("uncommitted bytes of this group")) for token in tokens)
        else:
            self.waiters.add(index, term, now_ms, tokens, commands)

    def _apply(self, index: int, entry: bytes, now_ms: int, out: list[Effect]) -> None:
        waiting = self.waiters.take(index, entries_of.term_of(entry)) if self.waiters else None
        if isinstance(waiting, tuple):
            proposed_ms, tokens, commands = waiting
            self.counts.committed(now_ms - proposed_ms)
            try:
                results = self.machine.apply_commands(index, commands)
            except Exception:
                out.extend(Answer(token, OutcomeUnknown("this replica failed to apply it; it is in the log")) for token in tokens)
                raise
            out.extend(pair(tokens, results))
        else:
            self.machine.apply(index, entries_of.version_of(entry), entries_of.payload_of(entry))
            if waiting is not None:
                out.extend(waiting)
        self.snapshots.applied(len(entry))

    def _finish_reads(self, now_ms: int, out: list[Effect]) -> None:
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
            query = self._reads.pop(token, None)
            if query is not None:
                try:
                    result = self.machine.query(query, now_ms)
                except (TypeError, ValueError, AssertionError) as error:
                    result = Refused(f"this cannot be read: {type(error).__name__}: {error}")  # it changed nothing, so it fences nobody
                out.append(Answer(token, result))

    def tick(self, out: list[Effect]) -> None:
        """Only while `busy`. A replica that lost its leader may never apply what a read waits for: that read is asked again elsewhere, not kept for
        ever."""
        if self._confirmed and not self.raft.hears_leader():
            out.extend(Answer(token, ReadUnavailable()) for _, token in self._confirmed if self._reads.pop(token, None) is not None)
            self._confirmed.clear()
        if self.snapshots.sending:
            self.snapshots.tick()

    def abandon(self, reason: str) -> list[Effect]:
        """This group is fenced or destroyed: everyone who waits gets the honest answer."""
        answers: list[Effect] = list(self.waiters.fail(reason))
        # What is queued never reached a log.
        answers.extend(Answer(token, NotLeading(0)) for token in self._tokens)
        answers.extend(Answer(token, ReadUnavailable()) for token in self._reads)
        self.snapshots.stop_taking()
        self._tokens, self._commands, self._encoded, self._queue_bytes = [], [], [], 0
        self._reads.clear()
        self._confirmed.clear()
        return answers

"""Snapshots of one group: taking its own, sending one to a follower that is too far behind, receiving one from a leader. group.py calls finish()
each turn.

Taking: freeze the machine, then one slice per turn goes to the disk threads; appends go on meanwhile. The log is cut only when the file is durable,
and the older file is deleted only when the mark that names the newer one is synced. Sending: one piece in flight, the follower says how much it has,
so that a lost piece or a pause resumes there. Receiving: pieces go to a file; only a whole, verified, durable file is loaded, and machine and log
switch in one turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch_node.core.effects import (
    Effect,
    SnapshotAppend,
    SnapshotAppended,
    SnapshotBytes,
    SnapshotFailed,
    SnapshotFinish,
    SnapshotKey,
    SnapshotLoad,
    SnapshotLoaded,
    SnapshotOpen,
    SnapshotRead,
    SnapshotReceive,
    SnapshotReceived,
    SnapshotSaved,
    SnapshotVerified,
)
from anabranch_node.core.raft import membership
from anabranch_node.core.raft.messages import AppendAnswer, SnapshotAnswer, SnapshotChunk
from anabranch_node.core.raft.progress import State
from anabranch_node.core.raft.raft import Role
from anabranch_node.wal.snapshot_file import SnapshotHeader
from anabranch_proto.formats import NewerFormat

if TYPE_CHECKING:
    from anabranch_node.engine.group import Group

MACHINE_VERSION = 1
START_OVER = -1


def check_machine_version(header: bytes, where: str) -> SnapshotHeader:
    """Raises NewerFormat: a state that a newer version spelt is never guessed at."""
    decoded = SnapshotHeader.decode(header, where)
    if decoded.machine_version > MACHINE_VERSION:
        raise NewerFormat(
            where,
            f"machine state version {decoded.machine_version} is newer than {MACHINE_VERSION}, the newest this version reads; upgrade this node",
        )
    return decoded


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    entries_max: int = 100_000  # applied since the last snapshot: take the next
    bytes_max: int = 64 << 20
    tail_entries: int = 1_000  # kept below the snapshot for slow followers
    slice_bytes: int = 64 << 10  # encoded per turn: about 2.5 ms where streams are tiny
    piece_bytes: int = 256 << 10  # sent per message
    resend_ticks: int = 20
    resends_max: int = 5


class SnapshotSlots:
    """How many groups of this node may write a snapshot at once: a restart storm of them would starve the log's disk."""

    __slots__ = ("free",)

    def __init__(self, at_once_max: int) -> None:
        self.free = at_once_max


class Transfer:
    """One file on its way to one follower."""

    __slots__ = ("key", "offset", "quiet_ticks", "resends", "size", "started")

    def __init__(self, key: SnapshotKey) -> None:
        self.key = key
        self.offset = 0
        self.size = -1
        self.started = False  # the first piece was asked from the disk
        self.quiet_ticks = 0
        self.resends = 0


class Snapshots:
    def __init__(self, group: Group, options: SnapshotOptions, cluster_id: str, slots: SnapshotSlots) -> None:
        self._group = group
        self._slots = slots
        self._options = options
        self._cluster_id = cluster_id
        self._entries = 0  # applied since the last snapshot was started
        self._bytes = 0
        self.due = False
        """Looked at in every turn of the group, so it is kept and not computed."""
        self._unreadable_through = 0
        self._rewrite = False  # our newest file is of no use to a follower: write it again, even at the same index
        self._taking: tuple[SnapshotKey, Iterator[bytes]] | None = None
        self._receiving: SnapshotKey | None = None
        self._loading: SnapshotKey | None = None
        self.sending: dict[int, Transfer] = {}
        self.obsolete_after_sync: SnapshotKey | None = None
        """A mark naming this file is being persisted: once that is synced, the replica's other files may go."""

    # --- taking our own ----------------------------------------------------------------------------------------------------------

    def applied(self, entry_bytes: int) -> None:
        self._entries += 1
        self._bytes += entry_bytes
        if self._entries >= self._options.entries_max or self._bytes >= self._options.bytes_max:
            self.due = True

    def request(self) -> None:
        if self._taking is None:
            self.due = True
        self._group.busy = True

    def replace_log_through(self, index: int) -> None:
        """Entries up to `index` cannot be read any more: write the state that they led to, then let them go."""
        self._unreadable_through = max(self._unreadable_through, index)
        if self._group.raft.log.snapshot_index >= index:
            self._group.raft.cut_log(index + 1)
        else:
            self.request()

    def wants_tick(self) -> bool:
        """A transfer runs, or a snapshot is due and waits for a slot."""
        return bool(self.sending) or (self._taking is None and self.due)

    def finish(self, out: list[Effect]) -> None:
        if self._taking is None and self._slots.free and self.due:
            self._take(out)
        raft = self._group.raft
        if raft.snapshot_chunks:
            for chunk in raft.snapshot_chunks:
                self._on_chunk(chunk, out)
            raft.snapshot_chunks.clear()
        if raft.snapshot_answers:
            for answer in raft.snapshot_answers:
                self._on_answer(answer, out)
            raft.snapshot_answers.clear()
        if raft.snapshots_wanted:
            for replica in raft.snapshots_wanted:
                self.sending[replica] = Transfer(SnapshotKey(self._group.id, raft.id, raft.log.snapshot_index, raft.log.snapshot_term))
            raft.snapshots_wanted.clear()
        if self.sending:
            self._send(out)

    def _take(self, out: list[Effect]) -> None:
        group, raft = self._group, self._group.raft
        self.due = False
        self._entries = self._bytes = 0
        index = group.machine.applied_index
        term = raft.log.term_at(index)
        if term is None or index < raft.log.snapshot_index or (index == raft.log.snapshot_index and not (self._rewrite and index)):
            return
        self._rewrite = False
        key = SnapshotKey(group.id, raft.id, index, term)
        config = membership.encode(raft.config_at(index))
        self._taking = (key, group.machine.freeze().slices(self._options.slice_bytes))
        self._slots.free -= 1
        out.append(SnapshotOpen(key, SnapshotHeader(self._cluster_id, group.id, index, term, config, MACHINE_VERSION).encode()))
        self._next_slice(key, out)

    def _next_slice(self, key: SnapshotKey, out: list[Effect]) -> None:
        assert self._taking is not None
        chunk = next(self._taking[1], None)
        out.append(SnapshotFinish(key) if chunk is None else SnapshotAppend(key, chunk))

    def on_appended(self, event: SnapshotAppended, out: list[Effect]) -> None:
        if self._taking is not None and self._taking[0] == event.key:
            self._next_slice(event.key, out)

    def stop_taking(self) -> None:
        """Done, failed, or overtaken: its view is let go."""
        if self._taking is not None:
            self._taking = None
            self._slots.free += 1

    def on_saved(self, event: SnapshotSaved) -> None:
        if self._taking is None or self._taking[0] != event.key:
            return
        self.stop_taking()
        self._group.counts.snapshots += 1
        raft = self._group.raft
        if event.key.index > raft.log.snapshot_index:
            raft.mark_snapshot(event.key.index, self._options.tail_entries)
            raft.cut_log(self._unreadable_through + 1)
            self._let_go()

    def _let_go(self) -> None:
        """Files older than our newest may go, but for those that a follower is being sent: to cut them off would keep it behind for ever."""
        log = self._group.raft.log
        if log.snapshot_index == 0:
            return
        newest = SnapshotKey(self._group.id, self._group.replica, log.snapshot_index, log.snapshot_term)
        self.obsolete_after_sync = min([newest, *[transfer.key for transfer in self.sending.values()]])

    # --- sending to a follower ---------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        raft = self._group.raft
        for replica, transfer in list(self.sending.items()):
            progress = raft.progress.get(replica)
            if progress is None or progress.state is not State.SNAPSHOT:
                self._end_transfer(replica)  # it caught up, left, or we lead no more
                continue
            transfer.quiet_ticks += 1
            if transfer.quiet_ticks < self._options.resend_ticks:
                continue
            transfer.quiet_ticks = 0
            transfer.resends += 1
            transfer.started = False
            if transfer.resends > self._options.resends_max:
                self._end_transfer(replica)
                raft.snapshot_failed(replica)

    def _end_transfer(self, replica: int) -> None:
        del self.sending[replica]
        self._let_go()

    def _send(self, out: list[Effect]) -> None:
        if self._group.raft.role is not Role.LEADER:
            self.sending.clear()
            self._let_go()
            return
        for replica, transfer in self.sending.items():
            if not transfer.started:
                transfer.started = True
                self._read_piece(replica, transfer, out)

    def _read_piece(self, replica: int, transfer: Transfer, out: list[Effect]) -> None:
        out.append(SnapshotRead(replica, transfer.key, transfer.offset, self._options.piece_bytes))

    def on_bytes(self, event: SnapshotBytes) -> None:
        """A piece was read: send it, if that follower still waits for just that. `request` is the follower's replica id."""
        raft = self._group.raft
        transfer = self.sending.get(event.request)
        if transfer is None or transfer.key != event.key or transfer.offset != event.offset or raft.role is not Role.LEADER:
            return
        transfer.size = event.size
        raft.send_now.append(SnapshotChunk(event.request, raft.id, raft.term, event.key.index, event.key.term, event.offset, event.size, event.data))

    def _on_answer(self, m: SnapshotAnswer, out: list[Effect]) -> None:
        transfer = self.sending.get(m.src)
        if transfer is None or (transfer.key.index, transfer.key.term) != (m.index, m.snapshot_term):
            return
        if m.have == START_OVER:
            # The follower could not use our file: it may be damaged here. A new one is written, and the follower asked again what it needs.
            self._end_transfer(m.src)
            self._rewrite = True
            self.request()
            self._group.raft.snapshot_failed(m.src)
        elif m.have == transfer.size:
            # All of it arrived; its append answer follows when it is installed. Should that be lost, the resend timer probes again.
            transfer.offset = m.have
        elif m.have != transfer.offset:
            transfer.offset = m.have
            transfer.quiet_ticks = transfer.resends = 0
            self._read_piece(m.src, transfer, out)

    # --- receiving from a leader -------------------------------------------------------------------------------------------------

    def _on_chunk(self, m: SnapshotChunk, out: list[Effect]) -> None:
        raft = self._group.raft
        key = SnapshotKey(self._group.id, raft.id, m.index, m.snapshot_term)
        if m.index <= raft.log.committed:
            self._answer(key, m.size)
            self._say_installed()
        elif self._loading is None:
            self._receiving = key
            out.append(SnapshotReceive(key, m.offset, m.data, m.size))

    def on_received(self, event: SnapshotReceived) -> None:
        if event.key == self._receiving:
            self._answer(event.key, event.have)

    def on_verified(self, event: SnapshotVerified, out: list[Effect]) -> None:
        if event.key == self._receiving:
            self._receiving, self._loading = None, event.key
            out.append(SnapshotLoad(event.key))

    def on_loaded(self, event: SnapshotLoaded) -> None:
        """The file is whole and durable: switch machine and log together, or drop it if we have caught up by other means."""
        if event.key != self._loading:
            return
        self._loading = None
        group, raft = self._group, self._group.raft
        header = check_machine_version(event.header, f"snapshot {event.key}")
        machine = group.kind.restore(event.chunks)
        assert machine.applied_index == header.index == event.key.index, (machine.applied_index, header.index, event.key)
        if raft.install_snapshot(header.index, header.term, membership.decode(header.config)):
            group.machine = machine
            self.stop_taking()
            self._entries = self._bytes = 0
            self._let_go()
        self._say_installed()

    def _answer(self, key: SnapshotKey, have: int) -> None:
        raft = self._group.raft
        if raft.leader:
            raft.answer(SnapshotAnswer(raft.leader, raft.id, raft.term, key.index, key.term, have))

    def _say_installed(self) -> None:
        raft = self._group.raft
        if raft.leader and raft.role is not Role.LEADER:
            raft.send_after_sync.append(AppendAnswer(raft.leader, raft.id, raft.term, True, raft.log.committed))

    # --- anything failed ---------------------------------------------------------------------------------------------------------

    def on_failed(self, event: SnapshotFailed) -> None:
        key = event.key
        if self._taking is not None and self._taking[0] == key:
            self.stop_taking()  # the next trigger tries again; the log is not cut before one is durable
        if key in (self._receiving, self._loading):
            self._receiving = self._loading = None
            self._answer(key, START_OVER)
        if any(transfer.key == key for transfer in self.sending.values()):
            # A piece could not be read. The resend timer tries again, a few times; a new file is on its way meanwhile.
            self._rewrite = True
            self.request()

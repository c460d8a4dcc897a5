"""Replicas as their records bring them back, one record after the other. recovery.py reads the files and calls us in the log's order.

Copy-forward may have moved old entries behind newer ones, and the segment they came from may be gone: so a log is assembled by index,
and starts with holes where the oldest checkpoint says that entries exist. A hole that stays is damage. Whatever does not fit fences that
replica and no other: a fenced replica has no log, keeps its first reason, and can only be destroyed."""

from anabranch_node.core.raft.entry import term_of
from anabranch_node.core.raft.records import Destroyed, EntriesAppended, HardState, LogTruncated, SnapshotMark
from anabranch_node.wal.record import Copied, Fenced, Logged
from anabranch_node.wal.replica import Replica
from anabranch_node.wal.segment import Checkpoint, ReplicaState


class Misfit(Exception):
    """A record that cannot follow the ones before it."""


class ReplayedLog:
    def __init__(self, group: int, replica: int) -> None:
        self.group = group
        self.replica = replica
        self.hard: HardState | None = None
        self.mark: SnapshotMark | None = None
        self.last_index = 0
        self.fenced = ""
        # In parallel, from mark.first_index on: entry, place of its record (segment << 32 | offset), length of its record.
        self.entries: list[bytes | None] = []
        self.places: list[int] = []
        self.lengths: list[int] = []

    def state(self) -> ReplicaState:
        return ReplicaState(self.group, self.replica, self.hard, self.mark, self.last_index, self.fenced)

    def start(self, state: ReplicaState) -> None:
        self.hard, self.mark, self.last_index, self.fenced = state.hard, state.mark, state.last_index, state.fenced
        count = self.last_index + 1 - self.mark.first_index if self.mark and not self.fenced else 0
        self.entries, self.places, self.lengths = [None] * count, [0] * count, [0] * count

    def fence(self, reason: str) -> None:
        self.fenced = self.fenced or reason
        self._keep(0, 0)

    def apply(self, record: Logged, place: int, length: int) -> None:
        if isinstance(record, EntriesAppended):
            if self.mark is None:
                raise Misfit("entries of a replica that was never created")
            if record.first_index != self.last_index + 1:
                raise Misfit(f"entries start at {record.first_index}, but the log ends at {self.last_index}")
            count = len(record.entries)
            self.entries += record.entries
            self.places += [place] * count
            self.lengths += [length] * count
            self.last_index += count
        elif isinstance(record, HardState):
            if self.hard is not None and record.term < self.hard.term:
                raise Misfit(f"term goes back from {self.hard.term} to {record.term}")
            self.hard = record
        elif isinstance(record, LogTruncated):
            if self.mark is None or record.from_index <= self.mark.index:
                raise Misfit(f"truncation from {record.from_index} is not behind the snapshot")
            self._keep(0, max(0, record.from_index - self.mark.first_index))
            self.last_index = min(self.last_index, record.from_index - 1)
        elif isinstance(record, SnapshotMark):
            self._cut(record)
        elif isinstance(record, Copied):
            self._copy(record, place, length)
        else:
            assert isinstance(record, Fenced), record
            self.fence(record.reason)

    def complaint(self) -> str:
        """Why this log cannot be used although no record of it was damaged; "" if it can."""
        if self.mark is None:
            return "the log says nothing of its creation or snapshot"
        if self.hard is None:
            return "its term and vote are nowhere in the log"
        term, index = self.mark.prev_term, self.mark.first_index
        for entry in self.entries:
            if entry is None:
                return f"entry {index} is in no segment"
            if term_of(entry) < term:
                return f"entry {index} has term {term_of(entry)}, the one before it {term}"
            term = term_of(entry)
            index += 1
        return ""

    def has_hole(self) -> bool:
        return not self.fenced and None in self.entries

    def picture(self) -> Replica:
        picture = Replica(self.group, self.replica)
        picture.hard, picture.mark, picture.fenced, picture.last_index = self.hard, self.mark, self.fenced, self.last_index
        if self.mark is None or self.fenced:
            return picture
        picture.last_index = self.mark.first_index - 1
        start, count = 0, len(self.places)
        while start < count:
            stop = start + 1
            while stop < count and self.places[stop] == self.places[start]:
                stop += 1
            segment, offset = divmod(self.places[start], 1 << 32)
            picture.append(self.mark.first_index + start, stop - start, segment, offset, self.lengths[start])
            start = stop
        return picture

    def _cut(self, mark: SnapshotMark) -> None:
        if self.mark is None:
            if self.hard is None and mark.index == 0:
                self.hard = HardState(0, 0, 0)  # created here, so it never voted before
        elif mark.first_index < self.mark.first_index or mark.index < self.mark.index:
            raise Misfit(f"snapshot goes back from {self.mark.index} (log from {self.mark.first_index}) to {mark.index} ({mark.first_index})")
        else:
            self._keep(mark.first_index - self.mark.first_index, len(self.entries))
        self.last_index = max(self.last_index, mark.first_index - 1)
        if not mark.first_index - 1 <= mark.index <= self.last_index:
            raise Misfit(f"snapshot at {mark.index} does not touch a log from {mark.first_index} to {self.last_index}")
        self.mark = mark

    def _copy(self, record: Copied, place: int, length: int) -> None:
        start = record.first_index - (self.mark.first_index if self.mark else 0)
        stop = start + len(record.entries)
        if self.mark is None or start < 0 or stop > len(self.entries):
            raise Misfit(f"copied entries {record.first_index} to {record.first_index + len(record.entries) - 1} are outside of the log")
        for number, entry in enumerate(record.entries, start):
            if self.entries[number] not in (None, entry):
                raise Misfit(f"copy of entry {number + self.mark.first_index} differs from the entry")
        self.entries[start:stop] = record.entries
        self.places[start:stop] = [place] * (stop - start)
        self.lengths[start:stop] = [length] * (stop - start)

    def _keep(self, start: int, stop: int) -> None:
        for column in (self.entries, self.places, self.lengths):
            del column[stop:]
            del column[:start]


class Replay:
    def __init__(self) -> None:
        self.logs: dict[tuple[int, int], ReplayedLog] = {}
        self.destroyed: set[tuple[int, int]] = set()
        self.notes: list[str] = []

    def start(self, checkpoint: Checkpoint) -> None:
        """From the oldest segment's checkpoint."""
        self.destroyed.update(checkpoint.destroyed)
        for state in checkpoint.replicas:
            self._log((state.group, state.replica)).start(state)

    def apply(self, key: tuple[int, int], record: Logged, place: int, length: int, where: str) -> None:
        if key in self.destroyed:
            self.notes.append(f"{where}: record of replica {key[1]} of group {key[0]}, which was destroyed before; ignored")
        elif isinstance(record, Destroyed):
            self.logs.pop(key, None)
            self.destroyed.add(key)
        else:
            log = self._log(key)
            if not log.fenced:
                try:
                    log.apply(record, place, length)
                except Misfit as misfit:
                    log.fence(f"{where}: {misfit}")

    def fence(self, key: tuple[int, int], reason: str) -> None:
        if key not in self.destroyed:
            self._log(key).fence(reason)

    def compare(self, checkpoint: Checkpoint, where: str) -> None:
        """A later checkpoint must say what the records before it said. It also carries fences whose damage is gone with its segment."""
        states = {(state.group, state.replica): state for state in checkpoint.replicas}
        gone = set(checkpoint.destroyed)
        for key in self.logs.keys() & gone:
            if not self.logs[key].fenced:
                self.notes.append(f"{where}: checkpoint says that replica {key[1]} of group {key[0]} was destroyed, the records before it do not")
            del self.logs[key]
        self.destroyed |= gone
        for key in (self.logs.keys() | states.keys()) - self.destroyed:
            state, log = states.get(key), self._log(key)
            if state is None or state.fenced:
                log.fence(state.fenced if state else f"{where}: checkpoint at the start does not know this replica")
            elif not log.fenced and log.state() != state:
                log.fence(f"{where}: checkpoint at the start says {state}, the records before it {log.state()}")

    def _log(self, key: tuple[int, int]) -> ReplayedLog:
        log = self.logs.get(key)
        if log is None:
            log = self.logs[key] = ReplayedLog(*key)
        return log

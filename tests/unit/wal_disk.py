"""A disk for the shared log's tests: performs its effects in memory and can lose, tear or keep what was not synced."""

import random

from anabranch_node.core.effects import SegmentCreate, SegmentDelete, SyncMark, WalRead, WalWrite
from anabranch_node.core.raft import entry
from anabranch_node.core.raft.records import Destroyed, EntriesAppended, HardState, LogTruncated, Record, SnapshotMark
from anabranch_node.wal.batch import SECTOR, Position
from anabranch_node.wal.options import WalOptions
from anabranch_node.wal.recovery import Recovered, SegmentFile, recover
from anabranch_node.wal.segment import encode_sync_mark, segment_name
from anabranch_node.wal.wal import Wal, WalEffect
from anabranch_proto.ids import NodeIdentity

IDENTITY = NodeIdentity("tests", 1, 0xABCDEF0123456789ABCDEF)
OPTIONS = WalOptions(segment_bytes=8192, segments_live_max=3, copy_forward_bytes_max=1024)


class Disk:
    def __init__(self, options: WalOptions = OPTIONS) -> None:
        self.options = options
        self.durable: dict[int, bytearray] = {}
        self.pending: list[WalWrite] = []
        self.mark: bytes | None = None

    def perform(self, effects: list[WalEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SegmentCreate):
                self.sync()
                assert effect.segment not in self.durable
                self.durable[effect.segment] = bytearray(effect.data.ljust(self.options.segment_bytes, b"\0"))
            elif isinstance(effect, SegmentDelete):  # at once, while writes before it may still be lost
                del self.durable[effect.segment]
            elif isinstance(effect, SyncMark):
                self.mark = encode_sync_mark(IDENTITY, Position(effect.segment, effect.offset))
            else:
                assert effect.offset % SECTOR == 0 and len(effect.data) % SECTOR == 0
                self.pending.append(effect)

    def sync(self, count: int | None = None) -> int:
        """Make the first `count` pending writes durable; the ticket of the last one, 0 if there was none."""
        done = self.pending if count is None else self.pending[:count]
        self.pending = self.pending[len(done) :]
        for write in done:
            self.durable[write.segment][write.offset : write.offset + len(write.data)] = write.data
        return done[-1].ticket if done else 0

    def read(self, effect: WalRead) -> bytes:
        return bytes(self._cached()[effect.segment][effect.offset : effect.offset + effect.length])

    def files(self) -> list[SegmentFile]:
        """What a reader sees while nothing is lost: the page cache."""
        return [SegmentFile(segment, segment_name(segment), bytes(data)) for segment, data in sorted(self._cached().items())]

    def lose_power(self, rng: random.Random) -> None:
        """Each sector of each write that was not synced is there, is not, or is torn."""
        for write in self.pending:
            for start in range(0, len(write.data), SECTOR):
                place = write.offset + start
                sector = write.data[start : start + SECTOR]
                chance = rng.random()
                if chance < 0.4:
                    self.durable[write.segment][place : place + SECTOR] = sector
                elif chance < 0.6:
                    cut = rng.randrange(SECTOR)
                    garbage = rng.randbytes(rng.randrange(SECTOR - cut))
                    self.durable[write.segment][place : place + SECTOR] = (sector[:cut] + garbage).ljust(SECTOR, b"\0")
        self.pending = []

    def kill_process(self) -> None:
        self.sync()

    def recover(self, identity: NodeIdentity = IDENTITY) -> Recovered:
        before = [bytes(data) for data in self._cached().values()]
        try:
            return recover(identity, self.files(), self.mark, self.options)
        finally:
            assert before == [bytes(data) for data in self._cached().values()]

    def flip(self, segment: int, offset: int, bit: int = 0) -> None:
        self.durable[segment][offset] ^= 1 << bit

    def _cached(self) -> dict[int, bytearray]:
        files = {segment: bytearray(data) for segment, data in self.durable.items()}
        for write in self.pending:
            files[write.segment][write.offset : write.offset + len(write.data)] = write.data
        return files


class Bench:
    """A log and its disk, and short words for what the tests do with them."""

    def __init__(self, options: WalOptions = OPTIONS, disk: Disk | None = None, recovered: Recovered | None = None) -> None:
        self.disk = disk or Disk(options)
        self.wal = Wal(IDENTITY, options, recovered)
        self.disk.perform(self.wal.open())

    def create(self, group: int, replica: int, term: int = 1) -> None:
        self.wal.stage(group, replica, SnapshotMark(0, 0, b"config", 1, 0))
        self.wal.stage(group, replica, HardState(term, 0, 0))

    def append(self, group: int, replica: int, first_index: int, *payloads: bytes, term: int = 1) -> None:
        self.wal.stage(group, replica, EntriesAppended(first_index, [command(term, payload) for payload in payloads]))

    def write(self, sync: bool = True) -> int:
        ticket, effects = self.wal.seal()
        self.disk.perform(effects)
        if sync:
            self.sync()
        return ticket

    def sync(self, count: int | None = None) -> None:
        ticket = self.disk.sync(count)
        if ticket > self.wal.synced_ticket:
            self.wal.on_synced(ticket)

    def settle(self) -> None:
        """What an idle node does: note the last sync until there is nothing to note."""
        while effects := self.wal.idle_mark():
            self.disk.perform(effects)
            self.sync()

    def maintain(self, sync: bool = True) -> int:
        """One round of maintenance; how many locations were copied."""
        effects, copies, _ = self.wal.maintenance()
        self.disk.perform(effects)
        for location in copies:
            self.wal.copy_forward(location, self.disk.read(self.wal.read(location, 1)))
        self.write(sync)
        return len(copies)

    def entries(self, group: int, replica: int, first_index: int, bytes_max: int = 1 << 20) -> list[bytes]:
        """Read back through the log's own locations."""
        found: list[bytes] = []
        for location in self.wal.locate(group, replica, first_index, bytes_max):
            first, entries = self.wal.decode_read(location, self.disk.read(self.wal.read(location, 1)))
            assert first == first_index + len(found)
            found += entries
        return found

    def restart(self) -> "Bench":
        return Bench(self.disk.options, self.disk, self.disk.recover())


def command(term: int, payload: bytes) -> bytes:
    return entry.encode(term, entry.COMMANDS_V1, payload)


Replicas = dict[tuple[int, int], tuple[HardState, SnapshotMark, list[bytes]]]


class Model:
    """What records mean, written as plainly as possible: the oracle of the random tests."""

    def __init__(self) -> None:
        self.replicas: Replicas = {}
        self.destroyed: set[tuple[int, int]] = set()

    def apply(self, group: int, replica: int, record: Record) -> None:
        key = (group, replica)
        hard, mark, entries = self.replicas.get(key, (HardState(0, 0, 0), SnapshotMark(0, 0, b"", 1, 0), []))
        if isinstance(record, HardState):
            hard = record
        elif isinstance(record, EntriesAppended):
            entries = entries + record.entries
        elif isinstance(record, LogTruncated):
            entries = entries[: record.from_index - mark.first_index]
        elif isinstance(record, SnapshotMark):
            entries = entries[record.first_index - mark.first_index :]
            mark = record
        elif isinstance(record, Destroyed):
            del self.replicas[key]
            self.destroyed.add(key)
            return
        self.replicas[key] = (hard, mark, entries)

    def last_index(self, key: tuple[int, int]) -> int:
        return self.replicas[key][1].first_index + len(self.replicas[key][2]) - 1


def replicas_of(recovered: Recovered) -> Replicas:
    """Only the healthy ones."""
    return {key: (found.hard, found.snapshot, found.entries) for key, found in recovered.groups.items() if not found.fenced}

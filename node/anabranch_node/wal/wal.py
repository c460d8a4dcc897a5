"""The shared log of all Raft groups of one node: many groups, one batch, one sync. Pure: it makes bytes and effects, and performs none.

Before us: each group's Raft says what must be durable (core/raft/records.py). After us: drivers/wal_disk.py performs the effects in order
and reports Synced(ticket). One turn is `stage` for every dirty group, then one `seal`. The picture of what lies where (replica.py)
changes in `seal`, in the order of the records. Not here: recovery.py, which reads all this back, and compaction.py, which says what to copy.

A run never writes into a segment of an earlier one: `open` starts a new segment whose checkpoint holds everything known."""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from anabranch_node.core.effects import SegmentCreate, SegmentDelete, SyncMark, WalRead, WalWrite
from anabranch_node.core.raft.records import Destroyed, EntriesAppended, HardState, LogTruncated, Record, SnapshotMark
from anabranch_node.wal import record as codec
from anabranch_node.wal.batch import HEADER_BYTES, RUN_BYTES, Position, encode_header, encode_run, round_up
from anabranch_node.wal.compaction import Pinned, Plan, plan_compaction
from anabranch_node.wal.location import Location, read_extent, to_locations
from anabranch_node.wal.options import WalOptions
from anabranch_node.wal.record import Copied, Fenced, Logged, identity_seed, segment_seed
from anabranch_node.wal.replica import Extent, Replica
from anabranch_node.wal.segment import Checkpoint, SegmentHeader, encode_segment
from anabranch_proto.checksum import crc32c
from anabranch_proto.ids import NodeIdentity

if TYPE_CHECKING:
    from anabranch_node.wal.recovery import Recovered

__all__ = ["Location", "Maintenance", "Pinned", "Wal", "WalEffect", "WalOptions"]

_pack_crc = codec.CRC.pack

WalEffect = SegmentCreate | SegmentDelete | WalWrite | SyncMark

# group, replica, what it does to the picture (an Extent: that extent moves here), what follows the checksum, in two parts, and the size
_Frame = tuple[int, int, Logged | Extent, bytes, bytes, int]


class Maintenance(NamedTuple):
    effects: list[WalEffect]
    """SegmentDelete of segments in which nothing is live, oldest first."""
    copies: list[Location]
    """To be read, and given back through `copy_forward` (or `copy_dropped`). No others are asked for until all of them were."""
    groups_to_snapshot: list[Pinned]
    """Replicas whose snapshot and log cut would free the oldest segment."""


_NOTHING = Maintenance([], [], [])


class Wal:
    def __init__(self, identity: NodeIdentity, options: WalOptions, recovered: "Recovered | None" = None) -> None:
        self.identity = identity
        self.options = options
        self.ticket = 0
        """Of the last WalWrite. Rises by one for each."""
        self.synced_ticket = 0
        self.replicas: dict[tuple[int, int], Replica] = {}
        self.destroyed: set[tuple[int, int]] = set()
        self.segments: deque[int] = deque()
        """Numbers of the live segments, oldest first; the last one is being written."""
        self._seed = identity_seed(identity)
        self._segment_seed = 0
        self._segment = 0
        self._offset = 0
        self._batch = 1
        self._leftovers: list[int] = []
        self._record_bytes_large = options.segment_bytes // 4  # larger appends become several records
        self._staged: list[_Frame] = []
        self._copies: list[tuple[int, int, Extent, list[bytes]]] = []
        self._copying: set[Location] = set()
        self._pins: dict[int, int] = {}  # segment -> replicas with live entries in it
        self._released_by: dict[int, int] = {}  # segment -> ticket of the record that ended or moved the last live entry of some replica in it
        self._changes = 0  # rises with every record that may free something: the plan is good until then
        self._plan: tuple[tuple[int, int, int], Plan] | None = None
        self._in_flight: deque[tuple[int, Position]] = deque()
        self._synced = self._noted = self._marked = self._data_end = Position(0, 0)
        if recovered is not None:
            self.replicas = recovered.pictures
            self.destroyed = recovered.destroyed
            self.segments.extend(recovered.segments)
            self._leftovers = recovered.leftovers
            self._segment, self._offset = recovered.end
            self._batch = recovered.next_batch
            for held in self.replicas.values():
                for segment in held.live:
                    self._pins[segment] = self._pins.get(segment, 0) + 1

    # --- writing -----------------------------------------------------------------------------------------------------------------

    def open(self) -> list[WalEffect]:
        """The first segment of this run. What recovery read becomes durable here: SegmentCreate syncs everything before it."""
        effects = self._delete_dead()  # first: a full disk may have no room for the new one before
        self._roll(effects)
        self._synced = self._noted = self._marked = self._data_end = Position(self._segment, self._offset)
        effects += [SegmentDelete(segment) for segment in self._leftovers]
        self._leftovers = []
        return effects

    def stage(self, group: int, replica: int, record: Record) -> None:
        """To be written by the next `seal`, in this order. A replica's first record is its SnapshotMark or HardState."""
        tail, block = codec.encode(group, replica, record)
        size = 4 + len(tail) + len(block)
        if size > self._record_bytes_large and isinstance(record, EntriesAppended):
            self._staged += _pieces(group, replica, record, self._record_bytes_large)
        else:
            self._staged.append((group, replica, record, tail, block, size))

    def fence(self, group: int, replica: int, reason: str) -> None:
        """Rot was found in this replica's log (`decode_read`): note it durably, so that it stays fenced when the damaged segment is gone."""
        tail, block = codec.encode(group, replica, Fenced(reason))
        self._staged.append((group, replica, Fenced(reason), tail, block, 4 + len(tail) + len(block)))

    def seal(self) -> tuple[int, list[WalEffect]]:
        """Everything staged becomes one batch (several, if it is larger than a segment). Returns the ticket to wait for."""
        effects: list[WalEffect] = []
        if self._staged or self._copies:
            frames = self._copied() + self._staged if self._copies else self._staged
            self._staged = []
            if not frames:
                pass  # nothing that was to be copied is live any more
            elif self._fits(sum([frame[5] for frame in frames]), len(frames)):
                effects.append(self._write(frames))
            else:
                self._write_rolling(frames, effects)
        return self.ticket, effects

    def on_synced(self, ticket: int) -> None:
        """Every write up to and including this ticket is durable."""
        assert self.synced_ticket <= ticket <= self.ticket, (self.synced_ticket, ticket, self.ticket)
        self.synced_ticket = ticket
        while self._in_flight and self._in_flight[0][0] <= ticket:
            self._synced = self._in_flight.popleft()[1]

    def idle_mark(self) -> list[WalEffect]:
        """Called when the node is idle, until it returns []: first an empty batch that notes the last sync, then the side file, so that rot in
        the last synced batch, or a wiped tail, is told from a torn write."""
        if self._staged or self._copies or self._in_flight or self._marked == self._synced:
            return []
        if self._noted < self._data_end and self._fits(0, 0):
            return [self._write([])]
        self._marked = self._synced
        return [SyncMark(*self._synced)]

    def _copied(self) -> list[_Frame]:
        """Copies as far as they are live: they match the picture as the last seal left it, so they go before anything that was staged."""
        frames: list[_Frame] = []
        for group, replica, extent, entries in self._copies:
            held = self.replicas.get((group, replica))
            now = held.still_live(extent) if held is not None else None
            if now is not None:
                live = entries[now.first_index - extent.first_index : now.last_index + 1 - extent.first_index]
                tail, block = codec.encode(group, replica, Copied(now.first_index, live))
                frames.append((group, replica, now, tail, block, 4 + len(tail) + len(block)))
        self._copies = []
        return frames

    def _fits(self, body: int, records: int) -> bool:
        """Whether one batch of this size fits the current segment. Assumes the most runs there can be."""
        return self._offset + round_up(HEADER_BYTES + RUN_BYTES * records + body) <= self.options.segment_bytes

    def _write_rolling(self, frames: list[_Frame], effects: list[WalEffect]) -> None:
        """The batch does not fit: new segments, with as many whole replicas in each batch as fit. A replica's records of one turn are kept in
        one batch where possible: a crash then leaves all of them or none."""
        while frames:
            self._roll(effects)
            room = self.options.segment_bytes - self._offset - HEADER_BYTES
            taken = whole = 0
            for number, frame in enumerate(frames):
                if number and frame[:2] != frames[number - 1][:2]:
                    whole = number
                room -= RUN_BYTES + frame[5]
                if room < 0:
                    break
                taken = number + 1
            if taken < len(frames):
                taken = whole or taken
            assert taken, f"record of {frames[0][5]} bytes, segment of {self.options.segment_bytes}, of which its checkpoint takes {self._offset}"
            effects.append(self._write(frames[:taken]))
            frames = frames[taken:]

    def _write(self, frames: list[_Frame]) -> WalWrite:
        """One batch at the end of the current segment; the picture follows record by record."""
        segment, start = self._segment, self._offset
        runs, body = _runs(frames)
        self.ticket += 1
        parts = [encode_header(self._batch, segment, start, self._synced, body, runs, self._seed)]
        offset = start + len(parts[0])
        seed = self._segment_seed
        replicas = self.replicas
        for group, replica, record, tail, block, size in frames:
            crc = crc32c(tail, seed ^ offset)
            if block:
                crc = crc32c(block, crc)
            parts += (_pack_crc(crc), tail, block)
            if isinstance(record, EntriesAppended):
                held = replicas[group, replica]
                assert not held.fenced, held.state()
                if held.append(record.first_index, len(record.entries), segment, offset, size):
                    self._pins[segment] = self._pins.get(segment, 0) + 1
            else:
                self._apply(group, replica, record, offset, size)
            offset += size

        end = round_up(offset)
        parts.append(bytes(end - offset))
        assert end <= self.options.segment_bytes, (end, self.options.segment_bytes)
        self._batch += 1
        self._offset = end
        self._in_flight.append((self.ticket, Position(segment, end)))
        self._noted = self._synced
        if frames:
            self._data_end = Position(segment, end)
        return WalWrite(self.ticket, segment, start, b"".join(parts))

    def _apply(self, group: int, replica: int, record: Logged | Extent, offset: int, size: int) -> None:
        """A record that is not on the hot path."""
        self._changes += 1
        key = (group, replica)
        held = self.replicas.get(key)
        if held is None:
            assert isinstance(record, SnapshotMark | HardState | Destroyed | Fenced) and key not in self.destroyed, (key, record)
            held = self.replicas[key] = Replica(group, replica)
        if isinstance(record, Destroyed):
            self._released(held.clear())
            del self.replicas[key]
            self.destroyed.add(key)
            return
        assert not held.fenced or isinstance(record, Fenced), (held.state(), record)
        if isinstance(record, HardState):
            assert held.hard is None or record.term >= held.hard.term, (held.state(), record)
            held.hard = record
        elif isinstance(record, LogTruncated):
            self._released(held.truncate(record.from_index))
        elif isinstance(record, SnapshotMark):
            if held.mark is None and held.hard is None and record.index == 0:
                held.hard = HardState(0, 0, 0)  # created here, so it never voted before
            self._released(held.cut(record))
        elif isinstance(record, Extent):
            fresh, released = held.move(record, self._segment, offset, size)
            self._pins[self._segment] = self._pins.get(self._segment, 0) + fresh
            self._released(released)
        else:
            assert isinstance(record, Fenced), record
            held.fenced = held.fenced or record.reason
            self._released(held.clear())

    def _released(self, segments: Iterable[int]) -> None:
        """Some replica has nothing live there any more, by a record of the batch being written: only its sync makes that final."""
        for segment in segments:
            self._pins[segment] -= 1
            self._released_by[segment] = self.ticket

    def _roll(self, effects: list[WalEffect]) -> None:
        number = self._segment + 1
        oldest = self.segments[0] if self.segments else number
        previous = Position(self._segment, self._offset)
        header = SegmentHeader(number, self.options.segment_bytes, self.identity, previous, oldest, self._batch, 0, 0, 0)
        states = [self.replicas[key].state() for key in sorted(self.replicas)]
        data = encode_segment(header, Checkpoint(states, sorted(self.destroyed)), self._seed)
        effects.append(SegmentCreate(number, data))
        self.segments.append(number)
        self._segment = number
        self._segment_seed = segment_seed(self._seed, number)
        self._offset = len(data)

    # --- reading back ------------------------------------------------------------------------------------------------------------

    def locate(self, group: int, replica: int, first_index: int, bytes_max: int) -> list[Location]:
        """Where entries from first_index on lie: about `bytes_max` of whole records, at least one. [] if first_index is not in the log on disk."""
        held = self.replicas.get((group, replica))
        place = held.find(first_index) if held is not None else None
        if held is None or place is None:
            return []
        extents = [held.extent(place)._replace(first_index=first_index)]
        total = extents[0].length
        for later in range(place + 1, len(held)):
            extent = held.extent(later)
            total += extent.length
            if total > bytes_max:
                break
            extents.append(extent)
        return to_locations(group, replica, extents)

    def read(self, location: Location, request: int) -> WalRead:
        return WalRead(request, location.segment, location.offset, location.length)

    def decode_read(self, location: Location, data: bytes) -> tuple[int, list[bytes]]:
        """(first index, entries) of what was read, as far as it is still in the log: [] if it was cut, truncated or moved meanwhile; ask again.
        Raises Damaged naming the segment file and the offset: then `fence` the replica."""
        entries: list[bytes] = []
        held = self.replicas.get((location.group, location.replica))
        first_index = location.extents[0].first_index
        for extent in location.extents:
            found = read_extent(location, extent, data, self._seed)
            now = held.still_live(extent) if held is not None else None
            if now is None or now.first_index != extent.first_index:
                break
            entries += found[: now.last_index + 1 - now.first_index]
            if now.last_index != extent.last_index:
                break
        return first_index, entries

    # --- forgetting --------------------------------------------------------------------------------------------------------------

    def maintenance(self) -> Maintenance:
        """What may go, and what should be done so that more can. Cheap when there is nothing to do; called once a turn."""
        effects = self._delete_dead()
        segments = self.segments
        if len(segments) <= self.options.segments_live_max or not self._pins.get(segments[0]):
            return Maintenance(effects, [], []) if effects else _NOTHING
        plan = plan_compaction(self.replicas, segments[0], len(segments), self.options)
        copies: list[Location] = []
        if not self._copying and not self._copies:
            copies = plan.copies(self.replicas, self.options.copy_forward_bytes_max)
            self._copying.update(copies)
        return Maintenance(effects, copies, plan.groups_to_snapshot)

    def _delete_dead(self) -> list[WalEffect]:
        """Segments in which nothing is live, oldest first; never the newest, which holds the hard states."""
        effects: list[WalEffect] = []
        segments = self.segments
        while len(segments) > 1 and not self._pins.get(segments[0]) and self._released_by.get(segments[0], 0) <= self.synced_ticket:
            segment = segments.popleft()
            self._pins.pop(segment, None)
            self._released_by.pop(segment, None)
            effects.append(SegmentDelete(segment))
        return effects

    def copy_forward(self, location: Location, data: bytes) -> None:
        """The bytes of a location that `maintenance` asked for: what is still live of them is written again by the next seal.
        Raises Damaged naming the segment file and the offset: then `fence` the replica."""
        self._copying.discard(location)
        read = [(location.group, location.replica, extent, read_extent(location, extent, data, self._seed)) for extent in location.extents]
        self._copies += read

    def copy_dropped(self, location: Location) -> None:
        """The read failed; `maintenance` may ask again."""
        self._copying.discard(location)


def _runs(frames: list[_Frame]) -> tuple[list[bytes], int]:
    """Whose records these are, for the batch header, and how long they are together."""
    runs: list[bytes] = []
    body = run = 0
    last_group = last_replica = -1
    for group, replica, _, _, _, size in frames:
        body += size
        if group == last_group and replica == last_replica:
            run += size
            runs[-1] = encode_run(group, replica, run)
        else:
            run = size
            runs.append(encode_run(group, replica, size))
            last_group, last_replica = group, replica
    return runs, body


def _pieces(group: int, replica: int, record: EntriesAppended, bytes_max: int) -> list[_Frame]:
    """One large append as several records, so that each fits a segment. A single entry stays whole."""
    frames: list[_Frame] = []
    start = 0
    while start < len(record.entries):
        stop = start + 1
        size = codec.ENTRIES_OVERHEAD + len(record.entries[start])
        while stop < len(record.entries) and size + len(record.entries[stop]) <= bytes_max:
            size += len(record.entries[stop])
            stop += 1
        piece = EntriesAppended(record.first_index + start, record.entries[start:stop])
        tail, block = codec.encode(group, replica, piece)
        frames.append((group, replica, piece, tail, block, size))
        start = stop
    return frames

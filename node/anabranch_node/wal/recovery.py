"""Segments -> groups, before the first turn. Reads, decides, changes nothing.

Before us: the driver read the files and the side file. After us: Wal(identity, options, recovered).open() starts a new segment.
All segments but the newest are wholly durable: any damage in them is corruption. In the newest, damage at or below the highest position
that is known to be synced is corruption, too; above it lies a torn tail, which is cut. Corruption fences the replicas whose records it
hit, or, if it hides whose they were, the whole node (NodeDamaged). Nothing is ever cut that might have been acknowledged knowingly."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from anabranch_node.core.raft.records import HardState, SnapshotMark
from anabranch_node.wal import record as codec
from anabranch_node.wal.batch import SECTOR, BatchHeader, Position, decode_header
from anabranch_node.wal.options import WalOptions
from anabranch_node.wal.record import BadRecord, Logged, identity_seed, segment_seed
from anabranch_node.wal.replay import Replay, ReplayedLog
from anabranch_node.wal.replica import Replica
from anabranch_node.wal.segment import (
    SYNC_MARK_NAME,
    NodeDamaged,
    SegmentHeader,
    decode_checkpoint,
    decode_segment_header,
    decode_sync_mark,
    segment_name,
)
from anabranch_proto.formats import Damaged
from anabranch_proto.ids import NodeIdentity

__all__ = ["NodeDamaged", "Recovered", "RecoveredReplica", "SegmentFile", "TornTail", "recover"]

_ZEROS = bytes(1024 * 1024)


class SegmentFile(NamedTuple):
    """`data` may be anything with a buffer, such as an mmap."""

    segment: int
    name: str
    data: bytes


class TornTail(NamedTuple):
    """Bytes that were never known to be synced and do not make whole batches."""

    file: str
    offset: int
    bytes_cut: int


class RecoveredReplica(NamedTuple):
    group: int
    replica: int
    hard: HardState
    snapshot: SnapshotMark
    entries: list[bytes]
    """From snapshot.first_index on."""
    fenced: str
    """"" if healthy, else why not, naming file and offset. Then there are no entries, and the rest must not be relied upon."""


@dataclass(slots=True)
class Recovered:
    groups: dict[tuple[int, int], RecoveredReplica] = field(default_factory=dict)
    destroyed: set[tuple[int, int]] = field(default_factory=set)
    next_segment: int = 1
    torn: TornTail | None = None
    notes: list[str] = field(default_factory=list)
    # For Wal, which goes on from here and takes these over.
    pictures: dict[tuple[int, int], Replica] = field(default_factory=dict)
    segments: list[int] = field(default_factory=list)
    leftovers: list[int] = field(default_factory=list)
    end: Position = Position(0, 0)
    next_batch: int = 1


class _Segment(NamedTuple):
    name: str
    data: memoryview
    header: SegmentHeader


class _Run(NamedTuple):
    """One replica's records in one batch, and what is wrong with them ("" if nothing)."""

    key: tuple[int, int]
    records: list[tuple[Logged, int, int]]  # record, offset, length
    where: str
    problem: str


def recover(identity: NodeIdentity, files: Sequence[SegmentFile], synced: bytes | None, options: WalOptions) -> Recovered:
    """Raises NodeDamaged, Damaged, ForeignFormat or NewerFormat, each naming the file. `synced` is the side file, None if there is none."""
    seed = identity_seed(identity)
    result = Recovered()
    known = _known_synced(identity, synced, result.notes)
    files = sorted(files, key=lambda file: file.segment)
    if known.segment > (files[-1].segment if files else 0):
        raise NodeDamaged(segment_name(known.segment), f"the file is missing, though {SYNC_MARK_NAME} knows it up to offset {known.offset}")
    if not files:
        return result
    run, missing = _readable_run(identity, files, result)
    if any(segment.header.segment_bytes != options.segment_bytes for segment in run):
        result.notes.append(f"segments of another size were read; new ones have {options.segment_bytes} bytes")

    replay = Replay()
    for number, segment in enumerate(run):
        checkpoint = decode_checkpoint(segment.data, segment.header, seed)
        problem = f"checkpoint is damaged at offset {segment.header.checkpoint_offset}"
        if number == 0 and checkpoint is None:
            raise NodeDamaged(segment.name, f"{problem}, and no older segment tells what it said")
        if checkpoint is None:
            result.notes.append(f"{segment.name}: {problem}; the segments before it tell what it said")
        elif number == 0:
            replay.start(checkpoint)
        else:
            replay.compare(checkpoint, segment.name)
        if number + 1 < len(run):
            _replay_closed(segment, run[number + 1].header, replay, seed)
        else:
            _replay_newest(segment, known, replay, seed, result)

    if missing and any(log.has_hole() for log in replay.logs.values()):
        raise NodeDamaged(segment_name(missing), "the file is missing, and entries that are still needed are in no other")
    for key, log in replay.logs.items():
        if not log.fenced and (complaint := log.complaint()):
            log.fence(f"{run[0].name} to {run[-1].name}: {complaint}")
        result.groups[key] = _recovered(log)
        result.pictures[key] = log.picture()
    result.destroyed = replay.destroyed
    result.notes += replay.notes
    result.segments = [segment.header.segment for segment in run]
    result.next_segment = result.segments[-1] + 1
    return result


def _known_synced(identity: NodeIdentity, synced: bytes | None, notes: list[str]) -> Position:
    if synced is None:
        return Position(0, 0)
    try:
        return decode_sync_mark(identity, synced)
    except Damaged as error:  # it may be torn; without it we know less, and nothing wrong
        notes.append(f"{error}; ignored")
        return Position(0, 0)


def _readable_run(identity: NodeIdentity, files: Sequence[SegmentFile], result: Recovered) -> tuple[list[_Segment], int]:
    """The newest unbroken run of segments, and the number of the file missing before it (0: none). Deletions may reach the disk out of
    order, so files before a gap are leftovers, as long as nothing of the missing one is needed."""

    def decode(file: SegmentFile) -> _Segment:
        view = memoryview(file.data)
        return _Segment(file.name, view, decode_segment_header(view, file.segment, identity, file.name))

    run = [decode(files[-1])]
    oldest = run[0].header.oldest
    missing = 0
    for file in reversed(files[:-1]):
        expected = run[-1].header.segment - 1
        if missing or file.segment < oldest:
            result.leftovers.append(file.segment)
            result.notes.append(f"{file.name}: leftover of a deletion, not read")
        elif file.segment != expected:
            missing = expected
            result.leftovers.append(file.segment)
            result.notes.append(f"{file.name}: not read, since {segment_name(expected)} behind it is missing")
        else:
            run.append(decode(file))
    run.reverse()
    for before, after in pairwise(run):
        end = after.header.previous
        if end.segment != before.header.segment or not before.header.end <= end.offset <= len(before.data):
            raise NodeDamaged(after.name, f"continues segment {end.segment} at offset {end.offset}, which {before.name} does not have")
    return run, missing


def _replay_closed(segment: _Segment, after: SegmentHeader, replay: Replay, seed: int) -> None:
    """A segment that has a successor: durable up to the end that its successor states."""
    offset, number = segment.header.end, segment.header.next_batch
    while offset < after.previous.offset:
        batch = decode_header(segment.data, Position(segment.header.segment, offset), seed, segment.name)
        if batch is None or batch.number != number or batch.end > after.previous.offset:
            raise NodeDamaged(segment.name, f"batch header is damaged at offset {offset}")
        _apply(_read_runs(segment, batch, seed), batch.segment, replay)
        offset, number = batch.end, number + 1
    if number != after.next_batch:
        raise NodeDamaged(segment.name, f"ends with batch {number - 1} at offset {offset}, but the next segment starts with {after.next_batch}")


def _replay_newest(segment: _Segment, known: Position, replay: Replay, seed: int, result: Recovered) -> None:
    offset, number = segment.header.end, segment.header.next_batch
    written = -1  # found out at the first sector that does not read
    while offset < len(segment.data):
        batch = decode_header(segment.data, Position(segment.header.segment, offset), seed, segment.name)
        runs = _read_runs(segment, batch, seed) if batch is not None and batch.number == number else None
        if batch is None or runs is None or any(run.problem for run in runs):
            if written < 0:
                written = _written_end(segment.data, offset)
                known = max(known, _synced_behind(segment, offset, written, seed))
            if known <= Position(segment.header.segment, offset):
                result.torn = TornTail(segment.name, offset, written - offset) if written > offset else None
                break
            if batch is None or runs is None:
                what = "damaged" if any(segment.data[offset : offset + SECTOR]) else "wiped"
                raise NodeDamaged(segment.name, f"batch header is {what} at offset {offset}, though the log was synced up to offset {known.offset}")
        known = max(known, batch.synced)
        _apply(runs, batch.segment, replay)
        offset, number = batch.end, number + 1
    result.end = Position(segment.header.segment, offset)
    result.next_batch = number


def _read_runs(segment: _Segment, batch: BatchHeader, seed: int) -> list[_Run]:
    found: list[_Run] = []
    start = batch.body_offset
    place_seed = segment_seed(seed, batch.segment)
    for group, replica, length in batch.runs:
        offset, stop = start, start + length
        records: list[tuple[Logged, int, int]] = []
        problem = ""
        try:
            while offset < stop:
                kind, body, end = codec.check(segment.data, offset, stop, place_seed ^ offset, group, replica)
                record = codec.parse(kind, bytes(segment.data[body:end]), f"{segment.name} at offset {offset}")
                records.append((record, offset, end - offset))
                offset = end
        except BadRecord as error:
            problem = str(error)
        found.append(_Run((group, replica), records, f"{segment.name}: offset {offset if problem else start}", problem))
        start = stop
    return found


def _apply(runs: list[_Run], segment: int, replay: Replay) -> None:
    for run in runs:
        if run.problem:
            replay.fence(run.key, f"{run.where}: {run.problem}")
            continue
        for record, offset, length in run.records:
            replay.apply(run.key, record, segment << 32 | offset, length, run.where)


def _synced_behind(segment: _Segment, offset: int, stop: int, seed: int) -> Position:
    """The highest sync that any readable batch header behind the damage knows of."""
    known = Position(0, 0)
    for place in range(offset, stop, SECTOR):
        batch = decode_header(segment.data, Position(segment.header.segment, place), seed, segment.name)
        if batch is not None:
            known = max(known, batch.synced)
    return known


def _written_end(data: memoryview, offset: int) -> int:
    """Where the last byte that is not zero ends; `offset` if only the zeros of a new file follow."""
    end = len(data)
    while end > offset:
        start = max(offset, end - len(_ZEROS))
        chunk = bytes(data[start:end])
        if chunk != _ZEROS[: len(chunk)]:
            return start + len(chunk.rstrip(b"\0"))
        end = start
    return offset


def _recovered(log: ReplayedLog) -> RecoveredReplica:
    hard = log.hard or HardState(0, 0, 0)
    mark = log.mark or SnapshotMark(0, 0, b"", 1, 0)
    entries = [entry for entry in log.entries if entry is not None]
    return RecoveredReplica(log.group, log.replica, hard, mark, entries, log.fenced)

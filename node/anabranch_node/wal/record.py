"""One record of the shared log: `crc32c u32 | body length u32 | kind u8 | group u32 | replica u64 | body`, little-endian.

Before us: Raft filled `persist` with core/raft/records.py types. After us: batch.py lays records behind a batch header.
The checksum covers all that follows it and starts from the record's place (cluster, node, incarnation, segment, offset), so a record
that is stale, swapped or misdirected fails like a damaged one. Not here: what records mean for a log (replica.py, replay.py)."""

import struct
from typing import NamedTuple

from anabranch_node.core.raft import entry
from anabranch_node.core.raft.records import Destroyed, EntriesAppended, HardState, LogTruncated, Record, SnapshotMark
from anabranch_proto.checksum import crc32c
from anabranch_proto.formats import NewerFormat
from anabranch_proto.ids import NodeIdentity

# Kind numbers are part of the format: never reused, and an unknown one with a valid checksum was written by a newer version.
ENTRIES = 1
COPIED = 2
HARD_STATE = 3
TRUNCATED = 4
SNAPSHOT = 5
DESTROYED = 6
FENCED = 7

HEAD = struct.Struct("<IIBIQ")
CRC = struct.Struct("<I")
_TAIL = struct.Struct("<IBIQ")  # the head without its checksum
_ENTRIES_TAIL = struct.Struct("<IBIQQ")  # and with the first index of an entries body
_HARD = struct.Struct("<QQQ")
_INDEX = struct.Struct("<Q")
_MARK = struct.Struct("<QQQQ")
_PLACE = struct.Struct("<Q")

_COPY_BYTES_MAX = 1024  # copying this much costs less (50 ns) than a second call to sum it (150 ns)


class Copied(NamedTuple):
    """Live entries of the oldest segment, written again so that it can go. Never changes a log: same index, same bytes."""

    first_index: int
    entries: list[bytes]


class Fenced(NamedTuple):
    """This replica's log was found damaged. It never votes or acknowledges again; only Destroyed may follow."""

    reason: str


Logged = Record | Copied | Fenced


class BadRecord(ValueError):
    """Checksum, length or owner are not what their place says. Callers add the file and the offset."""


def identity_seed(identity: NodeIdentity) -> int:
    """Where every checksum of this node's log starts. Clients never see the incarnation, so no payload can imitate a batch header."""
    return crc32c(f"{identity.cluster_id}\0{identity.node_id}\0{identity.incarnation:x}".encode())


def segment_seed(seed: int, segment: int) -> int:
    """Where the checksums of one segment's records start; a record's own starts at this XOR its offset."""
    return crc32c(_PLACE.pack(segment), seed)


def encode(group: int, replica: int, record: Logged) -> tuple[bytes, bytes]:
    """(what follows the checksum, or its first part; the rest). A large block stays the caller's own bytes, copied once, into the batch."""
    if isinstance(record, EntriesAppended):
        first_index, entries = record
        block = entries[0] if len(entries) == 1 else b"".join(entries)
        tail = _ENTRIES_TAIL.pack(len(block) + 8, ENTRIES, group, replica, first_index)
        return (tail + block, b"") if len(block) <= _COPY_BYTES_MAX else (tail, block)
    if isinstance(record, HardState):
        return _TAIL.pack(_HARD.size, HARD_STATE, group, replica) + _HARD.pack(*record), b""
    if isinstance(record, LogTruncated):
        return _TAIL.pack(_INDEX.size, TRUNCATED, group, replica) + _INDEX.pack(record.from_index), b""
    if isinstance(record, SnapshotMark):
        fixed = _MARK.pack(record.index, record.term, record.first_index, record.prev_term)
        return _TAIL.pack(_MARK.size + len(record.config), SNAPSHOT, group, replica) + fixed, record.config
    if isinstance(record, Copied):
        block = b"".join(record.entries)
        return _ENTRIES_TAIL.pack(len(block) + 8, COPIED, group, replica, record.first_index), block
    if isinstance(record, Fenced):
        reason = record.reason.encode()
        return _TAIL.pack(len(reason), FENCED, group, replica), reason
    assert isinstance(record, Destroyed), record
    return _TAIL.pack(0, DESTROYED, group, replica), b""


ENTRIES_OVERHEAD = CRC.size + _ENTRIES_TAIL.size
"""Bytes an entries record has beyond its entries."""


def check(data: memoryview, start: int, stop: int, seed: int, group: int, replica: int) -> tuple[int, int, int]:
    """(kind, where the body starts, where the record ends) of the record at `start`, which must end by `stop` and belong to this replica."""
    body = start + HEAD.size
    if body > stop:
        raise BadRecord("record is cut off")
    crc, length, kind, of_group, of_replica = HEAD.unpack_from(data, start)
    end = body + length
    if end > stop:
        raise BadRecord(f"record claims {length} bytes, {stop - body} are there")
    if crc32c(data[start + CRC.size : end], seed) != crc:
        raise BadRecord("record checksum is wrong")
    if of_group != group or of_replica != replica:
        raise BadRecord(f"record belongs to replica {of_replica} of group {of_group}, not to replica {replica} of group {group}")
    return kind, body, end


def parse(kind: int, body: bytes, where: str) -> Logged:
    """The record behind a body whose checksum was right."""
    try:
        if kind == ENTRIES:
            return EntriesAppended(_INDEX.unpack_from(body)[0], entry.split(body[_INDEX.size :]))
        if kind == HARD_STATE:
            return HardState(*_HARD.unpack(body))
        if kind == COPIED:
            return Copied(_INDEX.unpack_from(body)[0], entry.split(body[_INDEX.size :]))
        if kind == TRUNCATED:
            return LogTruncated(*_INDEX.unpack(body))
        if kind == SNAPSHOT:
            index, term, first_index, prev_term = _MARK.unpack_from(body)
            return SnapshotMark(index, term, body[_MARK.size :], first_index, prev_term)
        if kind == DESTROYED:
            return Destroyed()
        if kind == FENCED:
            return Fenced(body.decode())
    except (struct.error, ValueError) as error:
        raise BadRecord(f"record of kind {kind} does not decode: {error}") from error
    raise NewerFormat(where, f"record kind {kind} is unknown: written by a newer version; upgrade this node")

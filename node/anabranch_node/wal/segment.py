"""How a segment starts: a header that says whose it is and where it continues from, then the checkpoint, padded to whole sectors.

Before us: wal.py decided to roll. After us: the driver makes these bytes durable before the file has its name (SegmentCreate), so a named
segment without a valid header is damage. The checkpoint holds every replica's state at that point: no term or vote is ever lost with an
old segment. Also here: the side file that notes the last sync of an idle log. Not here: batches (batch.py)."""

import struct
from typing import NamedTuple

import msgspec

from anabranch_node.core.raft.records import HardState, SnapshotMark
from anabranch_node.wal.batch import Position, round_up
from anabranch_node.wal.record import identity_seed, segment_seed
from anabranch_proto.checksum import crc32c
from anabranch_proto.formats import WAL_SEGMENT, WAL_SYNC_MARK, Damaged, ForeignFormat, check
from anabranch_proto.ids import NodeIdentity

# magic, version, header length, crc | segment, segment bytes, node, incarnation, previous segment, its end, oldest live, next batch,
# checkpoint length, checkpoint crc, length of the cluster id that follows. The checksum covers all but the magic and itself.
_HEAD = struct.Struct("<4sHHIQQQ16sQQQQIIH")
_CRC = struct.Struct("<I")
_CRC_AT = 8

SYNC_MARK_NAME = "wal/synced"
_MARK = struct.Struct("<4sHHIQQ")


class NodeDamaged(Damaged):
    """Damage hides which replicas it touched: nothing on this disk may vote any more."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, f"{problem}; nothing was changed, but what this disk held is uncertain, so this node must join as a new incarnation")


class SegmentHeader(NamedTuple):
    segment: int
    segment_bytes: int
    identity: NodeIdentity
    previous: Position
    """Where the log continued from: number and exact end of the segment before, (0, 0) if there was none."""
    oldest: int
    """The oldest segment that was live when this one was made; anything below is a leftover."""
    next_batch: int
    checkpoint_offset: int
    checkpoint_bytes: int
    checkpoint_crc: int

    @property
    def end(self) -> int:
        """Where the first batch starts."""
        return round_up(self.checkpoint_offset + self.checkpoint_bytes)


class ReplicaState(msgspec.Struct, array_like=True, frozen=True):
    """One replica in a checkpoint. Fields are only ever appended, with defaults."""

    group: int
    replica: int
    hard: HardState | None
    mark: SnapshotMark | None
    last_index: int
    fenced: str


class Checkpoint(msgspec.Struct, array_like=True, frozen=True):
    replicas: list[ReplicaState]
    destroyed: list[tuple[int, int]]


def segment_name(segment: int) -> str:
    return f"wal/{segment:016d}.seg"


def encode_segment(header: SegmentHeader, checkpoint: Checkpoint, seed: int) -> bytes:
    """The bytes a new segment starts with. The checkpoint fields of `header` are filled in here; `seed` is the identity's (record.py)."""
    body = msgspec.msgpack.encode(checkpoint)
    cluster = header.identity.cluster_id.encode()
    length = _HEAD.size + len(cluster)
    fields = (
        header.segment,
        header.segment_bytes,
        header.identity.node_id,
        header.identity.incarnation.to_bytes(16, "little"),
        *header.previous,
        header.oldest,
        header.next_batch,
        len(body),
        crc32c(body, segment_seed(seed, header.segment)),
        len(cluster),
    )
    blank = _HEAD.pack(WAL_SEGMENT.magic, WAL_SEGMENT.version, length, 0, *fields) + cluster
    data = blank[:_CRC_AT] + _CRC.pack(_header_crc(blank)) + blank[_CRC_AT + 4 :] + body
    return data.ljust(round_up(len(data)), b"\0")


def decode_segment_header(data: memoryview, segment: int, identity: NodeIdentity, where: str) -> SegmentHeader:
    """Raises NodeDamaged, ForeignFormat, NewerFormat, or Damaged for a file that holds another segment."""
    if len(data) < _HEAD.size:
        raise NodeDamaged(where, f"a segment of {len(data)} bytes is too short for its header")
    magic, version, length, crc = struct.unpack_from("<4sHHI", data)
    sound = _HEAD.size <= length <= len(data) and crc == _header_crc(bytes(data[:length]))
    if not sound or magic != WAL_SEGMENT.magic:
        if magic != WAL_SEGMENT.magic and not sound and any(data[:512]):
            check(WAL_SEGMENT, magic, version, where)  # raises: some other kind of file
        raise NodeDamaged(where, "segment header is damaged at offset 0")
    check(WAL_SEGMENT, magic, version, where)
    number, size, node, incarnation, before, before_end, oldest, batch, checkpoint_bytes, checkpoint_crc, cluster_bytes = _HEAD.unpack_from(data)[4:]
    cluster = bytes(data[_HEAD.size : _HEAD.size + cluster_bytes]).decode()
    written_by = NodeIdentity(cluster, node, int.from_bytes(incarnation, "little"))
    if written_by != identity:
        raise ForeignFormat(where, f"written by {written_by}, but this is {identity}")
    if number != segment:
        raise Damaged(where, f"holds segment {number}, so this should be {segment_name(number)}: files were renamed or swapped")
    if size != len(data):
        raise NodeDamaged(where, f"{len(data)} bytes long, but it was made with {size}")
    return SegmentHeader(number, size, identity, Position(before, before_end), oldest, batch, length, checkpoint_bytes, checkpoint_crc)


def decode_checkpoint(data: memoryview, header: SegmentHeader, seed: int) -> Checkpoint | None:
    """None if it is damaged; whether that matters is for recovery.py to say."""
    body = data[header.checkpoint_offset : header.checkpoint_offset + header.checkpoint_bytes]
    if len(body) != header.checkpoint_bytes or crc32c(body, segment_seed(seed, header.segment)) != header.checkpoint_crc:
        return None
    try:
        return msgspec.msgpack.decode(body, type=Checkpoint)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None


def encode_sync_mark(identity: NodeIdentity, position: Position) -> bytes:
    """Bytes of the side file `synced`: the whole log before `position` is durable."""
    seed = identity_seed(identity)
    blank = _MARK.pack(WAL_SYNC_MARK.magic, WAL_SYNC_MARK.version, 0, 0, *position)
    return _MARK.pack(WAL_SYNC_MARK.magic, WAL_SYNC_MARK.version, 0, crc32c(blank, seed), *position)


def decode_sync_mark(identity: NodeIdentity, data: bytes) -> Position:
    """Raises Damaged (it may be torn: it only ever adds knowledge, so a reader may go on without it) or NewerFormat."""
    where = SYNC_MARK_NAME
    if len(data) != _MARK.size:
        raise Damaged(where, f"{len(data)} bytes long, expected {_MARK.size}")
    magic, version, _, crc, segment, offset = _MARK.unpack(data)
    if crc32c(data[:_CRC_AT] + bytes(4) + data[_CRC_AT + 4 :], identity_seed(identity)) != crc:
        raise Damaged(where, "checksum is wrong, or it is another node's")
    check(WAL_SYNC_MARK, magic, version, where)
    return Position(segment, offset)


def _header_crc(header: bytes) -> int:
    """Over the version, the length and all behind the checksum. Without the magic, so that a flipped magic is told from a foreign file."""
    return crc32c(header[_CRC_AT + 4 :], crc32c(header[4:_CRC_AT]))

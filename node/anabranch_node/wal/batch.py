"""One batch of the shared log: a header, then records of many replicas, padded with zeros to whole sectors.

Before us: record.py. After us: wal.py makes it a WalWrite, recovery.py reads it back. A batch starts on a sector of its own, so a torn
write can never touch acknowledged bytes. The header says whose records follow and how long each run of them is, under its own checksum:
damage in the body fences just the replica whose run it hit. It also says up to where the log was known to be synced."""

import struct
from typing import NamedTuple

from anabranch_proto.checksum import crc32c
from anabranch_proto.formats import WAL_BATCH, check

SECTOR = 512

# magic, version, zero, crc, batch number, segment, offset, synced segment, synced offset, body length, runs
_HEAD = struct.Struct("<4sHHIQQQQQII")
_CRC_AT = 8
_RUN = struct.Struct("<IQI")

HEADER_BYTES = _HEAD.size
RUN_BYTES = _RUN.size


class Position(NamedTuple):
    """A place in the log; everything before it. Ordered."""

    segment: int
    offset: int


class Run(NamedTuple):
    """Consecutive records of one replica within a batch."""

    group: int
    replica: int
    length: int


class BatchHeader(NamedTuple):
    number: int
    segment: int
    offset: int
    synced: Position
    body_bytes: int
    runs: list[Run]

    @property
    def body_offset(self) -> int:
        return self.offset + HEADER_BYTES + RUN_BYTES * len(self.runs)

    @property
    def end(self) -> int:
        return round_up(self.body_offset + self.body_bytes)


def round_up(size: int) -> int:
    return (size + SECTOR - 1) // SECTOR * SECTOR


encode_run = _RUN.pack
"""(group, replica, length) -> bytes. A function and not a Run: this is on the hot path."""


def encode_header(number: int, segment: int, offset: int, synced: Position, body_bytes: int, runs: list[bytes], seed: int) -> bytes:
    """The header of the batch that starts there. `runs` by encode_run; `seed` is the identity's (record.py)."""
    flat = b"".join(runs)
    fields = (number, segment, offset, *synced, body_bytes, len(runs))
    blank = _HEAD.pack(WAL_BATCH.magic, WAL_BATCH.version, 0, 0, *fields)
    crc = crc32c(flat, crc32c(blank, seed))
    return _HEAD.pack(WAL_BATCH.magic, WAL_BATCH.version, 0, crc, *fields) + flat


def decode_header(data: memoryview, at: Position, seed: int, where: str) -> BatchHeader | None:
    """The batch header at `at`, or None if there is none that is whole and in its place. Raises NewerFormat."""
    offset = at.offset
    if offset + HEADER_BYTES > len(data):
        return None
    magic, version, _, crc, number, segment, own, synced_segment, synced_offset, body_bytes, count = _HEAD.unpack_from(data, offset)
    runs_end = offset + HEADER_BYTES + RUN_BYTES * count
    if magic != WAL_BATCH.magic or runs_end + body_bytes > len(data):
        return None
    blank = bytearray(data[offset : offset + HEADER_BYTES])
    blank[_CRC_AT : _CRC_AT + 4] = bytes(4)
    if crc32c(data[offset + HEADER_BYTES : runs_end], crc32c(blank, seed)) != crc or segment != at.segment or own != offset:
        return None
    check(WAL_BATCH, magic, version, f"{where} at offset {offset}")
    runs = [Run(*_RUN.unpack_from(data, place)) for place in range(offset + HEADER_BYTES, runs_end, RUN_BYTES)]
    if sum(run.length for run in runs) != body_bytes:
        return None
    return BatchHeader(number, segment, own, Position(synced_segment, synced_offset), body_bytes, runs)

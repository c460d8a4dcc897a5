"""Stretches of a segment that hold entries of one replica, for reading them back. wal.py hands them out, the driver reads them."""

from typing import NamedTuple

from anabranch_node.core.raft.records import EntriesAppended
from anabranch_node.wal import record as codec
from anabranch_node.wal.record import BadRecord, Copied, segment_seed
from anabranch_node.wal.replica import Extent
from anabranch_node.wal.segment import segment_name
from anabranch_proto.formats import Damaged

READ_GAP_BYTES_MAX = 16 * 1024
"""Records of other replicas up to this long are read along: a second read costs more than 16 KiB of page cache (about 5 us)."""


class Location(NamedTuple):
    """One read: `length` bytes at `offset`, with these extents of the replica in it."""

    group: int
    replica: int
    segment: int
    offset: int
    length: int
    extents: tuple[Extent, ...]


def to_locations(group: int, replica: int, extents: list[Extent]) -> list[Location]:
    """Neighbours share a read."""
    stretches: list[list[Extent]] = []
    for extent in extents:
        last = stretches[-1][-1] if stretches else None
        if last is not None and last.segment == extent.segment and 0 <= extent.offset - last.offset - last.length <= READ_GAP_BYTES_MAX:
            stretches[-1].append(extent)
        else:
            stretches.append([extent])
    return [
        Location(group, replica, many[0].segment, many[0].offset, many[-1].offset + many[-1].length - many[0].offset, tuple(many))
        for many in stretches
    ]


def read_extent(location: Location, extent: Extent, data: bytes, seed: int) -> list[bytes]:
    """The entries of one extent out of the bytes of its location. `seed` is the identity's. Raises Damaged."""
    name = segment_name(extent.segment)
    start = extent.offset - location.offset
    stop = start + extent.length
    try:
        if len(data) != location.length:
            raise BadRecord(f"a read of {location.length} bytes at offset {location.offset} gave {len(data)}")
        place_seed = segment_seed(seed, extent.segment) ^ extent.offset
        kind, body, end = codec.check(memoryview(data), start, stop, place_seed, location.group, location.replica)
        record = codec.parse(kind, data[body:end], f"{name} at offset {extent.offset}")
        if end != stop or not isinstance(record, EntriesAppended | Copied):
            raise BadRecord("another record is there")
        skip = extent.first_index - record.first_index
        entries = record.entries[skip : extent.last_index + 1 - record.first_index] if skip >= 0 else []
        if len(entries) != extent.last_index + 1 - extent.first_index:
            raise BadRecord(f"entries {extent.first_index} to {extent.last_index} are not in the record")
    except BadRecord as error:
        raise Damaged(name, f"offset {extent.offset}, replica {location.replica} of group {location.group}: {error}") from error
    return entries

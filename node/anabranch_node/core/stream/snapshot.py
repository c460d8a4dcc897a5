"""The machine's whole state as bytes, in slices, and back. Written from a frozen view while the machine goes on applying.

After us: engine/ hands one slice per turn to the snapshot file (compressed and checksummed there). A slice is a msgpack array
`[version, number, records]`; the records of all slices, read in order, are the state. Every slice names its place, so that a missing or swapped
one is noticed even where its checksum is right. Tags and field order of the records: see commands.py, the same rules hold."""

import sys
from array import array
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import pairwise
from typing import Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from anabranch_node.core.cross.fences import Fences, FencesState
from anabranch_node.core.cross.outbox import Outbox, Owed
from anabranch_node.core.stream.commands import Producer
from anabranch_node.core.stream.lifetime import Fork, PinState, Published, RareFields
from anabranch_node.core.stream.producers import ProducerState
from anabranch_node.core.stream.stream import Chunk, KeyRuns, OpenChunk, Stream
from anabranch_node.core.stream.table import FrozenTable, StreamTable
from anabranch_proto.formats import Damaged, NewerFormat

# Columns are stored as they lie in memory: little-endian, of 4 and 8 bytes, on every machine we support.
assert array("I", (1,)).tobytes() == b"\1\0\0\0"
assert array("Q", (1,)).tobytes() == b"\1\0\0\0\0\0\0\0"

SLICE_VERSION = 1
_WHERE = "snapshot of the stream machine"
_ROWS_PER_RECORD = 256
_Value = TypeVar("_Value")


class Slice(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    number: int
    records: Raw


class MachineHead(Struct, frozen=True, array_like=True, tag=1, gc=False, forbid_unknown_fields=True):
    """The first record."""

    applied_index: int
    now_ms: int
    stream_count: int


class StreamHead(Struct, frozen=True, array_like=True, tag=2, gc=False, forbid_unknown_fields=True):
    """Its producers and chunks follow, before the next head."""

    name: str
    incarnation: int
    content_type: str
    tail: int
    producer_count: int
    created_ms: int = 0
    start: int = 0
    earliest: int = 0


class ProducerRows(Struct, frozen=True, array_like=True, tag=3, gc=False, forbid_unknown_fields=True):
    """In the table's order, which is the order of last activity."""

    rows: list[tuple[str, ProducerState]]


class ChunkHead(Struct, frozen=True, array_like=True, tag=4, gc=False, forbid_unknown_fields=True):
    """The columns of a chunk but its payload, which follows in one or more ChunkBytes: a large message may need several slices."""

    start: int
    size: int
    open: bool
    ends: bytes
    times: bytes
    time_firsts: bytes


class ChunkBytes(Struct, frozen=True, array_like=True, tag=5, gc=False, forbid_unknown_fields=True):
    data: bytes


class MachineEnd(Struct, frozen=True, array_like=True, tag=6, gc=False, forbid_unknown_fields=True):
    """The last record: without it the snapshot is not whole."""

    stream_count: int


class StreamRare(Struct, frozen=True, array_like=True, tag=7, gc=False, forbid_unknown_fields=True):
    """Directly behind the head of a stream that has any of it (lifetime.py)."""

    ttl_s: int | None
    expires_at_ms: int | None
    expires_at: str
    touched_at_ms: int
    closed: bool
    closer: Producer | None
    seq: str | None
    retention_bytes: int | None = None
    retention_age_s: int | None = None
    gone: bool = False
    fork: Fork | None = None
    last_append_ms: int = 0


class ChunkKeys(Struct, frozen=True, array_like=True, tag=8, gc=False, forbid_unknown_fields=True):
    """Before the head of a chunk in which a message has a routing key. A slice may hold more bytes than asked for by the keys of one chunk."""

    keys: list[str]
    firsts: bytes


class PinRows(Struct, frozen=True, array_like=True, tag=9, gc=False, forbid_unknown_fields=True):
    """Behind StreamRare of a stream that forks stand on."""

    rows: list[tuple[str, PinState]]


class PublishedHead(Struct, frozen=True, array_like=True, tag=10, gc=False, forbid_unknown_fields=True):
    """Behind StreamRare; the bytes of the client's snapshot follow in ChunkBytes."""

    offset: int
    content_type: str
    size: int


class Owing(Struct, frozen=True, array_like=True, tag=11, gc=False, forbid_unknown_fields=True):
    """Behind the head of the machine: what it owes other groups."""

    last: int
    entries: list[tuple[int, Owed]]


class RefusedForks(Struct, frozen=True, array_like=True, tag=12, gc=False, forbid_unknown_fields=True):
    """Behind the head of the machine, as often as it takes."""

    uuids: list[str]


class FenceRows(Struct, frozen=True, array_like=True, tag=20, gc=False, forbid_unknown_fields=True):
    """Behind the head: the buckets that streams may be created in, in the table's order. Several if there are many; none if none was ever opened."""

    highest: int
    opened: list[tuple[str, int]]


Record = (
    MachineHead
    | StreamHead
    | ProducerRows
    | ChunkHead
    | ChunkBytes
    | MachineEnd
    | StreamRare
    | ChunkKeys
    | PinRows
    | PublishedHead
    | Owing
    | RefusedForks
    | FenceRows
)

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_slice: Final = msgspec.msgpack.Decoder(Slice).decode
_decode_records: Final = msgspec.msgpack.Decoder(list[Record]).decode


class FrozenView:
    """The state at one applied index, whatever is applied afterwards (table.py). Dropping the view frees what only it still holds."""

    __slots__ = ("_table", "applied_index", "now_ms")

    def __init__(self, applied_index: int, now_ms: int, table: FrozenTable) -> None:
        self.applied_index = applied_index
        self.now_ms = now_ms
        self._table = table

    def slices(self, bytes_max: int) -> Iterator[bytes]:
        """The state in pieces of at most about `bytes_max`, each made when asked for.

        A piece holds at least one record, so it exceeds `bytes_max` where one record does: columns take up to 64 KiB, payload is split."""
        assert bytes_max >= 1, bytes_max
        number = 0
        size = 0
        pending: list[Raw] = []
        for record in self._records(bytes_max):
            encoded = _encode(record)
            if pending and size + len(encoded) > bytes_max:
                yield _encode((SLICE_VERSION, number, pending))
                number += 1
                size = 0
                pending = []
            pending.append(Raw(encoded))
            size += len(encoded)
        yield _encode((SLICE_VERSION, number, pending))

    def _records(self, piece_bytes_max: int) -> Iterator[Record]:
        table = self._table
        yield MachineHead(self.applied_index, self.now_ms, len(table.streams))
        yield from _cross_records(table.outbox, table.refused)
        yield from _fence_records(table.fences)
        for name, stream in table.streams.items():
            producers = stream.producers or {}
            place = (stream.created_ms, stream.start, stream.earliest)
            yield StreamHead(name, stream.incarnation, stream.content_type, stream.tail, len(producers), *place)
            if stream.rare is not None:
                yield from _rare_records(stream.rare, piece_bytes_max)
            if producers:
                yield from (ProducerRows(rows) for rows in _batches(list(producers.items())))
            if stream.tail > stream.start:
                yield from _chunk_records(stream, piece_bytes_max)
        yield MachineEnd(len(table.streams))


def _batches(rows: list[_Value]) -> Iterator[list[_Value]]:
    return (rows[first : first + _ROWS_PER_RECORD] for first in range(0, len(rows), _ROWS_PER_RECORD))


def _cross_records(outbox: Outbox, refused: Iterable[str]) -> Iterator[Record]:
    if outbox.last:
        entries = list(_batches(list(outbox.entries.items()))) or [[]]
        yield from (Owing(outbox.last, rows) for rows in entries)
    yield from (RefusedForks(uuids) for uuids in _batches(sorted(refused)))


def _rare_records(rare: RareFields, piece_bytes_max: int) -> Iterator[Record]:
    yield _rare_record(rare)
    if rare.pins is not None:
        yield from (PinRows(rows) for rows in _batches(list(rare.pins.items())))
    if rare.published is not None:
        data = rare.published.data
        yield PublishedHead(rare.published.offset, rare.published.content_type, len(data))
        yield from (ChunkBytes(data[first : first + piece_bytes_max]) for first in range(0, len(data), piece_bytes_max))


def _fence_records(fences: FencesState) -> Iterator[Record]:
    if fences.highest or fences.opened:
        for first in range(0, max(1, len(fences.opened)), _ROWS_PER_RECORD):
            yield FenceRows(fences.highest, fences.opened[first : first + _ROWS_PER_RECORD])


def _rare_record(rare: RareFields) -> StreamRare:
    use = (rare.ttl_s, rare.expires_at_ms, rare.expires_at, rare.touched_at_ms, rare.closed, rare.closer, rare.seq)
    return StreamRare(*use, rare.retention_bytes, rare.retention_age_s, rare.gone, rare.fork, rare.last_append_ms)


def _chunk_records(stream: Stream, piece_bytes_max: int) -> Iterator[Record]:
    for chunk in stream.chunks():
        is_open = type(chunk) is OpenChunk
        data = b"".join(chunk.parts) if isinstance(chunk, OpenChunk) else chunk.data
        if chunk.key_runs is not None:
            yield ChunkKeys(chunk.key_runs.keys, chunk.key_runs.firsts.tobytes())
        yield ChunkHead(chunk.start, len(data), is_open, chunk.ends.tobytes(), chunk.times.tobytes(), chunk.time_firsts.tobytes())
        for first in range(0, len(data), piece_bytes_max):
            yield ChunkBytes(data[first : first + piece_bytes_max])


def restore(slices: Iterable[bytes]) -> tuple[int, int, StreamTable]:
    """Applied index, clock and streams. Raises Damaged or NewerFormat; a table is returned whole or not at all."""
    records = _records_of(slices)
    head = next(records, None)
    if not isinstance(head, MachineHead):
        raise _damaged(f"begins with {_name(head)}, not with its head")
    table = StreamTable()
    stream: Stream | None = None
    stream_head: StreamHead | None = None
    key_runs: KeyRuns | None = None  # of the chunk whose head comes next
    for record in records:
        if key_runs is not None and not isinstance(record, ChunkHead):
            raise _damaged(f"has {_name(record)} where the chunk of its routing keys is expected")
        if isinstance(record, StreamHead):
            _finish(table, stream, stream_head)
            if record.name in table.streams:
                raise _damaged(f"holds stream {record.name} twice")
            place = (record.created_ms, record.start, record.start, record.earliest)  # its chunks bring the tail to where it was
            stream = Stream(record.name, record.incarnation, sys.intern(record.content_type), table.generation, *place)
            stream_head = record
        elif isinstance(record, StreamRare) and stream is not None and stream.rare is None:
            stream.rare = _restore_rare(record)
        elif isinstance(record, PinRows) and stream is not None and stream.rare is not None:
            stream.rare.pins = {**(stream.rare.pins or {}), **dict(record.rows)}
        elif isinstance(record, PublishedHead) and stream is not None and stream.rare is not None:
            data = _payload(records, record.size, f"the snapshot published at {record.offset}")
            stream.rare.published = Published(record.offset, record.content_type, data)
        elif isinstance(record, Owing) and stream is None:
            table.outbox.last = record.last
            table.outbox.entries.update(record.entries)
        elif isinstance(record, RefusedForks) and stream is None:
            table.refused.update(record.uuids)
        elif isinstance(record, ProducerRows) and stream is not None:
            stream.producers = stream.producers or {}
            stream.producers.update(record.rows)
        elif isinstance(record, ChunkKeys) and stream is not None:
            key_runs = _restore_keys(record)
        elif isinstance(record, ChunkHead) and stream is not None:
            _restore_chunk(stream, record, key_runs, records)
            key_runs = None
        elif isinstance(record, FenceRows) and stream is None:
            table.fences = Fences(FencesState(record.highest, [*table.fences.opened.items(), *record.opened]))
        elif isinstance(record, MachineEnd):
            _finish(table, stream, stream_head)
            if len(table.streams) != record.stream_count or record.stream_count != head.stream_count:
                raise _damaged(f"holds {len(table.streams)} streams, its head says {head.stream_count} and its end {record.stream_count}")
            if (extra := next(records, None)) is not None:
                raise _damaged(f"goes on after its end with {_name(extra)}")
            return head.applied_index, head.now_ms, table
        else:
            raise _damaged(f"has {_name(record)} out of place")
    raise _damaged("ends early")


def _records_of(slices: Iterable[bytes]) -> Iterator[Record]:
    for expected, data in enumerate(slices):
        try:
            piece = _decode_slice(data)
            if piece.version > SLICE_VERSION:
                raise NewerFormat(_WHERE, f"slice format {piece.version} is newer than {SLICE_VERSION}; upgrade this node")
            if piece.version != SLICE_VERSION:
                raise _damaged(f"slice format {piece.version} never existed")
            if piece.number != expected:
                raise _damaged(f"slice {piece.number} stands in place {expected}")
            records = _decode_records(piece.records)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _damaged(f"slice {expected} does not decode: {error}") from error
        yield from records


def _restore_keys(record: ChunkKeys) -> KeyRuns:
    try:
        firsts = array("I", record.firsts)
    except ValueError as error:
        raise _damaged(f"has routing keys of a broken length: {error}") from error
    rises = all(left < right for left, right in pairwise(firsts))
    if not firsts or firsts[0] != 0 or not rises or len(firsts) != len(record.keys):
        raise _damaged(f"has {len(record.keys)} routing keys at {len(firsts)} places that are no runs")
    return KeyRuns(record.keys, firsts)


def _restore_rare(record: StreamRare) -> RareFields:
    rare = RareFields(record.ttl_s, record.expires_at_ms, record.expires_at, record.touched_at_ms, record.closed, record.closer, record.seq)
    rare.retention_bytes, rare.retention_age_s = record.retention_bytes, record.retention_age_s
    rare.gone, rare.fork, rare.last_append_ms = record.gone, record.fork, record.last_append_ms
    return rare


def _payload(records: Iterator[Record], size: int, what: str) -> bytes:
    parts: list[bytes] = []
    missing = size
    while missing > 0:
        record = next(records, None)
        if not isinstance(record, ChunkBytes):
            raise _damaged(f"has {_name(record)} where {what} is missing {missing} bytes")
        parts.append(record.data)
        missing -= len(record.data)
    if missing:
        raise _damaged(f"has {-missing} bytes more of {what} than its head says")
    return b"".join(parts)


def _restore_chunk(stream: Stream, head: ChunkHead, key_runs: KeyRuns | None, records: Iterator[Record]) -> None:
    data = _payload(records, head.size, f"payload at offset {head.start}")
    try:
        ends, times, time_firsts = array("I", head.ends), array("Q", head.times), array("I", head.time_firsts)
    except ValueError as error:
        raise _damaged(f"has columns of a broken length at offset {head.start}: {error}") from error
    fits = head.start == stream.tail and stream.open is None
    if not fits or not ends or ends[-1] != head.size or not times or len(times) != len(time_firsts):
        raise _damaged(f"has a chunk at offset {head.start}, size {head.size}, that does not continue its stream at {stream.tail}")
    if key_runs is not None and key_runs.firsts[-1] >= len(ends):
        raise _damaged(f"has a chunk at offset {head.start} with routing keys beyond its {len(ends)} messages")
    if head.open:
        messages = [data[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
        stream.open = OpenChunk(head.start, head.size, messages, ends, times, time_firsts, key_runs)
    else:
        stream.add_sealed(Chunk(head.start, data, ends, times, time_firsts, key_runs))
    stream.tail += head.size


def _finish(table: StreamTable, stream: Stream | None, head: StreamHead | None) -> None:
    """All of a stream was read: into the table, which derives its expiry and its bytes."""
    if stream is None or head is None:
        return
    if stream.tail != head.tail:
        raise _damaged(f"has stream {head.name} up to {stream.tail}, its tail is {head.tail}")
    if len(stream.producers or ()) != head.producer_count:
        raise _damaged(f"has {len(stream.producers or ())} producers of stream {head.name}, not {head.producer_count}")
    table.insert(head.name, stream)


def _damaged(problem: str) -> Damaged:
    return Damaged(_WHERE, problem)


def _name(record: object) -> str:
    return "nothing" if record is None else type(record).__name__


def digest(applied_index: int, now_ms: int, table: StreamTable) -> bytes:
    """A hash of what the state means: equal for equal states however their chunks are cut, whoever was restored and when."""
    streams = table.streams
    total = blake2b(_encode((applied_index, now_ms, len(streams), table.fences.state())), digest_size=16)
    for record in _cross_records(table.outbox, table.refused):
        total.update(_encode(record))
    for name in sorted(streams):
        stream = streams[name]
        producers = None if stream.producers is None else list(stream.producers.items())
        place = (stream.created_ms, stream.tail, stream.start, stream.earliest)
        total.update(_encode((name, stream.incarnation, stream.content_type, place, producers)))
        if stream.rare is not None:
            for record in _rare_records(stream.rare, 1 << 30):
                total.update(_encode(record))
        if stream.tail == stream.start:
            continue
        ends: array[int] = array("Q")
        times: list[tuple[int, int]] = []  # (time, number of its first message), merged across chunks
        keys: list[tuple[str, int]] = []  # the same for keys
        for chunk in stream.chunks():
            _merge_runs(times, -1, chunk.times, chunk.time_firsts, len(ends))
            if chunk.key_runs is not None:
                _merge_runs(keys, "", chunk.key_runs.keys, chunk.key_runs.firsts, len(ends))
            elif keys:
                _merge_runs(keys, "", ("",), (0,), len(ends))
            ends.extend([chunk.start + end for end in chunk.ends])
            total.update(b"".join(chunk.parts) if isinstance(chunk, OpenChunk) else chunk.data)
        total.update(ends.tobytes())
        total.update(_encode((times, keys)))
    return total.digest()


def _merge_runs(runs: list[tuple[_Value, int]], before: _Value, values: Iterable[_Value], firsts: Iterable[int], base: int) -> None:
    """`before` is what holds until the first run."""
    last = runs[-1][0] if runs else before
    for value, first in zip(values, firsts, strict=True):
        if value != last:
            runs.append((value, base + first))
            last = value

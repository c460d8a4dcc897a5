"""A snapshot as a file: `start | chunk ... | trailer`, all integers little-endian, everything summed twice.

    start    magic "ABSN" | version u16 | header length u32 | crc32c u32 of the three before and the header | header (msgpack array)
    chunk    raw length u32 | stored length u32 | crc32c u32 of both lengths and the data | data (zstd)
    trailer  chunks u32 | raw bytes u64 | crc32c u32 of all bytes before the trailer | crc32c u32 of these three | "NSBA"

Before us: engine/ cuts a frozen view of a group's machine into chunks. After us: drivers/snapshot_disk.py, which writes these bytes in the right
order, and sends them to a follower as they are. Not here: files, and what the chunks mean (core/stream/snapshot.py)."""

import struct
from collections.abc import Callable, Iterator

import msgspec

from anabranch_proto.checksum import crc32c
from anabranch_proto.compress import compress, decompress
from anabranch_proto.formats import SNAPSHOT, Damaged, ForeignFormat, check

CHUNK_RAW_BYTES_MAX = 4 << 20
"""A chunk is compressed in one go on a thread beside the loop; 4 MiB take it about 10 ms."""
HEADER_BYTES_MAX = 1 << 20
"""Only the configuration can grow, and it names a handful of replicas."""

_START = struct.Struct("<4sHII")
_CHUNK = struct.Struct("<III")
_LENGTHS = struct.Struct("<II")
_TRAILER = struct.Struct("<IQII4s")
_TRAILER_SUMMED = struct.Struct("<IQI")
_END_MAGIC = b"NSBA"
# zstd grows what it cannot compress by less than 1/256 and a few bytes.
_CHUNK_STORED_BYTES_MAX = CHUNK_RAW_BYTES_MAX + (CHUNK_RAW_BYTES_MAX >> 8) + 1024

ReadAt = Callable[[int, int], bytes]
"""(offset, length) -> bytes, fewer only at the end of the file."""


class SnapshotHeader(msgspec.Struct, frozen=True, array_like=True):
    """What the state stands for: all entries through (index, term) applied, under `config` (core/raft/membership.py). Fields are only appended."""

    cluster_id: str
    group: int
    index: int
    term: int
    config: bytes
    machine_version: int

    def encode(self) -> bytes:
        return _header_encoder.encode(self)

    @staticmethod
    def decode(data: bytes, where: str) -> "SnapshotHeader":
        try:
            return _header_decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise Damaged(where, f"snapshot header does not decode: {error}") from error


_header_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(SnapshotHeader)


class Expected(msgspec.Struct, frozen=True):
    """What the place of the file says about its content; None: any."""

    cluster_id: str | None = None
    group: int | None = None
    index: int | None = None
    term: int | None = None


ANY = Expected()


def encode_start(header: bytes) -> bytes:
    """`header` is SnapshotHeader.encode()."""
    if len(header) > HEADER_BYTES_MAX:
        raise ValueError(f"snapshot header of {len(header)} bytes, at most {HEADER_BYTES_MAX} are allowed")
    return _START.pack(SNAPSHOT.magic, SNAPSHOT.version, len(header), _start_crc(SNAPSHOT.version, header)) + header


def encode_chunk(raw: bytes) -> bytes:
    if len(raw) > CHUNK_RAW_BYTES_MAX:
        raise ValueError(f"snapshot chunk of {len(raw)} bytes, at most {CHUNK_RAW_BYTES_MAX} are allowed")
    stored = compress(raw)
    return _CHUNK.pack(len(raw), len(stored), crc32c(stored, crc32c(_LENGTHS.pack(len(raw), len(stored))))) + stored


def encode_end(chunks: int, raw_bytes: int, crc: int) -> bytes:
    """`crc` is over everything before: SnapshotWriter keeps it."""
    return _TRAILER.pack(chunks, raw_bytes, crc, crc32c(_TRAILER_SUMMED.pack(chunks, raw_bytes, crc)), _END_MAGIC)


class SnapshotWriter:
    """The little that must be remembered between the pieces of one file. Each method returns the bytes to write next."""

    __slots__ = ("chunks", "crc", "raw_bytes", "size")

    def __init__(self) -> None:
        self.chunks = 0
        self.raw_bytes = 0
        self.crc = 0
        self.size = 0

    def start(self, header: bytes) -> bytes:
        assert self.size == 0, self.size
        return self._account(encode_start(header))

    def chunk(self, raw: bytes) -> bytes:
        assert self.size > 0, "a snapshot begins with its header"
        piece = encode_chunk(raw)
        self.chunks += 1
        self.raw_bytes += len(raw)
        return self._account(piece)

    def end(self) -> bytes:
        assert self.size > 0, "a snapshot begins with its header"
        piece = encode_end(self.chunks, self.raw_bytes, self.crc)
        self.size += len(piece)
        return piece

    def _account(self, piece: bytes) -> bytes:
        self.crc = crc32c(piece, self.crc)
        self.size += len(piece)
        return piece


class SnapshotReader:
    """Reads a file piece by piece, so that checking a large one does not hold it in memory. Raises FormatError naming `where`."""

    def __init__(self, read: ReadAt, size: int, where: str, expected: Expected = ANY) -> None:
        self._read = read
        self._size = size
        self._where = where
        start = read(0, _START.size)
        if start and not any(start):
            raise Damaged(where, "zero-filled: its first bytes were never written")
        if start[:4] != SNAPSHOT.magic[: len(start)]:
            check(SNAPSHOT, start[:4], SNAPSHOT.version, where)
        if len(start) < _START.size:
            raise Damaged(where, f"truncated: {size} bytes, shorter than any snapshot")
        magic, version, header_bytes, crc = _START.unpack(start)
        check(SNAPSHOT, magic, version, where)
        if header_bytes > HEADER_BYTES_MAX:
            raise Damaged(where, f"snapshot header claims {header_bytes} bytes, at most {HEADER_BYTES_MAX} are allowed")
        raw_header = self._exactly(_START.size, header_bytes, "snapshot header")
        if crc != _start_crc(version, raw_header):
            raise Damaged(where, "checksum of the snapshot header is wrong")
        self.header = SnapshotHeader.decode(raw_header, where)
        self._crc = crc32c(raw_header, crc32c(start))
        self._first_chunk = _START.size + header_bytes
        check_place(self.header, expected, where)

    def chunks(self) -> Iterator[bytes]:
        """Each chunk once its checksum is right. The whole file is verified only when the iterator has ended: keep nothing before."""
        where, offset, count, raw_bytes, crc = self._where, self._first_chunk, 0, 0, self._crc
        trailer_at = self._size - _TRAILER.size
        if trailer_at < offset or self._read(self._size - 4, 4) != _END_MAGIC:
            raise Damaged(where, f"truncated, or its end was overwritten: no snapshot trailer at the end of {self._size} bytes")
        chunk_count, raw_total, file_crc, trailer_crc, _ = _TRAILER.unpack(self._exactly(trailer_at, _TRAILER.size, "snapshot trailer"))
        if trailer_crc != crc32c(_TRAILER_SUMMED.pack(chunk_count, raw_total, file_crc)):
            raise Damaged(where, "checksum of the snapshot trailer is wrong")
        while offset < trailer_at:
            what = f"chunk {count} at byte {offset}"
            if offset + _CHUNK.size > trailer_at:
                raise Damaged(where, f"{what} runs into the trailer")
            lengths = self._exactly(offset, _CHUNK.size, what)
            raw_length, stored_length, chunk_crc = _CHUNK.unpack(lengths)
            if raw_length > CHUNK_RAW_BYTES_MAX or stored_length > _CHUNK_STORED_BYTES_MAX:
                raise Damaged(where, f"{what} claims {raw_length} bytes ({stored_length} stored), at most {CHUNK_RAW_BYTES_MAX} are allowed")
            if offset + _CHUNK.size + stored_length > trailer_at:
                raise Damaged(where, f"{what} runs into the trailer")
            stored = self._exactly(offset + _CHUNK.size, stored_length, what)
            if chunk_crc != crc32c(stored, crc32c(lengths[: _LENGTHS.size])):
                raise Damaged(where, f"checksum of {what} is wrong")
            try:
                raw = decompress(stored, CHUNK_RAW_BYTES_MAX)
            except ValueError as error:
                raise Damaged(where, f"{what}: {error}") from error
            if len(raw) != raw_length:
                raise Damaged(where, f"{what} holds {len(raw)} bytes, it claims {raw_length}")
            crc = crc32c(stored, crc32c(lengths, crc))
            count += 1
            raw_bytes += raw_length
            offset += _CHUNK.size + stored_length
            yield raw
        if (count, raw_bytes, crc) != (chunk_count, raw_total, file_crc):
            raise Damaged(where, f"{count} chunks of {raw_bytes} bytes do not match the trailer: {chunk_count} of {raw_total}")

    def _exactly(self, offset: int, length: int, what: str) -> bytes:
        data = self._read(offset, length)
        if len(data) != length:
            raise Damaged(self._where, f"truncated: {what} needs {length} bytes, {len(data)} are there")
        return data


def decode(data: bytes, where: str, expected: Expected = ANY) -> tuple[SnapshotHeader, list[bytes]]:
    """A whole file. Raises Damaged, ForeignFormat or NewerFormat naming `where`."""
    reader = SnapshotReader(lambda offset, length: data[offset : offset + length], len(data), where, expected)
    return reader.header, list(reader.chunks())


def _start_crc(version: int, header: bytes) -> int:
    return crc32c(header, crc32c(struct.pack("<4sHI", SNAPSHOT.magic, version, len(header))))


def check_place(header: SnapshotHeader, expected: Expected, where: str) -> None:
    """Raise ForeignFormat unless the file belongs where it is."""
    if expected.cluster_id is not None and header.cluster_id != expected.cluster_id:
        raise ForeignFormat(where, f"snapshot of cluster {header.cluster_id}, this is cluster {expected.cluster_id}")
    for name in ("group", "index", "term"):
        want, seen = getattr(expected, name), getattr(header, name)
        if want is not None and want != seen:
            raise ForeignFormat(where, f"swapped: the file says {name} {seen}, its place says {name} {want}")

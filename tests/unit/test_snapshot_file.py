"""Guards: a snapshot file is either exactly what was written, or an error that names it. Never other bytes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.wal import snapshot_file
from anabranch_node.wal.snapshot_file import CHUNK_RAW_BYTES_MAX, Expected, SnapshotHeader, SnapshotReader, SnapshotWriter, decode
from anabranch_proto.formats import Damaged, ForeignFormat, FormatError, NewerFormat

HEADER = SnapshotHeader("cluster-a", 3, 17, 4, b"config", 1)
GOLDEN = Path(__file__).parents[1] / "golden" / "snapshot-v1" / "sample.snap"


def encode(header: SnapshotHeader, chunks: list[bytes]) -> bytes:
    writer = SnapshotWriter()
    data = writer.start(header.encode()) + b"".join([writer.chunk(chunk) for chunk in chunks]) + writer.end()
    assert writer.size == len(data)
    return data


SAMPLE = encode(HEADER, [b"a" * 1000, b"", bytes(range(256)) * 4])


@given(st.lists(st.binary(max_size=3000), max_size=6), st.binary(max_size=50))
def test_reads_back_what_was_written(chunks: list[bytes], config: bytes) -> None:
    header = SnapshotHeader("cluster-a", 3, 17, 4, config, 1)
    assert decode(encode(header, chunks), "f", Expected("cluster-a", 3, 17, 4)) == (header, chunks)


@given(st.integers(0, len(SAMPLE) * 8 - 1))
def test_any_flipped_bit_is_noticed(bit: int) -> None:
    damaged = bytearray(SAMPLE)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FormatError, match=r"snapshots/3/x\.snap"):
        decode(bytes(damaged), "snapshots/3/x.snap")


def test_any_truncation_is_noticed() -> None:
    for length in range(len(SAMPLE)):
        with pytest.raises(Damaged, match="here: "):
            decode(SAMPLE[:length], "here")


@given(st.binary(min_size=1, max_size=40))
def test_anything_behind_the_trailer_is_noticed(more: bytes) -> None:
    with pytest.raises(Damaged):
        decode(SAMPLE + more, "here")


def test_zeroed_tail_and_zero_filled_file_are_damage_not_foreign() -> None:
    with pytest.raises(Damaged, match="zero-filled"):
        decode(bytes(4096), "here")
    for kept in range(5, len(SAMPLE) - 1):
        with pytest.raises(Damaged):
            decode(SAMPLE[:kept] + bytes(len(SAMPLE) - kept), "here")


def test_chunks_that_change_places_are_noticed() -> None:
    writer = SnapshotWriter()
    start, first, second, end = writer.start(HEADER.encode()), writer.chunk(b"one"), writer.chunk(b"two"), writer.end()
    decode(start + first + second + end, "here")
    with pytest.raises(Damaged, match="trailer"):
        decode(start + second + first + end, "here")
    with pytest.raises(Damaged, match="trailer"):
        decode(start + first + end, "here")


def test_foreign_file_is_named_as_such() -> None:
    with pytest.raises(ForeignFormat, match="not a snapshot"):
        decode(b"#!/bin/sh\necho hello\n", "here")
    with pytest.raises(ForeignFormat):
        decode(b"PK", "here")


def test_newer_format_is_refused_before_its_bytes_are_judged() -> None:
    with pytest.raises(NewerFormat, match="format 2 is newer"):
        decode(SAMPLE[:4] + b"\x02\x00" + b"whatever a later version wrote", "here")


@pytest.mark.parametrize(
    ("expected", "problem"),
    [
        (Expected(cluster_id="cluster-b"), "snapshot of cluster cluster-a, this is cluster cluster-b"),
        (Expected(group=4), "says group 3, its place says group 4"),
        (Expected(index=18), "says index 17, its place says index 18"),
        (Expected(term=5), "says term 4, its place says term 5"),
    ],
)
def test_swapped_file_is_refused(expected: Expected, problem: str) -> None:
    with pytest.raises(ForeignFormat, match=problem):
        decode(SAMPLE, "here", expected)


def test_chunk_bound_holds_for_writer_and_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="at most"):
        snapshot_file.encode_chunk(bytes(CHUNK_RAW_BYTES_MAX + 1))
    monkeypatch.setattr(snapshot_file, "CHUNK_RAW_BYTES_MAX", CHUNK_RAW_BYTES_MAX * 2)
    too_big = encode(HEADER, [bytes(CHUNK_RAW_BYTES_MAX + 1)])
    monkeypatch.undo()
    with pytest.raises(Damaged, match=r"chunk 0 .* claims 4194305 bytes"):
        decode(too_big, "here")


def test_reader_holds_no_more_than_a_chunk() -> None:
    asked: list[int] = []

    def read(offset: int, length: int) -> bytes:
        asked.append(length)
        return data[offset : offset + length]

    chunks = [bytes([number]) * 50_000 for number in range(20)]
    data = encode(HEADER, chunks)
    assert list(SnapshotReader(read, len(data), "here").chunks()) == chunks
    assert max(asked) < 2_000  # the stored size of one chunk


def test_golden_sample_of_version_1_is_still_read() -> None:
    header, chunks = decode(GOLDEN.read_bytes(), GOLDEN.name, Expected("golden-cluster", 7, 1234, 5))
    assert header == SnapshotHeader("golden-cluster", 7, 1234, 5, b"\x01\x02config", 3)
    assert chunks == [b"first chunk " * 100, b"", bytes(range(256))]

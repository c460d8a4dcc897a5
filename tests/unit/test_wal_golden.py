"""Logs of released formats are read for ever. tests/golden/wal-v1 was written by format 1 (REWRITE=1 writes it anew, before a release only)."""

import json
import os
from pathlib import Path

from anabranch_node.core.raft.records import Destroyed, HardState, LogTruncated, SnapshotMark
from anabranch_node.wal.options import WalOptions
from anabranch_node.wal.recovery import SegmentFile, recover
from anabranch_node.wal.segment import segment_name
from tests.unit.wal_disk import IDENTITY, Bench

GOLDEN = Path(__file__).parent.parent / "golden" / "wal-v1"
OPTIONS = WalOptions(segment_bytes=4096, segments_live_max=2, copy_forward_bytes_max=1024)


def sample() -> Bench:
    """Every kind of record, a copy whose original is gone, several segments, two runs."""
    bench = Bench(OPTIONS)
    for replica in (1, 2, 3, 4):
        bench.create(replica, 10 + replica)
    bench.append(1, 11, 1, b"first", b"second")
    bench.append(4, 14, 1, b"of the fenced one")
    bench.write()
    for index in range(1, 16):
        bench.append(2, 12, index, b"%02d" % index * 200)
        if index % 3 == 0:
            bench.wal.stage(2, 12, SnapshotMark(index, 1, b"members 12 13", index, 1))
        bench.write()
        bench.maintain()
    bench.wal.stage(3, 13, Destroyed())
    bench.wal.fence(4, 14, "wal/0000000000000001.seg: offset 1: record checksum is wrong")
    bench.write()
    bench.settle()
    bench = bench.restart()
    bench.wal.stage(2, 12, LogTruncated(16))
    bench.wal.stage(2, 12, HardState(2, 12, 15))
    bench.append(2, 12, 16, b"new term", term=2)
    bench.write()
    bench.settle()
    return bench


def described(files: list[SegmentFile], synced: bytes) -> object:
    found = recover(IDENTITY, files, synced, OPTIONS)
    return {
        "replicas": [
            {
                "group": replica.group,
                "replica": replica.replica,
                "hard": list(replica.hard),
                "snapshot": [replica.snapshot.index, replica.snapshot.term, replica.snapshot.config.decode(), *replica.snapshot[3:]],
                "entries": [entry.hex() for entry in replica.entries],
                "fenced": replica.fenced,
            }
            for _, replica in sorted(found.groups.items())
        ],
        "destroyed": [list(key) for key in sorted(found.destroyed)],
        "next_segment": found.next_segment,
        "torn": found.torn,
        "notes": found.notes,
    }


def test_a_log_of_format_1_is_read() -> None:
    if os.environ.get("REWRITE"):
        GOLDEN.mkdir(parents=True, exist_ok=True)
        for path in GOLDEN.glob("*.seg"):
            path.unlink()
        disk = sample().disk
        assert disk.mark is not None
        for file in disk.files():
            (GOLDEN / Path(file.name).name).write_bytes(file.data)
        (GOLDEN / "synced").write_bytes(disk.mark)
        (GOLDEN / "expected.json").write_text(json.dumps(described(disk.files(), disk.mark), indent=1) + "\n")
    files = [SegmentFile(int(path.stem), segment_name(int(path.stem)), path.read_bytes()) for path in sorted(GOLDEN.glob("*.seg"))]
    assert len(files) > 2
    assert described(files, (GOLDEN / "synced").read_bytes()) == json.loads((GOLDEN / "expected.json").read_text())


def test_format_1_is_still_written_byte_for_byte() -> None:
    """A change of the bytes needs a new version, and a new sample beside the old one."""
    for file in sample().disk.files():
        assert (GOLDEN / Path(file.name).name).read_bytes() == file.data, file.name

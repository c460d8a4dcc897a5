"""Guards: the threads around the disks keep order, share syncs, bound their queues, lose no error and end. On a real disk, with no sleeps."""

import random
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

import pytest

from anabranch_node.core.effects import (
    DiskFailed,
    DiskSpace,
    SegmentCreate,
    SegmentDelete,
    SnapshotAppend,
    SnapshotFailed,
    SnapshotFinish,
    SnapshotKey,
    SnapshotLoad,
    SnapshotLoaded,
    SnapshotOpen,
    SnapshotReceive,
    SnapshotSaved,
    SnapshotsDelete,
    SnapshotVerified,
    Synced,
    WalBytes,
    WalRead,
    WalWrite,
)
from anabranch_node.drivers.disk_threads import DiskThread, SnapshotPool
from anabranch_node.drivers.fs import OsFs
from anabranch_node.drivers.snapshot_disk import SnapshotDisk, SnapshotEffect, SnapshotEvent
from anabranch_node.drivers.wal_disk import WalDisk, WalDiskOptions, WalEffect, WalEvent
from anabranch_node.wal.snapshot_file import SnapshotHeader
from anabranch_proto.compress import compress

SEGMENT = 64 << 10
WAIT_S = 60.0


def mark(segment: int, offset: int) -> bytes:
    return b"mark"


class GatedDisk(WalDisk):
    """Every sync waits for a permit, so that a test decides what is queued meanwhile."""

    def __init__(self, root: Path) -> None:
        super().__init__(OsFs(), str(root), WalDiskOptions(SEGMENT, 1), mark)
        self.permits = threading.Semaphore(0)
        self.waiting = threading.Semaphore(0)
        self.sync_calls = 0

    def sync(self) -> list[WalEvent]:
        if self._dirty:
            self.sync_calls += 1
            self.waiting.release()
            assert self.permits.acquire(timeout=WAIT_S)
        return super().sync()


class Reports:
    def __init__(self) -> None:
        self.queue: SimpleQueue[WalEvent | SnapshotEvent | None] = SimpleQueue()

    def __call__(self, events: list[WalEvent] | list[SnapshotEvent]) -> None:
        for event in events:
            self.queue.put(event)
        if not events:
            self.queue.put(None)

    def until_synced(self, ticket: int) -> list[int]:
        """Tickets of Synced, in order, up to this one."""
        seen: list[int] = []
        while not seen or seen[-1] < ticket:
            event = self.queue.get(timeout=WAIT_S)
            assert not isinstance(event, DiskFailed), event
            if isinstance(event, Synced):
                seen.append(event.ticket)
        return seen

    def until(self, kind: type) -> object:
        while True:
            event = self.queue.get(timeout=WAIT_S)
            if isinstance(event, kind):
                return event


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("anabranch-")]


def test_batches_are_written_in_order_across_rolls_and_read_back(tmp_path: Path) -> None:
    disk = WalDisk(OsFs(), str(tmp_path), WalDiskOptions(SEGMENT, 2), mark)
    disk.open()
    reports = Reports()
    thread = DiskThread(disk, reports)
    expected: dict[int, bytearray] = {}
    segment, offset = 0, SEGMENT
    for ticket in range(1, 1001):
        effects: list[WalEffect] = []
        if offset + 512 > SEGMENT:
            segment, offset = segment + 1, 512
            effects.append(SegmentCreate(segment, f"head-{segment}".encode()))
            expected[segment] = bytearray(SEGMENT)
            expected[segment][:6] = f"head-{segment}".encode()
        data = ticket.to_bytes(8, "little") * 40
        effects.append(WalWrite(ticket, segment, offset, data))
        expected[segment][offset : offset + len(data)] = data
        offset += 512
        assert thread.submit(effects)
    tickets = reports.until_synced(1000)
    assert tickets == sorted(tickets)
    thread.submit([WalRead(1, 1, 512, 320), SegmentDelete(1), WalRead(2, 1, 512, 320)])
    found = reports.until(WalBytes)
    assert found == WalBytes(1, (1).to_bytes(8, "little") * 40)
    gone = reports.until(WalBytes)
    assert isinstance(gone, WalBytes) and "ENOENT" in gone.error
    thread.close()
    assert our_threads() == []
    again = WalDisk(OsFs(), str(tmp_path), WalDiskOptions(SEGMENT, 2), mark)
    assert {file.segment: file.data for file in again.open().segments} == {number: bytes(data) for number, data in expected.items() if number > 1}
    again.close()


def test_what_gathers_during_a_sync_shares_the_next_one(tmp_path: Path) -> None:
    disk = GatedDisk(tmp_path)
    disk.open()
    reports = Reports()
    thread = DiskThread(disk, reports)
    thread.submit([SegmentCreate(1, b"head"), WalWrite(1, 1, 512, b"x")])
    assert disk.waiting.acquire(timeout=WAIT_S)
    for ticket in range(2, 101):
        thread.submit([WalWrite(ticket, 1, 512 * ticket, b"x")])
    disk.permits.release(2)
    assert reports.until_synced(100) == [1, 100]
    assert disk.sync_calls == thread.sync_us.count == 2
    thread.close()


def test_full_queue_takes_nothing_until_a_report_made_room(tmp_path: Path) -> None:
    disk = GatedDisk(tmp_path)
    disk.open()
    reports = Reports()
    queued_at_report: list[int] = []

    def report(events: list[WalEvent]) -> None:
        if any(isinstance(event, Synced) for event in events):
            queued_at_report.append(thread.queued_bytes)
        reports(events)

    thread = DiskThread(disk, report, queue_bytes_max=10_000)
    assert thread.submit([SegmentCreate(1, b"head"), WalWrite(1, 1, 512, bytes(20_000))]), "an empty queue takes anything, or it would never fit"
    assert disk.waiting.acquire(timeout=WAIT_S)
    assert not thread.submit([WalWrite(2, 1, 30_208, b"x")])
    assert thread.queued_bytes > 20_000
    disk.permits.release(10)
    reports.until_synced(1)
    assert queued_at_report == [0], "the room was made before the report"
    assert thread.submit([WalWrite(2, 1, 30_208, b"x")])
    reports.until_synced(2)
    thread.close()
    assert thread.queued_bytes == 0


def test_refused_submitter_is_told_of_room_even_without_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = WalDisk(OsFs(), str(tmp_path), WalDiskOptions(SEGMENT, 0), mark)
    disk.open()
    gate, write = threading.Event(), disk.write
    monkeypatch.setattr(disk, "write", lambda effect: gate.wait(WAIT_S) and write(effect))
    reports = Reports()
    thread = DiskThread(disk, reports, queue_bytes_max=100)
    assert isinstance(reports.queue.get(timeout=WAIT_S), DiskSpace)
    assert thread.submit([SegmentCreate(1, b"head")])
    assert not thread.submit([SegmentDelete(9)])
    gate.set()
    assert reports.queue.get(timeout=WAIT_S) is None
    assert thread.submit([SegmentDelete(9)])
    thread.close()


def test_spares_are_refilled_beside_the_log(tmp_path: Path) -> None:
    disk = WalDisk(OsFs(), str(tmp_path), WalDiskOptions(SEGMENT, 2), mark)
    disk.open()
    reports = Reports()
    thread = DiskThread(disk, reports, space_interval_s=WAIT_S)
    space = reports.until(DiskSpace)
    assert isinstance(space, DiskSpace) and space.spare_segments == 2 and space.free_bytes > 0
    thread.submit([SegmentCreate(1, b"head"), WalWrite(1, 1, 512, b"x")])
    reports.until_synced(1)
    thread.close()
    names = sorted(path.name for path in (tmp_path / "wal").iterdir())
    assert names[0] == "0000000000000001.seg" and "spare-1" in names


def test_unexpected_exception_is_reported_and_nothing_is_acknowledged_after_it(tmp_path: Path) -> None:
    disk = WalDisk(OsFs(), str(tmp_path), WalDiskOptions(SEGMENT, 0), mark)
    disk.open()
    reports = Reports()
    thread = DiskThread(disk, reports)
    thread.submit([SegmentCreate(1, b"head"), WalWrite(1, 1, 512, b"x")])
    reports.until_synced(1)
    thread.submit([WalWrite(2, 7, 512, b"a segment that does not exist")])
    failed = reports.until(DiskFailed)
    assert isinstance(failed, DiskFailed) and "AssertionError" in failed.reason
    thread.submit([WalWrite(3, 1, 1024, b"x"), WalRead(5, 1, 0, 4)])
    answer = reports.queue.get(timeout=WAIT_S)
    assert isinstance(answer, WalBytes) and answer.error
    thread.close()
    assert reports.queue.empty() and our_threads() == []


def test_report_that_nobody_takes_stops_the_log(tmp_path: Path) -> None:
    disk = WalDisk(OsFs(), str(tmp_path), WalDiskOptions(SEGMENT, 0), mark)
    disk.open()
    called = threading.Event()

    def refuse(events: list[WalEvent]) -> None:
        if any(isinstance(event, Synced) for event in events):
            called.set()
            raise RuntimeError("Event loop is closed")

    thread = DiskThread(disk, refuse)
    thread.submit([SegmentCreate(1, b"head"), WalWrite(1, 1, 512, b"x")])
    assert called.wait(WAIT_S)
    thread.close()
    assert "Event loop is closed" in disk.failed


def test_close_performs_what_was_submitted(tmp_path: Path) -> None:
    disk = WalDisk(OsFs(), str(tmp_path), WalDiskOptions(SEGMENT, 1), mark)
    disk.open()
    reports = Reports()
    thread = DiskThread(disk, reports)
    thread.submit([SegmentCreate(1, b"head")])
    for ticket in range(1, 51):
        thread.submit([WalWrite(ticket, 1, 512 * ticket, b"x")])
    thread.close()
    thread.close()
    assert reports.until_synced(50)[-1] == 50
    with pytest.raises(AssertionError, match="after close"):
        thread.submit([])


def test_snapshots_of_many_replicas_at_once_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both threads compress at the same time: a compressor shared between them would crash the process (compress.py has one for each)."""

    def guarded(data: bytes) -> bytes:
        threads.add(threading.current_thread().name)
        return compress(data)

    threads: set[str] = set()
    monkeypatch.setattr("anabranch_node.wal.snapshot_file.compress", guarded)
    disk = SnapshotDisk(OsFs(), str(tmp_path), "c")
    disk.scan()
    reports = Reports()
    pool = SnapshotPool(disk, reports, queue_bytes_max_per_thread=1 << 30)
    keys = [SnapshotKey(group, 10 + group, 5, 1) for group in range(8)]
    chunks = {key: [random.Random(key.group * 100 + number).randbytes(1000) * 200 for number in range(10)] for key in keys}
    for key in keys:
        pool.submit(SnapshotOpen(key, SnapshotHeader("c", key.group, 5, 1, b"", 1).encode()))
    for number in range(10):
        for key in keys:
            pool.submit(SnapshotAppend(key, chunks[key][number]))
    for key in keys:
        pool.submit(SnapshotFinish(key))
        pool.submit(SnapshotLoad(key))
    pool.close()
    assert our_threads() == [] and pool.queued_bytes == 0
    assert len(threads) == 2
    events = [reports.queue.get(timeout=WAIT_S) for _ in range(8 * 12)]
    for key in keys:
        *appended, saved, loaded = [event for event in events if event.key == key]  # type: ignore[union-attr]
        assert len(appended) == 10 and isinstance(saved, SnapshotSaved)
        assert isinstance(loaded, SnapshotLoaded) and loaded.chunks == chunks[key]
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("snapshots/*/*")}
    assert len(sizes) == 8


def test_pool_reports_failures_and_bounds_its_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SnapshotDisk(OsFs(), str(tmp_path))
    disk.scan()
    reports = Reports()
    key = SnapshotKey(1, 1, 5, 1)
    gate = threading.Event()
    perform = disk.perform

    def gated(effects: Sequence[SnapshotEffect]) -> list[SnapshotEvent]:
        assert gate.wait(WAIT_S)
        if isinstance(effects[0], SnapshotsDelete):
            raise RuntimeError("a bug")
        return perform(effects)

    monkeypatch.setattr(disk, "perform", gated)
    pool = SnapshotPool(disk, reports, queue_bytes_max_per_thread=1000)
    assert pool.submit(SnapshotReceive(key, 0, bytes(5000), 5000))
    assert not pool.submit(SnapshotReceive(key, 0, bytes(5000), 5000))
    other = next(replica for replica in range(2, 99) if hash((1, replica)) % 2 != hash((1, 1)) % 2)
    assert pool.submit(SnapshotsDelete(1, other, None)), "the other thread has room"
    gate.set()
    pool.close()
    seen = {type(event): event for event in (reports.queue.get(timeout=WAIT_S), reports.queue.get(timeout=WAIT_S))}
    assert isinstance(seen[SnapshotFailed], SnapshotFailed) and seen[DiskFailed] == DiskFailed("RuntimeError: a bug")


def test_snapshot_travels_between_two_real_directories(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    source, target = SnapshotDisk(OsFs(), str(tmp_path / "a"), "c"), SnapshotDisk(OsFs(), str(tmp_path / "b"), "c")
    source.scan()
    target.scan()
    sent, kept = SnapshotKey(2, 20, 9, 3), SnapshotKey(2, 21, 9, 3)
    chunks = [bytes([number]) * 3_000_000 for number in range(4)]
    source.perform([SnapshotOpen(sent, SnapshotHeader("c", 2, 9, 3, b"", 1).encode()), *(SnapshotAppend(sent, chunk) for chunk in chunks)])
    (saved,) = source.perform([SnapshotFinish(sent)])
    assert isinstance(saved, SnapshotSaved)
    data = (tmp_path / "a/snapshots/2/20-9-3.snap").read_bytes()
    assert len(data) == saved.size
    for at in range(0, len(data), 700):
        answers = target.perform([SnapshotReceive(kept, at, data[at : at + 700], len(data))])
    assert answers == [SnapshotVerified(kept)]
    (loaded,) = target.perform([SnapshotLoad(kept)])
    assert isinstance(loaded, SnapshotLoaded) and loaded.chunks == chunks
    assert [path.name for path in (tmp_path / "b/snapshots/2").iterdir()] == ["21-9-3.snap"]

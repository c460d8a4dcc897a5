"""Guards: what WalDisk called Synced is there after any crash, a segment that has a name is whole, and after a failure nothing is claimed."""

import errno
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.effects import DiskFailed, DiskSpace, SegmentCreate, SegmentDelete, Synced, SyncMark, WalBytes, WalRead, WalWrite
from anabranch_node.drivers.wal_disk import WalDisk, WalDiskOptions, WalFiles
from tests.sim.sim_disk import SimCrash, SimFs

SEGMENT = 4096
OPTIONS = WalDiskOptions(segment_bytes=SEGMENT, spare_segments=2)


def mark(segment: int, offset: int) -> bytes:
    return f"{segment:08d}:{offset:08d}".encode()


def opened(fs: SimFs, options: WalDiskOptions = OPTIONS) -> tuple[WalDisk, WalFiles]:
    disk = WalDisk(fs, "data", options, mark)
    return disk, disk.open()


def ready(fs: SimFs, spares: bool = True) -> WalDisk:
    """A disk with segment 1 and one synced write in it."""
    disk, _ = opened(fs)
    if spares:
        disk.refill_spares()
    assert disk.perform([SegmentCreate(1, b"head-1"), WalWrite(1, 1, 512, b"first")]) == [Synced(1)]
    return disk


def crash_points(run: Callable[[SimFs], object], prepare: Callable[[SimFs], object]) -> Iterator[tuple[SimFs, bool, str]]:
    """`run` cut off before, inside and after every mutating call; the last one of each kind is not cut off. (disk, whether it ended, where)."""
    for part in (0.0, 0.5, 1.0):
        count, ended = 0, False
        while not ended:
            count += 1
            for loss in range(12):
                fs = SimFs()
                prepared = prepare(fs)
                fs.crash_after_ops(count, part)
                try:
                    run(prepared)  # type: ignore[arg-type]
                    ended = True
                except SimCrash:
                    ended = False
                if loss < 4:
                    fs.kill()
                else:
                    fs.power_loss(random.Random(loss * 1000 + count))
                yield fs, ended, f"call {count} part {part} loss {loss}"


def test_starts_empty_and_makes_its_reserve() -> None:
    fs = SimFs(capacity_bytes=1 << 20)
    disk, files = opened(fs)
    assert files == WalFiles([], b"")
    assert disk.refill_spares() == [DiskSpace(2, (1 << 20) - 2 * SEGMENT - 4096)]
    assert disk.refill_spares() == []
    assert fs.listdir("data/wal") == ["spare-0", "spare-1", "synced"]
    assert {path: bytes(file.durable) for path, file in fs.files()}["data/wal/spare-0"] == bytes(SEGMENT)


def test_writes_are_synced_once_and_answered_with_the_highest_ticket() -> None:
    fs = SimFs()
    disk = ready(fs)
    syncs = fs.syncs
    assert disk.perform([WalWrite(2, 1, 1024, b"a"), WalWrite(3, 1, 1025, b"b"), WalWrite(7, 1, 1026, b"c")]) == [Synced(7)]
    assert fs.syncs == syncs + 1
    assert disk.perform([]) == []
    assert disk.perform([WalRead(1, 1, 1024, 3)]) == [WalBytes(1, b"abc")]
    assert fs.syncs == syncs + 1, "nothing was written, nothing is synced"
    fs.power_loss(random.Random(0))
    assert opened(fs)[1].segments[0].data[1024:1028] == b"abc\0"


def test_rolling_syncs_the_old_segment_first_and_takes_a_spare() -> None:
    fs = SimFs()
    disk = ready(fs)
    events = disk.perform([WalWrite(2, 1, 1024, b"last"), SegmentCreate(2, b"head-2"), WalWrite(3, 2, 512, b"next")])
    assert events == [Synced(2), Synced(3)]
    assert fs.listdir("data/wal") == ["0000000000000001.seg", "0000000000000002.seg", "synced"]
    assert disk.spares_missing == 2
    fs.power_loss(random.Random(3))
    first, second = opened(fs)[1].segments
    assert (first.segment, first.name, first.data) == (1, "wal/0000000000000001.seg", _segment({0: b"head-1", 512: b"first", 1024: b"last"}))
    assert (second.segment, second.data) == (2, _segment({0: b"head-2", 512: b"next"}))


@pytest.mark.parametrize("spares", [True, False])
def test_crash_anywhere_while_rolling_leaves_the_old_state_or_the_new(spares: bool) -> None:
    outcomes = set()

    def roll(disk: WalDisk) -> None:
        assert disk.perform([WalWrite(2, 1, 1024, b"last"), SegmentCreate(2, b"head-2" * 200)]) == [Synced(2)]

    for fs, ended, where in crash_points(roll, lambda fs: ready(fs, spares)):  # type: ignore[arg-type]
        disk, files = opened(fs)
        assert files.segments[0].data[:517] == _segment({0: b"head-1", 512: b"first"})[:517], where
        if len(files.segments) == 2:
            assert files.segments[0].data == _segment({0: b"head-1", 512: b"first", 1024: b"last"}), where
            assert files.segments[1].data == _segment({0: b"head-2" * 200}), where
        assert len(files.segments) == 2 or not ended, where
        outcomes.add(len(files.segments))
        # What open() showed is durable, whatever comes next.
        fs.power_loss(random.Random(where))
        disk, again = opened(fs)
        assert again == files, where
        # A spare that was half used is not taken for an empty one.
        disk.refill_spares()
        newest = files.segments[-1].segment
        assert disk.perform([SegmentCreate(newest + 1, b"h"), SegmentCreate(newest + 2, b"h"), SegmentCreate(newest + 3, b"h")]) == [], where
        fs.kill()
        assert all(segment.data == _segment({0: b"h"}) for segment in opened(fs)[1].segments[-3:]), where
    assert outcomes == {1, 2}


def test_crash_anywhere_while_making_spares_leaves_only_zero_filled_ones() -> None:
    for fs, _, where in crash_points(WalDisk.refill_spares, lambda fs: opened(fs)[0]):  # type: ignore[arg-type]
        disk, _ = opened(fs)
        spares = [bytes(file.cached) for path, file in fs.files() if "spare" in path]
        assert all(spare == bytes(SEGMENT) for spare in spares), where
        assert disk.spares_missing == 2 - len(spares), where
        assert not [path for path, _ in fs.files() if path.endswith(".tmp")], where


def test_crash_anywhere_during_open_is_harmless() -> None:
    def prepare(fs: SimFs) -> SimFs:
        ready(fs).write(WalWrite(2, 1, 1024, b"unsynced"))
        fs.kill()
        return fs

    for fs, _, where in crash_points(opened, prepare):
        assert opened(fs)[1].segments[0].data[:517] == _segment({0: b"head-1", 512: b"first"})[:517], where


def test_what_a_killed_process_left_in_the_cache_is_durable_after_open() -> None:
    fs = SimFs()
    disk = ready(fs)
    disk.write(WalWrite(2, 1, 1024, b"never synced"))
    fs.kill()
    shown = opened(fs)[1]
    assert shown.segments[0].data[1024:1036] == b"never synced"
    fs.power_loss(random.Random(1))
    assert opened(fs)[1] == shown


def test_failed_fsync_is_never_acknowledged_and_never_tried_again() -> None:
    fs = SimFs()
    disk = ready(fs)
    fs.fsync_errors = 1
    (failed,) = disk.perform([WalWrite(2, 1, 1024, b"lost")])
    assert isinstance(failed, DiskFailed)
    assert "data/wal/0000000000000001.seg" in failed.reason and "EIO" in failed.reason
    ops, syncs = fs.ops, fs.syncs
    later = [WalWrite(3, 1, 1536, b"more"), SegmentCreate(2, b"h"), SyncMark(1, 1536), SegmentDelete(1), WalRead(5, 1, 0, 4)]
    (answer,) = disk.perform(later)  # type: ignore[arg-type]
    assert isinstance(answer, WalBytes) and answer.request == 5 and "EIO" in answer.error
    assert disk.sync() == disk.refill_spares() == []
    assert (fs.ops, fs.syncs) == (ops, syncs)
    fs.kill()
    # The cache would still show the lost write, as if it were clean: the next process must not believe it.
    assert opened(fs)[1].segments[0].data == _segment({0: b"head-1", 512: b"first"})


@pytest.mark.parametrize("step", [1, 2, 3])
def test_failed_fsync_while_rolling_stops_the_disk(step: int) -> None:
    """1: of the old segment, 2: of the new one, 3: of the directory."""
    fs = SimFs()
    disk = ready(fs)
    disk.write(WalWrite(2, 1, 1024, b"x"))
    fail_at = fs.syncs + (1 if step == 1 else 2)
    fs.fsync_error_filter = lambda path: path == "data/wal" if step == 3 else fs.syncs == fail_at
    fs.fsync_errors = 1
    events = disk.perform([SegmentCreate(2, b"head-2"), WalWrite(3, 2, 512, b"y")])
    assert isinstance(events[-1], DiskFailed) and fs.fsync_errors == 0
    assert events[:-1] == ([] if step == 1 else [Synced(2)])
    assert disk.perform([WalWrite(4, 2, 1024, b"z")]) == []


def test_failed_write_stops_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = SimFs()
    disk = ready(fs)

    def refuse(offset: int, data: bytes) -> None:
        raise fs.error(errno.EIO, "data/wal/0000000000000001.seg")

    monkeypatch.setattr("tests.sim.sim_disk.SimFile.pwrite", lambda file, offset, data: refuse(offset, data))
    events = disk.perform([WalWrite(2, 1, 1024, b"x")])
    monkeypatch.undo()
    assert events == [DiskFailed("WalWrite: data/wal/0000000000000001.seg: EIO: Input/output error")]
    assert disk.perform([WalWrite(3, 1, 1024, b"x")]) == []


def test_full_disk_keeps_the_reserve_usable_and_reports_it() -> None:
    fs = SimFs(capacity_bytes=4096 + 3 * SEGMENT + 100)
    disk = ready(fs)
    assert disk.refill_spares() == [DiskSpace(2, 100)], "segment 1 and two spares fill the disk"
    assert disk.perform([SegmentCreate(2, b"h"), WalWrite(2, 2, 512, b"a")]) == [Synced(2)]
    assert disk.refill_spares() == [DiskSpace(1, 100)]
    assert disk.refill_spares() == []
    assert disk.perform([SegmentCreate(3, b"h"), WalWrite(3, 3, 512, b"b")]) == [Synced(3)]
    assert disk.refill_spares() == [DiskSpace(0, 100)]
    assert not [path for path, _ in fs.files() if path.endswith(".tmp")], "a try that ran out of space gives it back"
    disk.perform([SegmentDelete(1)])
    assert disk.refill_spares() == [DiskSpace(1, 100)]
    disk.perform([SegmentCreate(4, b"h")])
    (failed,) = disk.perform([SegmentCreate(5, b"h")])
    assert isinstance(failed, DiskFailed) and "0000000000000005.seg.tmp: ENOSPC" in failed.reason


def test_spare_that_runs_out_of_space_or_hits_a_bad_block_is_taken_back() -> None:
    fs = SimFs(capacity_bytes=1 << 20)
    disk, _ = opened(fs)
    fs.fsync_errors = 1
    assert disk.refill_spares() == [DiskSpace(0, (1 << 20) - 4096)]
    assert fs.listdir("data/wal") == ["synced"]
    assert disk.refill_spares() == [DiskSpace(2, (1 << 20) - 4096 - 2 * SEGMENT)]
    disk.perform([SegmentCreate(1, b"h")])
    fs.free_bytes = lambda path: 1 << 30  # type: ignore[method-assign]  # another process takes the room between look and write
    fs.capacity_bytes = fs.used_bytes + SEGMENT // 2
    disk.refill_spares()
    assert fs.listdir("data/wal") == ["0000000000000001.seg", "spare-2", "synced"]
    assert not disk.failed


def test_spares_survive_a_restart_unless_the_segment_size_changed() -> None:
    fs = SimFs()
    opened(fs)[0].refill_spares()
    fs.kill()
    disk, _ = opened(fs)
    assert disk.spares_missing == 0
    disk.refill_spares()
    fs.kill()
    disk, _ = opened(fs, WalDiskOptions(segment_bytes=2 * SEGMENT, spare_segments=2))
    assert disk.spares_missing == 2 and fs.listdir("data/wal") == ["synced"]
    disk.refill_spares()
    assert fs.listdir("data/wal") == ["spare-2", "spare-3", "synced"]


def test_reads_of_old_new_and_missing_segments() -> None:
    fs = SimFs()
    disk = ready(fs)
    disk.perform([SegmentCreate(2, b"head-2")])
    assert disk.perform([WalRead(1, 1, 512, 5), WalRead(2, 2, 0, 6)]) == [WalBytes(1, b"first"), WalBytes(2, b"head-2")]
    missing, short = disk.perform([WalRead(3, 9, 0, 6), WalRead(4, 1, SEGMENT - 2, 6)])
    assert isinstance(missing, WalBytes) and missing.data == b"" and "0000000000000009.seg: ENOENT" in missing.error
    assert isinstance(short, WalBytes) and short.data == b"" and "2 bytes at 4094, 6 were asked for" in short.error
    assert not disk.failed, "a read harms nobody"


def test_sync_mark_speaks_only_of_what_is_durable() -> None:
    def note(disk: WalDisk) -> None:
        disk.perform([WalWrite(2, 1, 1024, b"idle"), SyncMark(1, 1536)])

    seen = set()
    for fs, ended, where in crash_points(note, ready):  # type: ignore[arg-type]
        files = opened(fs)[1]
        assert files.sync_mark == mark(1, 1536) or not ended, where
        if files.sync_mark == mark(1, 1536):
            assert files.segments[0].data[1024:1028] == b"idle", where
        seen.add(files.sync_mark)
    assert {b"", mark(1, 1536)} <= seen


def test_deletes_become_durable_in_order() -> None:
    remaining = set()
    for seed in range(100):
        fs = SimFs()
        disk = ready(fs)
        disk.perform([SegmentCreate(number, b"h") for number in range(2, 6)])
        disk.perform([SegmentDelete(1), SegmentDelete(1), SegmentDelete(2), SegmentDelete(3)])
        fs.power_loss(random.Random(seed))
        found = tuple(segment.segment for segment in opened(fs)[1].segments)
        assert found == tuple(range(6 - len(found), 6)), "an old segment came back while a later one stayed away"
        remaining.add(found)
    assert remaining == {(4, 5), (3, 4, 5)}


@given(st.integers(0, 1 << 32))
def test_acknowledged_bytes_survive_any_history(seed: int) -> None:
    """Writes, rolls, refills, kills and power losses in any order: what was Synced is read back for ever."""
    rng = random.Random(seed)
    fs = SimFs()
    disk, _ = opened(fs)
    acked: dict[int, dict[int, bytes]] = {}
    segment, offset, ticket = 0, SEGMENT, 0
    for _ in range(12):
        fs.crash_after_ops(rng.randint(1, 60), rng.random())
        pending: dict[int, tuple[int, int, bytes]] = {}
        try:
            for _ in range(rng.randint(1, 15)):
                if offset + 512 > SEGMENT:
                    segment, offset = segment + 1, 512
                    disk.perform([SegmentCreate(segment, b"head")])
                    acked[segment] = {0: b"head"}
                elif rng.random() < 0.2:
                    disk.refill_spares()
                else:
                    ticket += 1
                    pending[ticket] = (segment, offset, rng.randbytes(rng.randint(1, 512)))
                    events = disk.write(WalWrite(ticket, *pending[ticket]))
                    offset += 512
                    if rng.random() < 0.6:
                        events += disk.sync()
                    for event in events:
                        assert isinstance(event, Synced)
                        for done in [number for number in pending if number <= event.ticket]:
                            where, at, data = pending.pop(done)
                            acked[where][at] = data
        except SimCrash:
            pass
        if rng.random() < 0.4:
            fs.kill()
        else:
            fs.power_loss(rng)
        disk, files = opened(fs)
        found = {file.segment: file.data for file in files.segments}
        for number, writes in acked.items():
            for at, data in writes.items():
                assert found[number][at : at + len(data)] == data, (number, at)
        segment = max(found, default=0)
        offset = SEGMENT  # as production does: a new life begins with a new segment


def _segment(parts: dict[int, bytes]) -> bytes:
    data = bytearray(SEGMENT)
    for offset, part in parts.items():
        data[offset : offset + len(part)] = part
    return bytes(data)

"""Guards: a snapshot that has its final name is whole and durable, wherever a crash hits; a transfer goes on where it stopped."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.effects import (
    SnapshotAppend,
    SnapshotAppended,
    SnapshotBytes,
    SnapshotFailed,
    SnapshotFinish,
    SnapshotKey,
    SnapshotLoad,
    SnapshotLoaded,
    SnapshotOpen,
    SnapshotRead,
    SnapshotReceive,
    SnapshotReceived,
    SnapshotSaved,
    SnapshotsDelete,
    SnapshotVerified,
)
from anabranch_node.drivers.snapshot_disk import SnapshotDisk, SnapshotEffect
from anabranch_node.wal.snapshot_file import CHUNK_RAW_BYTES_MAX, SnapshotHeader, SnapshotWriter
from tests.sim.sim_disk import SimCrash, SimFs

CLUSTER = "cluster-a"
KEY = SnapshotKey(group=3, replica=12, index=100, term=7)
OLD = KEY._replace(index=50, term=6)
CHUNKS = [random.Random(1).randbytes(900), random.Random(2).randbytes(1500)]


def header(key: SnapshotKey) -> bytes:
    return SnapshotHeader(CLUSTER, key.group, key.index, key.term, b"config", 1).encode()


def file_bytes(key: SnapshotKey, chunks: list[bytes]) -> bytes:
    writer = SnapshotWriter()
    return writer.start(header(key)) + b"".join([writer.chunk(chunk) for chunk in chunks]) + writer.end()


def writing(key: SnapshotKey) -> list[SnapshotEffect]:
    return [SnapshotOpen(key, header(key)), *(SnapshotAppend(key, chunk) for chunk in CHUNKS), SnapshotFinish(key)]


def receiving(key: SnapshotKey, piece: int = 400) -> list[SnapshotEffect]:
    data = file_bytes(key, CHUNKS)
    return [SnapshotReceive(key, at, data[at : at + piece], len(data)) for at in range(0, len(data), piece)]


def started(fs: SimFs) -> SnapshotDisk:
    disk = SnapshotDisk(fs, "data", CLUSTER)
    disk.scan()
    return disk


def test_written_snapshot_is_listed_read_and_loaded() -> None:
    fs = SimFs()
    disk = started(fs)
    size = len(file_bytes(KEY, CHUNKS))
    assert disk.perform(writing(KEY)) == [SnapshotAppended(KEY), SnapshotAppended(KEY), SnapshotSaved(KEY, size)]
    fs.power_loss(random.Random(1))
    disk = SnapshotDisk(fs, "data", CLUSTER)
    assert disk.scan() == {(3, 12): [KEY]}
    assert disk.perform([SnapshotLoad(KEY)]) == [SnapshotLoaded(KEY, header(KEY), CHUNKS)]
    data = file_bytes(KEY, CHUNKS)
    assert disk.perform([SnapshotRead(9, KEY, 10, 20), SnapshotRead(10, KEY, size - 5, 99)]) == [
        SnapshotBytes(9, KEY, 10, data[10:30], size),
        SnapshotBytes(10, KEY, size - 5, data[-5:], size),
    ]


@pytest.mark.parametrize("effects", [writing, receiving])
def test_crash_anywhere_leaves_the_old_snapshot_and_perhaps_the_new_one(effects: Callable[[SnapshotKey], list[SnapshotEffect]]) -> None:
    """Also with a new group's folder, whose own name must be durable before SnapshotSaved or SnapshotVerified."""
    new_group = SnapshotKey(8, 40, 5, 1)
    outcomes = set()
    for key in (KEY, new_group):
        for part in (0.0, 0.5, 1.0):
            count, ended = 0, False
            while not ended:
                count += 1
                for loss in range(8):
                    fs = SimFs()
                    disk = started(fs)
                    disk.perform(writing(OLD))
                    fs.crash_after_ops(count, part)
                    try:
                        (*_, answer) = disk.perform(effects(key))
                        assert isinstance(answer, SnapshotSaved | SnapshotVerified)
                        ended = True
                    except SimCrash:
                        ended = False
                    if loss < 3:
                        fs.kill()
                    else:
                        fs.power_loss(random.Random(loss * 1000 + count))
                    disk = SnapshotDisk(fs, "data", CLUSTER)
                    found = [found for keys in disk.scan().values() for found in keys]
                    assert OLD in found
                    assert key in found or not ended
                    for each in found:
                        assert disk.perform([SnapshotLoad(each)]) == [SnapshotLoaded(each, header(each), CHUNKS)], (count, part, loss)
                    assert all(path.endswith(".snap") for path, _ in fs.files()), "left-overs are dropped"
                    # What scan() showed is durable, whatever comes next, and the next try works.
                    fs.power_loss(random.Random(loss * 77 + count))
                    disk = SnapshotDisk(fs, "data", CLUSTER)
                    assert [each for keys in disk.scan().values() for each in keys] == found
                    assert isinstance(disk.perform(effects(key))[-1], SnapshotSaved | SnapshotVerified)
                    outcomes.add((ended, key in found))
    assert outcomes == {(False, False), (False, True), (True, True)}


@given(st.integers(0, 1 << 32))
def test_receive_goes_on_where_it_stopped(seed: int) -> None:
    """Lost, repeated, overlapping and reordered pieces: the answer says what is held, a sender that follows it gets there."""
    rng = random.Random(seed)
    fs = SimFs()
    disk = started(fs)
    data = file_bytes(KEY, CHUNKS)
    have = 0
    for _ in range(10_000):
        offset = have if rng.random() < 0.6 else rng.randrange(len(data))
        piece = data[offset : offset + rng.randint(1, 300)]
        (answer,) = disk.perform([SnapshotReceive(KEY, offset, piece, len(data))])
        have = have + len(piece) if offset == have else have
        if isinstance(answer, SnapshotVerified):
            break
        assert answer == SnapshotReceived(KEY, have)
    assert have == len(data)
    assert disk.perform([SnapshotLoad(KEY)]) == [SnapshotLoaded(KEY, header(KEY), CHUNKS)]


def test_piece_that_comes_again_after_the_end_is_answered_with_verified() -> None:
    disk = started(SimFs())
    pieces = receiving(KEY)
    assert disk.perform(pieces)[-1] == SnapshotVerified(KEY)
    assert disk.perform([pieces[-1], pieces[0]]) == [SnapshotVerified(KEY), SnapshotVerified(KEY)]


def test_another_size_or_another_snapshot_starts_over() -> None:
    fs = SimFs()
    disk = started(fs)
    pieces = receiving(KEY)
    disk.perform(pieces[:2])
    other = file_bytes(KEY, [b"other"])
    assert disk.perform([SnapshotReceive(KEY, 50, other[50:60], len(other))]) == [SnapshotReceived(KEY, 0)]
    assert disk.perform([SnapshotReceive(KEY, 0, other[:60], len(other))]) == [SnapshotReceived(KEY, 60)]
    newer = KEY._replace(index=200)
    data = file_bytes(newer, CHUNKS)
    assert disk.perform([SnapshotReceive(newer, 0, data[:60], len(data))]) == [SnapshotReceived(newer, 60)]
    assert fs.listdir("data/snapshots/3") == ["12-200-7.snap.incoming"], "one at a time per replica"
    assert disk.perform([SnapshotReceive(newer, 60, data[60:], len(data))]) == [SnapshotVerified(newer)]


def test_received_file_that_is_damaged_or_another_is_refused_and_dropped() -> None:
    fs = SimFs()
    disk = started(fs)
    data = bytearray(file_bytes(KEY, CHUNKS))
    data[-40] ^= 1
    (failed,) = disk.perform([SnapshotReceive(KEY, 0, bytes(data), len(data))])
    assert isinstance(failed, SnapshotFailed) and "12-100-7.snap.incoming" in failed.reason and "checksum" in failed.reason
    swapped = file_bytes(OLD, CHUNKS)
    (failed,) = disk.perform([SnapshotReceive(KEY, 0, swapped, len(swapped))])
    assert isinstance(failed, SnapshotFailed) and "swapped" in failed.reason
    (failed,) = disk.perform([SnapshotReceive(KEY, 0, b"longer than it claims", 10)])
    assert isinstance(failed, SnapshotFailed) and "the file at 10" in failed.reason
    assert fs.listdir("data/snapshots/3") == []
    foreign = SnapshotDisk(fs, "data", "cluster-b")
    (failed,) = foreign.perform([SnapshotReceive(KEY, 0, file_bytes(KEY, CHUNKS), len(data))])
    assert isinstance(failed, SnapshotFailed) and "snapshot of cluster cluster-a" in failed.reason
    assert disk.perform(receiving(KEY))[-1] == SnapshotVerified(KEY), "the next try starts over"


def test_header_that_does_not_belong_to_the_key_is_refused_before_it_is_written() -> None:
    disk = started(SimFs())
    (failed,) = disk.perform([SnapshotOpen(KEY, header(OLD))])
    assert isinstance(failed, SnapshotFailed) and "swapped" in failed.reason


@pytest.mark.parametrize("suffix", ["writing", "incoming"])
def test_failed_fsync_is_reported_cleaned_up_and_the_next_try_is_a_new_file(suffix: str) -> None:
    fs = SimFs()
    disk = started(fs)
    effects = writing(KEY) if suffix == "writing" else receiving(KEY)
    fs.fsync_errors = 1
    failed = disk.perform(effects)[-1]
    assert isinstance(failed, SnapshotFailed) and f"12-100-7.snap.{suffix}: EIO" in failed.reason
    assert fs.listdir("data/snapshots/3") == []
    assert isinstance(disk.perform(effects)[-1], SnapshotSaved | SnapshotVerified)
    fs.power_loss(random.Random(5))
    assert isinstance(started(fs).perform([SnapshotLoad(KEY)])[0], SnapshotLoaded)


def test_full_disk_is_reported_and_gives_the_space_back() -> None:
    fs = SimFs(capacity_bytes=200)
    disk = started(fs)
    events = disk.perform([SnapshotOpen(KEY, header(KEY)), SnapshotAppend(KEY, random.Random(1).randbytes(500)), SnapshotFinish(KEY)])
    full, gone = events
    assert isinstance(full, SnapshotFailed) and "12-100-7.snap.writing: ENOSPC" in full.reason
    assert isinstance(gone, SnapshotFailed) and "not being written" in gone.reason
    assert fs.free_bytes("data") == 200


def test_chunk_past_the_bound_fails_the_snapshot() -> None:
    disk = started(SimFs())
    (failed,) = disk.perform([SnapshotOpen(KEY, header(KEY)), SnapshotAppend(KEY, bytes(CHUNK_RAW_BYTES_MAX + 1))])
    assert isinstance(failed, SnapshotFailed) and "at most" in failed.reason


def test_damage_is_found_when_loading_and_the_file_can_be_received_again() -> None:
    fs = SimFs()
    disk = started(fs)
    disk.perform(writing(KEY))
    rot = fs.rot(random.Random(4))
    assert rot is not None
    (failed,) = disk.perform([SnapshotLoad(KEY)])
    assert isinstance(failed, SnapshotFailed) and "data/snapshots/3/12-100-7.snap" in failed.reason
    assert disk.perform(receiving(KEY))[-1] == SnapshotVerified(KEY)
    assert isinstance(disk.perform([SnapshotLoad(KEY)])[0], SnapshotLoaded)


def test_missing_file_is_an_answer_not_an_exception() -> None:
    for event in started(SimFs()).perform([SnapshotLoad(KEY), SnapshotRead(1, KEY, 0, 10)]):
        assert isinstance(event, SnapshotFailed) and "ENOENT" in event.reason


def test_opening_again_drops_the_unfinished_file() -> None:
    disk = started(SimFs())
    disk.perform([SnapshotOpen(KEY, header(KEY)), SnapshotAppend(KEY, b"half")])
    disk.perform(writing(KEY))
    assert disk.perform([SnapshotLoad(KEY)]) == [SnapshotLoaded(KEY, header(KEY), CHUNKS)]


def test_delete_drops_what_is_older_than_keep_and_touches_neither_newer_files_nor_other_replicas() -> None:
    """A newer snapshot may already have its mark on the way to the disk: deleting it would leave a log that begins after nothing."""
    fs = SimFs()
    disk = started(fs)
    neighbour, other_group, newer_finished = KEY._replace(replica=121, index=1), KEY._replace(group=4, index=1), KEY._replace(index=200)
    for key in (OLD, KEY, neighbour, other_group, newer_finished):
        disk.perform(writing(key))
    older, newer = KEY._replace(index=60), KEY._replace(index=300)
    for key in (older, newer):
        disk.perform([SnapshotOpen(key, header(key))])
    disk.perform(receiving(KEY._replace(index=301))[:2])
    assert disk.perform([SnapshotsDelete(3, 12, keep=KEY)]) == []
    names = ["12-100-7.snap", "12-200-7.snap", "12-300-7.snap.writing", "12-301-7.snap.incoming", "121-1-7.snap"]
    assert fs.listdir("data/snapshots/3") == names
    assert fs.listdir("data/snapshots/4") == ["12-1-7.snap"]
    (failed,) = disk.perform([SnapshotFinish(older)])
    assert isinstance(failed, SnapshotFailed)
    assert isinstance(disk.perform([SnapshotFinish(newer)])[0], SnapshotSaved)
    disk.perform([SnapshotsDelete(3, 12, keep=None), SnapshotsDelete(77, 1, keep=None)])
    assert fs.listdir("data/snapshots/3") == ["121-1-7.snap"]


def test_scan_lists_per_replica_oldest_first() -> None:
    fs = SimFs()
    disk = started(fs)
    newest = KEY._replace(index=1000)
    for key in (newest, KEY, OLD, KEY._replace(replica=5)):
        disk.perform(writing(key))
    assert SnapshotDisk(fs, "data").scan() == {(3, 12): [OLD, KEY, newest], (3, 5): [KEY._replace(replica=5)]}

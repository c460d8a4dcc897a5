"""The shared log read back: torn tails are cut, damage is fenced or refused by name, and nothing wrong is ever returned."""

import struct

import msgspec
import pytest

from anabranch_node.core.raft.records import Destroyed, EntriesAppended, HardState, LogTruncated, SnapshotMark
from anabranch_node.wal.batch import SECTOR, Position
from anabranch_node.wal.options import WalOptions
from anabranch_node.wal.record import identity_seed, segment_seed
from anabranch_node.wal.recovery import NodeDamaged, Recovered, SegmentFile, recover
from anabranch_node.wal.segment import decode_checkpoint, decode_segment_header, encode_segment, encode_sync_mark, segment_name
from anabranch_proto.checksum import crc32c
from anabranch_proto.formats import Damaged, ForeignFormat, FormatError, NewerFormat
from anabranch_proto.ids import NodeIdentity
from tests.unit.wal_disk import IDENTITY, OPTIONS, Bench, Disk, Replicas, command, replicas_of

SEED = identity_seed(IDENTITY)


def two_groups(batches: int = 3) -> Bench:
    """Groups 1 and 2, an entry each per batch; idle afterwards, so everything is known to be synced."""
    bench = Bench()
    bench.create(1, 1)
    bench.create(2, 2)
    bench.write()
    for index in range(1, batches + 1):
        bench.append(1, 1, index, b"one" * 30)
        bench.append(2, 2, index, b"two" * 30)
        bench.write()
    return bench


def end_of(bench: Bench, segment: int = 1) -> int:
    """Where the last batch of the newest segment ends."""
    return len(bytes(bench.disk.durable[segment]).rstrip(b"\0")) // SECTOR * SECTOR + SECTOR


def test_an_empty_disk_is_a_new_log() -> None:
    found = recover(IDENTITY, [], None, OPTIONS)
    assert found.groups == {} and found.next_segment == 1 and found.torn is None


def test_everything_comes_back() -> None:
    bench = two_groups(30)
    before = replicas_of(bench.disk.recover())
    assert len(bench.disk.durable) > 2 and len(before[1, 1][2]) == len(before[2, 2][2]) == 30
    assert replicas_of(bench.restart().disk.recover()) == before


def test_a_run_never_writes_into_a_segment_of_the_one_before() -> None:
    bench = two_groups()
    old = bytes(bench.disk.durable[1])
    bench = bench.restart()
    bench.append(1, 1, 4, b"new run")
    bench.write()
    assert bytes(bench.disk.durable[1]) == old and len(bench.disk.durable) == 2


def test_truncation_then_entries_of_another_term() -> None:
    bench = Bench()
    bench.create(1, 1)
    bench.append(1, 1, 1, b"a", b"b", b"c")
    bench.write()
    bench.wal.stage(1, 1, LogTruncated(2))
    bench.append(1, 1, 2, b"B", term=2)
    bench.write()
    bench.wal.stage(1, 1, LogTruncated(2))
    bench.write()
    found = replicas_of(bench.disk.recover())
    assert found[1, 1][2] == [command(1, b"a")]


def test_an_installed_snapshot_replaces_the_whole_log() -> None:
    bench = two_groups()
    bench.wal.stage(1, 1, SnapshotMark(10, 3, b"new config", 11, 3))
    bench.write()
    bench.append(1, 1, 11, b"after", term=3)
    bench.write()
    _, mark, entries = replicas_of(bench.disk.recover())[1, 1]
    assert mark == SnapshotMark(10, 3, b"new config", 11, 3) and entries == [command(3, b"after")]


def test_a_tail_below_the_snapshot_is_kept() -> None:
    bench = two_groups(5)
    bench.wal.stage(1, 1, SnapshotMark(5, 1, b"config", 3, 1))
    bench.write()
    _, mark, entries = replicas_of(bench.restart().disk.recover())[1, 1]
    assert mark.first_index == 3 and len(entries) == 3


# --- torn tails ------------------------------------------------------------------------------------------------------------------


def test_a_torn_batch_is_cut_whole_and_reported() -> None:
    bench = two_groups(2)
    before = replicas_of(bench.disk.recover())
    start = end_of(bench)
    bench.append(1, 1, 3, b"lost" * 300)
    bench.append(2, 2, 3, b"lost")
    bench.write(sync=False)
    write = bench.disk.pending.pop()
    bench.disk.durable[1][write.offset : write.offset + SECTOR] = write.data[:SECTOR]
    found = bench.disk.recover()
    assert replicas_of(found) == before
    assert found.torn == (segment_name(1), start, SECTOR)


def test_a_whole_batch_behind_a_torn_one_is_cut_too() -> None:
    bench = two_groups(2)
    before = replicas_of(bench.disk.recover())
    for index in (3, 4):
        bench.append(1, 1, index, b"unsynced" * 100)
        bench.write(sync=False)
    first, second = bench.disk.pending
    bench.disk.pending = [second]
    bench.disk.sync()
    found = bench.disk.recover()
    assert replicas_of(found) == before and found.torn is not None and found.torn.offset == first.offset


def test_the_cut_tail_stays_cut_after_the_next_run() -> None:
    bench = two_groups(2)
    bench.append(1, 1, 3, b"lost" * 300)
    bench.write(sync=False)
    write = bench.disk.pending.pop()
    bench.disk.durable[1][write.offset + SECTOR : write.offset + len(write.data)] = write.data[SECTOR:]
    bench = bench.restart()
    bench.append(1, 1, 3, b"again")
    bench.write()
    found = bench.disk.recover()
    assert found.torn is None and replicas_of(found)[1, 1][2][2] == command(1, b"again")


# --- corruption ------------------------------------------------------------------------------------------------------------------


def test_rot_in_the_last_synced_batch_is_no_torn_tail_once_the_log_was_idle() -> None:
    torn = two_groups(2)
    torn.disk.flip(1, torn.disk.recover().pictures[1, 1].extent(1).offset + 40)
    assert torn.disk.recover().torn is not None  # nobody knows yet that it was synced
    idle = two_groups(2)
    idle.disk.perform(idle.wal.idle_mark())
    idle.sync()
    idle.disk.flip(1, idle.disk.recover().pictures[1, 1].extent(1).offset + 40)
    found = idle.disk.recover()
    assert found.torn is None and found.groups[1, 1].fenced.startswith(segment_name(1)) and found.groups[1, 1].entries == []


def test_damage_in_a_body_fences_only_the_replica_it_hit() -> None:
    bench = two_groups(3)
    before = replicas_of(bench.disk.recover())
    place = bench.disk.recover().pictures[1, 1].extent(0)
    bench.disk.flip(1, place.offset + 30)
    found = bench.disk.recover()
    assert f"offset {place.offset}" in found.groups[1, 1].fenced
    assert replicas_of(found) == {(2, 2): before[2, 2]}


def test_a_fence_outlives_the_damaged_segment() -> None:
    bench = two_groups(3)
    bench.disk.flip(1, bench.disk.recover().pictures[1, 1].extent(0).offset + 30)
    reason = bench.disk.recover().groups[1, 1].fenced
    bench = bench.restart()
    bench.wal.stage(2, 2, SnapshotMark(3, 1, b"config", 4, 1))
    bench.write()
    bench.maintain()
    assert list(bench.disk.durable) == [2]
    bench = bench.restart()
    bench.maintain()
    assert bench.disk.recover().groups[1, 1].fenced == reason


def test_damage_that_hides_whose_records_it_hit_stops_the_node() -> None:
    bench = two_groups(20)
    header = decode_segment_header(memoryview(bytes(bench.disk.durable[1])), 1, IDENTITY, "")
    bench.disk.flip(1, header.end + 20)
    with pytest.raises(NodeDamaged, match=rf"{segment_name(1)}: batch header is damaged at offset {header.end}.*new incarnation"):
        bench.disk.recover()


def test_a_wiped_tail_is_noticed_through_the_side_file() -> None:
    bench = two_groups(3)
    bench.settle()
    start = bench.disk.recover().pictures[1, 1].extent(2).offset // SECTOR * SECTOR
    bench.disk.durable[1][start:] = bytes(len(bench.disk.durable[1]) - start)
    with pytest.raises(NodeDamaged, match="wiped"):
        bench.disk.recover()
    bench.disk.mark = None
    assert len(bench.disk.recover().groups[1, 1].entries) == 2  # without it, nothing tells that there was more


def test_a_damaged_side_file_only_means_to_know_less() -> None:
    bench = two_groups(3)
    bench.settle()
    before = replicas_of(bench.disk.recover())
    assert bench.disk.mark is not None
    for mark in (b"", bench.disk.mark[:-1], bytes(len(bench.disk.mark)), encode_sync_mark(IDENTITY._replace(incarnation=9), Position(9, 9))):
        bench.disk.mark = mark
        found = bench.disk.recover()
        assert replicas_of(found) == before and "wal/synced" in found.notes[0]


def test_a_damaged_checkpoint_matters_only_in_the_oldest_segment() -> None:
    bench = two_groups(20)
    before = replicas_of(bench.disk.recover())
    header = decode_segment_header(memoryview(bytes(bench.disk.durable[2])), 2, IDENTITY, "")
    bench.disk.flip(2, header.checkpoint_offset + 3)
    found = bench.disk.recover()
    assert replicas_of(found) == before and segment_name(2) in found.notes[0]
    del bench.disk.durable[1]
    with pytest.raises(NodeDamaged, match=f"{segment_name(2)}: checkpoint is damaged"):
        bench.disk.recover()


def rewrite_checkpoint(disk: Disk, segment: int, **changes: object) -> None:
    """Give group 1 another state in this segment's checkpoint, with valid checksums."""
    data = memoryview(bytes(disk.durable[segment]))
    header = decode_segment_header(data, segment, IDENTITY, "")
    checkpoint = decode_checkpoint(data, header, SEED)
    assert checkpoint is not None
    states = [msgspec.structs.replace(state, **changes) if state.group == 1 else state for state in checkpoint.replicas]
    start = encode_segment(header, msgspec.structs.replace(checkpoint, replicas=states), SEED)
    assert len(start) == header.end
    disk.durable[segment][: len(start)] = start


def test_a_checkpoint_that_contradicts_the_records_fences_that_replica() -> None:
    for changes in ({"hard": HardState(1, 2, 0)}, {"last_index": 3}, {"mark": SnapshotMark(0, 0, b"Config", 1, 0)}):
        bench = two_groups(20)
        rewrite_checkpoint(bench.disk, 2, **changes)
        found = bench.disk.recover()
        assert segment_name(2) in found.groups[1, 1].fenced and not found.groups[2, 2].fenced


def test_a_replica_without_term_and_vote_is_fenced_and_not_at_term_zero() -> None:
    bench = two_groups(20)
    rewrite_checkpoint(bench.disk, 1, hard=None)
    bench.wal.stage(7, 7, SnapshotMark(5, 1, b"config", 6, 1))  # not how a replica starts
    bench.write()
    assert "term and vote" in bench.disk.recover().groups[7, 7].fenced


def test_a_replica_that_was_just_created_has_never_voted() -> None:
    bench = Bench()
    bench.wal.stage(1, 1, SnapshotMark(0, 0, b"config", 1, 0))
    bench.write()
    for _ in range(2):
        assert replicas_of(bench.disk.recover())[1, 1][0] == HardState(0, 0, 0)
        bench = bench.restart()


def test_entries_lost_with_the_oldest_file_fence_their_replica() -> None:
    bench = two_groups(20)
    del bench.disk.durable[1]
    found = bench.disk.recover()
    assert all("is in no segment" in replica.fenced for replica in found.groups.values())


def test_terms_that_go_back_fence_the_replica() -> None:
    bench = Bench()
    bench.create(1, 1)
    bench.wal.stage(1, 1, EntriesAppended(1, [command(3, b"a"), command(2, b"b")]))
    bench.write()
    assert "entry 2 has term 2" in bench.disk.recover().groups[1, 1].fenced


# --- files that are not what they should be --------------------------------------------------------------------------------------


def test_a_missing_file_in_the_middle_is_named() -> None:
    bench = two_groups(30)
    del bench.disk.durable[2]
    with pytest.raises(NodeDamaged, match=f"{segment_name(2)}: the file is missing"):
        bench.disk.recover()


def test_deletions_that_reached_the_disk_out_of_order_are_harmless() -> None:
    bench = two_groups(30)
    newest = bench.wal.segments[-1]
    for group in (1, 2):
        bench.wal.stage(group, group, SnapshotMark(30, 1, b"config", 31, 1))
    bench.write()
    for segment in range(2, newest):
        del bench.disk.durable[segment]
    found = bench.disk.recover()
    assert found.leftovers == [1] and len(replicas_of(found)) == 2
    restarted = Bench(OPTIONS, bench.disk, found)
    assert sorted(restarted.disk.durable) == [newest, newest + 1]


def test_a_missing_newest_file_is_noticed_through_the_side_file() -> None:
    bench = two_groups(30)
    bench.settle()
    newest = max(bench.disk.durable)
    del bench.disk.durable[newest]
    with pytest.raises(NodeDamaged, match=segment_name(newest)):
        bench.disk.recover()


@pytest.mark.parametrize("size", [0, 100, 600, 8191, 8193])
@pytest.mark.parametrize("which", [1, -1])
def test_a_file_of_the_wrong_size_is_named(which: int, size: int) -> None:
    bench = two_groups(20)
    segment = sorted(bench.disk.durable)[which]
    bench.disk.durable[segment] = bench.disk.durable[segment].ljust(size, b"\0")[:size]
    with pytest.raises(NodeDamaged, match=segment_name(segment)):
        bench.disk.recover()


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_zero_filled_file_is_named(which: int) -> None:
    bench = two_groups(20)
    segment = sorted(bench.disk.durable)[which]
    bench.disk.durable[segment] = bytearray(8192)
    with pytest.raises(NodeDamaged, match=segment_name(segment)):
        bench.disk.recover()


def test_swapped_files_are_named() -> None:
    bench = two_groups(30)
    files = bench.disk.durable
    files[1], files[2] = files[2], files[1]
    with pytest.raises(Damaged, match=f"{segment_name(2)}: holds segment 1"):
        bench.disk.recover()


def test_another_kind_of_file_is_named() -> None:
    bench = two_groups(3)
    bench.disk.durable[1][:] = b"#!/bin/sh ".ljust(8192, b"x")
    with pytest.raises(ForeignFormat, match=segment_name(1)):
        bench.disk.recover()


@pytest.mark.parametrize("other", [IDENTITY._replace(cluster_id="other"), IDENTITY._replace(node_id=2), IDENTITY._replace(incarnation=5)])
def test_a_foreign_log_is_refused_with_both_identities(other: NodeIdentity) -> None:
    bench = two_groups(3)
    with pytest.raises(ForeignFormat) as refusal:
        bench.disk.recover(other)
    assert str(IDENTITY) in str(refusal.value) and str(other) in str(refusal.value) and segment_name(1) in str(refusal.value)


def test_a_newer_segment_is_refused_by_name() -> None:
    bench = two_groups(3)
    data = bench.disk.durable[1]
    struct.pack_into("<H", data, 4, 2)
    length = struct.unpack_from("<H", data, 6)[0]
    struct.pack_into("<I", data, 8, crc32c(bytes(data[12:length]), crc32c(bytes(data[4:8]))))
    with pytest.raises(NewerFormat, match=segment_name(1)):
        bench.disk.recover()


def test_a_newer_batch_is_refused_by_name() -> None:
    bench = two_groups(3)
    data = bench.disk.durable[1]
    start = decode_segment_header(memoryview(bytes(data)), 1, IDENTITY, "").end
    end = start + 60 + 16 * struct.unpack_from("<I", data, start + 56)[0]
    struct.pack_into("<H", data, start + 4, 2)
    struct.pack_into("<I", data, start + 8, 0)
    struct.pack_into("<I", data, start + 8, crc32c(bytes(data[start:end]), SEED))
    with pytest.raises(NewerFormat, match=segment_name(1)):
        bench.disk.recover()


def test_an_unknown_kind_of_record_is_a_newer_format() -> None:
    bench = two_groups(3)
    extent = bench.disk.recover().pictures[1, 1].extent(0)
    data = bench.disk.durable[1]
    data[extent.offset + 8] = 99
    body = bytes(data[extent.offset + 4 : extent.offset + extent.length])
    struct.pack_into("<I", data, extent.offset, crc32c(body, segment_seed(SEED, 1) ^ extent.offset))
    with pytest.raises(NewerFormat, match="record kind 99"):
        bench.disk.recover()


def test_a_record_in_another_place_does_not_pass() -> None:
    bench = two_groups(3)
    pictures = bench.disk.recover().pictures
    one, two = pictures[1, 1].extent(0), pictures[1, 1].extent(1)
    assert one.length == two.length
    data = bench.disk.durable[1]
    data[two.offset : two.offset + two.length] = data[one.offset : one.offset + one.length]
    assert bench.disk.recover().groups[1, 1].fenced


def test_segments_of_another_size_are_read_and_new_ones_have_the_new_size() -> None:
    bench = two_groups(3)
    before = replicas_of(bench.disk.recover())
    larger = WalOptions(segment_bytes=16384)
    found = recover(IDENTITY, bench.disk.files(), None, larger)
    assert replicas_of(found) == before
    bench.disk.options = larger
    again = Bench(larger, bench.disk, found)
    assert len(again.disk.durable[2]) == 16384 and replicas_of(again.disk.recover()) == before


# --- every byte ------------------------------------------------------------------------------------------------------------------


def aged_log(mark: bool) -> tuple[Disk, int]:
    """Several segments with everything in them: truncation, snapshot, copies, a destroyed replica. (disk, offset of the log's end)"""
    bench = Bench(WalOptions(segment_bytes=4096, segments_live_max=3, copy_forward_bytes_max=1024))
    bench.create(1, 1)
    bench.create(2, 2)
    bench.create(3, 3)
    bench.append(1, 1, 1, b"old", b"older")
    bench.write()
    for index in range(1, 24):
        bench.append(2, 2, index, b"%02d" % index * 260)
        if index % 4 == 0:
            bench.wal.stage(2, 2, SnapshotMark(index, 1, b"config", max(1, index - 9), min(1, max(0, index - 10))))
        bench.write()
        bench.maintain()
    bench.wal.stage(3, 3, Destroyed())
    bench.write()
    bench.wal.stage(2, 2, LogTruncated(23))
    bench.wal.stage(2, 2, HardState(2, 2, 22))
    bench.append(2, 2, 23, b"other", term=2)
    bench.write()
    bench.settle()
    if not mark:
        bench.disk.mark = None
    assert len(bench.disk.durable) >= 3 and min(bench.disk.durable) > 1
    return bench.disk, end_of(bench, max(bench.disk.durable))


@pytest.mark.parametrize("mark", [True, False])
def test_no_flipped_bit_gives_wrong_data_or_is_taken_for_a_torn_tail(mark: bool) -> None:
    disk, end = aged_log(mark)
    truth = replicas_of(disk.recover())
    newest = max(disk.durable)
    last = end - (0 if mark else SECTOR)  # without the side file nothing tells that the empty batch at the end was synced
    outcomes = {"exact": 0, "fenced": 0, "refused": 0, "torn": 0}
    files = disk.files()
    for number, file in enumerate(files):
        for offset in range(mark, len(file.data), 2 if file.segment == newest else 7):
            data = bytearray(file.data)
            data[offset] ^= 1 << offset % 8
            outcome, found = outcome_of([*files[:number], file._replace(data=bytes(data)), *files[number + 1 :]], disk.mark)
            outcomes[outcome] += 1
            if found is None:
                continue
            healthy = replicas_of(found)
            assert healthy.items() <= truth.items(), (file.name, offset)
            assert found.torn is None or (file.segment == newest and offset >= last), (file.name, offset, found.torn)
            assert outcome != "torn" or healthy == truth, (file.name, offset)
    assert min(outcomes.values()) > 50, outcomes


def outcome_of(files: list[SegmentFile], mark: bytes | None) -> tuple[str, Recovered | None]:
    try:
        found = recover(IDENTITY, files, mark, OPTIONS)
    except FormatError:
        return "refused", None
    if any(replica.fenced for replica in found.groups.values()):
        return "fenced", found
    return ("torn" if found.torn else "exact"), found


def test_no_cut_file_gives_wrong_data() -> None:
    disk, _ = aged_log(mark=True)
    truth: Replicas = replicas_of(disk.recover())
    files = disk.files()
    for number, file in enumerate(files):
        for start in range(0, len(file.data), SECTOR):
            for data in (file.data[:start].ljust(len(file.data), b"\0"), file.data[:start] + bytes(SECTOR) + file.data[start + SECTOR :]):
                _, found = outcome_of([*files[:number], file._replace(data=data), *files[number + 1 :]], disk.mark)
                assert found is None or (replicas_of(found).items() <= truth.items() and found.torn is None), (file.name, start)

"""The shared log while it runs: batches, tickets, rolls, reading back, copying forward and deleting."""

import pytest

from anabranch_node.core.effects import SegmentCreate, SegmentDelete, SyncMark, WalWrite
from anabranch_node.core.raft.records import Destroyed, EntriesAppended, HardState, LogTruncated, SnapshotMark
from anabranch_node.wal.batch import SECTOR
from anabranch_node.wal.options import WalOptions
from anabranch_node.wal.segment import segment_name
from anabranch_node.wal.wal import Wal
from anabranch_proto.formats import Damaged
from tests.unit.wal_disk import IDENTITY, OPTIONS, Bench, command, replicas_of


def test_one_seal_writes_many_groups_in_one_batch() -> None:
    bench = Bench()
    for group in range(5):
        bench.create(group, group + 1)
        bench.append(group, group + 1, 1, b"x")
    ticket, effects = bench.wal.seal()
    assert ticket == 1 and [type(effect) for effect in effects] == [WalWrite]
    assert bench.wal.seal() == (1, [])


def test_batches_start_on_sectors_and_never_overlap() -> None:
    bench = Bench()
    bench.create(1, 1)
    ends = {}
    for index in range(1, 40):
        bench.append(1, 1, index, b"x" * (index * 7))
        for effect in bench.wal.seal()[1]:
            if isinstance(effect, SegmentCreate):
                ends[effect.segment] = len(effect.data)
            elif isinstance(effect, WalWrite):
                assert effect.offset % SECTOR == 0 and effect.offset == ends.get(effect.segment, effect.offset)
                ends[effect.segment] = effect.offset + len(effect.data)
                assert ends[effect.segment] <= OPTIONS.segment_bytes
    assert len(ends) > 2


def test_entries_are_kept_exactly_as_given() -> None:
    bench = Bench()
    bench.create(1, 1)
    block = command(1, b"payload of the leader")
    bench.wal.stage(1, 1, EntriesAppended(1, [block]))
    _, effects = bench.wal.seal()
    assert isinstance(effects[0], WalWrite) and block in effects[0].data


def test_an_append_larger_than_a_segment_is_spread_over_several() -> None:
    bench = Bench()
    bench.create(1, 1)
    payloads = [bytes([n]) * 1500 for n in range(20)]
    bench.append(1, 1, 1, *payloads)
    assert bench.write() > 1
    assert bench.entries(1, 1, 1) == [command(1, payload) for payload in payloads]
    assert replicas_of(bench.disk.recover())[1, 1][2] == [command(1, payload) for payload in payloads]


def test_an_entry_that_can_never_fit_stops_the_node_instead_of_rolling_for_ever() -> None:
    bench = Bench()
    bench.create(1, 1)
    bench.append(1, 1, 1, b"x" * OPTIONS.segment_bytes)
    with pytest.raises(AssertionError, match="segment of 8192"):
        bench.wal.seal()


def test_the_largest_promised_entry_fits() -> None:
    bench = Bench()
    for group in range(8):
        bench.create(group, group + 1)
    bench.append(1, 2, 1, b"x" * (OPTIONS.entry_bytes_max - 13))
    bench.write()
    assert len(bench.entries(1, 2, 1)[0]) == OPTIONS.entry_bytes_max


def test_records_that_do_not_continue_the_log_are_refused() -> None:
    for record in (EntriesAppended(3, [command(1, b"")]), LogTruncated(0), SnapshotMark(5, 1, b"", 1, 0)):
        bench = Bench()
        bench.create(1, 1)
        bench.append(1, 1, 1, b"x")
        bench.wal.stage(1, 1, record)
        with pytest.raises(AssertionError):
            bench.wal.seal()


def test_a_destroyed_replica_is_never_written_again() -> None:
    bench = Bench()
    bench.create(1, 1)
    bench.wal.stage(1, 1, Destroyed())
    bench.write()
    bench = bench.restart()
    assert bench.wal.destroyed == {(1, 1)}
    bench.wal.stage(1, 1, HardState(5, 0, 0))
    with pytest.raises(AssertionError):
        bench.wal.seal()


def test_the_idle_log_notes_its_last_sync_twice_and_then_rests() -> None:
    bench = Bench()
    assert bench.wal.idle_mark() == []
    bench.create(1, 1)
    bench.write(sync=False)
    assert bench.wal.idle_mark() == []  # not idle: a write is under way
    bench.sync()
    (empty,) = bench.wal.idle_mark()
    assert isinstance(empty, WalWrite) and len(empty.data) == SECTOR
    bench.disk.perform([empty])
    assert bench.wal.idle_mark() == []
    bench.sync()
    assert bench.wal.idle_mark() == [SyncMark(1, empty.offset + SECTOR)]
    assert bench.wal.idle_mark() == []


def test_reading_back_starts_at_the_asked_index_and_respects_the_bound() -> None:
    bench = Bench()
    bench.create(1, 1)
    bench.create(2, 2)
    for index in range(1, 31):
        bench.append(2, 2, index, b"other")
        bench.append(1, 1, index, b"%03d" % index * 50)
        bench.write()
    assert bench.entries(1, 1, 7)[0] == command(1, b"007" * 50)
    assert len(bench.entries(1, 1, 7)) == 24
    assert len(bench.entries(1, 1, 7, bytes_max=1000)) == 5
    assert len(bench.entries(1, 1, 7, bytes_max=1)) == 1
    assert len(bench.wal.locate(1, 1, 1, 1 << 20)) < 10  # neighbours share a read
    assert bench.wal.locate(1, 1, 31, 1000) == bench.wal.locate(1, 1, 0, 1000) == bench.wal.locate(9, 9, 1, 1000) == []


def test_a_read_that_was_overtaken_by_a_truncation_gives_nothing_stale() -> None:
    bench = Bench()
    bench.create(1, 1)
    bench.append(1, 1, 1, b"a", b"b", b"c")
    bench.write()
    (location,) = bench.wal.locate(1, 1, 2, 1000)
    data = bench.disk.read(bench.wal.read(location, 1))
    bench.wal.stage(1, 1, LogTruncated(3))
    bench.append(1, 1, 3, b"C", term=2)
    bench.write()
    assert bench.wal.decode_read(location, data) == (2, [command(1, b"b")])
    bench.wal.stage(1, 1, LogTruncated(2))
    bench.write()
    assert bench.wal.decode_read(location, data) == (2, [])


def test_rot_found_while_reading_is_named_and_the_fence_survives_the_segment() -> None:
    bench = Bench()
    bench.create(1, 1)
    bench.append(1, 1, 1, b"a" * 100)
    bench.write()
    (location,) = bench.wal.locate(1, 1, 1, 1000)
    bench.disk.flip(location.segment, location.offset + 60)
    with pytest.raises(Damaged, match=segment_name(1)) as damage:
        bench.wal.decode_read(location, bench.disk.read(bench.wal.read(location, 1)))
    bench.disk.flip(location.segment, location.offset + 60)  # it reads well again: once is enough
    bench.wal.fence(1, 1, str(damage.value))
    bench.write()
    for _ in range(2):
        bench = bench.restart()
        bench.maintain()
    assert min(bench.disk.durable) > 1
    assert bench.disk.recover().groups[1, 1].fenced == str(damage.value)


def fill(bench: Bench, group: int, replica: int, segments: int) -> None:
    """Append and snapshot until so many segments were begun."""
    index = bench.wal.replicas[group, replica].last_index + 1
    until = bench.wal.segments[-1] + segments
    while bench.wal.segments[-1] < until:
        bench.append(group, replica, index, b"f" * 700)
        bench.wal.stage(group, replica, SnapshotMark(index, 1, b"config", index + 1, 1))
        bench.write()
        index += 1


def test_hard_state_survives_the_segment_it_was_written_in() -> None:
    bench = Bench()
    bench.create(1, 1, term=7)
    bench.create(2, 2)
    bench.wal.stage(1, 1, HardState(8, 5, 0))
    bench.write()
    fill(bench, 2, 2, 3)
    assert [effect for effect in bench.wal.maintenance().effects if isinstance(effect, SegmentDelete)]
    bench = bench.restart()
    bench.maintain()
    assert 1 not in bench.disk.durable
    assert bench.disk.recover().groups[1, 1].hard == HardState(8, 5, 0)


def test_a_segment_goes_only_when_the_cut_that_freed_it_is_synced() -> None:
    bench = Bench()
    bench.create(1, 1)
    bench.create(2, 2)
    bench.append(1, 1, 1, b"old")
    bench.write()
    fill(bench, 2, 2, 1)
    assert bench.wal.maintenance().effects == []
    bench.wal.stage(1, 1, SnapshotMark(1, 1, b"config", 2, 1))
    bench.write(sync=False)
    assert bench.wal.maintenance().effects == []
    bench.sync()
    assert bench.wal.maintenance().effects == [SegmentDelete(1)]


def test_few_old_entries_are_copied_forward_and_their_segment_goes_when_the_copy_is_synced() -> None:
    bench = Bench()
    bench.create(1, 1)
    bench.create(2, 2)
    bench.append(1, 1, 1, b"a", b"b", b"c")
    bench.append(1, 1, 4, b"d")
    bench.write()
    bench.wal.stage(1, 1, SnapshotMark(1, 1, b"config", 2, 1))
    fill(bench, 2, 2, 3)
    plan = bench.wal.maintenance()
    assert plan.effects == [] and plan.groups_to_snapshot == [] and len(plan.copies) == 1
    assert bench.wal.maintenance().copies == []  # they are under way
    for location in plan.copies:
        bench.wal.copy_forward(location, bench.disk.read(bench.wal.read(location, 1)))
    bench.write(sync=False)
    assert bench.wal.maintenance().effects == []
    bench.sync()
    assert SegmentDelete(1) in bench.wal.maintenance().effects
    del bench.disk.durable[1]
    live = [command(1, payload) for payload in (b"b", b"c", b"d")]
    assert bench.entries(1, 1, 2) == live
    bench = bench.restart()
    assert bench.entries(1, 1, 2) == live and replicas_of(bench.disk.recover())[1, 1][2] == live


def test_what_was_truncated_or_cut_meanwhile_is_not_copied() -> None:
    bench = Bench()
    bench.create(1, 1)
    bench.create(2, 2)
    bench.append(1, 1, 1, b"a")
    bench.append(1, 1, 2, b"b", b"c")
    bench.append(1, 1, 4, b"d")
    bench.write()
    fill(bench, 2, 2, 3)
    (location,) = bench.wal.maintenance().copies
    data = bench.disk.read(bench.wal.read(location, 1))
    bench.wal.stage(1, 1, SnapshotMark(1, 1, b"config", 2, 1))
    bench.wal.stage(1, 1, LogTruncated(3))
    bench.append(1, 1, 3, b"C", term=2)
    bench.write()
    bench.wal.copy_forward(location, data)
    bench.write()
    bench.wal.maintenance()
    del bench.disk.durable[1]
    assert replicas_of(bench.disk.recover())[1, 1][2] == [command(1, b"b"), command(2, b"C")]


def test_a_truncation_in_the_same_batch_as_a_copy_wins() -> None:
    bench = Bench()
    bench.create(1, 1)
    bench.create(2, 2)
    bench.append(1, 1, 1, b"a", b"b")
    bench.write()
    fill(bench, 2, 2, 3)
    (location,) = bench.wal.maintenance().copies
    bench.wal.stage(1, 1, LogTruncated(2))
    bench.append(1, 1, 2, b"B", term=2)
    bench.wal.copy_forward(location, bench.disk.read(bench.wal.read(location, 1)))
    bench.write()
    assert replicas_of(bench.disk.recover())[1, 1][2] == [command(1, b"a"), command(2, b"B")]
    assert bench.entries(1, 1, 1) == [command(1, b"a"), command(2, b"B")]


def test_a_failed_copy_is_asked_for_again() -> None:
    bench = Bench()
    bench.create(1, 1)
    bench.create(2, 2)
    bench.append(1, 1, 1, b"a")
    bench.write()
    fill(bench, 2, 2, 3)
    (location,) = bench.wal.maintenance().copies
    bench.wal.copy_dropped(location)
    assert bench.wal.maintenance().copies == [location]


def test_a_group_with_much_in_the_oldest_segment_is_asked_for_a_snapshot() -> None:
    bench = Bench()
    bench.create(1, 1)
    bench.create(2, 2)
    for index in range(1, 6):
        bench.append(1, 1, index, b"x" * 400)
    bench.write()
    fill(bench, 2, 2, 3)
    plan = bench.wal.maintenance()
    assert plan.copies == [] and plan.groups_to_snapshot == [(1, 1, 5)]
    bench.wal.stage(1, 1, SnapshotMark(5, 1, b"config", 6, 1))
    bench.write()
    assert SegmentDelete(1) in bench.wal.maintenance().effects


def test_a_group_that_cannot_cut_its_log_is_copied_in_the_end() -> None:
    bench = Bench()
    bench.create(1, 1)
    bench.create(2, 2)
    for index in range(1, 6):
        bench.append(1, 1, index, b"x" * 400)
    bench.write()
    fill(bench, 2, 2, 2 * OPTIONS.segments_live_max)
    for _ in range(4):
        bench.maintain()
    assert 1 not in bench.disk.durable and len(bench.entries(1, 1, 1)) == 5


def test_copying_ends_even_when_everything_is_live() -> None:
    bench = Bench(WalOptions(segment_bytes=8192, segments_live_max=2, copy_forward_bytes_max=8192))
    bench.create(1, 1)
    for index in range(1, 60):
        bench.append(1, 1, index, b"x" * 700)
        bench.write()
    written = bench.wal.ticket
    for _ in range(50):
        bench.maintain()
    assert bench.wal.ticket == written


def test_options_are_checked() -> None:
    for bad in ({"segment_bytes": 1000}, {"segment_bytes": 512}, {"segments_live_max": 1}, {"copy_forward_bytes_max": -1}):
        with pytest.raises(ValueError):
            WalOptions(**bad)


def test_the_first_segment_of_a_new_node_is_number_one() -> None:
    (effect,) = Wal(IDENTITY, OPTIONS).open()
    assert isinstance(effect, SegmentCreate) and effect.segment == 1 and len(effect.data) % SECTOR == 0


def test_a_replica_that_cannot_cut_its_log_does_not_pin_the_log_of_all_others() -> None:
    """A fenced group, or one without a quorum, holds more than half of the oldest segment for ever: it is copied once the log is twice too long."""
    options = WalOptions(segment_bytes=8192, segments_live_max=2, copy_forward_bytes_max=1000)
    bench = Bench(options)
    bench.create(1, 1)
    bench.create(2, 2)
    for index in range(1, 8):
        bench.append(1, 1, index, b"stuck" * 140)
        bench.write()
    for index in range(1, 120):
        bench.append(2, 2, index, b"x" * 700)
        if index > 2:
            bench.wal.stage(2, 2, SnapshotMark(index - 1, 1, b"", index, 1))
        bench.write()
        bench.maintain()
    assert len(bench.wal.segments) <= 2 * options.segments_live_max + 2


def test_a_start_makes_room_before_it_needs_any() -> None:
    """On a full disk each restart takes a segment: what is dead goes first, so that a node cannot restart itself out of its reserve."""
    bench = Bench()
    bench.create(1, 1)
    for index in range(1, 60):
        bench.append(1, 1, index, b"x" * 700)
        bench.write()
    bench.wal.stage(1, 1, SnapshotMark(59, 1, b"config", 60, 1))
    bench.write()
    dead = list(bench.wal.segments)[:-1]
    assert dead
    bench.disk.kill_process()
    recovered = bench.disk.recover()
    effects = Wal(IDENTITY, OPTIONS, recovered).open()
    assert effects[:-1] == [SegmentDelete(segment) for segment in dead]
    assert isinstance(effects[-1], SegmentCreate)

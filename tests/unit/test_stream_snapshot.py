"""Frozen views: what was frozen is what is restored, whatever happens while it is written out; and damage has a name."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.raft import entry
from anabranch_node.core.stream.commands import Append, Command, Create, Delete, Expire, Producer, Touch
from anabranch_node.core.stream.machine import StreamMachine
from anabranch_node.core.stream.queries import Head, ReadAt
from anabranch_node.core.stream.results import Appended, NotDue, ReadSlice, SeqRegression, StreamClosed, StreamInfo
from anabranch_node.core.stream.stream import CHUNK_BYTES
from anabranch_proto.formats import Damaged, FormatError, NewerFormat
from tests.checkers.opened import OpenedMachine
from tests.unit.stream_model import entries, small_limits

S = "b/s"


def apply_all(machine: StreamMachine, batches: list[list[Command]]) -> None:
    for batch in batches:
        machine.apply_commands(machine.applied_index + 1, batch)


def small_machine() -> StreamMachine:
    machine = OpenedMachine()
    apply_all(
        machine,
        [
            [Create(S, "text/plain", 5), Create("b/empty", "text/plain", 5)],
            [Append(S, b"one", 6), Append(S, b"three", 7, Producer("p", 1, 0)), Append(S, b"x", 7)],
        ],
    )
    return machine


@given(entries, st.integers(0, 25), st.integers(1, 300), st.integers(1, 4))
def test_a_view_is_what_it_was_whatever_is_applied_while_it_is_sliced(batches: list[list[Command]], before: int, bytes_max: int, pace: int) -> None:
    with small_limits():
        machine = OpenedMachine()
        apply_all(machine, batches[:before])
        frozen_digest = machine.digest()
        frozen_slices = list(StreamMachine.restore(machine.freeze().slices(1 << 20)).freeze().slices(bytes_max))
        view = machine.freeze()
        slices: list[bytes] = []
        rest = batches[before:]
        for number, piece in enumerate(view.slices(bytes_max)):
            slices.append(piece)
            if number % pace == 0 and rest:
                apply_all(machine, [rest.pop(0)])
        apply_all(machine, rest)
        restored = StreamMachine.restore(slices)
        assert restored.digest() == frozen_digest
        assert slices == frozen_slices, "chunks must be restored as they were cut, so that replicas stay alike"
        assert list(view.slices(bytes_max)) == slices, "a view can be sliced again"
        # A replica that starts from the snapshot and applies the rest stands where the others do.
        apply_all(restored, batches[before:])
        assert restored.digest() == machine.digest()
        assert list(restored.freeze().slices(bytes_max)) == list(machine.freeze().slices(bytes_max))


@given(entries, st.lists(st.integers(0, 25), max_size=4))
def test_freezing_changes_nothing_and_views_do_not_disturb_each_other(batches: list[list[Command]], freezes: list[int]) -> None:
    with small_limits():
        machine, undisturbed = OpenedMachine(), OpenedMachine()
        views = []
        for number, batch in enumerate(batches):
            for _ in range(freezes.count(number)):
                views.append((machine.digest(), machine.freeze()))
            assert machine.apply_commands(number + 1, batch) == undisturbed.apply_commands(number + 1, batch)
        assert machine.digest() == undisturbed.digest()
        for digest, view in views:
            assert StreamMachine.restore(view.slices(100)).digest() == digest


def test_a_view_carries_index_clock_and_producers() -> None:
    machine = small_machine()
    view = machine.freeze()
    apply_all(machine, [[Append(S, b"later", 99, Producer("p", 1, 1))]])
    assert (view.applied_index, view.now_ms) == (2, 7)
    restored = StreamMachine.restore(view.slices(1 << 20))
    assert (restored.applied_index, restored.now_ms) == (2, 7)
    retry = [Append(S, b"three", 8, Producer("p", 1, 0))]
    assert restored.apply_commands(3, retry) == [Appended(3, 8, True, False, True, 1, 0)]


def test_a_view_carries_what_few_streams_have() -> None:
    machine = OpenedMachine()
    window, fixed = "b/window", "b/fixed"
    apply_all(
        machine,
        [
            [Create(window, "t", 5, ttl_s=8), Create(fixed, "t", 5, expires_at_ms=9000, expires_at="soon"), Create(S, "t", 5)],
            [Append(S, b"x", 6, seq="m", key="k"), Append(S, b"y", 6, key="l"), Append(S, b"z", 6)],
            [Append(fixed, b"last", 7, Producer("p", 1, 0), close=True), Touch(window, 1 << 16, 1000)],
        ],
    )
    view = machine.freeze()
    apply_all(machine, [[Append(S, b"!", 7, seq="n", close=True), Delete(fixed, 7), Touch(window, 1 << 16, 5000)]])
    restored = StreamMachine.restore(view.slices(50))
    assert restored.hot_bytes == 7
    assert restored.query(Head(window), 1000) == StreamInfo(1 << 16, "t", 0, 0, False, 8, "", False)
    assert restored.query(Head(fixed), 0) == StreamInfo(1 << 16 | 1, "t", 4, 0, True, None, "soon", False)
    assert restored.due(8999) == []
    assert restored.due(9000) == [Expire(fixed, 1 << 16 | 1, 0)]
    assert restored.due(10_000) == [Expire(fixed, 1 << 16 | 1, 0), Expire(window, 1 << 16, 0)]
    runs = restored._table.streams[S].chunks()[0].key_runs
    assert runs is not None
    assert (runs.keys, list(runs.firsts)) == (["k", "l", ""], [0, 1, 2])
    assert restored.apply_commands(
        4,
        [
            Append(S, b"!", 0, seq="m"),
            Append(fixed, b"x", 0),
            Append(fixed, b"x", 0, Producer("p", 1, 0)),
            Expire(window, 1 << 16, 9999),
        ],
    ) == [SeqRegression("m"), StreamClosed(4), Appended(0, 4, True, True, True, 1, 0), NotDue()]


def test_the_digest_sees_every_part_of_the_state() -> None:
    base = small_machine().digest()
    seen = {base}
    variants: list[list[Command]] = [
        [],
        [Append(S, b"y", 7)],
        [Append(S, b"z", 7)],
        [Append(S, b"z", 8)],
        [Append("b/empty", b"z", 7)],
        [Append(S, b"z", 7, Producer("p", 1, 1))],
        [Append(S, b"z", 7, Producer("p", 2, 0))],
        [Append(S, b"z", 7, Producer("q", 2, 0))],
        [Append(S, b"yz", 7)],
        [Append(S, b"y", 7), Append(S, b"z", 7)],
        [Append("b/none", b"z", 9)],
        [Append(S, b"z", 7), Append("b/none", b"z", 9)],
        [Append("b/none", b"z", 9), Append(S, b"z", 7)],
        [Create("b/third", "text/plain", 7)],
        [Create("b/third", "text/html", 7)],
        [Create("b/third", "text/plain", 7, ttl_s=1)],
        [Create("b/third", "text/plain", 7, ttl_s=2)],
        [Create("b/third", "text/plain", 7, expires_at_ms=1000, expires_at="x")],
        [Create("b/third", "text/plain", 7, expires_at_ms=1000, expires_at="y")],
        [Create("b/third", "text/plain", 7, closed=True)],
        [Append("b/none", b"z", 7), Create("b/third", "text/plain", 7)],
        [Delete("b/empty", 7)],
        [Append("b/empty", b"", 7, close=True)],
        [Append("b/empty", b"", 7, Producer("p", 0, 0), close=True)],
        [Append("b/empty", b"z", 7, seq="1")],
        [Append("b/empty", b"z", 7, seq="2")],
        [Append(S, b"z", 7, key="k")],
        [Append(S, b"z", 7, key="l")],
        [Append(S, b"y", 7, key="k"), Append(S, b"z", 7)],
        [Append(S, b"y", 7), Append(S, b"z", 7, key="k")],
        [Append(S, b"y", 7, key="k"), Append(S, b"z", 7, key="k")],
    ]
    for variant in variants:
        machine = small_machine()
        apply_all(machine, [variant])
        seen.add(machine.digest())
    assert len(seen) == len(variants) + 1


def test_the_digest_sees_a_touch() -> None:
    digests = set()
    for touched_ms in (10, 11):
        machine = OpenedMachine()
        apply_all(machine, [[Create(S, "t", 0, ttl_s=60)], [Touch(S, 1 << 16, touched_ms)], [Delete("b/none", 20)]])
        digests.add(machine.digest())
    assert len(digests) == 2


def test_the_digest_does_not_depend_on_how_chunks_are_cut() -> None:
    batches: list[list[Command]] = [[Create(S, "t", 0)]]
    batches += [[Append(S, b"%d" % number, number // 3, key="k" * (number % 11 == 10))] for number in range(60)]
    whole, cut = OpenedMachine(), OpenedMachine()
    apply_all(whole, batches)
    with small_limits():
        apply_all(cut, batches)
    assert whole.digest() == cut.digest()


def test_slices_are_bounded_and_a_large_message_is_split() -> None:
    machine = small_machine()
    apply_all(machine, [[Append(S, bytes(10 * CHUNK_BYTES), 9)], [Append(S, bytes(100), 9) for _ in range(5000)]])
    bytes_max = 2 * CHUNK_BYTES
    slices = list(machine.freeze().slices(bytes_max))
    assert len(slices) > 8
    assert max(map(len, slices)) < bytes_max + 100
    assert StreamMachine.restore(slices).digest() == machine.digest()


def test_ten_thousand_producers_survive() -> None:
    machine = OpenedMachine()
    apply_all(machine, [[Create(S, "t", 0)], [Append(S, b"x", n, Producer(f"p{n}", 0, 0)) for n in range(10_000)]])
    restored = StreamMachine.restore(machine.freeze().slices(4096))
    assert restored.digest() == machine.digest()


def test_an_empty_machine_has_a_snapshot() -> None:
    machine = OpenedMachine()
    machine.apply(1, entry.NOOP, b"")
    slices = list(machine.freeze().slices(1000))
    assert len(slices) == 1
    assert StreamMachine.restore(slices).digest() == machine.digest()


GOLDEN_V1 = (
    "930100989401020702"  # slice format 1, number 0, 8 records; head: applied index 2, clock 7, 2 streams
    "9314009492a1610092a1620092a1630092a85f64656661756c7400"  # no fence yet; buckets a, b, c and _default are open, as of index 0
    "9902a3622f73ce00010000aa746578742f706c61696e0901 050000"  # stream b/s, incarnation 0x10000, text/plain, tail 9, 1 producer, made at 5; 0, 0
    "92039192a17095010003 0807"  # p: epoch 1, last seq 0, [3, 8), active at 7
    "97040009c3c40c030000000800000009000000"  # chunk at 0, 9 bytes, open; ends 3, 8, 9
    "c41006000000000000000700000000000000c4080000000001000000"  # times 6 and 7, from messages 0 and 1 on
    "9205c4096f6e65746872656578"  # its payload
    "9902a7622f656d707479ce00010001aa746578742f706c61696e0000 050000"  # stream b/empty, incarnation 0x10001
    "920602"  # the end, 2 streams
).replace(" ", "")

OLD_V1 = GOLDEN_V1.replace("93010098", "93010097").replace("9314009492a1610092a1620092a1630092a85f64656661756c7400", "")
OLD_V1 = OLD_V1.replace("ce00010000", "01").replace("ce00010001", "01").replace("9902", "9602").replace("050000", "")
"""From the time when an incarnation was the log index alone, no group knew of buckets, and a stream began at 0."""

GOLDEN_RARE = (
    "930100999401020701"  # 9 records; head: applied index 2, clock 7, 1 stream
    "9314009492a1610092a1620092a1630092a85f64656661756c7400"  # open buckets
    "9902a3622f73ce00010000a1740501 050000"  # stream b/s, incarnation 0x10000, "t", tail 5, 1 producer, made at 5
    "9d073cc0a007c393a1700100a173"  # window of 60 s, no fixed expiry, touched at 7, closed by (p, 1, 0), Stream-Seq "s"
    "c0c0c2c000"  # no retention, not gone, no fork
    "92039192a17095010000 0507"  # p: epoch 1, last seq 0, [0, 5), active at 7
    "930891a16bc40400000000"  # routing key "k" from message 0 on
    "97040005c3c40405000000c4080700000000000000c40400000000"  # chunk at 0, 5 bytes, open; one message, at 7
    "9205c4057468726565"  # its payload
    "920601"  # the end
).replace(" ", "")


def rare_machine() -> StreamMachine:
    machine = OpenedMachine()
    apply_all(machine, [[Create(S, "t", 5, ttl_s=60)], [Append(S, b"three", 7, Producer("p", 1, 0), close=True, seq="s", key="k")]])
    return machine


def test_golden_bytes() -> None:
    (data,) = small_machine().freeze().slices(1 << 20)
    assert data.hex() == GOLDEN_V1
    assert StreamMachine.restore([bytes.fromhex(GOLDEN_V1)]).digest() == small_machine().digest()
    old = StreamMachine.restore([bytes.fromhex(OLD_V1)])
    assert old.query(ReadAt("b/s", -1, 99), 0) == ReadSlice(0, 9, b"onethreex", True, 1, "text/plain", tail=9)


def test_golden_bytes_of_what_few_streams_have() -> None:
    (data,) = rare_machine().freeze().slices(1 << 20)
    assert data.hex() == GOLDEN_RARE
    assert StreamMachine.restore([bytes.fromhex(GOLDEN_RARE)]).digest() == rare_machine().digest()


# --- damage --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bytes_max", [1, 30, 80])
def test_a_missing_swapped_or_repeated_slice_is_noticed(bytes_max: int) -> None:
    slices = list(small_machine().freeze().slices(bytes_max))
    assert len(slices) >= 3
    for number in range(len(slices)):
        with pytest.raises(Damaged):
            StreamMachine.restore(slices[:number] + slices[number + 1 :])
        with pytest.raises(Damaged):
            StreamMachine.restore([*slices[: number + 1], *slices[number:]])
    with pytest.raises(Damaged, match="slice 1 stands in place 0"):
        StreamMachine.restore([slices[1], slices[0], *slices[2:]])
    with pytest.raises(Damaged, match="begins with nothing"):
        StreamMachine.restore([])
    with pytest.raises(Damaged, match="ends early"):
        StreamMachine.restore(slices[:-1])


def test_a_newer_format_is_refused_by_name() -> None:
    with pytest.raises(NewerFormat, match="slice format 2 is newer than 1; upgrade this node"):
        StreamMachine.restore([msgspec.msgpack.encode([2, 0, [["something else entirely"]]])])


HEAD, END = [1, 2, 7, 1], [6, 1]
STREAM = [2, "b/s", 1, "t", 3, 0]
RARE = [7, None, None, "", 0, True, None, None]
ENDS, TIMES, FIRSTS = b"\3\0\0\0", bytes(8), bytes(4)


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ([STREAM, END], "begins with StreamHead"),
        ([HEAD, END], "holds 0 streams, its head says 1"),
        ([HEAD, STREAM, END], "up to 0, its tail is 3"),
        ([HEAD, STREAM, STREAM, END], "up to 0, its tail is 3"),
        ([HEAD, [5, b"abc"], END], "ChunkBytes out of place"),
        ([HEAD, [4, 0, 3, True, ENDS, TIMES, FIRSTS], END], "ChunkHead out of place"),
        ([HEAD, STREAM, [4, 0, 3, True, ENDS, TIMES, FIRSTS], END], "MachineEnd where payload at offset 0 is missing 3 bytes"),
        ([HEAD, STREAM, [4, 0, 3, True, ENDS, TIMES, FIRSTS], [5, b"abcd"], END], "1 bytes more of payload at offset 0 than its head says"),
        ([HEAD, STREAM, [4, 9, 3, True, ENDS, TIMES, FIRSTS], [5, b"abc"], END], "does not continue its stream at 0"),
        ([HEAD, STREAM, [4, 0, 3, True, b"\2\0\0\0", TIMES, FIRSTS], [5, b"abc"], END], "does not continue its stream"),
        ([HEAD, STREAM, [4, 0, 3, True, ENDS + b"\0", TIMES, FIRSTS], [5, b"abc"], END], "columns of a broken length"),
        ([HEAD, STREAM, [4, 0, 3, True, ENDS, b"", b""], [5, b"abc"], END], "does not continue its stream"),
        ([HEAD, [2, "b/s", 1, "t", 0, 0], [2, "b/s", 1, "t", 0, 0], [6, 2]], "holds stream b/s twice"),
        ([HEAD, [2, "b/s", 1, "t", 0, 1], END], "has 0 producers of stream b/s, not 1"),
        ([HEAD, [2, "b/s", 1, "t", 0, 0], END, END], "goes on after its end"),
        ([HEAD, [2, "b/s", 1, "t", 0, 0], [9]], "does not decode"),
        ([HEAD, RARE, END], "StreamRare out of place"),
        ([HEAD, STREAM, RARE, RARE, END], "StreamRare out of place"),
        ([HEAD, STREAM, [20, 0, [["b", 1]]], END], "FenceRows out of place"),
        ([HEAD, [8, ["k"], bytes(4)], END], "ChunkKeys out of place"),
        ([HEAD, STREAM, [8, ["k"], bytes(4)], END], "MachineEnd where the chunk of its routing keys is expected"),
        ([HEAD, STREAM, [8, ["k"], bytes(3)], END], "routing keys of a broken length"),
        ([HEAD, STREAM, [8, ["k"], bytes(8)], END], "1 routing keys at 2 places"),
        ([HEAD, STREAM, [8, [], b""], END], "0 routing keys at 0 places"),
        ([HEAD, STREAM, [8, ["k", "l"], bytes(8)], END], "2 routing keys at 2 places that are no runs"),
        ([HEAD, STREAM, [8, ["k", "l"], bytes(4) + ENDS], [4, 0, 3, True, ENDS, TIMES, FIRSTS], [5, b"abc"], END], "beyond its 1 messages"),
    ],
)
def test_a_state_that_does_not_add_up_is_refused(records: list[object], problem: str) -> None:
    with pytest.raises(Damaged, match="snapshot of the stream machine: .*" + problem):
        StreamMachine.restore([msgspec.msgpack.encode([1, 0, records])])


@given(st.data())
def test_flipped_bytes_never_raise_anything_but_a_format_error(data: st.DataObject) -> None:
    """The file's checksum finds rot; this is for what a bug might write."""
    (whole,) = data.draw(st.sampled_from([small_machine, rare_machine]))().freeze().slices(1 << 20)
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FormatError):
        StreamMachine.restore([bytes(damaged)])

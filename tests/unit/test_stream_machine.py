"""The stream machine against a model that is obviously right, and the rules one by one."""

import tracemalloc

import pytest
from hypothesis import given

from anabranch_node.core.raft import entry
from anabranch_node.core.stream.commands import Append, Command, Create, Producer, encode_commands
from anabranch_node.core.stream.machine import StreamMachine, UnknownCommandVersion
from anabranch_node.core.stream.producers import PRODUCER_IDLE_MS, PRODUCERS_PER_STREAM_MAX
from anabranch_node.core.stream.results import (
    Appended,
    BadEpochStart,
    Created,
    EmptyBody,
    OffsetBeyondTail,
    OffsetInsideMessage,
    ReadSlice,
    Result,
    SequenceGap,
    StaleEpoch,
    StreamExists,
    StreamNotFound,
    TooManyProducers,
)
from anabranch_node.core.stream.stream import CHUNK_BYTES, CHUNK_MESSAGES, Stream
from tests.unit.stream_model import Model, ModelProducer, entries, small_limits

S = "b/s"


def apply(machine: StreamMachine, *commands: Command) -> list[Result]:
    return machine.apply_commands(machine.applied_index + 1, commands)


def machine_with_stream() -> StreamMachine:
    machine = StreamMachine()
    apply(machine, Create(S, "text/plain", 0))
    return machine


def stream_of(machine: StreamMachine, name: str = S) -> Stream:
    return machine._table.streams[name]


def append_times(stream: Stream) -> list[int]:
    """The run-length column, message by message."""
    times: list[int] = []
    for chunk in stream.chunks():
        bounds = [*chunk.time_firsts, len(chunk.ends)]
        for run, time in enumerate(chunk.times):
            times += [time] * (bounds[run + 1] - bounds[run])
    return times


@given(entries)
def test_applies_like_the_model(batches: list[list[Command]]) -> None:
    with small_limits():
        machine, by_bytes, model = StreamMachine(), StreamMachine(), Model()
        for index, batch in enumerate(batches, 1):
            expected = [model.apply(index, command) for command in batch]
            assert machine.apply_commands(index, batch) == expected
            assert by_bytes.apply(index, entry.COMMANDS_V1, encode_commands(batch)) == expected
        assert machine.applied_index == len(batches)
        assert machine.now_ms == model.clock
        assert machine.digest() == by_bytes.digest()
        assert machine.stream_count == len(model.streams)
        for name, wanted in model.streams.items():
            stream = stream_of(machine, name)
            assert (stream.incarnation, stream.content_type, stream.tail) == (wanted.incarnation, wanted.content_type, wanted.tail)
            assert append_times(stream) == [time for _, time in wanted.messages]
            states = (stream.producers or {}).items()
            assert {k: ModelProducer(p.epoch, p.last_seq, p.start, p.end, p.active_ms) for k, p in states} == wanted.producers
            active = [state.active_ms for _, state in states]
            assert active == sorted(active), "the longest idle producer must come first: eviction relies on it"


@given(entries)
def test_reads_like_the_model(batches: list[list[Command]]) -> None:
    with small_limits():
        machine, model = StreamMachine(), Model()
        for index, batch in enumerate(batches, 1):
            machine.apply_commands(index, batch)
            for command in batch:
                model.apply(index, command)
        for name in ("b/one", "b/two"):
            tail = model.streams[name].tail if name in model.streams else 0
            for max_bytes in (0, 1, 10, 30, 10_000):
                for offset in range(tail + 1):
                    got, wanted = machine.read(name, offset, max_bytes), model.read(name, offset, max_bytes)
                    if wanted is None:
                        assert isinstance(got, OffsetInsideMessage)
                        assert got.before < offset < got.after
                        assert isinstance(machine.read(name, got.before, 1), ReadSlice)
                        assert isinstance(machine.read(name, got.after, 1), ReadSlice)
                    else:
                        assert got == wanted


# --- entries -------------------------------------------------------------------------------------------------------------------------


def test_entries_without_commands_move_the_applied_index() -> None:
    machine = StreamMachine()
    assert machine.apply(1, entry.NOOP, b"") == []
    assert machine.apply(2, entry.CONFIG, b"some configuration") == []
    assert machine.apply(3, entry.COMMANDS_V1, encode_commands([Create(S, "t", 5)])) == [Created(0, existed=False)]
    assert (machine.applied_index, machine.now_ms) == (3, 5)


def test_an_unknown_command_version_is_refused_by_name_and_changes_nothing() -> None:
    machine = machine_with_stream()
    before = machine.digest()
    with pytest.raises(UnknownCommandVersion, match=r"log entry 2 has command version 77; .* upgrade this node"):
        machine.apply(2, 77, b"")
    with pytest.raises(ValueError, match="not a list of stream commands"):
        machine.apply(2, entry.COMMANDS_V1, b"\xc1")
    assert machine.digest() == before


@pytest.mark.parametrize("index", [0, 1, 3])
def test_entries_are_applied_once_and_in_order(index: int) -> None:
    machine = machine_with_stream()
    with pytest.raises(AssertionError):
        machine.apply(index, entry.NOOP, b"")
    assert machine.applied_index == 1


def test_the_clock_of_a_group_never_goes_back() -> None:
    machine = machine_with_stream()
    apply(machine, Append(S, b"a", 50), Append(S, b"b", 20), Append("b/none", b"c", 90), Append(S, b"d", 60))
    assert machine.now_ms == 90
    assert append_times(stream_of(machine)) == [50, 50, 90]


# --- create and append ---------------------------------------------------------------------------------------------------------------


def test_create_is_idempotent_and_typed() -> None:
    machine = StreamMachine()
    assert apply(machine, Create(S, "t", 0), Create(S, "t", 0), Append(S, b"abc", 0), Create(S, "t", 0), Create(S, "u", 0)) == [
        Created(0, existed=False),
        Created(0, existed=True),
        Appended(0, 3),
        Created(3, existed=True),
        StreamExists(S, "t"),
    ]


def test_the_incarnation_is_the_log_index_of_the_create() -> None:
    machine = StreamMachine()
    machine.apply(1, entry.NOOP, b"")
    apply(machine, Create(S, "t", 0))
    assert machine.read(S, 0, 1) == ReadSlice(0, 0, b"", True, 2)


def test_append_needs_a_stream_and_a_body() -> None:
    machine = machine_with_stream()
    assert apply(machine, Append("b/none", b"x", 0), Append(S, b"", 0), Append("b/none", b"", 0)) == [
        StreamNotFound("b/none"),
        EmptyBody(S),
        EmptyBody("b/none"),
    ]


# --- producers: the table of specs/README.md, line by line -----------------------------------------------------------------------------


def append_as(machine: StreamMachine, producer: str, epoch: int, seq: int, now_ms: int = 0) -> Result:
    return apply(machine, Append(S, b"..", now_ms, Producer(producer, epoch, seq)))[0]


def test_an_unknown_producer_starts_any_epoch_at_zero() -> None:
    machine = machine_with_stream()
    assert append_as(machine, "p", 7, 1) == SequenceGap(expected=0, received=1)
    assert append_as(machine, "p", 7, 0) == Appended(0, 2)


def test_a_lower_epoch_is_fenced() -> None:
    machine = machine_with_stream()
    append_as(machine, "p", 7, 0)
    assert append_as(machine, "p", 6, 0) == StaleEpoch(current=7, received=6)
    assert append_as(machine, "p", 6, 1) == StaleEpoch(current=7, received=6)


def test_a_higher_epoch_starts_at_zero() -> None:
    machine = machine_with_stream()
    append_as(machine, "p", 7, 0)
    assert append_as(machine, "p", 9, 1) == BadEpochStart(epoch=9, received=1)
    assert append_as(machine, "p", 9, 0) == Appended(2, 4)
    assert append_as(machine, "p", 7, 1) == StaleEpoch(current=9, received=7)


def test_sequences_of_an_epoch_have_no_gap() -> None:
    machine = machine_with_stream()
    assert [append_as(machine, "p", 0, seq) for seq in (0, 1, 3, 2)] == [Appended(0, 2), Appended(2, 4), SequenceGap(2, 3), Appended(4, 6)]


def test_a_duplicate_answers_the_original_while_it_is_the_last_and_the_tail_after() -> None:
    machine = machine_with_stream()
    append_as(machine, "p", 0, 0)
    apply(machine, Append(S, b"other", 0))
    assert append_as(machine, "p", 0, 0) == Appended(0, 2, duplicate=True)
    assert append_as(machine, "p", 0, 1) == Appended(7, 9)
    assert append_as(machine, "p", 0, 0) == Appended(9, 9, duplicate=True)
    assert append_as(machine, "p", 0, 1) == Appended(7, 9, duplicate=True)
    assert machine.read(S, 0, 100) == ReadSlice(0, 9, b"..other..", True, 1)


def test_producers_are_counted_per_stream_and_forgotten_after_seven_idle_days() -> None:
    machine = machine_with_stream()
    assert PRODUCER_IDLE_MS == 7 * 86_400_000
    for number in range(PRODUCERS_PER_STREAM_MAX):
        assert isinstance(append_as(machine, f"p{number}", 0, 0, now_ms=number), Appended)
    tail = stream_of(machine).tail
    assert append_as(machine, "new", 0, 0, PRODUCER_IDLE_MS - 1) == TooManyProducers(10_000)
    assert append_as(machine, "p0", 0, 0, PRODUCER_IDLE_MS) == Appended(0, 2, duplicate=True)  # a retry is a sign of life
    assert append_as(machine, "new", 0, 0, PRODUCER_IDLE_MS) == TooManyProducers(10_000)
    assert append_as(machine, "new", 0, 0, PRODUCER_IDLE_MS + 1) == Appended(tail, tail + 2)
    table = stream_of(machine).producers or {}
    assert "p0" in table and "new" in table and "p1" not in table and len(table) == PRODUCERS_PER_STREAM_MAX
    assert append_as(machine, "p1", 0, 1, PRODUCER_IDLE_MS + 1) == SequenceGap(expected=0, received=1)


def test_an_append_moves_its_producer_behind_the_idle_ones() -> None:
    machine = machine_with_stream()
    append_as(machine, "p", 0, 0, now_ms=1)
    append_as(machine, "q", 0, 0, now_ms=2)
    append_as(machine, "p", 0, 1, now_ms=3)
    append_as(machine, "new", 0, 0, now_ms=2 + PRODUCER_IDLE_MS)
    assert list(stream_of(machine).producers or {}) == ["p", "new"]


def test_an_idle_producer_that_nobody_pushed_out_is_still_known() -> None:
    machine = machine_with_stream()
    append_as(machine, "p", 0, 0)
    assert append_as(machine, "p", 0, 0, now_ms=10 * PRODUCER_IDLE_MS) == Appended(0, 2, duplicate=True)


def test_a_refusal_changes_nothing() -> None:
    machine = machine_with_stream()
    append_as(machine, "p", 5, 0, now_ms=10)
    twin = StreamMachine.restore(machine.freeze().slices(1 << 20))
    apply(
        machine,
        Append(S, b"x", 10, Producer("p", 4, 0)),
        Append(S, b"x", 10, Producer("p", 6, 1)),
        Append(S, b"x", 10, Producer("p", 5, 9)),
        Append(S, b"x", 10, Producer("q", 0, 9)),
        Append(S, b"", 10),
        Append("b/none", b"x", 10),
        Create(S, "another", 10),
    )
    twin.apply(twin.applied_index + 1, entry.NOOP, b"")
    assert machine.digest() == twin.digest()


# --- reads and columns ---------------------------------------------------------------------------------------------------------------


def test_read_refusals() -> None:
    machine = machine_with_stream()
    apply(machine, Append(S, b"abc", 0), Append(S, b"defg", 0))
    assert machine.read("b/none", 0, 10) == StreamNotFound("b/none")
    assert machine.read(S, 8, 10) == OffsetBeyondTail(8, 7)
    assert machine.read(S, 4, 10) == OffsetInsideMessage(4, 3, 7)
    assert machine.read(S, 2, 10) == OffsetInsideMessage(2, 0, 3)
    with pytest.raises(ValueError, match="negative"):
        machine.read(S, -1, 10)


def test_a_message_larger_than_a_chunk_is_kept_and_read_without_a_copy() -> None:
    machine = machine_with_stream()
    large = bytes(CHUNK_BYTES * 3)
    apply(machine, Append(S, b"small", 0), Append(S, large, 0), Append(S, b"after", 0))
    slice_ = machine.read(S, 5, 1)
    assert isinstance(slice_, ReadSlice)
    assert slice_.data is large
    assert machine.read(S, 0, 1) == ReadSlice(0, 5, b"small", False, 1)
    assert machine.read(S, 5 + len(large), 1) == ReadSlice(5 + len(large), 10 + len(large), b"after", True, 1)


def test_chunks_are_bounded_in_bytes_and_messages() -> None:
    machine = machine_with_stream()
    apply(machine, *[Append(S, b"x", 0) for _ in range(CHUNK_MESSAGES + 1)])
    stream = stream_of(machine)
    assert [len(chunk.ends) for chunk in stream.chunks()] == [CHUNK_MESSAGES, 1]
    apply(machine, *[Append(S, bytes(1000), 0) for _ in range(200)])
    assert all(len(chunk.data) < 2 * CHUNK_BYTES for chunk in stream.sealed or [])


def test_an_idle_stream_is_small() -> None:
    """100,000 idle streams are to fit in 300 MB; each takes about 220 bytes with its name, another 430 with one small message."""
    machine = StreamMachine()
    count = 5_000
    tracemalloc.start()
    try:
        for number in range(count):
            machine.apply(number + 1, entry.COMMANDS_V1, encode_commands([Create(f"default/stream-{number:08}", "application/json", number)]))
        empty_bytes = tracemalloc.get_traced_memory()[0] / count
        for number in range(count):
            payload = encode_commands([Append(f"default/stream-{number:08}", b"sixteen bytes...", count + number)])
            machine.apply(count + number + 1, entry.COMMANDS_V1, payload)
        with_message_bytes = tracemalloc.get_traced_memory()[0] / count
    finally:
        tracemalloc.stop()
    assert empty_bytes < 400
    assert with_message_bytes < 1000

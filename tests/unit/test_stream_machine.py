"""The stream machine against a model that is obviously right, and the rules one by one."""

import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.raft import entry
from anabranch_node.core.stream.commands import Append, Command, Create, Delete, Expire, Producer, Touch, encode_commands
from anabranch_node.core.stream.expiry import EXPIRES_PER_CALL_MAX, REPEAT_MS
from anabranch_node.core.stream.machine import StreamMachine, UnknownCommandVersion
from anabranch_node.core.stream.producers import PRODUCER_IDLE_MS, PRODUCERS_PER_STREAM_MAX
from anabranch_node.core.stream.queries import NOW, START, Head, ListStreams, ReadAt
from anabranch_node.core.stream.results import (
    Appended,
    BadEpochStart,
    ContentTypeMismatch,
    Created,
    Deleted,
    EmptyBody,
    NotDue,
    OffsetBeyondTail,
    OffsetInsideMessage,
    QueryResult,
    ReadSlice,
    Result,
    SeqRegression,
    SequenceGap,
    StaleEpoch,
    StreamClosed,
    StreamExists,
    StreamInfo,
    StreamNotFound,
    StreamPage,
    TooManyProducers,
    Touched,
)
from anabranch_node.core.stream.stream import CHUNK_BYTES, CHUNK_MESSAGES, Stream
from tests.checkers.opened import OpenedMachine
from tests.checkers.stream_model import Model, ModelProducer
from tests.unit.stream_model import IDLE_MS, NAMES, PRODUCERS_MAX, entries, lengths_of, small_limits

S = "b/s"
FIRST = 1 << 16
"""The incarnation of a stream that the first command of the first entry creates."""


def apply(machine: StreamMachine, *commands: Command) -> list[Result]:
    return machine.apply_commands(machine.applied_index + 1, commands)


def read(machine: StreamMachine, stream: str, offset: int, max_bytes: int, now_ms: int = 0) -> QueryResult:
    return machine.query(ReadAt(stream, offset, max_bytes), now_ms)


def machine_with_stream() -> StreamMachine:
    machine = OpenedMachine()
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


def routing_keys(stream: Stream) -> list[str]:
    keys: list[str] = []
    for chunk in stream.chunks():
        if chunk.key_runs is None:
            keys += [""] * len(chunk.ends)
            continue
        assert any(chunk.key_runs.keys), "a chunk without keys has no runs"
        bounds = [*chunk.key_runs.firsts, len(chunk.ends)]
        for run, key in enumerate(chunk.key_runs.keys):
            assert bounds[run + 1] > bounds[run]
            keys += [key] * (bounds[run + 1] - bounds[run])
    return keys


def assert_like(machine: StreamMachine, model: Model) -> None:
    assert machine.now_ms == model.clock
    assert machine.stream_count == len(model.streams)
    assert machine.hot_bytes == sum(stream.tail for stream in model.streams.values())
    for name, wanted in model.streams.items():
        stream = stream_of(machine, name)
        assert (stream.incarnation, stream.content_type, stream.tail) == (wanted.incarnation, wanted.content_type, wanted.tail)
        assert append_times(stream) == [message.time_ms for message in wanted.messages]
        assert routing_keys(stream) == [message.key for message in wanted.messages]
        states = (stream.producers or {}).items()
        assert {k: ModelProducer(p.epoch, p.last_seq, p.start, p.end, p.active_ms) for k, p in states} == wanted.producers
        active = [state.active_ms for _, state in states]
        assert active == sorted(active), "the longest idle producer must come first: eviction relies on it"
    visible = sorted(name for name in model.streams if model.visible(name) is not None)
    assert machine.query(ListStreams("", "", 10), 0) == StreamPage(visible, False)
    for now_ms in (model.clock, model.clock + 200, model.clock + 5_000):
        for name in NAMES:
            assert machine.query(Head(name), now_ms) == model.query(Head(name), now_ms)
    late_ms = model.clock + 10_000
    expected = {(name, stream.incarnation) for name, stream in model.streams.items() if stream.gone(late_ms)}
    assert {(command.stream, getattr(command, "incarnation", 0)) for command in machine.due(late_ms)} == expected


@given(entries, st.integers(0, 25), st.integers(1, 300))
def test_applies_like_the_model(batches: list[list[Command]], restart_at: int, bytes_max: int) -> None:
    """Also when a snapshot is restored in the middle."""
    with small_limits():
        machine, by_bytes, model = OpenedMachine(), OpenedMachine(), Model(producers_max=PRODUCERS_MAX, idle_ms=IDLE_MS)
        for index, batch in enumerate(batches, 1):
            if index == restart_at:
                slices = list(machine.freeze().slices(bytes_max))
                assert_like(StreamMachine.restore(slices), model)
                machine = StreamMachine.restore(slices)
            expected = [model.apply(index, position, command) for position, command in enumerate(batch)]
            assert machine.apply_commands(index, batch) == expected
            assert by_bytes.apply(index, entry.COMMANDS_V1, encode_commands(batch)) == expected
        assert machine.applied_index == len(batches)
        assert machine.digest() == by_bytes.digest()
        assert_like(machine, model)


@given(entries)
def test_reads_like_the_model(batches: list[list[Command]]) -> None:
    with small_limits():
        machine, model = OpenedMachine(), Model(producers_max=PRODUCERS_MAX, idle_ms=IDLE_MS)
        for index, batch in enumerate(batches, 1):
            machine.apply_commands(index, batch)
            for position, command in enumerate(batch):
                model.apply(index, position, command)
        for name in ("b/one", "b/two"):
            found = model.visible(name)
            tail = 0 if found is None else found.tail
            for max_bytes in (0, 1, 10, 30, 10_000):
                assert read(machine, name, NOW, max_bytes, model.clock) == read(machine, name, tail, max_bytes, model.clock)
                assert read(machine, name, START, max_bytes, model.clock) == read(machine, name, 0, max_bytes, model.clock)
                for offset in range(tail + 1):
                    got, wanted = read(machine, name, offset, max_bytes, 300), model.query(ReadAt(name, offset, max_bytes), 300)
                    assert got == wanted
                    if isinstance(got, OffsetInsideMessage):
                        assert got.before < offset < got.after
                        assert isinstance(read(machine, name, got.before, 1), ReadSlice)
                        assert isinstance(read(machine, name, got.after, 1), ReadSlice)


# --- entries -------------------------------------------------------------------------------------------------------------------------


def test_entries_without_commands_move_the_applied_index() -> None:
    machine = OpenedMachine()
    assert machine.apply(1, entry.NOOP, b"") == []
    assert machine.apply(2, entry.CONFIG, b"some configuration") == []
    assert machine.apply(3, entry.COMMANDS_V1, encode_commands([Create(S, "t", 5)])) == [Created(0, False, False, 3 << 16)]
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
    machine = OpenedMachine()
    assert apply(machine, Create(S, "t/t", 0), Create(S, "T/T ; x=y", 0), Append(S, b"abc", 0), Create(S, "t/t", 0), Create(S, "t/u", 0)) == [
        Created(0, existed=False, incarnation=FIRST),
        Created(0, existed=True, incarnation=FIRST),
        Appended(0, 3),
        Created(3, existed=True, incarnation=FIRST),
        StreamExists(S, "t/t"),
    ]


@pytest.mark.parametrize(
    "other",
    [
        Create(S, "t", 0),
        Create(S, "t", 0, ttl_s=6),
        Create(S, "t", 0, ttl_s=5, closed=True),
        Create(S, "t", 0, expires_at_ms=5000, expires_at="x"),
    ],
)
def test_a_create_with_other_settings_is_refused(other: Create) -> None:
    machine = OpenedMachine()
    apply(machine, Create(S, "t", 0, ttl_s=5))
    assert apply(machine, other, Create(S, "t", 0, ttl_s=5)) == [StreamExists(S, "t"), Created(0, True, False, FIRST)]


def test_a_stream_that_was_closed_is_created_again_as_closed_only() -> None:
    machine = machine_with_stream()
    apply(machine, Append(S, b"x", 0, close=True))
    assert apply(machine, Create(S, "text/plain", 0), Create(S, "text/plain", 0, closed=True)) == [
        StreamExists(S, "text/plain"),
        Created(1, True, True, FIRST),
    ]


def test_a_create_may_bring_messages_and_close() -> None:
    machine = OpenedMachine()
    body = Create(S, "t", 7, closed=True, body=b"1,22,", lengths=lengths_of([b"1,", b"22,"]))
    assert apply(machine, body, body, Append(S, b"x", 0)) == [Created(5, False, True, FIRST), Created(5, True, True, FIRST), StreamClosed(5)]
    assert machine.hot_bytes == 5
    assert read(machine, S, START, 1) == ReadSlice(0, 2, b"1,", False, FIRST, "t", tail=5)
    assert read(machine, S, 2, 9) == ReadSlice(2, 5, b"22,", True, FIRST, "t", closed=True, tail=5)
    assert append_times(stream_of(machine)) == [7, 7]


def test_the_incarnation_is_the_place_of_the_create_in_the_log() -> None:
    machine = OpenedMachine()
    machine.apply(1, entry.NOOP, b"")
    apply(machine, Create(S, "t", 0))
    assert read(machine, S, 0, 1) == ReadSlice(0, 0, b"", True, 2 << 16, "t", tail=0)
    assert apply(machine, Delete(S, 0), Create(S, "t", 0), Delete(S, 0), Create(S, "t", 0)) == [
        Deleted(2 << 16),
        Created(0, False, False, 3 << 16 | 1),
        Deleted(3 << 16 | 1),
        Created(0, False, False, 3 << 16 | 3),
    ]


def test_an_entry_has_at_most_65536_places_for_creates() -> None:
    machine = machine_with_stream()
    with pytest.raises(AssertionError):
        apply(machine, *[Touch("b/none", 0, 0)] * 65536, Create("b/late", "t", 0))


def test_append_needs_a_stream_and_a_body() -> None:
    machine = machine_with_stream()
    assert apply(machine, Append("b/none", b"x", 0), Append(S, b"", 0), Append("b/none", b"", 0)) == [
        StreamNotFound("b/none"),
        EmptyBody(S),
        StreamNotFound("b/none"),
    ]


def test_content_types_are_compared_without_case_and_parameters() -> None:
    machine = machine_with_stream()
    assert apply(machine, *[Append(S, b"x", 0, content_type=kind) for kind in ("", "TEXT/plain; charset=x", "text/html")]) == [
        Appended(0, 1),
        Appended(1, 2),
        ContentTypeMismatch("text/plain"),
    ]
    assert apply(machine, Append(S, b"", 0, content_type="text/html", close=True)) == [Appended(2, 2, closed=True)]


def test_an_append_of_several_messages_is_read_one_by_one() -> None:
    machine = machine_with_stream()
    parts = [b"1,", b"[2],", b'{"a":3},']
    assert apply(machine, Append(S, b"".join(parts), 5, lengths=lengths_of(parts))) == [Appended(0, 14)]
    assert read(machine, S, 2, 4) == ReadSlice(2, 6, b"[2],", False, FIRST, "text/plain", tail=14)
    assert read(machine, S, 3, 4) == OffsetInsideMessage(3, 2, 6)
    assert read(machine, S, START, 100) == ReadSlice(0, 14, b"".join(parts), True, FIRST, "text/plain", tail=14)


@pytest.mark.parametrize("lengths", [b"\1\0\0\0", b"\2\0\0\0\0\0\0\0", b"\2\0\0", b"\3\0\0\0"])
def test_lengths_that_do_not_add_up_are_a_bug_and_change_nothing(lengths: bytes) -> None:
    machine = machine_with_stream()
    before = machine.digest()
    with pytest.raises((AssertionError, ValueError)):
        apply(machine, Append(S, b"ab", 0, lengths=lengths))
    with pytest.raises((AssertionError, ValueError)):
        apply(machine, Create("b/new", "t", 0, body=b"ab", lengths=lengths))
    assert machine.digest() == before


def test_a_timestamp_is_clamped_between_the_last_append_and_now() -> None:
    machine = machine_with_stream()
    asked = [(50, -5), (100, 40), (100, 30), (100, 400), (100, 0), (200, None), (300, 250)]
    apply(machine, *[Append(S, b"x", now_ms, timestamp_ms=timestamp_ms) for now_ms, timestamp_ms in asked])
    assert append_times(stream_of(machine)) == [0, 40, 40, 100, 100, 200, 250]


def test_a_timestamp_remembers_the_last_append_of_a_sealed_chunk() -> None:
    machine = machine_with_stream()
    apply(machine, Append(S, bytes(CHUNK_BYTES), 70), Append(S, b"x", 90, timestamp_ms=10))
    assert append_times(stream_of(machine)) == [70, 70]


def test_routing_keys_are_runs_and_absent_until_one_is_used() -> None:
    machine = machine_with_stream()
    apply(machine, Append(S, b"x", 0))
    assert stream_of(machine).chunks()[0].key_runs is None
    apply(machine, Append(S, b"x", 0), *[Append(S, b"x", 0, key=key) for key in ("k", "k", "", "l")])
    runs = stream_of(machine).chunks()[0].key_runs
    assert runs is not None
    assert (runs.keys, list(runs.firsts)) == (["", "k", "", "l"], [0, 2, 4, 5])
    apply(machine, Append(S, bytes(CHUNK_BYTES), 0), Append(S, b"x", 0, key="m"))
    assert [chunk.key_runs is None for chunk in stream_of(machine).chunks()] == [False, True, False]


# --- Stream-Seq and close --------------------------------------------------------------------------------------------------------------


def test_stream_seq_must_rise_byte_by_byte() -> None:
    machine = machine_with_stream()
    seqs = ["2", "10", "2", "3", None, "a", "B", "é", "z"]
    results = apply(machine, *[Append(S, b"x", 0, seq=seq) for seq in seqs])
    refused = [result for result in results if not isinstance(result, Appended)]
    assert refused == [SeqRegression("2"), SeqRegression("2"), SeqRegression("a"), SeqRegression("é")]


def test_a_refused_append_does_not_move_stream_seq() -> None:
    machine = machine_with_stream()
    assert apply(
        machine,
        Append(S, b"", 0, seq="5"),
        Append(S, b"x", 0, seq="5", content_type="text/html"),
        Append(S, b"x", 0, Producer("p", 0, 1), seq="5"),
        Append(S, b"x", 0, seq="1"),
    )[3] == Appended(0, 1)


def test_a_producer_is_judged_before_stream_seq() -> None:
    machine = machine_with_stream()
    first = Append(S, b"x", 0, Producer("p", 0, 0), seq="a")
    assert apply(machine, first, first, Append(S, b"x", 0, Producer("p", 0, 2), seq="a"), Append(S, b"x", 0, Producer("p", 0, 1), seq="a")) == [
        Appended(0, 1, False, False, True, 0, 0),
        Appended(0, 1, True, False, True, 0, 0),
        SequenceGap(1, 2),
        SeqRegression("a"),
    ]
    assert append_as(machine, "p", 0, 1) == taken(1, 3, 0, 1), "a regression takes no sequence number"


def test_nothing_is_appended_after_the_close() -> None:
    machine = machine_with_stream()
    assert apply(
        machine,
        Append(S, b"x", 0, close=True),
        Append(S, b"y", 0),
        Append(S, b"y", 0, close=True),
        Append(S, b"", 0),
        Append(S, b"", 0, close=True),
        Append(S, b"y", 0, content_type="text/html"),
        Append(S, b"y", 0, Producer("p", 0, 0)),
        Append(S, b"", 0, Producer("p", 0, 0), close=True),
    ) == [
        Appended(0, 1, closed=True),
        StreamClosed(1),
        StreamClosed(1),
        StreamClosed(1),
        Appended(1, 1, duplicate=True, closed=True),
        StreamClosed(1),
        StreamClosed(1),
        StreamClosed(1),
    ]
    assert read(machine, S, 0, 9) == ReadSlice(0, 1, b"x", True, FIRST, "text/plain", closed=True, tail=1)
    assert machine.query(Head(S), 0) == StreamInfo(FIRST, "text/plain", 1, 0, True, None, "", False)


@pytest.mark.parametrize("body", [b"", b"last"])
def test_only_the_retry_of_the_append_that_closed_is_a_duplicate(body: bytes) -> None:
    machine = machine_with_stream()
    end = 1 + len(body)
    close = Append(S, body, 0, Producer("p", 3, 1), close=True)
    other = Append(S, b"another", 0, Producer("p", 3, 1), content_type="text/html")
    assert apply(machine, Append(S, b"x", 0, Producer("p", 3, 0)), close, close, other) == [
        taken(0, 1, 3, 0),
        Appended(1, end, False, True, True, 3, 1),
        Appended(1, end, True, True, True, 3, 1),
        Appended(1, end, True, True, True, 3, 1),
    ]
    for producer in (Producer("p", 3, 0), Producer("p", 3, 2), Producer("p", 2, 1), Producer("p", 4, 0), Producer("q", 0, 0)):
        assert apply(machine, Append(S, b"x", 0, producer, close=True)) == [StreamClosed(end)]


def test_a_slice_is_closed_only_where_it_reaches_the_tail() -> None:
    machine = machine_with_stream()
    apply(machine, Append(S, b"ab", 0), Append(S, b"c", 0, close=True))
    assert read(machine, S, 0, 2) == ReadSlice(0, 2, b"ab", False, FIRST, "text/plain", closed=False, tail=3)
    assert read(machine, S, NOW, 2) == ReadSlice(3, 3, b"", True, FIRST, "text/plain", closed=True, tail=3)


# --- delete and expiry -----------------------------------------------------------------------------------------------------------------


def test_a_deleted_stream_is_gone_with_its_bytes() -> None:
    machine = machine_with_stream()
    apply(machine, Append(S, b"abc", 0, Producer("p", 0, 0)))
    assert machine.hot_bytes == 3
    assert apply(machine, Delete(S, 0), Delete(S, 0), Append(S, b"x", 0)) == [Deleted(FIRST), StreamNotFound(S), StreamNotFound(S)]
    assert (machine.hot_bytes, machine.stream_count) == (0, 0)
    assert machine.query(Head(S), 0) == StreamNotFound(S)
    apply(machine, Create(S, "t", 0))
    assert append_as(machine, "p", 0, 0) == taken(0, 2, 0, 0), "a new stream has a producer table of its own"


def window_machine(ttl_s: int = 8) -> StreamMachine:
    machine = OpenedMachine()
    apply(machine, Create(S, "t", 1000, ttl_s=ttl_s))
    return machine


DUE = 1000 + 8000 + 1000


def test_a_window_ends_a_grace_after_its_last_touch() -> None:
    machine = window_machine()
    assert apply(machine, Expire(S, FIRST, DUE - 1)) == [NotDue()]
    assert apply(machine, Expire(S, FIRST + 1, DUE), Expire(S, FIRST, 0)) == [NotDue(), Deleted(FIRST)]
    assert apply(machine, Expire(S, FIRST, 0)) == [NotDue()]


@pytest.mark.parametrize(
    "use",
    [
        Append(S, b"x", 5000),
        Append(S, b"", 5000, close=True),
        Append(S, b"", 5000, Producer("p", 0, 0), close=True),
        Create(S, "t", 5000, ttl_s=8),
        Touch(S, FIRST, 5000),
    ],
)
def test_every_use_starts_the_window_again(use: Command) -> None:
    machine = window_machine()
    apply(machine, use)
    assert apply(machine, Expire(S, FIRST, DUE + 3999)) == [NotDue()]
    assert apply(machine, Expire(S, FIRST, DUE + 4000)) == [Deleted(FIRST)]


def test_a_repeated_close_and_a_duplicate_start_the_window_again() -> None:
    close, append_ = Append(S, b"", 5000, close=True), Append(S, b"x", 5000, Producer("p", 0, 0))
    for use in (close, append_):
        machine = window_machine()
        apply(machine, use)
        apply(machine, msgspec.structs.replace(use, now_ms=9000))
        assert apply(machine, Expire(S, FIRST, DUE + 7999), Expire(S, FIRST, DUE + 8000)) == [NotDue(), Deleted(FIRST)]


def test_a_refusal_does_not_start_the_window_again() -> None:
    machine = window_machine()
    apply(machine, Append(S, b"", 5000), Append(S, b"x", 5000, Producer("p", 0, 1)), Create(S, "u", 5000), Touch(S, FIRST + 1, 5000))
    assert apply(machine, Expire(S, FIRST, DUE)) == [Deleted(FIRST)]


def test_a_stream_past_its_due_does_not_exist_before_it_is_expired() -> None:
    for command in (Append(S, b"x", DUE), Append(S, b"", DUE, close=True), Delete(S, DUE)):
        machine = window_machine()
        assert apply(machine, command) == [StreamNotFound(S)]
        assert apply(machine, Touch(S, FIRST, 0)) == [Touched()]
        assert read(machine, S, 0, 1) == machine.query(Head(S), 0) == StreamNotFound(S)
        assert machine.query(ListStreams("", "", 9), 0) == StreamPage([], False)
        assert machine.stream_count == 1
        assert apply(machine, Create(S, "u", 0, body=b"new")) == [Created(3, False, False, 4 << 16)]
        assert apply(machine, Expire(S, FIRST, DUE)) == [NotDue()]
        assert machine.hot_bytes == 3


def test_an_absolute_expiry_is_not_moved_by_use() -> None:
    machine = OpenedMachine()
    apply(machine, Create(S, "t", 0, expires_at_ms=5000, expires_at="1970-01-01T00:00:05Z"))
    apply(machine, Append(S, b"x", 4999), Touch(S, FIRST, 4999))
    assert machine.query(Head(S), 10**9) == StreamInfo(FIRST, "t", 1, 0, False, None, "1970-01-01T00:00:05Z", False)
    assert apply(machine, Append(S, b"x", 5000), Expire(S, FIRST, 0)) == [StreamNotFound(S), Deleted(FIRST)]


@pytest.mark.parametrize(("ttl_s", "grace_ms"), [(1, 125), (8, 1000), (480, 60_000), (10**6, 60_000)])
def test_a_touch_is_due_once_it_is_older_than_the_grace(ttl_s: int, grace_ms: int) -> None:
    machine = window_machine(ttl_s)
    asked = [1000, 1000 + grace_ms - 1, 1000 + grace_ms, 999]  # a clock behind the touch cannot tell
    infos = [machine.query(Head(S), now_ms) for now_ms in asked]
    slices = [read(machine, S, NOW, 1, now_ms) for now_ms in asked]
    assert [info.touch_due for info in infos if isinstance(info, StreamInfo)] == [False, False, True, True]
    assert [piece.touch_due for piece in slices if isinstance(piece, ReadSlice)] == [False, False, True, True]
    assert isinstance(infos[0], StreamInfo) and infos[0].ttl_s == ttl_s


def test_due_names_each_stream_once_a_second_until_it_is_gone() -> None:
    machine = window_machine()
    apply(machine, Create("b/fixed", "t", 0, expires_at_ms=20_000), Create("b/none", "t", 0))
    assert machine.due(DUE - 1) == []
    assert machine.due(DUE) == [Expire(S, FIRST, 0)]
    assert machine.due(DUE + REPEAT_MS - 1) == []
    assert machine.due(DUE + REPEAT_MS) == [Expire(S, FIRST, 0)]
    apply(machine, Touch(S, FIRST, DUE - 1), Expire(S, FIRST, DUE))
    assert machine.due(DUE + 8000) == []
    assert machine.due(30_000) == [Expire(S, FIRST, 0), Expire("b/fixed", 2 << 16, 0)]
    assert StreamMachine.restore(machine.freeze().slices(99)).due(30_000) == [Expire(S, FIRST, 0), Expire("b/fixed", 2 << 16, 0)]
    apply(machine, Expire(S, FIRST, 30_000), Expire("b/fixed", 2 << 16, 30_000))
    assert machine.due(10**9) == []
    assert len(machine._table.expiry) == 0


def test_due_is_bounded_and_forgets_what_was_deleted() -> None:
    machine = OpenedMachine()
    apply(machine, *[Create(f"b/{number}", "t", 0, ttl_s=10**6) for number in range(2500)])
    far = 2 * 10**9
    assert [len(machine.due(far)) for _ in range(4)] == [EXPIRES_PER_CALL_MAX, EXPIRES_PER_CALL_MAX, 500, 0]
    apply(machine, *[Delete(f"b/{number}", 0) for number in range(2500)])
    assert len(machine._table.expiry) < 200
    assert machine.due(far + REPEAT_MS) == []
    for _ in range(50):
        apply(machine, *[command for _ in range(20) for command in (Create(S, "t", 0, ttl_s=10**6), Delete(S, 0))])
    assert len(machine._table.expiry) < 200


# --- who is woken, what is listed --------------------------------------------------------------------------------------------------------


def woken(machine: StreamMachine, *commands: Command) -> list[str]:
    machine.woken.clear()
    apply(machine, *commands)
    return machine.woken


def test_watched_streams_are_woken_by_what_a_reader_can_see() -> None:
    machine = machine_with_stream()
    apply(machine, Create("b/t", "t", 0, ttl_s=1), Append(S, b"x", 0), Append(S, b"x", 0, Producer("p", 0, 0)))
    assert machine.woken == []
    machine.watched = {S: None, "b/t": None, "b/new": None}
    assert woken(machine, Append(S, b"x", 0), Append("b/t", b"x", 0), Append(S, b"x", 0), Append("b/other", b"x", 0)) == [S, "b/t"]
    assert woken(machine, Append(S, b"x", 0, Producer("p", 0, 0)), Append(S, b"", 0), Create(S, "text/plain", 0), Touch("b/t", 2 << 16, 0)) == []
    assert woken(machine, Append(S, b"", 0, close=True)) == [S]
    assert woken(machine, Append(S, b"", 0, close=True)) == []
    assert woken(machine, Delete(S, 0)) == [S]
    assert woken(machine, Delete(S, 0), Create("b/new", "t", 0), Expire("b/t", 2 << 16, 9000)) == ["b/new", "b/t"]


def test_listing_pages_by_name_within_a_prefix() -> None:
    machine = OpenedMachine()
    listed = ["a/1", "b/1", "b/2", "b/3", "c/1"]
    apply(machine, *[Create(name, "t", 0) for name in reversed(listed)])
    assert machine.query(ListStreams("", "", 9), 0) == StreamPage(listed, False)
    assert machine.query(ListStreams("b/", "", 2), 0) == StreamPage(["b/1", "b/2"], True)
    assert machine.query(ListStreams("b/", "b/2", 2), 0) == StreamPage(["b/3"], False)
    assert machine.query(ListStreams("b/", "b/25", 1), 0) == StreamPage(["b/3"], False)
    assert machine.query(ListStreams("", "c/1", 2), 0) == StreamPage([], False)
    apply(machine, Delete("b/2", 0), Create("b/4", "t", 0))
    assert machine.query(ListStreams("b/", "b/1", 9), 0) == StreamPage(["b/3", "b/4"], False)


# --- producers: the table of specs/README.md, line by line -----------------------------------------------------------------------------


def taken(start: int, end: int, epoch: int, seq: int, duplicate: bool = False) -> Appended:
    return Appended(start, end, duplicate, False, True, epoch, seq)


def append_as(machine: StreamMachine, producer: str, epoch: int, seq: int, now_ms: int = 0) -> Result:
    return apply(machine, Append(S, b"..", now_ms, Producer(producer, epoch, seq)))[0]


def test_an_unknown_producer_starts_any_epoch_at_zero() -> None:
    machine = machine_with_stream()
    assert append_as(machine, "p", 7, 1) == SequenceGap(expected=0, received=1)
    assert append_as(machine, "p", 7, 0) == taken(0, 2, 7, 0)


def test_a_lower_epoch_is_fenced() -> None:
    machine = machine_with_stream()
    append_as(machine, "p", 7, 0)
    assert append_as(machine, "p", 6, 0) == StaleEpoch(current=7, received=6)
    assert append_as(machine, "p", 6, 1) == StaleEpoch(current=7, received=6)


def test_a_higher_epoch_starts_at_zero() -> None:
    machine = machine_with_stream()
    append_as(machine, "p", 7, 0)
    assert append_as(machine, "p", 9, 1) == BadEpochStart(epoch=9, received=1)
    assert append_as(machine, "p", 9, 0) == taken(2, 4, 9, 0)
    assert append_as(machine, "p", 7, 1) == StaleEpoch(current=9, received=7)


def test_sequences_of_an_epoch_have_no_gap() -> None:
    machine = machine_with_stream()
    assert [append_as(machine, "p", 0, seq) for seq in (0, 1, 3, 2)] == [taken(0, 2, 0, 0), taken(2, 4, 0, 1), SequenceGap(2, 3), taken(4, 6, 0, 2)]


def test_a_duplicate_answers_the_original_while_it_is_the_last_and_the_tail_after() -> None:
    machine = machine_with_stream()
    append_as(machine, "p", 0, 0)
    apply(machine, Append(S, b"other", 0))
    assert append_as(machine, "p", 0, 0) == taken(0, 2, 0, 0, duplicate=True)
    assert append_as(machine, "p", 0, 1) == taken(7, 9, 0, 1)
    assert append_as(machine, "p", 0, 0) == taken(9, 9, 0, 1, duplicate=True)  # names the highest sequence taken
    assert append_as(machine, "p", 0, 1) == taken(7, 9, 0, 1, duplicate=True)
    assert read(machine, S, 0, 100) == ReadSlice(0, 9, b"..other..", True, FIRST, "text/plain", tail=9)


def test_producers_are_counted_per_stream_and_forgotten_after_seven_idle_days() -> None:
    machine = machine_with_stream()
    assert PRODUCER_IDLE_MS == 7 * 86_400_000
    for number in range(PRODUCERS_PER_STREAM_MAX):
        assert isinstance(append_as(machine, f"p{number}", 0, 0, now_ms=number), Appended)
    tail = stream_of(machine).tail
    assert append_as(machine, "new", 0, 0, PRODUCER_IDLE_MS - 1) == TooManyProducers(10_000)
    assert append_as(machine, "p0", 0, 0, PRODUCER_IDLE_MS) == taken(0, 2, 0, 0, duplicate=True)  # a retry is a sign of life
    assert append_as(machine, "new", 0, 0, PRODUCER_IDLE_MS) == TooManyProducers(10_000)
    assert append_as(machine, "new", 0, 0, PRODUCER_IDLE_MS + 1) == taken(tail, tail + 2, 0, 0)
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
    assert append_as(machine, "p", 0, 0, now_ms=10 * PRODUCER_IDLE_MS) == taken(0, 2, 0, 0, duplicate=True)


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
        Append(S, b"x", 10, content_type="another"),
        Expire(S, FIRST, 10),
        Delete("b/none", 10),
    )
    twin.apply(twin.applied_index + 1, entry.NOOP, b"")
    assert machine.digest() == twin.digest()


# --- reads and columns ---------------------------------------------------------------------------------------------------------------


def test_read_refusals() -> None:
    machine = machine_with_stream()
    apply(machine, Append(S, b"abc", 0), Append(S, b"defg", 0))
    assert read(machine, "b/none", 0, 10) == StreamNotFound("b/none")
    assert read(machine, S, 8, 10) == OffsetBeyondTail(8, 7)
    assert read(machine, S, 4, 10) == OffsetInsideMessage(4, 3, 7)
    assert read(machine, S, 2, 10) == OffsetInsideMessage(2, 0, 3)
    with pytest.raises(ValueError, match="negative and no sentinel"):
        read(machine, S, -3, 10)


def test_a_message_larger_than_a_chunk_is_kept_and_read_without_a_copy() -> None:
    machine = machine_with_stream()
    large = bytes(CHUNK_BYTES * 3)
    apply(machine, Append(S, b"small", 0), Append(S, large, 0), Append(S, b"after", 0))
    slice_ = read(machine, S, 5, 1)
    assert isinstance(slice_, ReadSlice)
    assert slice_.data is large
    assert read(machine, S, 0, 1) == ReadSlice(0, 5, b"small", False, FIRST, "text/plain", tail=10 + len(large))
    assert read(machine, S, 5 + len(large), 1) == ReadSlice(
        5 + len(large), 10 + len(large), b"after", True, FIRST, "text/plain", tail=10 + len(large)
    )


def test_chunks_are_bounded_in_bytes_and_messages() -> None:
    machine = machine_with_stream()
    apply(machine, *[Append(S, b"x", 0) for _ in range(CHUNK_MESSAGES + 1)])
    stream = stream_of(machine)
    assert [len(chunk.ends) for chunk in stream.chunks()] == [CHUNK_MESSAGES, 1]
    apply(machine, *[Append(S, bytes(1000), 0) for _ in range(200)])
    assert all(len(chunk.data) < 2 * CHUNK_BYTES for chunk in stream.sealed or [])


def test_an_idle_stream_is_small() -> None:
    """100,000 idle streams are to fit in 300 MB; each takes about 220 bytes with its name, another 430 with one small message."""
    machine = OpenedMachine()
    count = 5_000
    tracemalloc.start()
    try:
        for number in range(count):
            machine.apply(number + 1, entry.COMMANDS_V1, encode_commands([Create(f"_default/stream-{number:08}", "application/json", number)]))
        empty_bytes = tracemalloc.get_traced_memory()[0] / count
        for number in range(count):
            payload = encode_commands([Append(f"_default/stream-{number:08}", b"sixteen bytes...", count + number)])
            machine.apply(count + number + 1, entry.COMMANDS_V1, payload)
        with_message_bytes = tracemalloc.get_traced_memory()[0] / count
    finally:
        tracemalloc.stop()
    assert empty_bytes < 400
    assert with_message_bytes < 1000

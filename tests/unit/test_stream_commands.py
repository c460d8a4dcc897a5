"""The bytes of commands, for ever: tags, field order, and what is refused."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.stream.commands import (
    AckOutbox,
    Append,
    BucketFence,
    BucketOpen,
    Command,
    Create,
    CreateFork,
    Delete,
    Expire,
    MalformedCommands,
    Pin,
    Producer,
    PublishSnapshot,
    Range,
    ResolveFork,
    SettlePin,
    Touch,
    Trim,
    Unpin,
    commands_payload,
    decode_commands,
    encode_commands,
)
from anabranch_node.core.stream.queries import (
    BucketCount,
    ForkLook,
    Head,
    ListStreams,
    PointAt,
    Query,
    ReadAt,
    ReadInherited,
    ReadMessages,
    ReadSnapshot,
)
from anabranch_node.core.stream.results import (
    Appended,
    BadEpochStart,
    BucketFenced,
    BucketOpened,
    BucketUnknown,
    ContentTypeMismatch,
    Created,
    Deleted,
    EmptyBody,
    ForkResolved,
    ForkTooLate,
    Inherited,
    MessageSlice,
    NameHeld,
    NoSnapshot,
    NotDue,
    OffsetBeyondTail,
    OffsetInsideMessage,
    Pinned,
    Point,
    PointElsewhere,
    QueryResult,
    ReadSlice,
    Refusal,
    Result,
    SeqRegression,
    SequenceGap,
    SnapshotBlob,
    SnapshotPublished,
    StaleEpoch,
    StaleOpen,
    StreamClosed,
    StreamExists,
    StreamGone,
    StreamInfo,
    StreamNotFound,
    StreamPage,
    StreamRow,
    SubOffsetBeyond,
    TooManyProducers,
    Touched,
    TrimDone,
    Trimmed,
    Unpinned,
)

GOLDEN_V1: list[tuple[list[Command], str]] = [
    ([], "90"),
    ([Create("b/s", "text/plain", 7)], "919c01a3622f73aa746578742f706c61696e07c0c0a0c2c400c400c0c0"),
    (
        [Create("b/s", "t", 7, 60, None, "", True, b"hi", b"\1\0\0\0\1\0\0\0")],
        "919c01a3622f73a174073cc0a0c3c4026869c4080100000001000000c0c0",
    ),
    ([Create("b/s", "t", 7, None, 9, "x")], "919c01a3622f73a17407c009a178c2c400c400c0c0"),
    ([Create("b/s", "t", 7, retention_bytes=300, retention_age_s=5)], "919c01a3622f73a17407c0c0a0c2c400c400cd012c05"),
    ([Append("b/s", b"hi", 1_700_000_000_000)], "919b02a3622f73c4026869cf0000018bcfe56800c0a0c400c2c0a0c0"),
    ([Append("b/s", b"hi", 7, Producer("p", 3, 300))], "919b02a3622f73c40268690793a17003cd012ca0c400c2c0a0c0"),
    ([Append("b/s", b"hi", 7, None, "t", b"\2\0\0\0", True, "9", "k", 5)], "919b02a3622f73c402686907c0a174c40402000000c3a139a16b05"),
    ([Delete("b/é", 1), Touch("b/s", 65536, 2), Expire("b/s", 65537, 3)], "939303a4622fc3a9019404a3622f73ce00010000029405a3622f73ce0001000103"),
    (
        [PublishSnapshot("b/s", 9, "t", b"fold", 7), PublishSnapshot("b/s", 9, "t", b"", 7, 65536)],
        "929706a3622f7309a174c404666f6c6407009706a3622f7309a174c40007ce00010000",
    ),
    ([Trim("b/s", 65536, 9, 7), Unpin("b/s", 65536, "u", 7)], "929507a3622f73ce000100000907950aa3622f73ce00010000a17507"),
    (
        [Pin("b/s", "u", "b/f", -2, 0, "", 7), Pin("b/s", "u", "b/f", 9, 1, "t", 7, 65536)],
        "929908a3622f73a175a3622f66fe00a007009908a3622f73a175a3622f660901a17407ce00010000",
    ),
    (
        [CreateFork("b/f", "u", "b/s", 65536, None, 0, 9, 3, [Range("b/s", 65536, 3, 9)], "t", 7)],
        "91dc001509a3622f66a175a3622f73ce00010000c00009039194a3622f73ce000100000309a17407c0c0a0c2c400c400c0c000",
    ),
    (
        [CreateFork("b/f", "u", "b/s", 65536, 8, 1, 9, 9, [], "t", 7, 60, None, "", True, b"hi", b"", 300, 5)],
        "91dc001509a3622f66a175a3622f73ce000100000801090990a174073cc0a0c3c4026869c400cd012c0500",
    ),
    (
        [ResolveFork("b/f", "u", 7), SettlePin("b/s", 65536, "u", True, 7), AckOutbox([1, 2], 7)],
        "93940ba3622f66a17507960ca3622f73ce00010000a175c307930d92010207",
    ),
    ([BucketOpen("b", 3, 7), BucketFence("b", 4, 7)], "92940ea1620307940fa1620407"),
]

OLD_V1: list[tuple[list[Command], str]] = [
    ([Create("b/s", "text/plain", 7)], "919401a3622f73aa746578742f706c61696e07"),
    ([Append("b/s", b"hi", 1_700_000_000_000)], "919502a3622f73c4026869cf0000018bcfe56800c0"),
    ([Append("b/s", b"hi", 7, Producer("p", 3, 300))], "919502a3622f73c40268690793a17003cd012c"),
    ([Create("b/s", "t", 7, 60, None, "", True, b"hi", b"\1\0\0\0\1\0\0\0")], "919a01a3622f73a174073cc0a0c3c4026869c4080100000001000000"),
    ([Create("b/é", "t", 0), Append("b/é", b"\0", 1)], "929401a4622fc3a9a174009502a4622fc3a9c4010001c0"),
    ([Append("b/s", b"hi", 7)], "919402a3622f73c402686907"),
]
"""What older versions wrote before the last fields existed."""

counts = st.integers(0, 2**63 - 1)
may_count = st.none() | counts
text = st.text(st.characters(exclude_categories=["Cs"]))
any_producer = st.none() | st.builds(Producer, text, counts, counts)
any_command = st.one_of(
    st.builds(Create, text, text, counts, may_count, may_count, text, st.booleans(), st.binary(), st.binary(), may_count, may_count),
    st.builds(
        Append,
        text,
        st.binary(),
        counts,
        any_producer,
        text,
        st.binary(),
        st.booleans(),
        st.none() | text,
        text,
        st.none() | st.integers(-(2**63), 2**63 - 1),
    ),
    st.builds(Delete, text, counts),
    st.builds(Touch, text, counts, counts),
    st.builds(Expire, text, counts, counts),
    st.builds(PublishSnapshot, text, counts, text, st.binary(), counts, counts),
    st.builds(Trim, text, counts, counts, counts),
    st.builds(Pin, text, text, text, st.just(-2) | counts, counts, text, counts, counts),
    st.builds(
        CreateFork,
        text,
        text,
        text,
        counts,
        may_count,
        counts,
        counts,
        counts,
        st.lists(st.builds(Range, text, counts, counts, counts), max_size=3),
        text,
        counts,
        may_count,
        may_count,
        text,
        st.booleans(),
        st.binary(),
        st.binary(),
        may_count,
        may_count,
    ),
    st.builds(Unpin, text, counts, text, counts),
    st.builds(ResolveFork, text, text, counts),
    st.builds(SettlePin, text, counts, text, st.booleans(), counts),
    st.builds(AckOutbox, st.lists(counts, max_size=3), counts),
    st.builds(BucketOpen, text, counts, counts),
    st.builds(BucketFence, text, counts, counts),
)


@pytest.mark.parametrize(("commands", "golden"), GOLDEN_V1)
def test_golden_bytes(commands: list[Command], golden: str) -> None:
    assert encode_commands(commands).hex() == golden
    assert decode_commands(bytes.fromhex(golden)) == commands


@pytest.mark.parametrize(("commands", "old"), OLD_V1)
def test_missing_trailing_fields_have_their_defaults(commands: list[Command], old: str) -> None:
    assert decode_commands(bytes.fromhex(old)) == commands


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65535, 65536])
def test_commands_encoded_one_by_one_are_the_same_payload(count: int) -> None:
    commands: list[Command] = [Delete("b/s", 1)] * count
    assert commands_payload([msgspec.msgpack.encode(command) for command in commands]) == encode_commands(commands)


@given(st.lists(any_command, max_size=8))
def test_round_trip(commands: list[Command]) -> None:
    assert decode_commands(encode_commands(commands)) == commands


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"", "truncated"),
        (b"\xc1", "invalid"),
        (encode_commands([Append("b/s", b"hi", 7)])[:-1], "truncated"),
        (encode_commands([]) + b"\0", "trailing"),
        (msgspec.msgpack.encode({"a": 1}), "Expected `array`"),
        (msgspec.msgpack.encode([[99, "b/s"]]), "Invalid value 99"),
        (msgspec.msgpack.encode([[1, "b/s", "t"]]), "at least length 4"),
        (msgspec.msgpack.encode([[1, "b/s", "t", 7, 1, 1, "", False, b"", b"", None, 1, "from the future"]]), "at most length 11, got 12"),
        (msgspec.msgpack.encode([[9, "b/f", "u", "b/s", 1, None, 0, 9, 3, [["b/s", 1, 3, 9, "new"]], "t", 7]]), "at most length 4, got 5"),
        (msgspec.msgpack.encode([[2, "b/s", b"x", 7, ["p", 0, 0, 1]]]), "at most length 3"),
        (msgspec.msgpack.encode([[2, "b/s", "text", 7, None]]), "Expected `bytes`"),
        (msgspec.msgpack.encode([[2, "b/s", b"x", 7.5, None]]), "Expected `int`"),
        (bytes.fromhex("919401a3ff2f73a17407"), "UTF-8"),
    ],
)
def test_malformed_payloads_are_refused_by_name(payload: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=r"(?i)log entry payload of \d+ bytes .*" + problem):
        decode_commands(payload)


@given(st.binary(max_size=60))
def test_garbage_is_refused_and_nothing_else(payload: bytes) -> None:
    try:
        commands = decode_commands(payload)
    except MalformedCommands:
        return
    assert decode_commands(encode_commands(commands)) == commands


SLICE = ReadSlice(9, 10, b"x", True, 5, "t", True, True, 10, True)
RANGES = [Range("b/s", 65536, 3, 9)]
RESULTS: dict[int, Result | QueryResult] = {
    1: Created(0, False, True, 65536, "t"),
    2: Appended(0, 1, True),
    3: Deleted(65536),
    4: Touched(),
    5: SnapshotPublished(9),
    6: TrimDone(),
    7: Pinned(65536, 9, 3, "t", 60, None, "", RANGES),
    8: PointElsewhere(65536, RANGES, True),
    9: Unpinned(),
    10: StreamNotFound("b/s"),
    11: StreamExists("b/s", "t"),
    12: EmptyBody("b/s"),
    13: StaleEpoch(2, 1),
    14: BadEpochStart(3, 1),
    15: SequenceGap(1, 3),
    16: TooManyProducers(10),
    17: OffsetBeyondTail(9, 3),
    18: OffsetInsideMessage(2, 0, 3),
    19: StreamClosed(9),
    20: ContentTypeMismatch("t"),
    21: SeqRegression("a"),
    22: NotDue(),
    23: StreamGone("b/s"),
    24: NameHeld("b/s"),
    25: Trimmed(9),
    26: NoSnapshot(),
    27: ForkTooLate(),
    28: SubOffsetBeyond(),
    29: BucketUnknown("b"),
    30: SLICE,
    31: StreamInfo(5, "t", 9, 3, True, 60, "", False, 3, 300, 5),
    32: StreamPage(["b/s"], True, [StreamRow("t", 9, False, 1, 2, "")], 1),
    33: StaleOpen(),
    34: MessageSlice(0, 1, b"x", b"\1\0\0\0", 5, True, "t", True, True, 1, 0),
    35: Inherited(3, RANGES, SLICE),
    36: Point(9, 1),
    37: SnapshotBlob(9, "t", b"fold", 10, True, 5),
    40: ForkResolved(True),
    41: BucketOpened(),
    42: BucketFenced(3),
}
QUERIES: dict[int, Query] = {
    1: ReadAt("b/s", -1, 9, "k", 5),
    2: Head("b/s"),
    3: ListStreams("b/", "b/s", 9, True),
    4: ReadMessages("b/s", -1, 9, 65536, 12, "k", 5),
    5: ReadInherited("b/s", 65536, 3, 9, 9, "k", 5),
    6: PointAt("b/s", 65536, 3, 9, 1, True),
    7: ReadSnapshot("b/s", -1, True),
    8: BucketCount("b"),
    9: ForkLook("b/f", "b/s", None, 1, "t", 60, None, False, 300, 5),
}


def test_results_keep_their_tags_and_say_what_happened() -> None:
    assert {type(result) for result in RESULTS.values()} == set(get_args(Result | QueryResult)), "each has its tag here"
    for tag, result in RESULTS.items():
        encoded = msgspec.msgpack.encode(result)
        assert encoded[1] == tag
        assert msgspec.msgpack.decode(encoded, type=Result | QueryResult) == result
        if isinstance(result, Refusal):
            assert result.definite
            assert " " in str(result) or isinstance(result, NotDue | StaleOpen)
    assert str(SequenceGap(1, 3)) == "producer sequence 3 leaves a gap: 1 is expected"


def test_queries_keep_their_tags() -> None:
    assert {type(query) for query in QUERIES.values()} == set(get_args(Query)), "each has its tag here"
    for tag, query in QUERIES.items():
        encoded = msgspec.msgpack.encode(query)
        assert encoded[1] == tag
        assert msgspec.msgpack.decode(encoded, type=Query) == query

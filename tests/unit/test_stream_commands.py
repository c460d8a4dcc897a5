"""The bytes of commands, for ever: tags, field order, and what is refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.stream.commands import (
    Append,
    Command,
    Create,
    Delete,
    Expire,
    MalformedCommands,
    Producer,
    Touch,
    commands_payload,
    decode_commands,
    encode_commands,
)
from anabranch_node.core.stream.queries import Head, ListStreams, Query, ReadAt
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
    ReadSlice,
    Refusal,
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

GOLDEN_V1: list[tuple[list[Command], str]] = [
    ([], "90"),
    ([Create("b/s", "text/plain", 7)], "919a01a3622f73aa746578742f706c61696e07c0c0a0c2c400c400"),
    ([Create("b/s", "t", 7, 60, None, "", True, b"hi", b"\1\0\0\0\1\0\0\0")], "919a01a3622f73a174073cc0a0c3c4026869c4080100000001000000"),
    ([Create("b/s", "t", 7, None, 9, "x")], "919a01a3622f73a17407c009a178c2c400c400"),
    ([Append("b/s", b"hi", 1_700_000_000_000)], "919b02a3622f73c4026869cf0000018bcfe56800c0a0c400c2c0a0c0"),
    ([Append("b/s", b"hi", 7, Producer("p", 3, 300))], "919b02a3622f73c40268690793a17003cd012ca0c400c2c0a0c0"),
    ([Append("b/s", b"hi", 7, None, "t", b"\2\0\0\0", True, "9", "k", 5)], "919b02a3622f73c402686907c0a174c40402000000c3a139a16b05"),
    ([Delete("b/é", 1), Touch("b/s", 65536, 2), Expire("b/s", 65537, 3)], "939303a4622fc3a9019404a3622f73ce00010000029405a3622f73ce0001000103"),
]

OLD_V1: list[tuple[list[Command], str]] = [
    ([Create("b/s", "text/plain", 7)], "919401a3622f73aa746578742f706c61696e07"),
    ([Append("b/s", b"hi", 1_700_000_000_000)], "919502a3622f73c4026869cf0000018bcfe56800c0"),
    ([Append("b/s", b"hi", 7, Producer("p", 3, 300))], "919502a3622f73c40268690793a17003cd012c"),
    ([Create("b/é", "t", 0), Append("b/é", b"\0", 1)], "929401a4622fc3a9a174009502a4622fc3a9c4010001c0"),
    ([Append("b/s", b"hi", 7)], "919402a3622f73c402686907"),
]
"""What older versions wrote before the last fields existed."""

counts = st.integers(0, 2**63 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]))
any_producer = st.none() | st.builds(Producer, text, counts, counts)
any_command = st.one_of(
    st.builds(Create, text, text, counts, st.none() | counts, st.none() | counts, text, st.booleans(), st.binary(), st.binary()),
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
        (msgspec.msgpack.encode([[1, "b/s", "t", 7, 1, 1, "", False, b"", b"", "from the future"]]), "at most length 9, got 10"),
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


RESULTS = {
    1: Created(0, False),
    2: Appended(0, 1, True),
    10: StreamNotFound("b/s"),
    11: StreamExists("b/s", "t"),
    12: EmptyBody("b/s"),
    13: StaleEpoch(2, 1),
    14: BadEpochStart(3, 1),
    15: SequenceGap(1, 3),
    16: TooManyProducers(10),
    17: OffsetBeyondTail(9, 3),
    18: OffsetInsideMessage(2, 0, 3),
    3: Deleted(65536),
    4: Touched(),
    19: StreamClosed(9),
    20: ContentTypeMismatch("t"),
    21: SeqRegression("a"),
    22: NotDue(),
    30: ReadSlice(0, 1, b"x", True, 5, "t", True, True),
    31: StreamInfo(5, "t", 9, 0, True, 60, "", False),
    32: StreamPage(["b/s"], True),
}
UNION = Created | Appended | StreamNotFound | StreamExists | EmptyBody | StaleEpoch | BadEpochStart | SequenceGap | TooManyProducers
UNION |= OffsetBeyondTail | OffsetInsideMessage | ReadSlice | Deleted | Touched | StreamClosed | ContentTypeMismatch | SeqRegression | NotDue
UNION |= StreamInfo | StreamPage
QUERIES = {1: ReadAt("b/s", -1, 9), 2: Head("b/s"), 3: ListStreams("b/", "b/s", 9)}


def test_results_keep_their_tags_and_say_what_happened() -> None:
    for tag, result in RESULTS.items():
        encoded = msgspec.msgpack.encode(result)
        assert encoded[1] == tag
        assert msgspec.msgpack.decode(encoded, type=UNION) == result
        if isinstance(result, Refusal):
            assert result.definite
            assert " " in str(result) or isinstance(result, NotDue)
    assert str(SequenceGap(1, 3)) == "producer sequence 3 leaves a gap: 1 is expected"


def test_queries_keep_their_tags() -> None:
    for tag, query in QUERIES.items():
        encoded = msgspec.msgpack.encode(query)
        assert encoded[1] == tag
        assert msgspec.msgpack.decode(encoded, type=Query) == query

"""The bytes of commands, for ever: tags, field order, and what is refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.stream.commands import Append, Command, Create, MalformedCommands, Producer, decode_commands, encode_commands
from anabranch_node.core.stream.results import (
    Appended,
    BadEpochStart,
    Created,
    EmptyBody,
    OffsetBeyondTail,
    OffsetInsideMessage,
    ReadSlice,
    Refusal,
    SequenceGap,
    StaleEpoch,
    StreamExists,
    StreamNotFound,
    TooManyProducers,
)

GOLDEN_V1: list[tuple[list[Command], str]] = [
    ([], "90"),
    ([Create("b/s", "text/plain", 7)], "919401a3622f73aa746578742f706c61696e07"),
    ([Append("b/s", b"hi", 1_700_000_000_000)], "919502a3622f73c4026869cf0000018bcfe56800c0"),
    ([Append("b/s", b"hi", 7, Producer("p", 3, 300))], "919502a3622f73c40268690793a17003cd012c"),
    ([Create("b/é", "t", 0), Append("b/é", b"\0", 1)], "929401a4622fc3a9a174009502a4622fc3a9c4010001c0"),
]

counts = st.integers(0, 2**63 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]))
any_command = st.one_of(
    st.builds(Create, text, text, counts),
    st.builds(Append, text, st.binary(), counts, st.none() | st.builds(Producer, text, counts, counts)),
)


@pytest.mark.parametrize(("commands", "golden"), GOLDEN_V1)
def test_golden_bytes(commands: list[Command], golden: str) -> None:
    assert encode_commands(commands).hex() == golden
    assert decode_commands(bytes.fromhex(golden)) == commands


def test_a_missing_trailing_field_has_its_default() -> None:
    """What an older version wrote before the field existed."""
    assert decode_commands(bytes.fromhex("919402a3622f73c402686907")) == [Append("b/s", b"hi", 7)]


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
        (msgspec.msgpack.encode([[1, "b/s", "t", 7, "from the future"]]), "at most length 3, got 4"),
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
    30: ReadSlice(0, 1, b"x", True, 5),
}


def test_results_keep_their_tags_and_say_what_happened() -> None:
    union = Created | Appended | StreamNotFound | StreamExists | EmptyBody | StaleEpoch | BadEpochStart
    rest = SequenceGap | TooManyProducers | OffsetBeyondTail | OffsetInsideMessage | ReadSlice
    for tag, result in RESULTS.items():
        encoded = msgspec.msgpack.encode(result)
        assert encoded[1] == tag
        assert msgspec.msgpack.decode(encoded, type=union | rest) == result
        if isinstance(result, Refusal):
            assert result.definite
            assert " " in str(result)
    assert str(SequenceGap(1, 3)) == "producer sequence 3 leaves a gap: 1 is expected"

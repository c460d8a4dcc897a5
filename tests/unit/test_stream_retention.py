"""Retention: when the machine asks for a Trim, what the Trim does, and what holds it back. That its effect is the model's is shown by
test_stream_like_model.py."""

import pytest

from anabranch_node.core.stream.commands import Append, Command, Create, CreateFork, Pin, PublishSnapshot, Range, Trim
from anabranch_node.core.stream.machine import StreamMachine
from anabranch_node.core.stream.queries import NOW, Head, ReadAt
from anabranch_node.core.stream.results import Pinned, ReadSlice, StreamInfo, Trimmed
from tests.checkers.opened import OpenedMachine

S = "b/s"
INCARNATION = 1 << 16


class Log:
    def __init__(self) -> None:
        self.machine: StreamMachine = OpenedMachine()

    def apply(self, *commands: Command) -> list[object]:
        return list(self.machine.apply_commands(self.machine.applied_index + 1, commands))

    def earliest(self, stream: str = S) -> int:
        info = self.machine.query(Head(stream), 0)
        assert isinstance(info, StreamInfo)
        return info.earliest

    def trim(self, now_ms: int) -> list[Trim]:
        """What is due, carried out as the leader does."""
        due = self.machine.due(now_ms)
        trims = [command for command in due if isinstance(command, Trim)]
        assert trims == due
        self.apply(*[Trim(trim.stream, trim.incarnation, trim.offset, now_ms) for trim in trims])
        return trims


@pytest.fixture
def log() -> Log:
    return Log()


def restored(log: Log) -> Log:
    twin = Log()
    twin.machine = StreamMachine.restore(log.machine.freeze().slices(64))
    assert twin.machine.digest() == log.machine.digest()
    return twin


def test_bytes_are_trimmed_at_a_boundary_once_they_pass_the_limit(log: Log) -> None:
    log.apply(Create(S, "t", 1, retention_bytes=10), *[Append(S, b"1234", 2) for _ in range(2)])
    assert log.machine.due(3) == []
    log.apply(Append(S, b"1234", 3))
    for machine in (log.machine, restored(log).machine):
        assert machine.due(4) == [Trim(S, INCARNATION, 4, 0)]
        assert machine.due(5) == [], "it is on its way"
        assert machine.due(2_000) == [Trim(S, INCARNATION, 4, 0)], "it may have got lost"
    log.trim(5_000)
    assert (log.earliest(), log.machine.hot_bytes) == (4, 8)
    assert log.machine.query(ReadAt(S, -1, 99), 0) == Trimmed(4)
    found = log.machine.query(ReadAt(S, 4, 99), 0)
    assert isinstance(found, ReadSlice)
    assert (found.data, found.start, found.tail) == (b"12341234", 4, 12)
    assert log.trim(9_000) == []


def test_the_last_message_is_not_trimmed_for_its_size(log: Log) -> None:
    log.apply(Create(S, "t", 1, retention_bytes=10), Append(S, b"x", 2), Append(S, b"y" * 50, 2))
    assert log.trim(3) == [Trim(S, INCARNATION, 1, 0)]
    assert log.trim(5_000) == []
    assert log.earliest() == 1


def test_many_messages_over_sealed_chunks_leave_what_was_asked_for(log: Log) -> None:
    log.apply(Create(S, "t", 1, retention_bytes=100_000))
    for number in range(40):
        log.apply(Append(S, b"%d" % (number % 10) * 10_007, 2))
        log.trim(5_000 + number * 5_000)
        log = restored(log) if number % 7 == 0 else log
    tail = 40 * 10_007
    assert log.earliest() == tail - 9 * 10_007
    assert log.machine.hot_bytes == 9 * 10_007


def test_messages_are_trimmed_by_their_age(log: Log) -> None:
    log.apply(Create(S, "t", 1_000, retention_age_s=10), Append(S, b"old", 2_000), Append(S, b"new", 7_000))
    assert log.trim(11_999) == []
    assert log.trim(12_000) == [Trim(S, INCARNATION, 3, 0)]
    log = restored(log)
    assert log.trim(13_999) == []
    assert log.trim(17_000) == [Trim(S, INCARNATION, 6, 0)]
    assert (log.earliest(), log.machine.hot_bytes) == (6, 0)
    log.apply(Append(S, b"later", 20_000))
    assert log.trim(29_999) == []
    assert log.trim(30_000) == [Trim(S, INCARNATION, 11, 0)]


def test_a_published_snapshot_holds_retention_back(log: Log) -> None:
    log.apply(Create(S, "t", 1, retention_bytes=4, retention_age_s=1), Append(S, b"1234", 2), Append(S, b"5678", 2))
    log.apply(PublishSnapshot(S, 4, "t", b"fold", 3))
    assert log.trim(60_000) == []
    log.apply(Trim(S, INCARNATION, 8, 60_001))  # a late one, from before
    assert log.earliest() == 4


def test_a_trim_for_another_incarnation_or_inside_a_message_does_nothing(log: Log) -> None:
    log.apply(Create(S, "t", 1, retention_bytes=99), Append(S, b"1234", 2), Append(S, b"5678", 2))
    log.apply(Trim(S, INCARNATION + 1, 4, 3), Trim(S, INCARNATION, 5, 3), Trim(S, INCARNATION, 9, 3), Trim(S, INCARNATION, 0, 3))
    assert log.earliest() == 0
    log.apply(Trim(S, INCARNATION, 4, 3), Trim(S, INCARNATION, 0, 3))
    assert log.earliest() == 4


def test_a_trimmed_source_holds_the_bytes_that_a_fork_still_needs_until_it_is_gone(log: Log) -> None:
    log.apply(Create(S, "t", 1, retention_bytes=4), Append(S, b"1234", 2))
    (pinned,) = log.apply(Pin(S, "u1", "b/f", NOW, 0, "", 3))
    assert isinstance(pinned, Pinned)
    log.apply(Append(S, b"5678", 4), Append(S, b"9abc", 4))
    log.trim(5_000)
    assert (log.earliest(), log.machine.hot_bytes) == (8, 12)
    again = Pin(S, "u2", "b/g", NOW, 0, "", 5)
    (late,) = log.apply(again)
    assert isinstance(late, Pinned)
    assert (late.earliest, late.ranges) == (8, [Range(S, INCARNATION, 8, 12)])


def test_in_a_fork_only_its_own_part_is_cut_and_the_inherited_part_goes_as_a_whole(log: Log) -> None:
    ranges = [Range("b/other", 9, 0, 100)]
    log.apply(CreateFork(S, "u1", "b/other", 9, None, 0, 100, 0, ranges, "t", 1, retention_bytes=20))
    log.apply(Append(S, b"x" * 10, 2), Append(S, b"y" * 5, 2))
    assert log.trim(3) == [], "the limit lies within what is inherited"
    log.apply(Append(S, b"z" * 10, 3))
    assert log.trim(4) == [Trim(S, INCARNATION, 110, 0)]
    assert log.earliest() == 110

"""What a group knows of buckets: where it may make streams, which opens come too late, how many streams it has; through a snapshot, too."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.stream.commands import BucketFence, BucketOpen, Command, Create, CreateFork, Delete, Expire
from anabranch_node.core.stream.machine import StreamMachine
from anabranch_node.core.stream.queries import BucketCount
from anabranch_node.core.stream.results import BucketFenced, BucketOpened, BucketUnknown, Created, Deleted, Result, StaleOpen

OPEN, UNKNOWN = BucketOpened(), BucketUnknown("agents")
CREATE = Create("agents/s", "t", 0)


def applied(*commands: Command, machine: StreamMachine | None = None) -> list[Result]:
    machine = machine or StreamMachine()
    return machine.apply_commands(machine.applied_index + 1, commands)


def test_a_create_in_a_bucket_that_is_not_open_here_changes_nothing() -> None:
    fork = CreateFork("agents/f", "u", "b/s", 1, None, 0, 0, 0, [], "t", 0)
    machine = StreamMachine()
    before = machine.freeze().slices(1000)
    assert applied(CREATE, fork, BucketOpen("other", 5, 0), CREATE, machine=machine) == [UNKNOWN, UNKNOWN, OPEN, UNKNOWN]
    assert machine.stream_count == 0
    assert list(before) != list(machine.freeze().slices(1000)), "the other bucket is open"


def test_the_default_bucket_is_opened_like_any_other() -> None:
    create = Create("_default/s", "t", 0)
    results = applied(create, BucketOpen("_default", 0, 0), create)
    assert results[0] == BucketUnknown("_default") and isinstance(results[2], Created)


def test_a_create_of_a_stream_that_is_there_is_refused_under_a_fence_as_well() -> None:
    assert applied(BucketOpen("agents", 5, 0), CREATE, BucketFence("agents", 6, 0), CREATE)[2:] == [BucketFenced(1), UNKNOWN]


@pytest.mark.parametrize(("meta_index", "result"), [(5, StaleOpen()), (8, StaleOpen()), (9, OPEN), (10, OPEN)])
def test_an_open_below_the_highest_fence_of_any_bucket_is_refused(meta_index: int, result: Result) -> None:
    machine = StreamMachine()
    applied(BucketFence("other", 9, 0), BucketFence("third", 7, 0), machine=machine)
    assert applied(BucketOpen("agents", meta_index, 0), CREATE, machine=machine)[0] == result
    assert machine.stream_count == (result == OPEN)


def test_a_fence_closes_its_bucket_and_no_other() -> None:
    results = applied(BucketOpen("agents", 5, 0), BucketOpen("others", 5, 0), BucketFence("agents", 9, 0), CREATE, Create("others/s", "t", 0))
    assert results[3] == UNKNOWN and isinstance(results[4], Created)


def test_a_late_fence_closes_and_a_newer_open_opens_again() -> None:
    results = applied(
        BucketFence("agents", 9, 0), BucketOpen("agents", 12, 0), BucketFence("agents", 9, 0), CREATE, BucketOpen("agents", 12, 0), CREATE
    )
    assert results[:5] == [BucketFenced(0), OPEN, BucketFenced(0), UNKNOWN, OPEN] and isinstance(results[5], Created)


def test_streams_are_counted_until_they_are_freed() -> None:
    machine = StreamMachine()
    opens = [BucketOpen("agents", 1, 0), BucketOpen("agents-2", 1, 0)]
    applied(*opens, Create("agents/a", "t", 0), Create("agents/b", "t", 0, ttl_s=1), Create("agents-2/a", "t", 0), machine=machine)
    assert applied(CREATE, CREATE, machine=machine)[1] == Created(0, True, False, 2 << 16)
    assert [machine.query(BucketCount(bucket), 0) for bucket in ("agents", "agents-2", "none")] == [BucketFenced(n) for n in (3, 1, 0)]
    applied(Delete("agents/a", 9_000), machine=machine)
    assert machine.query(BucketCount("agents"), 0) == BucketFenced(2), "the window of b has ended, and it is not freed yet"
    assert applied(Expire("agents/b", 1 << 16 | 3, 9_000), BucketFence("agents", 2, 9_000), machine=machine) == [
        Deleted(1 << 16 | 3),
        BucketFenced(1),
    ]
    applied(Delete("agents/s", 9_000), machine=machine)
    assert machine._table.bucket_counts == {"agents-2": 1}


COMMANDS = st.lists(
    st.one_of(
        st.builds(BucketOpen, st.sampled_from(["a", "b"]), st.integers(0, 9), st.just(0)),
        st.builds(BucketFence, st.sampled_from(["a", "b"]), st.integers(0, 9), st.just(0)),
        st.builds(Create, st.sampled_from(["a/1", "a/2", "b/1"]), st.just("t"), st.integers(0, 2_000), st.sampled_from([None, 1])),
        st.builds(Delete, st.sampled_from(["a/1", "a/2", "b/1"]), st.just(0)),
    ),
    max_size=30,
)


@given(COMMANDS, st.integers(0, 30))
def test_a_restored_group_goes_on_as_the_old_one(commands: list[Command], cut: int) -> None:
    machine, copy = StreamMachine(), StreamMachine()
    opened: dict[str, bool] = {}
    highest = 0
    for number, command in enumerate(commands):
        if number == cut:
            copy = StreamMachine.restore(list(machine.freeze().slices(50)))
        result = applied(command, machine=machine)[0]
        assert applied(command, machine=copy)[0] == result
        assert machine.digest() == copy.digest()
        if isinstance(command, BucketOpen):
            assert (result == OPEN) == (command.meta_index >= highest)
            opened[command.bucket] = opened.get(command.bucket, False) or result == OPEN
        elif isinstance(command, BucketFence):
            highest, opened[command.bucket] = max(highest, command.meta_index), False
            assert result == BucketFenced(sum(name.startswith(command.bucket) for name in machine._table.streams))
        elif isinstance(command, Create):
            assert isinstance(result, BucketUnknown) != opened.get(command.stream[0], False)
    assert StreamMachine.restore(list(machine.freeze().slices(50))).digest() == machine.digest()


def test_many_open_buckets_fill_several_slices() -> None:
    machine = StreamMachine()
    applied(*[BucketOpen(f"bucket-{number}", number, 0) for number in range(1_000)], BucketFence("bucket-7", 5_000, 0), machine=machine)
    slices = list(machine.freeze().slices(4_000))
    assert len(slices) > 3
    restored = StreamMachine.restore(slices)
    assert restored.digest() == machine.digest() and len(restored._table.fences.opened) == 999


def test_the_digest_sees_opens_and_fences() -> None:
    def digest(*commands: Command) -> bytes:
        machine = StreamMachine()
        machine.apply_commands(1, commands)
        return machine.digest()

    opened = BucketOpen("agents", 5, 0)
    assert (
        len({digest(), digest(opened), digest(BucketFence("x", 1, 0)), digest(BucketOpen("agents", 6, 0)), digest(opened, BucketFence("x", 1, 0))})
        == 5
    )

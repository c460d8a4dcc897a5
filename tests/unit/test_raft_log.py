"""The log against a plain list, and the hints by which two logs find where they agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch_node.core.raft import entry as entries_of
from anabranch_node.core.raft.errors import InvariantBroken
from anabranch_node.core.raft.log import Log

TERMS = st.lists(st.integers(1, 4), max_size=12).map(sorted)


def make_log(terms: list[int]) -> Log:
    return Log(1, 0, 0, 0, [entries_of.encode(term, entries_of.COMMANDS_V1, b"%d" % index) for index, term in enumerate(terms, 1)], 0)


@given(st.data())
def test_a_log_is_a_list_that_forgets_its_front(data: st.DataObject) -> None:
    """Append, truncate, commit, sync, cut and leave memory in any order: what is left is what a list would hold, and the counters are right."""
    log = make_log([])
    model: list[bytes] = []  # from index 1 on, for ever
    term, applied = 1, 0
    for step in data.draw(st.lists(st.sampled_from(["append", "append", "truncate", "commit", "stable", "cut", "memory"]), max_size=40)):
        if step == "append":
            term += data.draw(st.integers(0, 1))
            model.append(entries_of.encode(term, entries_of.COMMANDS_V1, b"x" * data.draw(st.integers(0, 9))))
            log.append(model[-1])
        elif step == "truncate" and log.last_index > log.committed:
            index = data.draw(st.integers(log.committed + 1, log.last_index))
            log.truncate(index)
            del model[index - 1 :]
        elif step == "commit":
            log.commit_to(data.draw(st.integers(0, log.last_index)))
            applied = log.committed
        elif step == "stable" and model:
            index = data.draw(st.integers(1, len(model)))
            log.stable_to(index, entries_of.term_of(model[index - 1]))
        elif step == "cut" and log.committed > log.snapshot_index:
            index = data.draw(st.integers(log.snapshot_index + 1, log.committed))
            log.mark_snapshot(index, data.draw(st.integers(log.first_index, index + 1)))
        elif step == "memory":
            log.leave_memory(data.draw(st.integers(0, 100)), applied)
        kept = model[log.first_index - 1 :]
        assert log.last_index == len(model)
        assert log.last_term == (entries_of.term_of(model[-1]) if model else 0)
        assert log.terms == [entries_of.term_of(entry) for entry in kept]
        resident = kept[log.resident_from - log.first_index :]
        assert log.entries == [None] * (len(kept) - len(resident)) + resident
        assert log.memory_bytes == sum(map(len, resident))
        assert log.stable <= log.last_index and log.committed <= log.last_index
        assert log.resident_from - 1 <= max(min(applied, log.stable), log.first_index - 1)
        assert log.slice(log.first_index, 10**6) == (kept if log.resident_from == log.first_index else None)


@given(TERMS, st.integers(0, 12), st.integers(1, 200))
def test_a_slice_is_bounded_but_never_empty(terms: list[int], start: int, bytes_max: int) -> None:
    log = make_log([1, *terms])
    start = min(start, len(terms)) + 1
    taken = log.slice(start, bytes_max)
    assert taken and taken == log.entries[start - 1 : start - 1 + len(taken)]
    assert len(taken) == 1 or sum(map(len, taken)) <= bytes_max


def test_what_is_committed_is_never_truncated() -> None:
    log = make_log([1, 1, 1])
    log.commit_to(2)
    with pytest.raises(InvariantBroken):
        log.truncate(2)
    log.truncate(3)
    assert log.last_index == 2
    with pytest.raises(InvariantBroken):
        log.commit_to(3)


def test_a_sync_of_what_was_truncated_meanwhile_does_not_count() -> None:
    log = make_log([1, 1])
    log.append(entries_of.encode(1, entries_of.COMMANDS_V1, b"old"))
    log.truncate(3)
    log.append(entries_of.encode(2, entries_of.COMMANDS_V1, b"new"))
    assert not log.stable_to(3, 1)
    assert log.stable == 2
    assert log.stable_to(3, 2)


@pytest.mark.parametrize(
    ("first_index", "prev_term", "snapshot_index", "terms", "commit"),
    [
        (1, 0, 0, [2, 1], 0),  # terms go down
        (5, 3, 4, [2], 4),  # below the term of the snapshot
        (5, 3, 3, [3], 0),  # a gap between snapshot and log
        (1, 0, 3, [1, 1], 0),  # a snapshot past the end
        (1, 0, 0, [1, 1], 3),  # a commit past the end: entries were lost
    ],
)
def test_a_log_that_cannot_be_is_refused(first_index: int, prev_term: int, snapshot_index: int, terms: list[int], commit: int) -> None:
    entries = [entries_of.encode(term, entries_of.NOOP, b"") for term in terms]
    with pytest.raises(InvariantBroken):
        Log(first_index, prev_term, snapshot_index, prev_term, entries, commit)


@given(TERMS, TERMS, st.integers(0, 8))
def test_conflict_hints_find_where_two_logs_meet(leader_terms: list[int], follower_terms: list[int], shared: int) -> None:
    """Two logs with a common front. The leader never goes below the place where they part, each refusal brings it closer,
    and it takes at most one round trip for each term that one of them holds."""
    front = leader_terms[:shared]
    tail = [term for term in follower_terms if not front or term >= front[-1]]
    leader, follower = make_log(leader_terms), make_log(front + tail)
    meet = 0
    while meet < min(leader.last_index, follower.last_index) and leader.term_at(meet + 1) == follower.term_at(meet + 1):
        meet += 1
    prev, tries = leader.last_index, 0
    while not follower.matches(prev, leader.term_at(prev) or 0):
        hint_index, hint_term = follower.conflict_hint(prev, leader.term_at(prev) or 0)
        after = leader.conflict_hint(hint_index, hint_term)[0] if hint_term else hint_index
        assert meet <= after < prev
        prev, tries = after, tries + 1
    assert tries <= len(set(leader_terms) | set(front + tail))

"""Single messages to a single replica, where a story of several would need an implausible network to get there."""

import pytest

from anabranch_node.core.raft import entry as entries_of
from anabranch_node.core.raft import membership
from anabranch_node.core.raft.errors import InvariantBroken
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.messages import Append, AppendAnswer, Heartbeat, HeartbeatAnswer, PreVote, TimeoutNow, Vote, VoteAnswer
from anabranch_node.core.raft.raft import Raft, RaftOptions, Role
from anabranch_node.core.raft.records import EntriesAppended, HardState, LogTruncated, SnapshotMark
from tests.scripts.cluster import FixedChance


def entry(term: int, payload: bytes = b"x") -> bytes:
    return entries_of.encode(term, entries_of.COMMANDS_V1, payload)


def make_raft(terms: list[int], term: int, commit: int = 0) -> Raft:
    mark = SnapshotMark(0, 0, membership.encode(Configuration((1, 2, 3))), 1, 0)
    return Raft(2, RaftOptions(), FixedChance(2), 1, HardState(term, 0, commit), mark, [entry(one) for one in terms])


def test_commit_stops_at_the_last_entry_this_append_verified() -> None:
    """We hold 1..5, the last two of a leader that is gone. The new leader's append reaches to 3 and says that 9 are committed: we know of 3."""
    raft = make_raft([1, 1, 1, 1, 1], term=1)
    raft.step(Append(2, 1, 2, 2, 1, commit=9, block=entry(1)))
    raft.flush()
    assert raft.log.committed == 3
    assert raft.log.last_index == 5
    assert raft.send_after_sync == [AppendAnswer(1, 2, 2, True, 3)]
    assert not any(isinstance(record, LogTruncated) for record in raft.persist)


def test_an_append_from_before_our_snapshot_is_answered_with_what_we_have() -> None:
    raft = make_raft([1] * 6, term=1, commit=5)
    raft.flush()
    raft.mark_snapshot(5, tail_entries=0)
    raft.step(Append(2, 1, 1, 2, 1, commit=3, block=entry(1)))
    assert raft.send_after_sync == [AppendAnswer(1, 2, 1, True, 5)]
    assert raft.log.last_index == 6


def test_truncation_is_written_before_what_replaces_it() -> None:
    raft = make_raft([1, 1, 1], term=1)
    raft.step(Append(2, 1, 2, 1, 1, commit=0, block=entry(2, b"a") + entry(2, b"b")))
    assert raft.persist == [HardState(2, 0, 0), LogTruncated(2), EntriesAppended(2, [entry(2, b"a"), entry(2, b"b")])]


def test_a_damaged_block_changes_nothing() -> None:
    raft = make_raft([1, 1, 1], term=2)
    with pytest.raises(ValueError):
        raft.step(Append(2, 1, 2, 1, 1, commit=0, block=entry(2) + b"torn"))
    assert raft.log.terms == [1, 1, 1]
    assert not raft.persist and not raft.send_after_sync


def test_no_answer_names_a_term_that_is_not_durable() -> None:
    raft = make_raft([], term=1)
    raft.step(Heartbeat(2, 1, 2, 0, 0))
    assert raft.send_now == [] and raft.send_after_sync == [HeartbeatAnswer(1, 2, 2, 0)]
    raft.synced(0, 0, 2)
    raft.step(Heartbeat(2, 1, 2, 0, 3))
    assert raft.send_now == [HeartbeatAnswer(1, 2, 2, 3)], "the term is durable: reads do not wait for the disk"


def test_a_pre_vote_changes_nothing() -> None:
    raft = make_raft([1], term=1)
    raft.step(PreVote(2, 3, 7, 9, 6))
    assert (raft.term, raft.vote, raft.persist, raft.role) == (1, 0, [], Role.FOLLOWER)
    assert len(raft.send_now) == 1


def test_a_second_vote_request_of_the_same_candidate_gets_the_same_answer_and_no_write() -> None:
    raft = make_raft([1], term=1)
    raft.step(Vote(2, 3, 2, 1, 1, False))
    written = len(raft.persist)
    raft.step(Vote(2, 3, 2, 1, 1, False))
    raft.step(Vote(2, 1, 2, 1, 1, False))
    assert len(raft.persist) == written
    assert raft.send_after_sync == [VoteAnswer(3, 2, 2, True), VoteAnswer(3, 2, 2, True), VoteAnswer(1, 2, 2, False)]


def test_two_leaders_of_one_term_fence_the_group() -> None:
    raft = make_raft([], term=1)
    raft.step(Heartbeat(2, 1, 1, 0, 0))
    with pytest.raises(InvariantBroken, match="both lead"):
        raft.step(Heartbeat(2, 3, 1, 0, 0))


def test_a_log_newer_than_the_durable_term_is_refused() -> None:
    with pytest.raises(InvariantBroken, match="durable term"):
        make_raft([1, 3], term=2)


def test_an_order_to_run_from_an_old_leader_is_answered_and_not_obeyed() -> None:
    raft = make_raft([1], term=3)
    raft.step(TimeoutNow(2, 1, 2))
    assert raft.role is Role.FOLLOWER and raft.term == 3
    assert raft.send_now == [HeartbeatAnswer(1, 2, 3, 0)]

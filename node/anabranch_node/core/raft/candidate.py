"""A replica that wants to lead. First it asks whether it could win (pre-vote: no term is spent, nothing is written), then it asks for votes.

Its own vote counts like any other: only when it is on the disk. So it is a message to itself that waits for the sync."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch_node.core.raft import leader, quorum
from anabranch_node.core.raft.messages import Message, PreVote, PreVoteAnswer, Vote, VoteAnswer

if TYPE_CHECKING:
    from anabranch_node.core.raft.raft import Raft


def timed_out(raft: Raft) -> None:
    """No leader for a whole timeout."""
    raft.quiet_ticks = 0
    raft.draw_timeout()
    if raft.may_campaign():
        pre_campaign(raft)
    else:
        # We may be a voter by an entry that did not reach us yet: do not shield a leader that is gone from those who need our vote.
        raft.become_follower(raft.term, 0)


def pre_campaign(raft: Raft) -> None:
    raft.become_follower(raft.term, 0)
    raft.role = raft.role.PRE_CANDIDATE
    raft.votes = {raft.id: True}
    for voter in raft.config.all_voters():
        if voter != raft.id:
            raft.send_now.append(PreVote(voter, raft.id, raft.term + 1, raft.log.last_index, raft.log.last_term))
    _count(raft)


def campaign(raft: Raft, transfer: bool = False) -> None:
    raft.elections += 1
    raft.become_follower(raft.term + 1, 0)
    raft.role = raft.role.CANDIDATE
    raft.vote = raft.id
    raft.persist_hard_state()
    raft.votes = {}
    raft.send_after_sync.append(VoteAnswer(raft.id, raft.id, raft.term, True))
    for voter in raft.config.all_voters():
        if voter != raft.id:
            raft.send_after_sync.append(Vote(voter, raft.id, raft.term, raft.log.last_index, raft.log.last_term, transfer))


def step(raft: Raft, m: Message) -> None:
    if isinstance(m, VoteAnswer) and raft.role is raft.role.CANDIDATE:
        raft.votes.setdefault(m.src, m.granted)
        _count(raft)
    elif isinstance(m, PreVoteAnswer) and raft.role is raft.role.PRE_CANDIDATE and m.term == (raft.term + 1 if m.granted else raft.term):
        raft.votes.setdefault(m.src, m.granted)
        _count(raft)


def _count(raft: Raft) -> None:
    config = raft.config
    if quorum.won(config.voters, config.old_voters, [voter for voter, granted in raft.votes.items() if granted]):
        if raft.role is raft.role.PRE_CANDIDATE:
            campaign(raft)
        else:
            leader.take_over(raft)
    elif quorum.lost(config.voters, config.old_voters, [voter for voter, granted in raft.votes.items() if not granted]):
        raft.become_follower(raft.term, 0)

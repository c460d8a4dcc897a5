"""A replica that follows: it takes the leader's entries, acknowledges what is on its disk, and passes reads on. Before us: raft.step() checked the
term."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch_node.core.raft import candidate
from anabranch_node.core.raft import entry as entries_of
from anabranch_node.core.raft.errors import InvariantBroken
from anabranch_node.core.raft.messages import (
    FROM_LEADER,
    NOT_LEADING,
    Append,
    AppendAnswer,
    Committed,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    ReadIndexAnswer,
    ReadIndexAsk,
    SnapshotChunk,
)

if TYPE_CHECKING:
    from anabranch_node.core.raft.raft import Raft


def step(raft: Raft, m: Message) -> None:
    if isinstance(m, ReadIndexAnswer):
        tokens = raft.reads.answered(m.request)
        if m.index == NOT_LEADING:
            raft.read_failures.extend(tokens)
        else:
            raft.read_states.extend((token, m.index) for token in tokens)
        return
    if not isinstance(m, FROM_LEADER):
        return  # late answers to an election or leadership that is over
    if raft.leader != m.src:
        if raft.leader:
            raise InvariantBroken(f"replicas {raft.leader} and {m.src} both lead term {m.term}")
        raft.become_follower(m.term, m.src)
    raft.heard()
    if isinstance(m, Append):
        on_append(raft, m)
    elif isinstance(m, Heartbeat):
        raft.log.commit_to(m.commit)
        raft.answer(HeartbeatAnswer(m.src, raft.id, raft.term, m.read_round))
    elif isinstance(m, Committed):
        raft.log.commit_to(m.commit)
    elif isinstance(m, SnapshotChunk):
        raft.snapshot_chunks.append(m)
    elif raft.may_campaign():
        candidate.campaign(raft, transfer=True)


def on_append(raft: Raft, m: Append) -> None:
    log = raft.log
    if m.prev_index + 1 < log.first_index:
        # Late or duplicated, and about entries that a snapshot replaced: they are committed, so the leader has the same.
        raft.send_after_sync.append(AppendAnswer(m.src, raft.id, raft.term, True, log.committed))
        return
    if not log.matches(m.prev_index, m.prev_term):
        hint_index, hint_term = log.conflict_hint(m.prev_index, m.prev_term)
        raft.answer(AppendAnswer(m.src, raft.id, raft.term, False, m.prev_index, hint_index, hint_term))
        return
    index = m.prev_index
    for entry in entries_of.split(m.block):
        index += 1
        term = log.term_at(index)
        if term is not None:
            if term == entries_of.term_of(entry):
                continue  # we have it; a shorter or older message never removes anything
            raft.truncate_log(index)
        raft.append_entry(entry)
    # Not our last index: what we hold beyond `index` this leader has not vouched for.
    log.commit_to(min(m.commit, index))
    raft.send_after_sync.append(AppendAnswer(m.src, raft.id, raft.term, True, max(index, log.committed)))


def ask_leader(raft: Raft) -> None:
    """One question to the leader for all reads of this turn."""
    if raft.leader == 0:
        raft.read_failures.extend(raft.reads.abandon())
        return
    raft.send_now.append(ReadIndexAsk(raft.leader, raft.id, raft.term, raft.reads.ask(raft.ticks)))

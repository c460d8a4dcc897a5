"""The replica that decides the order. It proposes, replicates within each follower's window, counts what is durable, and confirms reads.

Its own log counts only up to what its disk has (`log.stable`), exactly like a follower's acknowledgement: one voter works like three."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from anabranch_node.core.raft import entry as entries_of
from anabranch_node.core.raft import membership, quorum
from anabranch_node.core.raft.errors import ChangeRefused, InvariantBroken, LeaderMoving, NotLeader, UncommittedFull
from anabranch_node.core.raft.messages import (
    Append,
    AppendAnswer,
    Committed,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    ReadIndexAnswer,
    ReadIndexAsk,
    SnapshotAnswer,
    TimeoutNow,
)
from anabranch_node.core.raft.progress import Progress, State
from anabranch_node.core.raft.read_index import Local, Remote

if TYPE_CHECKING:
    from anabranch_node.core.raft.raft import Raft


def take_over(raft: Raft) -> None:
    """We won: start the term with an entry of our own, since only entries of the own term are committed by counting."""
    assert raft.vote == raft.id, (raft.vote, raft.id)
    raft.read_failures.extend(raft.reads.abandon())
    raft.role = raft.role.LEADER
    raft.leader = raft.id
    raft.votes = {}
    raft.quiet_ticks = 0
    log = raft.log
    raft.uncommitted_bytes = sum(len(entry) for entry in log.entries[log.committed + 1 - log.first_index :] if entry is not None)
    follow_config(raft)
    raft.term_start_index = _append(raft, entries_of.NOOP, b"")


def follow_config(raft: Raft) -> None:
    """Keep a Progress for exactly the other members."""
    members = [replica for replica in raft.config.members() if replica != raft.id]
    raft.progress = {replica: raft.progress.get(replica) or Progress(raft.log.last_index + 1) for replica in members}


# --- proposals -------------------------------------------------------------------------------------------------------------------


def propose(raft: Raft, version: int, payload: bytes) -> tuple[int, int]:
    _check_accepting(raft)
    size = entries_of.HEADER.size + len(payload)
    if raft.uncommitted_bytes and raft.uncommitted_bytes + size > raft.options.uncommitted_bytes_max:
        raise UncommittedFull(raft.uncommitted_bytes, raft.options.uncommitted_bytes_max)
    return _append(raft, version, payload), raft.term


def propose_change(raft: Raft, voters: tuple[int, ...], learners: tuple[int, ...]) -> tuple[int, int]:
    _check_accepting(raft)
    if raft.log.committed < raft.term_start_index:
        raise ChangeRefused("this leader has not committed an entry of its term yet")
    if raft.config_index > raft.log.committed:
        raise ChangeRefused(f"the change at index {raft.config_index} is not committed yet")
    return _append_config(raft, membership.enter(raft.config, voters, learners)), raft.term


def _check_accepting(raft: Raft) -> None:
    if raft.role is not raft.role.LEADER:
        raise NotLeader(raft.leader)
    if raft.transfer_to:
        raise LeaderMoving(raft.transfer_to)


def _append(raft: Raft, version: int, payload: bytes) -> int:
    entry = entries_of.encode(raft.term, version, payload)
    raft.uncommitted_bytes += len(entry)
    return raft.append_entry(entry)


def _append_config(raft: Raft, config: membership.Configuration) -> int:
    index = _append(raft, entries_of.CONFIG, membership.encode(config))
    follow_config(raft)
    return index


# --- what followers answer -------------------------------------------------------------------------------------------------------


def step(raft: Raft, m: Message) -> None:
    if isinstance(m, ReadIndexAsk):
        raft.reads.waiting.append(Remote(m.src, m.request))
        return
    progress = raft.progress.get(m.src)
    if progress is None:
        return  # not a member (any more)
    progress.active = True
    if isinstance(m, AppendAnswer):
        _on_append_answer(raft, m, progress)
    elif isinstance(m, HeartbeatAnswer):
        progress.read_round = max(progress.read_round, m.read_round)
        _ask_again(raft, m.src, progress)
        _confirm_reads(raft)
    elif isinstance(m, SnapshotAnswer):
        raft.snapshot_answers.append(m)


def _ask_again(raft: Raft, replica: int, progress: Progress) -> None:
    """The follower lives, but something we sent it may be lost: ask what it has, whatever the window says, once per heartbeat interval.
    Not per answer: read rounds and duplicated packets would earn it a packet each."""
    if progress.loading or progress.match >= raft.log.last_index or raft.ticks - progress.asked_tick < raft.options.heartbeat_ticks:
        return
    progress.asked_tick = raft.ticks
    if progress.state is State.PROBE:
        progress.probe_sent = False
    elif progress.state is State.REPLICATE:
        if progress.next < raft.log.first_index:
            progress.become_probe()  # the log was cut past the window: the flush offers a snapshot
        else:
            _send(raft, replica, progress, [])


def _on_append_answer(raft: Raft, m: AppendAnswer, progress: Progress) -> None:
    if not m.success:
        next_index = raft.log.conflict_hint(m.hint_index, m.hint_term)[0] + 1 if m.hint_term else m.hint_index + 1
        progress.refused(m.index, next_index)
        return
    if m.index > raft.log.last_index:
        raise InvariantBroken(f"replica {m.src} acknowledges index {m.index}, but the log of this leader ends at {raft.log.last_index}")
    news = progress.accepted(m.index)
    if progress.state is State.PROBE and (news or progress.match == m.index):
        progress.become_replicate()
    elif progress.state is State.SNAPSHOT and progress.match + 1 >= raft.log.first_index:
        progress.become_replicate()
    elif progress.state is State.SNAPSHOT and progress.match >= progress.snapshot_index:
        progress.become_probe()  # it installed a snapshot that our log was cut past meanwhile: the flush offers the newer one
    if not news:
        return
    if m.index > raft.log.committed:
        advance_commit(raft)
    if raft.transfer_to == m.src and progress.match == raft.log.last_index:
        raft.send_now.append(TimeoutNow(m.src, raft.id, raft.term))


def advance_commit(raft: Raft) -> None:
    """Count what is durable. Only an entry of our own term is committed by counting; it takes everything before it along."""
    log, config = raft.log, raft.config
    index = quorum.reached(_durable(raft, config.voters), _durable(raft, config.old_voters))
    if index <= log.committed or log.term_at(index) != raft.term:
        return
    for position in range(log.committed + 1 - log.first_index, index + 1 - log.first_index):
        entry = log.entries[position]
        raft.uncommitted_bytes -= len(entry) if entry is not None else 0
    log.commit_to(index)
    if raft.config_index <= index:
        if config.joint:
            _append_config(raft, membership.leave(config))
        elif raft.id not in config.voters:
            _leave_office(raft)


def _durable(raft: Raft, voters: tuple[int, ...]) -> list[int]:
    """How far each voter's disk has our log."""
    return [raft.log.stable if voter == raft.id else raft.progress[voter].match for voter in voters]


def _leave_office(raft: Raft) -> None:
    """The group goes on without us, and the change that says so is committed: name the most complete voter, tell it the commit, and step down."""
    flush(raft)
    best = max(raft.config.voters, key=lambda replica: (raft.progress[replica].match, replica))
    if raft.progress[best].sent_commit < raft.log.committed:
        raft.send_now.append(Committed(best, raft.id, raft.term, min(raft.progress[best].match, raft.log.committed)))
    raft.send_now.append(TimeoutNow(best, raft.id, raft.term))
    raft.become_follower(raft.term, 0)


# --- what we send ----------------------------------------------------------------------------------------------------------------


def flush(raft: Raft) -> None:
    reads = raft.reads
    if reads.waiting and raft.log.committed >= raft.term_start_index:
        _start_reads(raft)
    for replica, progress in raft.progress.items():
        _replicate(raft, replica, progress)


def _start_reads(raft: Raft) -> None:
    """Confirm the reads of this turn. A follower's question confirms itself where it and we are a quorum: it was asked in our term after the read
    arrived, so no later leader had both votes it would need by then. The others share a round."""
    reads, config, log = raft.reads, raft.config, raft.log
    rest: list[Local | Remote] = []
    for read in reads.waiting:
        if isinstance(read, Remote) and quorum.won(config.voters, config.old_voters, (raft.id, read.replica)):
            raft.send_now.append(ReadIndexAnswer(read.replica, raft.id, raft.term, read.request, log.committed))
        else:
            rest.append(read)
    reads.waiting = rest
    if rest:
        reads.start_round(log.committed)
        _heartbeat(raft, _round_voters(raft))
        _confirm_reads(raft)


def _round_voters(raft: Raft) -> list[int]:
    """As many others as a round needs, those first that answered last; the next tick asks everybody about a round that is still open."""
    if raft.config.joint:
        return list(raft.progress)
    voters = [replica for replica in raft.config.voters if replica != raft.id]
    voters.sort(key=lambda replica: -raft.progress[replica].read_round)
    needed = quorum.majority(raft.config.voters) - (raft.id in raft.config.voters)
    return voters[:needed]


def _replicate(raft: Raft, replica: int, progress: Progress) -> None:
    """Send what fits the follower's window; at least the commit index, if it moved and nothing else will bring it soon."""
    log, options = raft.log, raft.options
    while progress.next <= log.last_index and progress.can_send(options.in_flight_count_max, options.in_flight_bytes_max):
        if progress.next < log.first_index:
            progress.become_snapshot(log.snapshot_index)
            raft.snapshots_wanted.append(replica)
            return
        entries = log.slice(progress.next, options.append_bytes_max)
        if entries is None:
            progress.loading = True
            raft.loads_wanted.append((replica, progress.next))
            return
        _send(raft, replica, progress, entries)
    if progress.loading:
        return
    if progress.state is State.REPLICATE:
        # While appends are under way, the answer to the last of them brings us here again, and the next append says it, too: a busy group
        # announces nothing by itself. What is lost is said by a heartbeat.
        if progress.sent_commit < log.committed and progress.match == log.last_index:
            progress.sent_commit = log.committed
            raft.send_now.append(Committed(replica, raft.id, raft.term, log.committed))
    elif progress.state is State.PROBE and not progress.probe_sent and progress.match < log.last_index:
        _send(raft, replica, progress, [])  # nothing new for a new member in a quiet group, but what it has is not known yet


def _send(raft: Raft, replica: int, progress: Progress, entries: list[bytes]) -> None:
    prev_index = progress.next - 1
    prev_term = raft.log.term_at(prev_index)
    if prev_term is None:
        return  # compacted since: the next flush offers the snapshot instead
    block = entries[0] if len(entries) == 1 else b"".join(entries)
    progress.sent(prev_index + len(entries), len(block))
    if progress.state is State.PROBE:
        progress.asked_tick = raft.ticks
    progress.sent_commit = raft.log.committed
    raft.send_now.append(Append(replica, raft.id, raft.term, prev_index, prev_term, raft.log.committed, block))


def entries_loaded(raft: Raft, replica: int, first_index: int, entries: list[bytes]) -> None:
    """The host read them back from the WAL. Sent only if they still are what this follower needs next; empty: the read failed, ask again."""
    progress = raft.progress.get(replica)
    if raft.role is not raft.role.LEADER or progress is None or not progress.loading:
        return
    progress.loading = False
    current = [entry for index, entry in enumerate(entries, first_index) if raft.log.matches(index, entries_of.term_of(entry))]
    if (
        current
        and len(current) == len(entries)
        and progress.next == first_index
        and progress.can_send(raft.options.in_flight_count_max, raft.options.in_flight_bytes_max)
    ):
        _send(raft, replica, progress, entries)


# --- time ------------------------------------------------------------------------------------------------------------------------


def tick(raft: Raft) -> bool:
    """False: nothing happened."""
    if raft.transfer_to:
        raft.transfer_ticks += 1
        if raft.transfer_ticks >= raft.options.election_ticks:
            raft.transfer_to = 0  # the target did not take over: serve again
    if raft.quiet_ticks >= raft.options.election_ticks:
        raft.quiet_ticks = 0
        active = [raft.id, *[replica for replica, progress in raft.progress.items() if progress.active]]
        if not quorum.won(raft.config.voters, raft.config.old_voters, active):
            raft.become_follower(raft.term, 0)
            return True
        for progress in raft.progress.values():
            progress.active = False
    # Counted in node-wide ticks, so that the heartbeats of all groups leave in the same frame.
    if raft.ticks % raft.options.heartbeat_ticks and not raft.reads.rounds:
        return False
    _heartbeat(raft, raft.progress)
    return True


def _heartbeat(raft: Raft, replicas: Iterable[int]) -> None:
    for replica in replicas:
        progress = raft.progress[replica]
        raft.send_now.append(Heartbeat(replica, raft.id, raft.term, min(progress.match, raft.log.committed), raft.reads.round))


def _confirm_reads(raft: Raft) -> None:
    reads, config = raft.reads, raft.config
    if not reads.rounds:
        return
    round_number = quorum.reached(_answered_rounds(raft, config.voters), _answered_rounds(raft, config.old_voters))
    for read, index in reads.confirmed(round_number):
        if isinstance(read, Local):
            raft.read_states.append((read.token, index))
        else:
            raft.send_now.append(ReadIndexAnswer(read.replica, raft.id, raft.term, read.request, index))


def _answered_rounds(raft: Raft, voters: tuple[int, ...]) -> list[int]:
    return [raft.reads.round if voter == raft.id else raft.progress[voter].read_round for voter in voters]


# --- transfer --------------------------------------------------------------------------------------------------------------------


def start_transfer(raft: Raft, target: int) -> None:
    if raft.role is not raft.role.LEADER:
        raise NotLeader(raft.leader)
    if target == raft.id:
        raise ChangeRefused("this replica leads already")
    if target not in raft.config.voters:
        raise ChangeRefused(f"replica {target} is not a voter")
    if raft.transfer_to:
        raise LeaderMoving(raft.transfer_to)
    raft.transfer_to, raft.transfer_ticks = target, 0
    if raft.progress[target].match == raft.log.last_index:
        raft.send_now.append(TimeoutNow(target, raft.id, raft.term))

"""One member of one Raft group: `step(message)`, `tick()`, `propose()`, `read_index()`, then `flush()` once per turn. Start reading here.

Before us: engine/group.py feeds events. After us: it empties our lists of effects:
    persist          must be written, in this order; `synced()` is called when it is durable
    send_now         may leave at once (a leader sends while its own disk still writes)
    send_after_sync  leave only when everything persisted so far is durable: votes, acknowledgements; may be addressed to ourselves
    committed        (index, entry) in order, each exactly once
    read_states      (token, index): serve that read once `index` is applied; read_failures: tokens to be asked again
    snapshots_wanted, loads_wanted   followers that need a snapshot file, or entries that only the WAL still has
    snapshot_chunks, snapshot_answers  pieces of files on their way: for engine/snapshots.py
Term rules common to all roles are in step(); each role has a file of its own. No clock, no randomness, no I/O: ticks and a seeded generator come
in."""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from anabranch_node.core.raft import candidate, follower, leader, membership
from anabranch_node.core.raft import entry as entries_of
from anabranch_node.core.raft.errors import InvariantBroken
from anabranch_node.core.raft.log import Log
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.messages import (
    FROM_LEADER,
    NOT_LEADING,
    HeartbeatAnswer,
    Message,
    PreVote,
    PreVoteAnswer,
    ReadIndexAnswer,
    ReadIndexAsk,
    SnapshotAnswer,
    SnapshotChunk,
    Vote,
    VoteAnswer,
)
from anabranch_node.core.raft.progress import Progress
from anabranch_node.core.raft.read_index import Local, Reads
from anabranch_node.core.raft.records import EntriesAppended, HardState, LogTruncated, Record, SnapshotMark


class Chance(Protocol):
    """A seeded generator, e.g. random.Random."""

    def randrange(self, start: int, stop: int, /) -> int: ...


class Role(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class RaftOptions:
    election_ticks: int = 30  # timeouts are drawn from [this, 2 * this); far above fsync and garbage-collection pauses
    heartbeat_ticks: int = 5
    peer_lost_ticks: tuple[int, int] = (4, 12)  # a dropped connection to the leader shortens the wait to this
    append_bytes_max: int = 1 << 20  # entries per append message, but at least one entry
    in_flight_count_max: int = 64
    in_flight_bytes_max: int = 8 << 20
    uncommitted_bytes_max: int = 64 << 20
    log_memory_bytes_max: int = 4 << 20  # older entries are read back from the WAL

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ticks < self.election_ticks:
            raise ValueError(f"heartbeat_ticks ({self.heartbeat_ticks}) must be positive and below election_ticks ({self.election_ticks})")


class Raft:
    def __init__(
        self, replica: int, options: RaftOptions, rng: Chance, boot: int, hard: HardState, mark: SnapshotMark, entries: list[bytes], ticks: int = 0
    ) -> None:
        self.id = replica
        self.options = options
        self.rng = rng
        self.log = Log(mark.first_index, mark.prev_term, mark.index, mark.term, entries, hard.commit)
        self.configs: list[tuple[int, Configuration]] = [(mark.index, membership.decode(mark.config))]
        for index in range(mark.index + 1, self.log.last_index + 1):
            self._note_config(index, entries[index - mark.first_index])
        self.term = hard.term
        self.vote = hard.vote
        if hard.term < self.log.last_term:
            raise InvariantBroken(f"the log holds term {self.log.last_term}, but the durable term is only {hard.term}")
        self.durable_term = hard.term
        self.role = Role.FOLLOWER
        self.leader = 0
        self.applied = mark.index
        self.ticks = ticks
        self.quiet_ticks = 0  # since we heard from a leader or gave a vote; for a leader: since the last check-quorum
        self.leader_lost = False
        self.progress: dict[int, Progress] = {}  # leader only
        self.votes: dict[int, bool] = {}  # (pre-)candidate only
        self.term_start_index = 0
        self.uncommitted_bytes = 0
        self.transfer_to = 0
        self.transfer_ticks = 0
        self.elections = 0  # that we stood in since we started; only counted
        self.reads = Reads(boot)
        self.persist: list[Record] = []
        self.send_now: list[Message] = []
        self.send_after_sync: list[Message] = []
        self.committed: list[tuple[int, bytes]] = []
        self.read_states: list[tuple[int, int]] = []
        self.read_failures: list[int] = []
        self.snapshots_wanted: list[int] = []
        self.loads_wanted: list[tuple[int, int]] = []
        self.snapshot_chunks: list[SnapshotChunk] = []
        self.snapshot_answers: list[SnapshotAnswer] = []
        self.timeout_ticks = 0
        self.draw_timeout()

    # --- inputs ------------------------------------------------------------------------------------------------------------------

    def step(self, m: Message) -> None:
        """Take one message. Rules about terms first, the same for every role; then the role decides."""
        kind = type(m)
        if m.term > self.term:
            if isinstance(m, (PreVote, Vote)) and self._protects_leader(m):
                return
            if kind is not PreVote and not (isinstance(m, PreVoteAnswer) and m.granted):
                self.become_follower(m.term, m.src if kind in FROM_LEADER else 0)
        elif m.term < self.term:
            # Someone is behind: our term makes them step down. Silence would leave a deposed leader, or us, stuck for ever.
            if kind in FROM_LEADER:
                self.answer(HeartbeatAnswer(m.src, self.id, self.term, 0))
            elif kind is PreVote:
                self.answer(PreVoteAnswer(m.src, self.id, self.term, False))
            return
        if isinstance(m, PreVote):
            self.answer(PreVoteAnswer(m.src, self.id, m.term if self._may_elect(m) else self.term, self._may_elect(m)))
        elif isinstance(m, Vote):
            self._on_vote(m)
        elif self.role is Role.LEADER:
            if kind in FROM_LEADER:
                raise InvariantBroken(f"replicas {self.id} and {m.src} both lead term {self.term}")
            leader.step(self, m)
        elif isinstance(m, ReadIndexAsk):
            self.answer(ReadIndexAnswer(m.src, self.id, self.term, m.request, NOT_LEADING))
        elif kind in FROM_LEADER or self.role is Role.FOLLOWER:
            follower.step(self, m)
        else:
            candidate.step(self, m)

    def tick(self) -> bool:
        """False: nothing happened. Runs for every group at every tick, so it returns early."""
        self.ticks += 1
        self.quiet_ticks += 1
        if self.role is Role.LEADER:
            return leader.tick(self)
        if self.reads.asked:
            self.read_failures.extend(self.reads.expire(self.ticks - self.options.election_ticks))
        if self.quiet_ticks >= self.timeout_ticks:
            candidate.timed_out(self)
            return True
        return bool(self.read_failures)

    def propose(self, version: int, payload: bytes) -> tuple[int, int]:
        """Append to the log; returns (index, term), the only name by which its fate can be asked. Raises a Refused: nothing happened."""
        return leader.propose(self, version, payload)

    def propose_change(self, voters: tuple[int, ...], learners: tuple[int, ...]) -> tuple[int, int]:
        """Start a membership change; a joint one leaves its joint state by itself. Raises a Refused: nothing happened."""
        return leader.propose_change(self, voters, learners)

    def transfer_leadership(self, target: int) -> None:
        leader.start_transfer(self, target)

    def read_index(self, token: int) -> None:
        """Ask for an index at which the read `token` is linearizable; answered in read_states or read_failures."""
        self.reads.waiting.append(Local(token))

    def peer_lost(self, replica: int) -> None:
        """The connection to that replica's node broke. If it led us, do not wait for the full timeout."""
        if replica == self.leader and self.role is Role.FOLLOWER:
            self.leader_lost = True
            self.timeout_ticks = min(self.timeout_ticks, self.quiet_ticks + self.rng.randrange(*self.options.peer_lost_ticks))

    def synced(self, last_index: int, last_term: int, durable_term: int) -> bool:
        """Everything persisted when our log ended at (last_index, last_term) and our term was durable_term is on disk now. False: there is nothing
        for a flush to do. So it is on every follower, and on a leader that hears from its followers first, or not yet."""
        self.durable_term = max(self.durable_term, durable_term)
        if self.log.stable_to(last_index, last_term) and self.role is Role.LEADER:
            leader.advance_commit(self)
        return self.applied < self.log.committed

    def entries_loaded(self, replica: int, first_index: int, entries: list[bytes]) -> None:
        leader.entries_loaded(self, replica, first_index, entries)

    def snapshot_failed(self, replica: int) -> None:
        """The file could not be sent to that follower: find out again what it needs."""
        if self.role is Role.LEADER and replica in self.progress:
            self.progress[replica].become_probe()

    def mark_snapshot(self, index: int, tail_entries: int) -> None:
        """A durable snapshot of our state machine at `index` exists: cut the log, but keep tail_entries below it for slow followers."""
        if index <= self.log.snapshot_index:
            return
        assert index <= self.applied, (index, self.applied)
        self.log.mark_snapshot(index, max(self.log.first_index, index - tail_entries + 1))
        self.configs = [(index, self.config_at(index)), *[pair for pair in self.configs if pair[0] > index]]
        self._persist_mark()

    def cut_log(self, first_index: int) -> None:
        """Give up the tail that was kept for slow followers, below first_index: the WAL needs its room back."""
        first_index = min(first_index, self.log.snapshot_index + 1)
        if first_index > self.log.first_index:
            self.log.mark_snapshot(self.log.snapshot_index, first_index)
            self._persist_mark()

    def install_snapshot(self, index: int, term: int, config: Configuration) -> bool:
        """A verified, durable snapshot file of a leader. True: our state is that snapshot now (the caller switches the machine with us);
        False: we have all of it already, and the log goes on from what it holds."""
        if index <= self.log.committed or self.role is Role.LEADER:
            return False
        if self.log.matches(index, term):
            self.log.commit_to(index)
            return False
        if term > self.term:
            self.become_follower(term, 0)  # before the log moves: its hard state names a commit that the old log must hold, too
        if self.log.last_index > index:
            # The entry at `index` is another one, so what follows it can never be committed. The mark alone would keep it in the WAL.
            self.persist.append(LogTruncated(index + 1))
        self.log.reset_to_snapshot(index, term)
        self.applied = index
        self.configs = [(index, config)]
        self._persist_mark()
        return True

    def is_idle(self) -> bool:
        """Would a flush find nothing to do? Then what is in send_now may leave without one: heartbeats of hundreds of idle groups come this way."""
        log, reads = self.log, self.reads
        if self.applied != log.committed or self.persist or self.send_after_sync:
            return False
        if reads.waiting or reads.rounds or self.read_states or self.read_failures:
            return False
        return self.role is not Role.LEADER or all(
            progress.match == log.last_index and progress.sent_commit >= log.committed for progress in self.progress.values()
        )

    def flush(self) -> None:
        """End of a turn: replicate, start reads, hand out what is committed. The lists of effects are complete after this."""
        if self.role is Role.LEADER:
            leader.flush(self)
        elif self.reads.waiting:
            follower.ask_leader(self)
        while self.applied < self.log.committed:
            self.applied += 1
            entry = self.log.entries[self.applied - self.log.first_index]
            assert entry is not None, self.applied
            self.committed.append((self.applied, entry))
        if self.log.memory_bytes > self.options.log_memory_bytes_max:
            self.log.leave_memory(self.options.log_memory_bytes_max, self.applied)

    # --- state shared by the roles -----------------------------------------------------------------------------------------------

    @property
    def config(self) -> Configuration:
        return self.configs[-1][1]

    @property
    def config_index(self) -> int:
        return self.configs[-1][0]

    def config_at(self, index: int) -> Configuration:
        """The configuration in force at `index` of our log."""
        return next(config for at, config in reversed(self.configs) if at <= index)

    def may_campaign(self) -> bool:
        """Are we a voter, by our newest configuration or by one that it has not surely replaced yet? A replica that is being removed may hold the
        only copy of the entry that says so: without it the others, whose logs are shorter, could never win (thesis 4.2.2)."""
        committed = self.config_at(self.log.committed)
        return committed.is_voter(self.id) or any(config.is_voter(self.id) for index, config in self.configs if index > self.log.committed)

    def become_follower(self, term: int, leader_id: int) -> None:
        assert term >= self.term, (term, self.term)
        if self.role is Role.LEADER or leader_id != self.leader or term > self.term:
            self.read_failures.extend(self.reads.abandon())
        if term > self.term:
            self.term, self.vote = term, 0
            self.persist_hard_state()
        self.leader = leader_id
        self.progress = {}
        self.votes = {}
        self.transfer_to = 0
        self.uncommitted_bytes = 0
        if leader_id or self.role is not Role.FOLLOWER:
            self.heard()  # a higher term alone must not: a hopeless candidate would keep the others from running
            self.draw_timeout()
        self.role = Role.FOLLOWER

    def heard(self) -> None:
        """From our leader, or we voted: the election timer starts over. Its length is drawn anew only with the term or the role: this runs for
        every message."""
        self.quiet_ticks = 0
        if self.leader_lost:
            self.leader_lost = False
            self.draw_timeout()

    def draw_timeout(self) -> None:
        self.timeout_ticks = self.rng.randrange(self.options.election_ticks, 2 * self.options.election_ticks)

    def answer(self, m: Message) -> None:
        """An answer that says only which term we are in: it may leave at once if that term is durable, so that reads do not wait for the disk."""
        (self.send_now if self.durable_term == self.term else self.send_after_sync).append(m)

    def persist_hard_state(self) -> None:
        self.persist.append(HardState(self.term, self.vote, self.log.committed))

    def append_entry(self, entry: bytes) -> int:
        """To the log and to what must be persisted, in one entry or as part of the last one. Returns its index."""
        self.log.append(entry)
        index = self.log.last_index
        last = self.persist[-1] if self.persist else None
        if isinstance(last, EntriesAppended):
            last.entries.append(entry)
        else:
            self.persist.append(EntriesAppended(index, [entry]))
        self._note_config(index, entry)
        return index

    def truncate_log(self, from_index: int) -> None:
        self.log.truncate(from_index)
        self.persist.append(LogTruncated(from_index))
        while self.configs[-1][0] >= from_index:
            self.configs.pop()

    def _note_config(self, index: int, entry: bytes) -> None:
        if entries_of.version_of(entry) == entries_of.CONFIG:
            self.configs.append((index, membership.decode(entries_of.payload_of(entry))))

    def _persist_mark(self) -> None:
        log = self.log
        self.persist.append(
            SnapshotMark(log.snapshot_index, log.snapshot_term, membership.encode(self.configs[0][1]), log.first_index, log.prev_term)
        )

    # --- elections, the receiving side -------------------------------------------------------------------------------------------

    def hears_leader(self) -> bool:
        if self.role is Role.LEADER:
            return True  # check-quorum ends our role when this is not so
        return self.leader != 0 and not self.leader_lost and self.quiet_ticks < self.options.election_ticks

    def _protects_leader(self, m: PreVote | Vote) -> bool:
        """While we hear a leader, a candidate with a higher term (cut off, or removed) must not disturb it; unless the leader asked for it."""
        return self.hears_leader() and not (isinstance(m, Vote) and m.transfer)

    def _may_elect(self, m: PreVote) -> bool:
        # A pre-vote in our own term or below would elect nobody new; one above it is judged as the vote would be.
        return m.term > self.term and self.log.is_up_to_date(m.last_index, m.last_term)

    def _on_vote(self, m: Vote) -> None:
        free = self.vote in (0, m.src) and self.leader == 0
        granted = free and self.log.is_up_to_date(m.last_index, m.last_term)
        if granted:
            self.heard()
            if self.vote != m.src:
                self.vote = m.src
                self.persist_hard_state()
        self.send_after_sync.append(VoteAnswer(m.src, self.id, self.term, granted))

"""What must hold at every step, checked on each dirty group at the end of each turn of each node (Host.audit), while its effects are still in its
lists.

Election safety: one leader per term. Log matching: an entry (index, term) is the same bytes with the same predecessor everywhere. Leader
completeness: a new leader has everything that is committed. State machine safety: nobody commits or applies another entry at an index. Durability:
when a leader commits, a majority of each voter set has the entry on its disk, by the simulator's own account. Everything is incremental, so that it
can always be on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch_node.core.raft import entry as entries_of
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.messages import VoteAnswer
from anabranch_node.core.raft.raft import Raft, Role
from anabranch_node.core.raft.records import EntriesAppended, LogTruncated
from anabranch_node.engine.group import Group
from anabranch_proto.checksum import crc32c

if TYPE_CHECKING:
    from tests.sim.sim_node import SimNode
    from tests.sim.world import World


def _majority(config: Configuration, replicas: list[int]) -> bool:
    """Counted by hand: the code under test has its own arithmetic, and must not be its own judge."""
    for voters in (config.voters, config.old_voters):
        if voters and 2 * len([voter for voter in voters if voter in replicas]) <= len(voters):
            return False
    return bool(config.voters)


class Truth:
    """What is known of one group, over all its replicas and all time."""

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}  # term -> replica
        self.entries: dict[tuple[int, int], tuple[int, int]] = {}  # (index, term) -> (checksum, term of the entry before)
        self.bytes: dict[tuple[int, int], bytes] = {}  # of entries that are not committed yet
        self.terms = [0]  # of committed entries, by index
        self.sums = [0]
        self.votes: dict[tuple[int, int], int] = {}  # (replica, term) -> candidate


class Seen:
    """Where one replica, in one boot, was when we last looked."""

    __slots__ = ("applied", "commit", "term")

    def __init__(self, commit: int, applied: int) -> None:
        self.commit = commit
        self.applied = applied
        self.term = 0  # in which we saw it lead


class Invariants:
    def __init__(self, world: World) -> None:
        self._world = world
        self.truths: dict[int, Truth] = {}
        self._seen: dict[tuple[int, int, int], Seen] = {}
        self.checks = 0

    def audit(self, node: SimNode, group: Group) -> None:
        raft, log = group.raft, group.raft.log
        truth = self.truths.get(group.id)
        if truth is None:
            truth = self.truths[group.id] = Truth()
        key = (node.identity.incarnation, node.boots, raft.id)
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = Seen(log.snapshot_index, log.snapshot_index)
        self.checks += 1
        if raft.persist:
            self._check_records(node, group, truth, seen)
        for m in raft.send_after_sync:
            if type(m) is VoteAnswer and m.granted:
                self._world.faults.voted(node)
        if not log.committed <= log.last_index or not raft.applied <= log.committed or group.machine.applied_index != raft.applied:
            raise self._fail(node, group, f"applied {group.machine.applied_index}/{raft.applied}, committed {log.committed}, last {log.last_index}")
        if log.committed > seen.commit:
            self._check_commit(node, group, truth, seen)
        elif log.committed < seen.commit:
            raise self._fail(node, group, f"commit went back from {seen.commit} to {log.committed}")
        if raft.role is Role.LEADER and seen.term != raft.term:
            self._check_leader(node, group, truth, seen)

    def _check_records(self, node: SimNode, group: Group, truth: Truth, seen: Seen) -> None:
        raft = group.raft
        for record in raft.persist:
            if isinstance(record, EntriesAppended):
                before = self._term_before(raft, record.first_index)
                for index, entry in enumerate(record.entries, record.first_index):
                    term = entries_of.term_of(entry)
                    known = (crc32c(entry), before)
                    if truth.entries.setdefault((index, term), known) != known and before is not None:
                        raise self._fail(node, group, f"log matching: entry ({index}, term {term}) differs from the one another replica has")
                    before = term
                    if index >= len(truth.terms):
                        truth.bytes[index, term] = entry
            elif isinstance(record, LogTruncated):
                if record.from_index <= seen.commit:
                    raise self._fail(node, group, f"truncation at {record.from_index}, committed through {seen.commit}")

    @staticmethod
    def _term_before(raft: Raft, index: int) -> int | None:
        return raft.log.term_at(index - 1)

    def note_vote(self, group: int, replica: int, term: int, candidate: int) -> None:
        """A vote that is on the disk: from now on it binds. (One that a power loss took before its sync never did.)"""
        voted = self.truths.setdefault(group, Truth()).votes.setdefault((replica, term), candidate)
        if voted != candidate:
            raise self._world.violation(f"group {group}, replica {replica}: two votes in term {term}, for {voted} and {candidate}")

    def _check_commit(self, node: SimNode, group: Group, truth: Truth, seen: Seen) -> None:
        raft, log = group.raft, group.raft.log
        for index in range(max(seen.commit + 1, log.first_index), log.committed + 1):
            term = log.terms[index - log.first_index]
            entry = log.entries[index - log.first_index]
            if index == len(truth.terms):
                truth.terms.append(term)
                truth.sums.append(truth.entries[index, term][0])
                self._world.committed(group.id, index, truth.bytes.pop((index, term)))
            elif index > len(truth.terms):
                raise self._fail(node, group, f"commit {index} skips {len(truth.terms)}, which nobody committed")
            elif truth.terms[index] != term or (entry is not None and truth.sums[index] != crc32c(entry)):
                raise self._fail(node, group, f"state machine safety: at {index} it has term {term}, committed was term {truth.terms[index]}")
        if log.snapshot_index > seen.commit and log.snapshot_index < len(truth.terms) and truth.terms[log.snapshot_index] != log.snapshot_term:
            raise self._fail(
                node, group, f"snapshot at {log.snapshot_index} has term {log.snapshot_term}, committed was {truth.terms[log.snapshot_index]}"
            )
        seen.commit = log.committed
        if raft.role is Role.LEADER:
            self._check_durable(node, group, log.committed)

    def _check_durable(self, node: SimNode, group: Group, index: int) -> None:
        """A leader commits: is it really on a majority of disks?"""
        term = group.raft.log.term_at(index)
        assert term is not None
        if term != group.raft.term:
            raise self._fail(node, group, f"index {index} of term {term} was committed by counting in term {group.raft.term} (Figure 8)")
        # By the newest configuration in its log; a commit that ends a joint change appends the next one in the same step.
        configs = [config for _, config in group.raft.configs[-2:]]
        holders = [replica for replica in group.raft.config.all_voters() if self._world.holds(group.id, replica, index, term)]
        holders += [replica for replica in configs[0].all_voters() if replica not in holders and self._world.holds(group.id, replica, index, term)]
        if not any(_majority(config, holders) for config in configs):
            raise self._fail(node, group, f"committed index {index} of term {term} is on the disks of {holders} only, under {configs[-1]}")

    def _check_leader(self, node: SimNode, group: Group, truth: Truth, seen: Seen) -> None:
        raft, log = group.raft, group.raft.log
        seen.term = raft.term
        other = truth.leaders.setdefault(raft.term, raft.id)
        if other != raft.id:
            raise self._fail(node, group, f"election safety: replicas {other} and {raft.id} both lead term {raft.term}")
        voters = [one for one in raft.config.all_voters() if one in self._world.lost_replicas or truth.votes.get((one, raft.term)) == raft.id]
        if not _majority(raft.config, voters):
            raise self._fail(node, group, f"leader of term {raft.term} was elected, but only the disks of {voters} know of a vote for it")
        committed = len(truth.terms) - 1
        if log.last_index < committed or log.terms[: committed + 1 - log.first_index] != truth.terms[log.first_index : committed + 1]:
            raise self._fail(node, group, f"leader completeness: leader of term {raft.term} lacks entries that are committed (through {committed})")

    def _fail(self, node: SimNode, group: Group, what: str) -> BaseException:
        return self._world.violation(f"node {node.number}, group {group.id}, replica {group.replica}: {what}")

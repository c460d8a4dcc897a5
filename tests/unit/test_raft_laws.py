"""Chance instead of a script: a few replicas, every fault the scripts know, in an order nobody thought of.

The laws of Raft are checked after every turn; at the end, when everything works again, the group must elect, commit and agree.
The simulator does the same with hosts, WALs and clients; here only Raft can be to blame, and a seed takes a fifth of a second."""

import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from anabranch_node.core.raft import entry as entries_of
from anabranch_node.core.raft import membership
from anabranch_node.core.raft.errors import Refused
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.raft import Raft, RaftOptions, Role
from anabranch_node.core.raft.records import HardState, SnapshotMark
from tests.scripts.cluster import Cluster, Replica, replay

SEEDS = 60
STEPS = 500
IDS = (1, 2, 3, 4, 5)


def make_cluster(rng: random.Random) -> Cluster:
    options = RaftOptions(
        election_ticks=10,
        heartbeat_ticks=2,
        append_bytes_max=rng.choice([1, 40, 1000]),
        in_flight_count_max=rng.choice([1, 2, 8]),
        in_flight_bytes_max=rng.choice([30, 1000]),
        uncommitted_bytes_max=rng.choice([100, 1000]),
        log_memory_bytes_max=rng.choice([30, 10_000]),
    )
    first = Configuration(IDS[: rng.choice([1, 2, 3, 5])])
    replicas = []
    for replica in IDS:
        config = first if replica in first.voters else Configuration()
        disk = [HardState(0, 0, 0), SnapshotMark(0, 0, membership.encode(config), 1, 0)]
        replicas.append(Replica(replica, options, list(disk), chance=random.Random(rng.random())))
        replicas[-1].start()
    return Cluster(replicas)


class Chaos:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.cluster = make_cluster(rng)
        self.proposed = 0

    def step(self) -> None:
        names = ["tick"] * 6 + ["deliver"] * 12 + ["propose"] * 3 + ["read", "sync", "sync", "drop", "duplicate", "cut", "heal"]
        names += ["hold", "crash", "restart", "restart", "change", "transfer", "snapshot", "load", "send_snapshot", "send_snapshot", "lose"]
        getattr(self, self.rng.choice(names))()

    def act(self, replica: Replica, action: Callable[[Raft], object]) -> None:
        def guarded(raft: Raft) -> None:
            with suppress(Refused):
                action(raft)

        self.cluster.turn(replica, guarded)

    def some(self) -> Replica | None:
        live = self.cluster.live()
        return self.rng.choice(live) if live else None

    def tick(self) -> None:
        replica = self.some()
        for _ in range(self.rng.choice([1, 2, 5, 12])):
            if replica is not None and replica.raft is not None:
                self.act(replica, lambda raft: raft.tick())

    def deliver(self) -> None:
        messages = self.cluster.messages
        for _ in range(self.rng.choice([1, 3, 10])):
            if messages:
                self.cluster.deliver(messages.pop(0 if self.rng.random() < 0.7 else self.rng.randrange(len(messages))))

    def drop(self) -> None:
        if self.cluster.messages:
            self.cluster.messages.pop(self.rng.randrange(len(self.cluster.messages)))

    def duplicate(self) -> None:
        if self.cluster.messages:
            self.cluster.messages.append(self.rng.choice(self.cluster.messages))

    def cut(self) -> None:
        self.cluster.cuts.add((self.rng.choice(IDS), self.rng.choice(IDS)))

    def heal(self) -> None:
        self.cluster.cuts.clear()

    def hold(self) -> None:
        self.cluster.replicas[self.rng.choice(IDS)].sync_held = True

    def sync(self) -> None:
        replica = self.cluster.replicas[self.rng.choice(IDS)]
        replica.sync_held = False
        if replica.raft is not None:
            self.act(replica, lambda raft: None)

    def crash(self) -> None:
        replica = self.some()
        if replica is not None and len(self.cluster.live()) > 1:
            replica.stop(self.rng.choice([0, 0, 1, 2, 3, 100]))

    def restart(self) -> None:
        for replica in self.cluster.replicas.values():
            if replica.raft is None:
                replica.start()
                self.act(replica, lambda raft: None)
                return

    def leader(self) -> Replica | None:
        leaders = [replica for replica in self.cluster.live() if replica.raft is not None and replica.raft.role is Role.LEADER]
        return self.rng.choice(leaders) if leaders else None

    def propose(self) -> None:
        leader = self.leader()
        if leader is not None:
            self.proposed += 1
            payload = f"p{self.proposed}".encode()
            self.act(leader, lambda raft: raft.propose(entries_of.COMMANDS_V1, payload))

    def read(self) -> None:
        replica = self.some()
        if replica is not None:
            self.cluster.read_names.append("r")
            self.act(replica, lambda raft: raft.read_index(len(self.cluster.read_names) - 1))

    def change(self) -> None:
        leader = self.leader()
        voters = tuple(replica for replica in IDS if self.rng.random() < 0.6)
        learners = tuple(replica for replica in IDS if replica not in voters and self.rng.random() < 0.5)
        if leader is not None:
            self.act(leader, lambda raft: raft.propose_change(voters, learners))

    def transfer(self) -> None:
        leader = self.leader()
        if leader is not None:
            self.act(leader, lambda raft: raft.transfer_leadership(self.rng.choice(IDS)))

    def lose(self) -> None:
        replica = self.some()
        if replica is not None:
            self.act(replica, lambda raft: raft.peer_lost(self.rng.choice(IDS)))

    def snapshot(self) -> None:
        replica = self.some()
        if replica is not None and replica.raft is not None and replica.raft.applied > replica.raft.log.snapshot_index:
            self.act(replica, lambda raft: raft.mark_snapshot(raft.applied, self.rng.choice([0, 0, 2])))

    def load(self) -> None:
        for replica in self.cluster.live():
            wanted, replica.loads = replica.loads, []
            found = replay(replica.durable)
            for other, first in wanted:
                entries = found.entries[first - found.mark.first_index :] if first >= found.mark.first_index else []
                if replica.raft is not None:
                    self.act(replica, lambda raft, other=other, first=first, entries=entries: raft.entries_loaded(other, first, entries))

    def send_snapshot(self) -> None:
        """The file arrives, or the transfer fails; either way the sender hears of the end."""
        for sender in self.cluster.live():
            wanted, sender.snapshots = sender.snapshots, []
            for other in wanted:
                receiver, mark = self.cluster.replicas[other], replay(sender.durable).mark
                if mark.index and receiver.raft is not None and (sender.id, other) not in self.cluster.cuts and self.rng.random() < 0.8:
                    self.act(receiver, lambda raft, mark=mark: self.install(raft, mark))
                if sender.raft is not None:
                    self.act(sender, lambda raft, other=other: raft.snapshot_failed(other))

    def install(self, raft: Raft, mark: SnapshotMark) -> None:
        raft.install_snapshot(mark.index, mark.term, membership.decode(mark.config))
        self.cluster.installed(raft)

    def recover(self) -> None:
        """Everything works again. Within ten election timeouts somebody leads, no change is left half done, and every member has committed its
        log."""
        self.cluster.cuts.clear()
        for replica in self.cluster.replicas.values():
            replica.sync_held = False
            if replica.raft is None:
                replica.start()
            self.act(replica, lambda raft: None)
        for _ in range(100):
            for replica in self.cluster.live():
                self.act(replica, lambda raft: raft.tick())
            self.cluster.run_until_quiet()
            self.load()
            self.send_snapshot()
        self.cluster.run_until_quiet()
        leaders = [raft.id for raft in self.rafts() if raft.role is Role.LEADER]
        states = [f"{r.id}: {r.role.value} term={r.term} leader={r.leader} commit={r.log.committed} {r.config}" for r in self.rafts()]
        assert len(leaders) == 1, states
        leader = self.cluster.raft(leaders[0])
        assert not leader.config.joint, states
        assert leader.log.committed == leader.log.last_index, states
        for member in leader.config.members():
            assert self.cluster.raft(member).log.committed == leader.log.committed, (member, states)

    def rafts(self) -> list[Raft]:
        return [replica.raft for replica in self.cluster.live() if replica.raft is not None]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_laws_hold_and_the_group_recovers(seed: int) -> None:
    chaos = Chaos(random.Random(seed))
    for _ in range(STEPS):
        chaos.step()
    chaos.recover()
    fenced = [event for event in chaos.cluster.events if "FENCED" in event]
    assert not fenced

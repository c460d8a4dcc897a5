"""What the groups of a node count for its metrics: entries by their time to commit, elections, snapshots, segments."""

from random import Random

from anabranch_node.core import effects as fx
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.raft import RaftOptions
from anabranch_node.core.stream.commands import Append, Create
from anabranch_node.engine.counts import COMMIT_BITS_MAX, Counts
from anabranch_node.engine.host import Host, HostOptions
from anabranch_node.wal.options import WalOptions
from anabranch_node.wal.wal import Wal
from anabranch_proto.ids import NodeIdentity
from tests.checkers.opened import OpenedMachine


def leading_host() -> tuple[Host, Wal]:
    me = NodeIdentity("c1", 1, 0xA)
    wal = Wal(me, WalOptions(segment_bytes=64 << 20))
    host = Host(me, HostOptions(raft=RaftOptions(election_ticks=10, heartbeat_ticks=2)), OpenedMachine, Random(1), 1, wal)
    host.start([], {}, {})
    host.turn(0, [fx.ReplicaCreate(1, 7, Configuration((7,)))])
    for _ in range(30):
        host.turn(0, [fx.Tick()])
        while wal.ticket > wal.synced_ticket:
            host.turn(0, [fx.Synced(wal.ticket)])
    assert host.leads() == [1]
    return host, wal


def test_bounds_hold_what_they_say() -> None:
    counts = Counts()
    for took_ms in (-5, 0, 1, 2, 3, 4, 1 << 15, (1 << 15) - 1, 1 << 40):
        counts.committed(took_ms)
    assert counts.commits[:4] == [2, 1, 2, 1]
    assert counts.commits[COMMIT_BITS_MAX - 1 :] == [1, 2]
    assert counts.commit_ms == 1 + 2 + 3 + 4 + (1 << 15) + (1 << 15) - 1 + (1 << 40), "a clock that was set back takes nothing away"


def test_an_entry_is_counted_once_with_the_time_its_commit_took() -> None:
    host, wal = leading_host()
    assert sum(host.counts.commits) == 0, "the leader's own first entry was asked for by nobody"
    host.turn(1_000, [fx.Propose(1, 1, Create("b/s", "text/plain", 0)), fx.Propose(2, 1, Append("b/s", b"a", 0))])
    host.turn(1_003, [fx.Tick()])
    assert sum(host.counts.commits) == 0, "it is not durable yet"
    host.turn(1_006, [fx.Synced(wal.ticket)])
    assert (host.counts.commits[3], sum(host.counts.commits), host.counts.commit_ms) == (1, 1, 6)


def test_elections_do_not_fall_when_a_replica_leaves() -> None:
    host, _ = leading_host()
    assert host.elections == 1
    host.turn(0, [fx.ReplicaDestroy(1, 7)])
    assert host.elections == 1 and not host.groups
    assert host.wal_segments == 1


def test_a_snapshot_counts_when_it_is_durable() -> None:
    host, wal = leading_host()
    host.turn(0, [fx.Propose(1, 1, Create("b/s", "text/plain", 0))])
    host.turn(0, [fx.Synced(wal.ticket)])
    effects = host.turn(0, [fx.TakeSnapshot(1)])
    key = next(effect.key for effect in effects if isinstance(effect, fx.SnapshotOpen))
    while not any(isinstance(effect, fx.SnapshotFinish) for effect in effects):
        assert host.counts.snapshots == 0
        effects = host.turn(0, [fx.SnapshotAppended(key)])
    host.turn(0, [fx.SnapshotSaved(key, 1)])
    assert host.counts.snapshots == 1

"""A follower that was cut off catches up while writes go on: liveness under load, which the random runs check only after the load ended."""

from dataclasses import replace

from anabranch_node.core.raft.raft import RaftOptions
from anabranch_node.engine.group import GroupOptions
from anabranch_node.engine.host import HostOptions
from anabranch_node.engine.snapshots import SnapshotOptions
from anabranch_node.wal.options import WalOptions
from tests.sim.swarm import SECOND, draw
from tests.sim.world import World


def test_a_follower_catches_up_by_snapshot_under_load() -> None:
    """Once a newer snapshot deleted the file that was on its way to the follower, again and again: it fell behind for ever."""
    snapshots = SnapshotOptions(entries_max=60, tail_entries=20, piece_bytes=400)
    group = GroupOptions(command_bytes_max=2_000, entry_bytes_max=2_000, snapshots=snapshots)
    swarm = replace(
        draw(1),
        nodes=3,
        group_count=1,
        replication=3,
        streams_per_group=1,
        loss=0.0,
        duplication=0.0,
        slow_packet=0.0,
        clients=8,
        think_us=20_000,
        timeout_us=3 * SECOND,
        producer_share=0.0,
        read_share=0.0,
        body_bytes=100,
        chaos_us=20 * SECOND,
        faults=("clock jump",),
        quorum_loss=False,
        skew_us=(0, 0, 0),
        tick_us=50_000,
        turn_delay_us=(10, 50),
        net_delay_us=(2_000, 4_000),
        sync_us=(50, 500),
        wal=WalOptions(segment_bytes=1 << 16, segments_live_max=4),
        host=HostOptions(raft=RaftOptions(election_ticks=20, heartbeat_ticks=4), group=group, disk_free_min_bytes=1 << 17),
    )
    world = World(swarm)
    cut = [(3, 1), (3, 2), (1, 3), (2, 3)]
    lags: list[int] = []

    def look() -> None:
        leader = world.leader(1)
        assert leader is not None
        lags.append(leader.log.last_index - world.nodes[3].host.groups[1].raft.log.last_index)

    world.at(3 * SECOND, world.net.cut, cut)
    world.at(6 * SECOND - 1, look)
    world.at(6 * SECOND, world.net.heal, cut)
    world.at(18 * SECOND, look)
    world.run()
    assert lags[0] > snapshots.entries_max, "it fell behind far enough to need a snapshot"
    assert lags[1] < 20, "and caught up although the others went on"

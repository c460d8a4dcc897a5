"""What idle groups cost: three hosts in one thread, each with a replica of 256 groups and the leaders of a third of them, real frames between them.

Nothing is appended. A host-tick is one Tick and whatever it causes on that host: every fifth, the heartbeats of all groups in one frame per peer, and
the answers to the others'. Not here: the sockets, which cost the same for one group as for 256."""

import gc

from anabranch_node.core.raft.raft import RaftOptions
from tests.bench.host_turn import HOSTS, Cluster

GROUPS = 256
TICKS = 200
TICKS_PER_S = 20


def run(scale: float) -> list[dict[str, float]]:
    """One round, one row."""
    cluster = Cluster(GROUPS)
    cluster.elect(lambda group: group % HOSTS)
    heartbeat_ticks = RaftOptions().heartbeat_ticks
    for _ in range(2 * heartbeat_ticks):
        cluster.tick()
        cluster.settle()
    terms = _terms(cluster)
    ticks = max(heartbeat_ticks, int(TICKS * scale) // heartbeat_ticks * heartbeat_ticks)
    gc.collect()
    gc.freeze()
    beating_s = quiet_s = 0.0
    beats = 0
    for _ in range(ticks):
        cluster.cpu_s, cluster.frames = [0.0] * HOSTS, 0
        cluster.tick()
        cluster.settle()
        if cluster.frames:
            # To each peer one frame with all heartbeats and one with all answers, however many groups there are.
            assert cluster.frames == 2 * HOSTS * (HOSTS - 1), cluster.frames
            beats += 1
            beating_s += sum(cluster.cpu_s)
        else:
            quiet_s += sum(cluster.cpu_s)
    gc.unfreeze()
    assert beats == ticks // heartbeat_ticks, (beats, ticks)
    assert _terms(cluster) == terms, "nobody was elected meanwhile"
    assert [len(host.leads()) for host in cluster.hosts] == [len(range(number, GROUPS, HOSTS)) for number in range(HOSTS)]
    us_per_tick = (beating_s + quiet_s) / (ticks * HOSTS) * 1e6
    return [
        {
            "groups": GROUPS,
            "host_ticks": ticks * HOSTS,
            "cpu_us_per_tick": us_per_tick,
            "cpu_us_per_tick_with_heartbeat": beating_s / (beats * HOSTS) * 1e6,
            "cpu_us_per_tick_without": quiet_s / ((ticks - beats) * HOSTS) * 1e6,
            "core_percent": us_per_tick * TICKS_PER_S / 1e6 * 100,
        }
    ]


def _terms(cluster: Cluster) -> list[int]:
    return [group.raft.term for host in cluster.hosts for group in host.groups.values()]

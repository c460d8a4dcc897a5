"""Everything a run may vary, drawn from its seed: sizes, timings, limits, fault rates. A fixed setting hides bugs: the commit rule of Figure 8 was
once missed by 4,000 seeds with one batch size and found by the second seed after the size was drawn, too.

world.py plays the result. Each fault class is on or off per run, so that some runs concentrate on few of them."""

from dataclasses import dataclass, field, replace
from random import Random

from anabranch_node.core.raft.raft import RaftOptions
from anabranch_node.engine.group import GroupOptions
from anabranch_node.engine.host import HostOptions
from anabranch_node.engine.snapshots import SnapshotOptions
from anabranch_node.service.live import LiveOptions
from anabranch_node.service.service import ServiceOptions
from anabranch_node.wal.options import WalOptions

SECOND = 1_000_000  # simulated time is in microseconds

FAULT_CLASSES = (
    "kill",
    "power loss",
    "power loss of all",
    "crash in a file operation",
    "crash after a vote",
    "pause",
    "isolate",
    "cut off a leader",
    "one-way cut",
    "split",
    "flap",
    "clog",
    "fsync error",
    "fsync stall",
    "read error",
    "unreadable sector",
    "bit rot",
    "disk full",
    "disk lost",
    "clock jump",
    "transfer",
    "move replica",
    "snapshot",
)


@dataclass(frozen=True, slots=True)
class Swarm:
    seed: int
    nodes: int
    group_count: int
    replication: int
    streams_per_group: int
    host: HostOptions
    wal: WalOptions
    tick_us: int
    turn_delay_us: tuple[int, int]
    net_delay_us: tuple[int, int]
    loss: float
    duplication: float
    slow_packet: float  # share of packets that take 50 times as long, and so arrive out of order
    sync_us: tuple[int, int]
    clients: int
    think_us: int
    timeout_us: int
    producer_share: float
    read_share: float
    body_bytes: int
    chaos_us: int
    fault_gap_us: int
    faults: tuple[str, ...]
    quorum_loss: bool
    """Damage may exceed what the protocol survives: only safety is checked then."""
    mischief: float
    """How often a client does what it should not."""
    final_power_loss: bool
    """When all is quiet, all nodes lose power at once; what they find on their disks is judged, not what they have in memory."""
    tick_rates: tuple[float, ...]
    """Of each node's clock."""
    skew_us: tuple[int, ...] = field(default=())
    http: bool = False
    """Clients speak HTTP to any node, through its service; otherwise they ask its host directly, which finds more in Raft itself."""
    service: ServiceOptions = ServiceOptions()
    tailers: int = 0
    fork_share: float = 0.0
    """Of what writers do: making forks, of streams of any group, and now and then publishing a snapshot; deleting what they made."""
    publish_share: float = 0.0
    retention_share: float = 0.0
    """Of the streams that may be deleted: with a bound in bytes or age."""
    bucket_share: float = 0.0
    """Of what writers do: with buckets. Then group 0 is the meta group, and there are streams in several buckets; otherwise the operator opens the
    only one by itself."""
    batch_share: float = 0.0
    """Of appends: as append-batch."""
    key_share: float = 0.0
    """Of reads: of one key's messages."""
    bootstrap_share: float = 0.0
    """Of looks at a stream."""

    @property
    def can_keep_up(self) -> bool:
        """Replicas that are behind can be brought up faster than clients write; not so with pieces of 64 bytes, one per round trip."""
        return self.host.group.snapshots.piece_bytes >= 16 << 10 and self.host.raft.in_flight_count_max >= 8


def draw(seed: int) -> Swarm:
    rng = Random(seed * 2 + 1)
    nodes = rng.choice((1, 2, 3, 3, 3, 3, 4, 5, 5, 6, 7))
    replication = rng.choice([size for size in (1, 2, 3, 3, 3, 4, 5) if size <= nodes])
    election_ticks = rng.randint(8, 30)
    tick_us = rng.choice((20_000, 30_000, 50_000))
    segment_bytes = rng.choice((8, 16, 32, 64)) << 10
    raft = RaftOptions(
        election_ticks=election_ticks,
        heartbeat_ticks=rng.randint(1, max(1, election_ticks // 4)),
        peer_lost_ticks=(rng.randint(1, 4), rng.randint(5, 12)),
        append_bytes_max=rng.choice((1, 200, 1_000, 1 << 20)),
        in_flight_count_max=rng.choice((1, 2, 8, 64)),
        in_flight_bytes_max=rng.choice((100, 1_000, 1 << 20)),
        uncommitted_bytes_max=rng.choice((300, 2_000, 1 << 20)),
        log_memory_bytes_max=rng.choice((0, 500, 5_000, 1 << 20)),
    )
    snapshots = SnapshotOptions(
        entries_max=rng.choice((5, 20, 100, 1_000)),
        bytes_max=rng.choice((2_000, 20_000, 1 << 20)),
        tail_entries=rng.choice((0, 3, 20)),
        slice_bytes=rng.choice((128, 1_000, 16 << 10)),
        piece_bytes=rng.choice((64, 500, 16 << 10)),
        resend_ticks=rng.randint(3, 20),
    )
    group = GroupOptions(
        command_bytes_max=2_000, entry_bytes_max=min(rng.choice((100, 1_000, 1 << 20)), segment_bytes // 2 - 1024), snapshots=snapshots
    )
    chosen = tuple(name for name in FAULT_CLASSES if rng.random() < 0.55)
    clients = rng.randint(4, 9)
    swarm = Swarm(
        seed=seed,
        nodes=nodes,
        group_count=rng.randint(1, 3),
        replication=replication,
        streams_per_group=rng.randint(1, 2),
        host=HostOptions(raft=raft, group=group, snapshots_at_once_max=rng.randint(1, 3), disk_free_min_bytes=2 * segment_bytes),
        wal=WalOptions(segment_bytes=segment_bytes, segments_live_max=rng.randint(2, 5), copy_forward_bytes_max=rng.choice((0, 500, 4_000))),
        tick_us=tick_us,
        turn_delay_us=(10, rng.choice((50, 500, 5_000))),
        net_delay_us=(rng.choice((50, 200)), rng.choice((500, 3_000, 20_000))),
        loss=rng.choice((0.0, 0.0, 0.01, 0.05, 0.2)),
        duplication=rng.choice((0.0, 0.0, 0.02, 0.2)),
        slow_packet=rng.choice((0.0, 0.02, 0.1)),
        sync_us=(rng.choice((50, 300)), rng.choice((500, 2_000, 20_000))),
        clients=clients,
        think_us=rng.choice((60_000, 100_000, 150_000)),
        timeout_us=rng.choice((SECOND // 5, SECOND, 3 * SECOND)),
        producer_share=rng.choice((0.0, 0.3, 0.6, 1.0)),
        read_share=rng.choice((0.1, 0.3, 0.6)),
        body_bytes=rng.choice((30, 100, 600)),
        chaos_us=rng.randint(24, 34) * SECOND,
        fault_gap_us=rng.choice((SECOND // 4, SECOND // 2, SECOND * 3 // 4)),
        faults=chosen or ("kill",),
        quorum_loss=rng.random() < 0.04,
        skew_us=tuple(rng.choice((0, 0, 5_000, -200_000, 3_600 * SECOND)) for _ in range(nodes)),
        mischief=rng.choice((0.0, 0.02, 0.1)),
        final_power_loss=rng.random() < 0.5,
        tick_rates=tuple(rng.uniform(0.95, 1.05) for _ in range(nodes)),
    )
    if nodes >= 3 and replication >= 3 and rng.random() < 0.15:
        swarm = _hunt_stale_reads(swarm)
    rng = Random(f"http {seed}")  # a stream of its own: the runs without HTTP stay what they were
    return _over_http(swarm, rng) if rng.random() < 0.5 else swarm


def _over_http(swarm: Swarm, rng: Random) -> Swarm:
    live = LiveOptions(
        long_poll_timeout_ms=rng.choice((200, 700, 3_000)),
        sse_keep_alive_ms=rng.choice((300, 2_000)),
        sse_rotate_ms=rng.choice((500, 3_000, 20_000)),
        waiters_max=rng.choice((2, 1_000, 1_000)),
        fanout_readers_per_turn_max=rng.choice((1, 2, 256)),
    )
    service = ServiceOptions(
        request_timeout_ms=rng.choice((500, 2_000, 5_000)),
        response_bytes_max=rng.choice((100, 1_000, 1 << 20)),
        served_max=rng.choice((3, 1_000, 1_000)),
        live=live,
    )
    faults = swarm.faults if rng.random() < 0.5 else tuple(name for name in swarm.faults if name != "clock jump") or ("kill",)
    swarm = replace(
        swarm,
        http=True,
        service=service,
        tailers=rng.randint(1, 5),
        # A peer link is one connection: it may lose what it carries, but it never carries anything twice.
        duplication=0.0,
        faults=faults,
        skew_us=swarm.skew_us if rng.random() < 0.3 else (0,) * swarm.nodes,
        fork_share=rng.choice((0.0, 0.0, 0.05, 0.2)),
        publish_share=rng.choice((0.0, 0.0, 0.02, 0.1)),
        retention_share=rng.choice((0.0, 0.0, 0.3)),
        bucket_share=rng.choice((0.0, 0.0, 0.1, 0.3)),
        batch_share=rng.choice((0.0, 0.0, 0.1, 0.5)),
        key_share=rng.choice((0.0, 0.0, 0.2)),
        bootstrap_share=rng.choice((0.0, 0.0, 0.1, 0.3)),
    )
    if swarm.bucket_share > 0.2 and rng.random() < 0.5:  # deletes must meet creates within milliseconds: little else, and few that write
        swarm = replace(swarm, bucket_share=0.9, think_us=40_000, clients=8, fork_share=0.0, timeout_us=SECOND, duplication=0.0)
    return swarm


def _hunt_stale_reads(swarm: Swarm) -> Swarm:
    """Two leaders exist for a fraction of a second at a time, and a stale read needs an append and a read within it: impatient clients, many reads,
    leaders cut off again and again, and little else."""
    return replace(
        swarm,
        group_count=1,
        streams_per_group=1,
        clients=8,
        think_us=25_000,
        timeout_us=SECOND // 10,
        producer_share=0.0,
        read_share=0.5,
        net_delay_us=(100, 1_000),
        sync_us=(50, 500),
        loss=0.0,
        faults=("cut off a leader", "cut off a leader", "pause", *swarm.faults[:1]),
        fault_gap_us=2 * SECOND,
    )

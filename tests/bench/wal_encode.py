"""CPU cost of the shared log's hot path: stage + seal for 64 groups with one entry of 200 bytes each, no disk."""

import time

from anabranch_node.core.raft import entry
from anabranch_node.core.raft.records import EntriesAppended, HardState, SnapshotMark
from anabranch_node.wal.options import WalOptions
from anabranch_node.wal.wal import Wal
from anabranch_proto.ids import NodeIdentity

GROUPS = 64
BATCHES = 400
ROUNDS = 20
PAYLOAD_BYTES = 200


def run() -> dict[str, float]:
    """Microseconds of CPU per record, best of the rounds; `with_hard_state` adds a hard state record to every append."""
    return {
        "groups": GROUPS,
        "payload_bytes": PAYLOAD_BYTES,
        "batches": BATCHES,
        "us_per_record": min(_round(hard_state=False) for _ in range(ROUNDS)),
        "us_per_record_with_hard_state": min(_round(hard_state=True) for _ in range(ROUNDS)),
    }


def _round(hard_state: bool) -> float:
    wal = Wal(NodeIdentity("bench", 1, 1), WalOptions(), None)
    wal.open()
    for group in range(GROUPS):
        wal.stage(group, group + 1, SnapshotMark(0, 0, b"config", 1, 0))
        wal.stage(group, group + 1, HardState(1, 1, 0))
    wal.seal()
    block = entry.encode(1, entry.COMMANDS_V1, bytes(PAYLOAD_BYTES))
    cpu_s = 0.0
    for index in range(1, BATCHES + 1):
        records = [(group, group + 1, EntriesAppended(index, [block]), HardState(1, 1, index)) for group in range(GROUPS)]
        started = time.process_time()
        for group, replica, entries, hard in records:
            wal.stage(group, replica, entries)
            if hard_state:
                wal.stage(group, replica, hard)
        ticket, _ = wal.seal()
        wal.on_synced(ticket)
        cpu_s += time.process_time() - started
    return cpu_s / (BATCHES * GROUPS * (2 if hard_state else 1)) * 1e6


if __name__ == "__main__":
    print(run())

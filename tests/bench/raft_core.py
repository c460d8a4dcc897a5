"""Proposals/s of the Raft core alone: three replicas in one thread, messages handed over as objects, every sync immediate.

What is counted is the work of all three replicas: propose, replicate, acknowledge, commit, and the news of the commit to the followers. Each flush is
settled before the next proposal, so a batch of 1 shares nothing with its neighbours. Not here: bytes on the wire, the WAL, the state machine."""

import gc
import time
from random import Random

from anabranch_node.core.raft import entry, membership
from anabranch_node.core.raft.membership import Configuration
from anabranch_node.core.raft.raft import Raft, RaftOptions, Role
from anabranch_node.core.raft.records import HardState, SnapshotMark

REPLICAS = (1, 2, 3)
BATCHES = (1, 64)
PAYLOAD_BYTES = 256
PROPOSALS = {1: 8_000, 64: 128_000}
"""About half a second of CPU each."""


def run(scale: float) -> list[dict[str, float]]:
    """One round: a row per batch size. `scale` shortens it."""
    return [_measure(batch, max(1, int(PROPOSALS[batch] * scale) // batch)) for batch in BATCHES]


def _measure(batch: int, flushes: int) -> dict[str, float]:
    rafts = _elected()
    leader = rafts[0]
    payloads = [number.to_bytes(8, "little") + bytes(PAYLOAD_BYTES - 8) for number in range(batch * flushes)]
    gc.collect()
    gc.freeze()
    cpu_s = 0.0
    for first in range(0, len(payloads), batch):
        proposed = payloads[first : first + batch]
        index = leader.log.last_index + 1
        started = time.process_time()
        for payload in proposed:
            leader.propose(entry.COMMANDS_V1, payload)
        _settle(rafts)
        cpu_s += time.process_time() - started
        for raft in rafts:
            # Checked and let go at once, as a state machine would: kept, they would cost the kernel's time for new pages.
            applied = [(at, entry.payload_of(data)) for at, data in raft.committed]
            assert applied == list(enumerate(proposed, index)), f"replica {raft.id}: not each proposal once and in order"
            raft.committed.clear()
    gc.unfreeze()
    return {"batch": batch, "proposals": len(payloads), "proposals_per_s": len(payloads) / cpu_s, "cpu_us_per_proposal": cpu_s / len(payloads) * 1e6}


def _elected() -> list[Raft]:
    mark = SnapshotMark(0, 0, membership.encode(Configuration(voters=REPLICAS)), 1, 0)
    rafts = [Raft(replica, RaftOptions(), Random(replica), 1, HardState(0, 0, 0), mark, []) for replica in REPLICAS]
    while rafts[0].role is not Role.LEADER:
        rafts[0].tick()
        _settle(rafts)
    for raft in rafts:
        raft.committed.clear()
    return rafts


def _settle(rafts: list[Raft]) -> None:
    """Flush, sync and deliver until nobody has anything left to say. What was committed stays in the replicas' lists."""
    busy = [True] * len(rafts)
    while True in busy:
        for position, raft in enumerate(rafts):
            if not busy[position]:
                continue
            busy[position] = False
            raft.flush()
            messages, raft.send_now = raft.send_now, []
            if raft.persist:
                raft.persist.clear()
                raft.synced(raft.log.last_index, raft.log.last_term, raft.term)
                busy[position] = True
            if raft.send_after_sync:
                messages += raft.send_after_sync
                raft.send_after_sync = []
            for m in messages:
                rafts[m.to - 1].step(m)
                busy[m.to - 1] = True

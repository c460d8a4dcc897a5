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
    rafts, applied = _elected()
    leader = rafts[0]
    before = leader.log.last_index
    payloads = [number.to_bytes(8, "little") + bytes(PAYLOAD_BYTES - 8) for number in range(batch * flushes)]
    gc.collect()
    gc.freeze()
    started = time.process_time()
    for first in range(0, len(payloads), batch):
        for payload in payloads[first : first + batch]:
            leader.propose(entry.COMMANDS_V1, payload)
        _settle(rafts, applied)
    cpu_s = time.process_time() - started
    gc.unfreeze()
    for taken in applied:
        assert [index for index, _ in taken] == list(range(1, before + len(payloads) + 1)), "every replica applies each index once, in order"
        assert [entry.payload_of(data) for _, data in taken[before:]] == payloads, "what is applied is what was proposed"
    return {"batch": batch, "proposals": len(payloads), "proposals_per_s": len(payloads) / cpu_s, "cpu_us_per_proposal": cpu_s / len(payloads) * 1e6}


def _elected() -> tuple[list[Raft], list[list[tuple[int, bytes]]]]:
    mark = SnapshotMark(0, 0, membership.encode(Configuration(voters=REPLICAS)), 1, 0)
    rafts = [Raft(replica, RaftOptions(), Random(replica), 1, HardState(0, 0, 0), mark, []) for replica in REPLICAS]
    applied: list[list[tuple[int, bytes]]] = [[] for _ in rafts]
    while rafts[0].role is not Role.LEADER:
        rafts[0].tick()
        _settle(rafts, applied)
    return rafts, applied


def _settle(rafts: list[Raft], applied: list[list[tuple[int, bytes]]]) -> None:
    """Flush, sync and deliver until nobody has anything left to say."""
    busy = set(rafts)
    while busy:
        turn, busy = [raft for raft in rafts if raft in busy], set()
        for raft in turn:
            raft.flush()
            messages, raft.send_now = raft.send_now, []
            if raft.persist:
                raft.persist.clear()
                raft.synced(raft.log.last_index, raft.log.last_term, raft.term)
                busy.add(raft)
            if raft.send_after_sync:
                messages += raft.send_after_sync
                raft.send_after_sync = []
            for m in messages:
                receiver = rafts[m.to - 1]
                receiver.step(m)
                busy.add(receiver)
            if raft.committed:
                applied[raft.id - 1] += raft.committed
                raft.committed.clear()

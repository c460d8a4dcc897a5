"""What a node may still hold when all is quiet: nothing that waits, no slot, no transfer, a bounded log, and no file that nobody needs. world.py asks
at the end of a run, again and again: timers may first run out, but they must.

Looks into the host and onto its disk; changes nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anabranch_node.engine.group import Group
    from tests.sim.sim_node import SimNode

_SNAPSHOT = re.compile(r"data/snapshots/(\d+)/(\d+)-(\d+)-(\d+)\.snap(\.\w+)?")


def why_busy(node: SimNode) -> str:
    """ "": it holds no more than it should."""
    if not node.up:
        return f"node {node.number} is down"
    host = node.host
    for group in host.groups.values():
        what = _waiting_in(group)
        if what:
            return f"node {node.number}, group {group.id}, replica {group.replica}: {what}"
    if host._slots.free != host.options.snapshots_at_once_max:
        return f"node {node.number}: {host._slots.free} of {host.options.snapshots_at_once_max} snapshot slots are free"
    if host._awaiting or host._reads:
        return f"node {node.number}: {len(host._awaiting)} flushes and {len(host._reads)} reads still wait for the disk"
    if node.world.swarm.http:
        what = _waiting_in_service(node)
        if what:
            return f"node {node.number}: {what}"
    segments_max = 2 * host._wal.options.segments_live_max + 2
    if len(host._wal.segments) > segments_max:
        return f"node {node.number}: {len(host._wal.segments)} segments, more than {segments_max}"
    return _left_on_disk(node)


def _waiting_in(group: Group) -> str:
    snapshots = group.snapshots
    if group.fenced:
        return f"is fenced and nobody replaced it: {group.fenced}"
    if group.waiters or group._tokens:
        return f"{len(group.waiters)} waiters and {len(group._tokens)} queued commands"
    if group._reads or group._confirmed:
        return f"{len(group._reads)} reads, {len(group._confirmed)} of them confirmed"
    if snapshots.sending:
        return f"snapshots on their way to {sorted(snapshots.sending)}"
    if snapshots._taking is not None or snapshots._loading is not None:
        return "a snapshot is being written or loaded"
    return ""


def _waiting_in_service(node: SimNode) -> str:
    service = node.service
    live = service.live
    held = {
        "lives": service._lives,
        "parked requests": service._parked,
        "requests of other nodes": service._served_count,
        "forwarded requests": service.forwarding._asked,
        "parts of listings": service._listings._of_part,
        "live readers": service.live_count or len(live._place) + len(live.streaming),
        "pieces for live readers": live._pieces,
        "requests about buckets": service.buckets._clients or service.buckets._deciding,
        "watched streams": [stream for watched in live._watched.values() for stream in watched],
    }
    return next((f"{name} are left: {what}" for name, what in held.items() if what), "")


def left_behind(node: SimNode) -> str:
    """After a turn: does a live reader wait behind what its own replica has applied, and nothing is under way to it?"""
    live = node.service.live
    if not live._place or live._again or node.turn_again:
        return ""
    for token, (group_id, stream, (offset, _)) in live._place.items():
        group = node.host.groups.get(group_id)
        found = group.machine._table.streams.get(stream) if group is not None and not group.fenced else None
        if found is not None and found.tail > offset:
            return f"node {node.number}: the reader {token} of {stream} waits at {offset}, the tail is {found.tail}"
    return ""


def _left_on_disk(node: SimNode) -> str:
    """Of each live replica: the snapshot that its mark names; one newer that a crash left before its mark, or one that is arriving; nothing else."""
    marks = {(group.id, group.replica): (group.raft.log.snapshot_index, group.raft.log.snapshot_term) for group in node.host.groups.values()}
    newer: set[tuple[int, int, str]] = set()
    named: set[tuple[int, int]] = set()
    for path, _ in node.fs.files():
        match = _SNAPSHOT.fullmatch(path)
        if match is None:
            continue
        key, place, suffix = (int(match[1]), int(match[2])), (int(match[3]), int(match[4])), match[5] or ""
        if key not in marks:
            return f"node {node.number}: {path} belongs to no replica here"
        if place == marks[key] and not suffix:
            named.add(key)
        elif place < marks[key]:
            return f"node {node.number}: {path} is older than the snapshot that the log stands on, {marks[key]}"
        elif (*key, suffix) in newer:
            return f"node {node.number}: {path} is one too many"
        else:
            newer.add((*key, suffix))
    for key, mark in marks.items():
        if mark[0] and key not in named:
            return f"node {node.number}: the snapshot {mark} of group {key[0]}, replica {key[1]} is not there"
    return ""

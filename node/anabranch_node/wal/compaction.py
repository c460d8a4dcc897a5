"""Which replicas keep the oldest segment alive, and the cheaper way to change that: write their entries again, or ask for a snapshot.

wal.py asks once there are more live segments than it wants. Segments go strictly from the oldest on, so a gap in the files is damage.
Copying pays only when it frees more than it writes: at most half a segment is copied to free one, else the log would chase its own tail."""

from typing import NamedTuple

from anabranch_node.wal.location import Location, to_locations
from anabranch_node.wal.options import WalOptions
from anabranch_node.wal.replica import Extent, Replica


class Pinned(NamedTuple):
    """A snapshot through `last_index`, and a log cut behind it, would take this replica out of the oldest segment."""

    group: int
    replica: int
    last_index: int


class Plan(NamedTuple):
    segment: int
    groups_to_snapshot: list[Pinned]
    to_copy: list[tuple[int, int]]

    def copies(self, replicas: dict[tuple[int, int], Replica], bytes_max: int) -> list[Location]:
        """One round: at least one record, else at most `bytes_max`."""
        found: list[Location] = []
        left = bytes_max
        for key in self.to_copy:
            extents: list[Extent] = []
            for extent in replicas[key].within(self.segment):
                if (found or extents) and extent.length > left:
                    return found + to_locations(*key, extents)
                left -= extent.length
                extents.append(extent)
            found += to_locations(*key, extents)
        return found


def plan_compaction(replicas: dict[tuple[int, int], Replica], oldest: int, segments: int, options: WalOptions) -> Plan:
    """Largest first: snapshots until what remains is little enough to copy. Copies start only when no snapshot is awaited, since a cut may
    spare them. With twice the segments we want, and half of them dead, everything is copied: a group without a quorum, or a fenced one, cannot cut
    its log, and must not fill the disk for all others."""
    pinning = sorted(((held.live[oldest], key) for key, held in replicas.items() if oldest in held.live), reverse=True)
    live_bytes = sum(sum(held.live.values()) for held in replicas.values())
    if segments > 2 * options.segments_live_max and live_bytes < segments * options.segment_bytes // 2:
        wishes = [Pinned(*key, replicas[key].within(oldest)[-1].last_index) for _, key in pinning]
        return Plan(oldest, wishes, [key for _, key in reversed(pinning)])
    few = options.copy_forward_bytes_max
    left = sum(size for size, _ in pinning)
    to_snapshot: list[Pinned] = []
    to_copy: list[tuple[int, int]] = []
    for size, key in pinning:
        if size > few or left > options.segment_bytes // 2:
            to_snapshot.append(Pinned(*key, replicas[key].within(oldest)[-1].last_index))
            left -= size
        else:
            to_copy.append(key)
    return Plan(oldest, to_snapshot, [] if to_snapshot else to_copy)

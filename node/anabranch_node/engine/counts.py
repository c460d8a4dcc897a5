"""What the groups of this node have done since it started, in plain integers. Before us: group.py and snapshots.py count. After us: the driver reads
us at a scrape (drivers/telemetry.py).

One object for all groups, so that a replica that leaves takes nothing with it: a counter never falls. Not here: names, units and buckets as they are
exported; clocks finer than the turn's."""

COMMIT_BITS_MAX = 16
"""32.8 s and more: an entry that waits longer waits for a quorum, not for a disk."""


class Counts:
    __slots__ = ("commit_ms", "commits", "elections_before", "snapshots")

    def __init__(self) -> None:
        self.commits = [0] * (COMMIT_BITS_MAX + 1)
        """Entries by the bit length of the milliseconds from proposal to commit: those at [n] took less than 2 ** n ms, the last ones any time."""
        self.commit_ms = 0
        self.snapshots = 0  # files of our own that are durable
        self.elections_before = 0  # of replicas that are gone; those of the others are in their Raft

    def committed(self, took_ms: int) -> None:
        """Once per entry. Both ends are the start of a turn, in whole milliseconds: wrong by less than one of them, and right on average."""
        if took_ms < 1:  # below 0: the clock was set back
            self.commits[0] += 1
            return
        bits = took_ms.bit_length()
        self.commits[bits if bits < COMMIT_BITS_MAX else COMMIT_BITS_MAX] += 1
        self.commit_ms += took_ms

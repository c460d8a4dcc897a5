"""What can be tuned in the shared log. Part of the node's frozen configuration."""

from dataclasses import dataclass

from anabranch_node.wal.batch import SECTOR

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class WalOptions:
    segment_bytes: int = 64 * MIB
    """Size of a segment file. May change between runs: each file knows its own."""
    segments_live_max: int = 8
    """With more segments than this, the oldest is emptied: copied forward where little is live, by snapshots where much is."""
    copy_forward_bytes_max: int = 1 * MIB
    """A replica with at most this much in the oldest segment is copied, one with more should take a snapshot. Also bounds the copies under way."""

    def __post_init__(self) -> None:
        if self.segment_bytes % SECTOR or not 8 * SECTOR <= self.segment_bytes < 1 << 32:
            raise ValueError(f"wal segment_bytes must be a multiple of {SECTOR} from {8 * SECTOR} up to 4 GiB, not {self.segment_bytes}")
        if self.segments_live_max < 2:
            raise ValueError(f"wal segments_live_max must be at least 2, not {self.segments_live_max}")
        if self.copy_forward_bytes_max < 0:
            raise ValueError(f"wal copy_forward_bytes_max must not be negative, is {self.copy_forward_bytes_max}")

    @property
    def entry_bytes_max(self) -> int:
        """The largest entry that always fits: the other half of a segment is left to its checkpoint and the batch header."""
        return self.segment_bytes // 2

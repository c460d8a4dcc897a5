"""What one Raft member asks to have made durable, in order. Raft fills `persist` with these; wal/wal.py turns them into records.

Replaying a member's records in order gives its state again; a prefix of them gives an earlier state of the same member."""

from typing import NamedTuple


class HardState(NamedTuple):
    """Term and vote, which must never be forgotten; commit, which may be (it is only a hint after a restart)."""

    term: int
    vote: int  # replica id voted for in `term`, 0 for none
    commit: int


class EntriesAppended(NamedTuple):
    """Entries first_index, first_index + 1, ... Always continues the log; what was there before was truncated by its own record."""

    first_index: int
    entries: list[bytes]


class LogTruncated(NamedTuple):
    """Every entry at from_index and above is gone."""

    from_index: int


class SnapshotMark(NamedTuple):
    """A durable snapshot covers the log through `index`; entries below `first_index` are no longer needed.

    first_index <= index + 1: a tail below the snapshot is kept for slow followers. `prev_term` is the term of entry first_index - 1.
    A newly created replica starts with SnapshotMark(0, 0, config, 1, 0). If the log ends below first_index (a snapshot was
    installed over it), the whole log is replaced: what remains starts empty at first_index."""

    index: int  # type: ignore[assignment]
    term: int
    config: bytes
    first_index: int
    prev_term: int


class Destroyed(NamedTuple):
    """The replica left its group for ever. Its id is never revived from this disk."""


Record = HardState | EntriesAppended | LogTruncated | SnapshotMark | Destroyed

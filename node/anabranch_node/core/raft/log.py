"""One replica's log: terms and entry bytes in parallel lists. follower.py and leader.py write it; raft.py hands out what is committed.

    prev_term | first_index ... snapshot_index ... applied ... committed ... last_index

Entries below first_index are gone (a snapshot covers them). Entries far below the tail may have left memory (None): the WAL still has them.
`stable` is the last index known to be fsynced here; nobody counts this replica beyond it."""

from itertools import pairwise

from anabranch_node.core.raft import entry as entries_of
from anabranch_node.core.raft.errors import InvariantBroken


class Log:
    __slots__ = (
        "committed",
        "entries",
        "first_index",
        "last_index",
        "memory_bytes",
        "prev_term",
        "resident_from",
        "snapshot_index",
        "snapshot_term",
        "stable",
        "terms",
    )

    def __init__(self, first_index: int, prev_term: int, snapshot_index: int, snapshot_term: int, entries: list[bytes], commit_hint: int) -> None:
        if snapshot_index + 1 < first_index or snapshot_index > first_index + len(entries) - 1:
            raise InvariantBroken(f"snapshot at {snapshot_index} does not fit a log of {first_index}..{first_index + len(entries) - 1}")
        self.first_index = first_index
        self.prev_term = prev_term
        self.snapshot_index = snapshot_index
        self.snapshot_term = snapshot_term
        self.entries: list[bytes | None] = list(entries)
        self.terms = [entries_of.term_of(entry) for entry in entries]
        self.last_index = first_index + len(entries) - 1
        if any(after < before for before, after in pairwise([prev_term, *self.terms])):
            raise InvariantBroken(f"terms go down in the log of {first_index}..{self.last_index}")
        if commit_hint > self.last_index:
            raise InvariantBroken(f"committed through {commit_hint}, but the log ends at {self.last_index}")
        self.stable = self.last_index
        self.committed = max(snapshot_index, commit_hint)
        self.memory_bytes = sum(map(len, entries))
        self.resident_from = first_index

    @property
    def last_term(self) -> int:
        return self.terms[-1] if self.terms else self.prev_term

    def term_at(self, index: int) -> int | None:
        """The term of the entry at `index`; None where this log cannot know it."""
        position = index - self.first_index
        if 0 <= position < len(self.terms):
            return self.terms[position]
        return self.prev_term if position == -1 else None

    def matches(self, index: int, term: int) -> bool:
        return self.term_at(index) == term

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Is a candidate with that tail at least as complete as we are?"""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def append(self, entry: bytes) -> None:
        self.entries.append(entry)
        self.terms.append(entries_of.term_of(entry))
        self.memory_bytes += len(entry)
        self.last_index += 1

    def truncate(self, from_index: int) -> None:
        if from_index <= self.committed:
            raise InvariantBroken(f"truncation at {from_index} would undo what is committed through {self.committed}")
        position = from_index - self.first_index
        self.memory_bytes -= sum(len(entry) for entry in self.entries[position:] if entry is not None)
        del self.entries[position:]
        del self.terms[position:]
        self.last_index = from_index - 1
        self.stable = min(self.stable, from_index - 1)
        self.resident_from = min(self.resident_from, from_index)

    def commit_to(self, index: int) -> bool:
        if index <= self.committed:
            return False
        if index > self.last_index:
            raise InvariantBroken(f"commit {index} is past the last entry {self.last_index}: was this log lost or cut?")
        self.committed = index
        return True

    def stable_to(self, index: int, term: int) -> bool:
        """The disk has (index, term). Ignored if that entry was truncated meanwhile: its successor reports for itself."""
        if index <= self.stable or not self.matches(index, term):
            return False
        self.stable = index
        return True

    def slice(self, from_index: int, bytes_max: int) -> list[bytes] | None:
        """Entries from `from_index` on, at most bytes_max but at least one. None: they left memory."""
        if from_index < self.resident_from:
            return None
        taken: list[bytes] = []
        total = 0
        for position in range(from_index - self.first_index, len(self.entries)):
            entry = self.entries[position]
            assert entry is not None, (from_index, self.resident_from)
            total += len(entry)
            if taken and total > bytes_max:
                break
            taken.append(entry)
        return taken

    def conflict_hint(self, index: int, term: int) -> tuple[int, int]:
        """The highest (index, term) of ours, at or below `index`, whose term is at most `term`: above it the two logs cannot agree."""
        index = min(index, self.last_index)
        while index >= self.first_index and self.terms[index - self.first_index] > term:
            index -= 1
        return index, self.term_at(index) or 0

    def mark_snapshot(self, index: int, first_index: int) -> None:
        """A durable snapshot covers us through `index`: forget entries below `first_index`."""
        assert self.snapshot_index <= index <= self.committed, (self.snapshot_index, index, self.committed)
        term = self.term_at(index)
        assert term is not None, (index, self.first_index)
        self.snapshot_index, self.snapshot_term = index, term
        if first_index > self.first_index:
            prev_term = self.term_at(first_index - 1)
            assert prev_term is not None, (first_index, self.first_index)
            cut = first_index - self.first_index
            self.memory_bytes -= sum(len(entry) for entry in self.entries[:cut] if entry is not None)
            del self.entries[:cut]
            del self.terms[:cut]
            self.first_index, self.prev_term = first_index, prev_term
            self.resident_from = max(self.resident_from, first_index)

    def reset_to_snapshot(self, index: int, term: int) -> None:
        """Everything we had is replaced by an installed snapshot."""
        assert index > self.committed, (index, self.committed)
        self.first_index, self.prev_term = index + 1, term
        self.snapshot_index, self.snapshot_term = index, term
        self.entries, self.terms = [], []
        self.last_index = index
        self.committed = self.stable = index
        self.memory_bytes = 0
        self.resident_from = index + 1

    def leave_memory(self, bytes_max: int, applied: int) -> None:
        """Let go of the oldest entries that are applied and on disk until at most bytes_max stay."""
        limit = min(applied, self.stable)
        while self.memory_bytes > bytes_max and self.resident_from <= limit:
            position = self.resident_from - self.first_index
            entry = self.entries[position]
            assert entry is not None
            self.memory_bytes -= len(entry)
            self.entries[position] = None
            self.resident_from += 1

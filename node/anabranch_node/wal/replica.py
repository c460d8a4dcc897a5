"""What the shared log knows of one replica: hard state, snapshot mark, and where each live entry lies on the disk.

wal.py keeps one per replica and updates it as records are written; recovery.py builds it again. Extents are whole records; together
they cover the live log without a hole, so an extent ends where the next one starts. Three flat arrays, 20 bytes per record, because a
node may hold a million of them. Not here: the entries themselves."""

from array import array
from bisect import bisect_right
from typing import NamedTuple

from anabranch_node.core.raft.records import HardState, SnapshotMark
from anabranch_node.wal.segment import ReplicaState


class Extent(NamedTuple):
    """Live entries first_index..last_index lie in the record at this place (which may hold dead ones before and after them)."""

    first_index: int
    last_index: int
    segment: int
    offset: int
    length: int


class Replica:
    __slots__ = ("group", "replica", "hard", "mark", "last_index", "fenced", "live", "_firsts", "_places", "_lengths")

    def __init__(self, group: int, replica: int) -> None:
        self.group = group
        self.replica = replica
        self.hard: HardState | None = None
        self.mark: SnapshotMark | None = None
        self.last_index = 0
        self.fenced = ""
        self.live: dict[int, int] = {}
        """Segment -> bytes of live records in it. A segment listed here is pinned by this replica."""
        self._firsts = array("Q")
        self._places = array("Q")  # segment << 32 | offset
        self._lengths = array("I")

    def state(self) -> ReplicaState:
        return ReplicaState(self.group, self.replica, self.hard, self.mark, self.last_index, self.fenced)

    def append(self, first_index: int, count: int, segment: int, offset: int, length: int) -> bool:
        """Entries that continue the log. True if this replica did not pin the segment before."""
        last_index = self.last_index
        assert first_index == last_index + 1 and self.mark is not None, (self.state(), first_index)
        self.last_index = last_index + count
        self._firsts.append(first_index)
        self._places.append(segment << 32 | offset)
        self._lengths.append(length)
        live = self.live
        if segment in live:
            live[segment] += length
            return False
        live[segment] = length
        return True

    def truncate(self, from_index: int) -> list[int]:
        """Forget entries from here on; returns the segments that are no longer pinned. So do `cut`, `move` and `clear`."""
        assert self.mark is not None and from_index > self.mark.index, (self.state(), from_index)
        released: list[int] = []
        keep = len(self._firsts)
        while keep and self._firsts[keep - 1] >= from_index:
            keep -= 1
            self._release(keep, released)
        self._keep(0, keep)
        self.last_index = min(self.last_index, from_index - 1)
        return released

    def cut(self, mark: SnapshotMark) -> list[int]:
        """Forget entries below mark.first_index; if the log ends below it, the log is replaced by an empty one that starts there."""
        assert mark.first_index <= mark.index + 1, mark
        assert self.mark is None or (mark.first_index >= self.mark.first_index and mark.index >= self.mark.index), (self.state(), mark)
        released: list[int] = []
        if self.last_index < mark.first_index:
            start = len(self._firsts)
            self.last_index = mark.first_index - 1
        else:
            start = bisect_right(self._firsts, mark.first_index) - 1
        for place in range(start):
            self._release(place, released)
        self._keep(start, len(self._firsts))
        assert self.last_index >= mark.index, (self.state(), mark)
        self.mark = mark
        return released

    def move(self, extent: Extent, segment: int, offset: int, length: int) -> tuple[bool, list[int]]:
        """The live entries of `extent`, as `still_live` gave it, now lie in another record. (newly pinned, segments released)"""
        place = bisect_right(self._firsts, extent.first_index) - 1
        assert self.extent(place) == extent, (self.state(), extent)
        released: list[int] = []
        self._release(place, released)
        self._firsts[place] = extent.first_index
        self._places[place] = segment << 32 | offset
        self._lengths[place] = length
        fresh = segment not in self.live
        self.live[segment] = self.live.get(segment, 0) + length
        return fresh, released

    def clear(self) -> list[int]:
        released = list(self.live)
        self.live.clear()
        self._keep(0, 0)
        return released

    def __len__(self) -> int:
        return len(self._firsts)

    def extent(self, place: int) -> Extent:
        """By position; only its live entries."""
        assert self.mark is not None
        first = self._firsts[place] if place else max(self._firsts[0], self.mark.first_index)
        last = self._firsts[place + 1] - 1 if place + 1 < len(self._firsts) else self.last_index
        where = self._places[place]
        return Extent(first, last, where >> 32, where & 0xFFFFFFFF, self._lengths[place])

    def find(self, index: int) -> int | None:
        """Position of the extent that holds a live entry."""
        if self.mark is None or not self.mark.first_index <= index <= self.last_index or not self._firsts:
            return None
        return bisect_right(self._firsts, index) - 1

    def still_live(self, extent: Extent) -> Extent | None:
        """What is live now of an extent that was live once. None if its record holds none of it any more, or if it lies elsewhere."""
        place = self.find(max(extent.first_index, self.mark.first_index)) if self.mark else None
        if place is None:
            return None
        now = self.extent(place)
        if now[2:] != extent[2:] or now.first_index > extent.last_index:
            return None
        return now._replace(first_index=max(now.first_index, extent.first_index), last_index=min(now.last_index, extent.last_index))

    def within(self, segment: int) -> list[Extent]:
        """The extents in one segment, in order of index."""
        found: list[Extent] = []
        left = self.live.get(segment, 0)
        for place, where in enumerate(self._places):
            if left <= 0:
                break
            if where >> 32 == segment:
                found.append(self.extent(place))
                left -= self._lengths[place]
        return found

    def _release(self, place: int, released: list[int]) -> None:
        segment = self._places[place] >> 32
        left = self.live[segment] - self._lengths[place]
        if left:
            self.live[segment] = left
        else:
            del self.live[segment]
            released.append(segment)

    def _keep(self, start: int, stop: int) -> None:
        for flat in (self._firsts, self._places, self._lengths):
            del flat[stop:]
            del flat[:start]

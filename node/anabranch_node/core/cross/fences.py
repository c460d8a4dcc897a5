"""Which buckets a group may create streams in: those that it was told are open (BucketOpen), until it is told of its delete (BucketFence).

Before us: service/buckets.py asks the meta group after a create was refused with BucketUnknown, and opens the bucket here; service/cross.py fences
the buckets that are being deleted. After us: stream/lifecycle.py calls check() before it makes a stream.
Indexes are the meta group's. An open is as old as the look behind it: one below the highest fence here, of any bucket, may have been overtaken by a
delete of its bucket, so it is refused and asked again. So a group needs to remember one number, not every bucket that ever was.
Not here: the buckets themselves (cluster/buckets.py). The count of a bucket's streams is the table's (stream/table.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from anabranch_node.core.stream.commands import BucketFence, BucketOpen
from anabranch_node.core.stream.results import BucketFenced, BucketOpened, BucketUnknown, StaleOpen

if TYPE_CHECKING:
    from anabranch_node.core.stream.table import StreamTable


class FencesState(NamedTuple):
    """`opened` in the order of the opens, which is part of the state."""

    highest: int
    opened: list[tuple[str, int]]


class Fences:
    """Bounded by the buckets that exist (BUCKETS_MAX): a bucket is deleted only after it was fenced everywhere."""

    __slots__ = ("highest", "opened")

    def __init__(self, state: FencesState = FencesState(0, [])) -> None:  # noqa: B008
        self.highest = state.highest
        """Index of the latest delete of any bucket that this group has heard of."""
        self.opened = dict(state.opened)
        """Bucket -> as of which index it was known to be open."""

    def state(self) -> FencesState:
        return FencesState(self.highest, list(self.opened.items()))


def bucket_of(stream: str) -> str:
    return stream.partition("/")[0]


def check(table: StreamTable, stream: str) -> BucketUnknown | None:
    """Why no stream of that name may be made now. For every create, also one that would find its stream."""
    bucket = bucket_of(stream)
    return None if bucket in table.fences.opened else BucketUnknown(bucket)


def open_bucket(table: StreamTable, command: BucketOpen, now_ms: int) -> BucketOpened | StaleOpen:
    fences = table.fences
    if command.meta_index < fences.highest:
        return StaleOpen()
    fences.opened[command.bucket] = max(command.meta_index, fences.opened.get(command.bucket, 0))
    return BucketOpened()


def fence_bucket(table: StreamTable, command: BucketFence, now_ms: int) -> BucketFenced:
    """Also a late one, of a delete that is decided by now: whoever creates next asks the meta group again and opens."""
    fences = table.fences
    fences.highest = max(fences.highest, command.meta_index)
    fences.opened.pop(command.bucket, None)
    return BucketFenced(table.bucket_counts.get(command.bucket, 0))

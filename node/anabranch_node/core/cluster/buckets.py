"""Which buckets there are, as the meta group knows them. Held by machine.py, beside the view: nodes are not sent a hundred thousand names.

A bucket is OPEN, or DELETING since some index of the meta group's log: then every group is fenced (core/cross/fences.py), and what they count
decides (service/cross.py): BucketDeleted or BucketRestored, which name that index, so that an order of an earlier round changes nothing.
An index here is a place in that log: of a command, not only of its entry. What one entry says of a bucket before and after its delete must differ.
Not here: which group has heard of which bucket."""

from typing import Final

from msgspec import Struct

from anabranch_node.core.cluster.commands import BucketCreate, BucketDelete, BucketDeleted, BucketRestored
from anabranch_node.core.cluster.results import BucketAbsent, BucketReserved, BucketResult, BucketState, BucketStateName, TooManyBuckets

DEFAULT_BUCKET: Final = "_default"
"""Made by init and never deleted: streams without a bucket of their own live in it."""
BUCKETS_MAX: Final = 100_000
"""About 20 MB of state in the meta group, and as many names that each group may have to remember as opened."""
COMMANDS_PER_ENTRY_MAX: Final = 1 << 16


def place_of(index: int, command: int) -> int:
    """The place of the command of that number in the entry at `index`."""
    assert command < COMMANDS_PER_ENTRY_MAX, command
    return index << 16 | command


def place_behind(index: int) -> int:
    """Behind every command of the entry at `index`: what a look at applied state speaks of."""
    return place_of(index, COMMANDS_PER_ENTRY_MAX - 1)


class Bucket(Struct, frozen=True, array_like=True, gc=False):
    name: str
    state: BucketStateName
    created_index: int
    since_index: int
    """Of the command that brought it into this state."""
    created_ms: int


class Buckets:
    """In the order in which they were made, which is part of the state: the same on every replica, restored or not."""

    __slots__ = ("_by_name", "_deleting")

    def __init__(self, buckets: list[Bucket]) -> None:
        self._by_name = {bucket.name: bucket for bucket in buckets}
        self._deleting = {bucket.name: bucket for bucket in buckets if bucket.state == "deleting"}

    def rows(self) -> list[Bucket]:
        return list(self._by_name.values())

    def deleting(self) -> list[Bucket]:
        return list(self._deleting.values())

    def make_default(self, index: int, now_ms: int) -> None:
        self._put(Bucket(DEFAULT_BUCKET, "open", index, index, now_ms))

    def create(self, command: BucketCreate, index: int, now_ms: int) -> BucketResult:
        name = command.bucket
        if name in self._by_name:
            return self.look(name, index)
        if len(self._by_name) >= BUCKETS_MAX:
            return TooManyBuckets(name, BUCKETS_MAX)
        self._put(Bucket(name, "open", index, index, now_ms))
        return self.look(name, index)

    def delete(self, command: BucketDelete, index: int) -> BucketResult:
        """One that is being deleted already is so once: whoever asks later waits for the same decision."""
        name = command.bucket
        if name == DEFAULT_BUCKET:
            return BucketReserved(name)
        bucket = self._by_name.get(name)
        if bucket is not None and bucket.state == "open":
            self._put(Bucket(name, "deleting", bucket.created_index, index, bucket.created_ms))
        return self.look(name, index)

    def deleted(self, command: BucketDeleted, index: int) -> BucketResult:
        if self._is_round(command.bucket, command.index):
            del self._by_name[command.bucket], self._deleting[command.bucket]
        return self.look(command.bucket, index)

    def restored(self, command: BucketRestored, index: int) -> BucketResult:
        name = command.bucket
        if self._is_round(name, command.index):
            bucket = self._by_name[name]
            del self._deleting[name]
            self._put(Bucket(name, "open", bucket.created_index, index, bucket.created_ms))
        return self.look(name, index)

    def look(self, name: str, index: int) -> BucketState | BucketAbsent:
        bucket = self._by_name.get(name)
        if bucket is None:
            return BucketAbsent(name, index)
        return BucketState(name, bucket.state, bucket.created_index, bucket.since_index, index, bucket.created_ms)

    def _is_round(self, name: str, index: int) -> bool:
        bucket = self._deleting.get(name)
        return bucket is not None and bucket.since_index == index

    def _put(self, bucket: Bucket) -> None:
        self._by_name[bucket.name] = bucket
        if bucket.state == "deleting":
            self._deleting[bucket.name] = bucket
